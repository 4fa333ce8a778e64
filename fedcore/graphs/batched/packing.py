"""Packing: the argument values of a call's clients as a few flat tensors.

In:  for each client its leaves (tensors and `Columns`) and its seed. Out: the tensors that `realize_batched` takes, by
the `schedule` of the call.

    seeds    int64 [lanes]     seed of each lane; 0 for an empty lane
    lane_of  int64 [capacity]  lane of each client of the call, -1 for absent clients
    tensors  [lanes, …]        of a tensor leaf
    columns, index, sizes      of a sequence leaf, see `row_layouts`
"""

import functools
import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.row_layouts import (
    ABSENT,
    CONCATENATED,
    concatenate_columns,
    pad_rows,
)
from fedcore.graphs.batched.schedule import Schedule, ScheduleRules, schedule_clients
from fedcore.graphs.sequences.columns import Columns, Rows
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.graphs.tensors.shared_memory import tensor_of
from fedcore.types.immutable_arrays import aligned_empty, frozen

REMEMBERED_KEYS = 1024
"""Number of keys seen once that a packing cache remembers."""

PackingCache = IdentityCache[tuple]
"""Cache of packed tensors by the identities of the columns; columns of a dataset are immutable."""


def packing_cache(max_bytes: int) -> PackingCache:
    """Cache that stores a packing at its second use, since most cohorts are used once."""
    return IdentityCache(
        max_bytes,
        lambda items: sum(size_bytes(t) for t in items if isinstance(t, tf.Tensor)),
        remembered=REMEMBERED_KEYS,
    )


def size_bytes(tensor: tf.Tensor) -> int:
    return tensor.dtype.size * math.prod(tensor.shape)


def pack_clients(
    leaves: ClientLeaves,
    positions: SequenceOf[int],
    seeds: np.ndarray,
    numbers: SequenceOf[int],
    rules: ScheduleRules,
    *,
    capacity: int,
    cache: PackingCache,
) -> tuple[Schedule, list]:
    """The schedule and the flat tensors of a call: seeds of the lanes, lane of each client, then those of each leaf.

    Args:
        leaves: leaves of the present clients.
        positions: position of each present client within the call; clients at other positions are absent.
        seeds: int64, seed of each present client.
        numbers: number of each leaf among the leaves of the call's arguments, by which random pipelines draw.
        rules: of the plan, for the schedule.
        capacity: number of clients of a full call, present and absent.
        cache: cache for the tensors that do not depend on the seeds: packed columns, and the schedule too if no reading
            order depends on a seed.
    """

    def arrange() -> tuple:
        """The schedule, the lane of each client, then two tensors for each sequence: its index, its sizes."""
        orders = leaves.orders(seeds, numbers)
        schedule = schedule_clients(leaves, orders, rules, positions, capacity)
        rows, tensors = schedule.layout.rows, [schedule.lane_of]
        for i, columns in leaves.sequences.items():
            tensors += [rows.pack_index(schedule.lanes(i), columns, orders[i]), schedule.sizes[i]]
        return schedule, *tensors

    if leaves.is_seed_independent:
        ((position, columns),) = leaves.sequences.items()  # such leaves hold one sequence
        key = ("lanes", position, len(leaves.each[0]), tuple(positions), capacity, rules)
        make = functools.partial(_as_tensors, arrange)
        schedule, lane_of, *indices_and_sizes = cache.get(key, columns, make, leaves.identities[position])
    else:
        schedule, lane_of, *indices_and_sizes = arrange()
    client_of_lane = schedule.clients
    tensors: list = [np.where(client_of_lane == ABSENT, 0, seeds[client_of_lane]), lane_of]
    for position in range(len(leaves.each[0])):
        if position not in leaves.sequences:
            # An empty lane gets the values of client 0, since it computes with some.
            tensors.append(_stack([leaves.each[c][position] for c in np.maximum(client_of_lane, 0).tolist()]))
            continue
        columns, lanes, rows = leaves.sequences[position], schedule.lanes(position), schedule.layout.rows
        pack = functools.partial(_as_tensors, functools.partial(rows.pack_columns, lanes, columns))
        packed = cache.get(rows.columns_key(lanes), columns, pack, leaves.identities[position])
        index, sizes, *indices_and_sizes = indices_and_sizes
        tensors.extend([*packed, index, sizes])
    return schedule, tensors


def _as_tensors(make: Callable[[], tuple]) -> tuple:
    """The results of `make`, with each array, which nobody else has, as a tensor over its memory."""
    return tuple(tensor_of(frozen(item)) if isinstance(item, np.ndarray) else item for item in make())


def _stack(values: SequenceOf[object]) -> np.ndarray:
    """Values of equal shapes as one array [values, …].

    The array is aligned and cannot be written, so that TensorFlow uses its memory without a copy; texts are copied.
    """
    arrays = [np.asarray(value) for value in values]
    dtype, shape = arrays[0].dtype, arrays[0].shape
    if dtype.hasobject:
        return np.stack(arrays)
    return frozen(np.stack(arrays, out=aligned_empty((len(arrays), *shape), dtype)))


def pack_for_loop(
    leaves: ClientLeaves, seeds: np.ndarray, numbers: SequenceOf[int], *, cache: PackingCache
) -> tuple[tuple[Layout | None, ...], list]:
    """The layouts and flat tensors of a loop over clients in the graph, leaf by leaf.

    A tensor leaf becomes one tensor [clients, …]. A sequence leaf becomes its columns of all clients, one after the
    other; the row numbers of all clients' elements or batches; the sizes of batches, if there are batches; and the row
    splits of the two by client, int64 [clients + 1].

    Args:
        leaves: leaves of the clients. Their layouts are equal and none is ragged (`ClientSlice.common_layouts`), so the
            first column has as many rows as the client has examples.
        seeds: int64, seed of each client.
        numbers: number of each leaf among the leaves of the call's arguments; see `realize.pack`.
        cache: cache for the columns.
    """
    tensors: list = []
    layouts: list[Layout | None] = []
    for position, leaf in enumerate(leaves.each[0]):
        if position not in leaves.sequences:
            layouts.append(None)
            tensors.append(_stack([client[position] for client in leaves.each]))
            continue
        columns = leaves.sequences[position]
        layouts.append(leaf.layout)
        make = functools.partial(concatenate_columns, columns)
        identities = leaves.identities[position]
        tensors.extend(cache.get(CONCATENATED, columns, functools.partial(_as_tensors, make), identities))
        orders = [c.read(int(s), numbers[position]) for c, s in zip(columns, seeds, strict=True)]
        tensors.extend(_join_orders(columns, orders))
    return tuple(layouts), tensors


def _join_orders(columns: list[Columns], orders: list[Rows]) -> list[np.ndarray]:
    """Row numbers [steps of all clients, (rows of a batch)], sizes of batches if there are any, and row splits.

    Row numbers count the rows of all clients, one client after the other; batches are padded to the widest. The splits,
    int64 [clients + 1], say where the steps of each client begin.

    Args:
        columns, orders: the sequence of each client, and the order in which it is read.
    """
    starts = np.cumsum([0, *(len(c.arrays[0]) for c in columns[:-1])])
    rows, sizes = [order.rows for order in orders], [order.sizes for order in orders if order.sizes is not None]
    if sizes:
        width = max(r.shape[1] for r in rows)
        rows = [pad_rows(r, width) if len(r) else np.zeros((0, width), np.int64) for r in rows]
    numbers = np.concatenate([r + start for r, start in zip(rows, starts, strict=True)])
    return [numbers, *([np.concatenate(sizes)] if sizes else []), np.cumsum([0, *map(len, orders)])]
