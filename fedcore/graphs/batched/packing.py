"""Packing: the argument values of a call's clients as a few flat tensors.

In:  for each client its leaves (tensors and `Columns`) and its seed.
Out: the tensors that `realize_batched` takes.

Clients are assigned to lanes by descending number of steps, so that the clients of a group end at about the same time.
Groups have `width` lanes; lanes without a client fill the last group. Clients whose steps exceed `low_rank_steps` have
groups of their own, since that decides bits. Example with width 2: 3 clients have 2, 5 and 3
rows in batches of 2. They take 1, 3 and 2 steps; the padded size of a batch is 2.

    seeds    int64 [4]        seed of each lane: of clients 1, 2, 0, and 0 for the empty lane
    lane_of  int64 [4]        [2, 0, 1, -1]: lane of each client of the call, -1 for absent clients
    columns  [10, …]          rows of clients 0, 1 and 2, one after the other
    rows     int64 [4, 3, 2]  row numbers of each lane's batches, step by step; a short batch repeats its last row
    sizes    int64 [4, 3]     [[2, 2, 1], [2, 1, 0], [2, 0, 0], [0, 0, 0]]: rows of each batch; 0 after the client's end

Rows in order: if there is one sequence and its batches are its examples in order, the columns hold the rows of each
lane, group after group, and in a group lane after lane. The lanes of a group have as many rows as the largest one. In
the example, the columns are [14, …]: 5 rows of lane 0, 5 of lane 1, and 2 of lanes 2 and 3. `rows` is [0, 10, 14],
where groups begin, and the end. If all clients take one step, a lane has a whole batch: the columns are [lanes, 2, …].

Own rows: if clients keep factors for several steps, and products have the rows of one client (`own_rows`), the columns
hold the rows of each client and no other ones, one client after the other, [10, …]; a block's rows stand side by side.
`rows` is where each lane's client begins, [2, 7, 0, 0].
"""

import functools
import math
from collections.abc import Callable, Hashable
from collections.abc import Sequence as SequenceOf
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.own_rows import JOINED
from fedcore.graphs.sequences.columns import Columns, Rows
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.tensors.identity_cache import IdentityCache, identities

ABSENT = -1
"""The lane of an absent client, and the client of an empty lane."""

ALIGNMENT_BYTES = 64
"""Alignment of memory that TensorFlow can use without a copy."""


@attrs.frozen
class PackedLayout:
    """The part of packed clients that decides the graph.

    Args:
        layouts: for each leaf of a client's arguments the layout of its sequence; None for a tensor.
        batch_rows: for each leaf the padded size of a batch; 0 if the leaf is not a sequence of batches.
        rows_in_order: the columns of the only sequence hold the rows of each lane, or of each client (own rows), in
            reading order; otherwise row numbers give the examples of each batch.
        equal_steps: all clients take equally many steps, and the lanes are in the order of the client indices.
        single_step: `equal_steps`, and the number of steps is 1.
        has_half_steps: the last steps of groups have batches of at most half of `batch_rows`, and are built for that.
        low_rank: the plan's rank, from which kernels are kept low-rank; see `low_rank_carry`.
        low_rank_steps: number of steps whose batches have that many rows, at least 1; 0 keeps no kernel low-rank.
        exceeds_low_rank: a client takes more steps.
        products: the plan's attribute, see `own_rows`.
        joins_blocks: the sum of the factors of a block's clients is one product.
        joined_rows: rows of that product, some of which may be zeros; 0 for as many as the clients have.
        is_given_products: the function of a call is given products of the clients' rows; see `data_products`.
        width: lanes of a group.
    """

    layouts: tuple[Layout | None, ...]
    batch_rows: tuple[int, ...]
    rows_in_order: bool = False
    equal_steps: bool = False
    single_step: bool = False
    has_half_steps: bool = False
    low_rank: int = 0
    low_rank_steps: int = 0
    exceeds_low_rank: bool = False
    products: str = JOINED
    joins_blocks: bool = False
    joined_rows: int = 0
    is_given_products: bool = False
    width: int = 1

    @property
    def keeps_one_step(self) -> bool:
        """Whether kernels are low-rank in the only step of a client, and those of clients with more steps are dense."""
        return self.low_rank_steps == 1

    @property
    def has_longer_groups(self) -> bool:
        """Whether the first groups, of clients that exceed `low_rank_steps`, have a function of their own."""
        return self.exceeds_low_rank and (self.keeps_one_step or bool(self.products))

    @property
    def has_own_factors(self) -> bool:
        """Whether clients keep factors for several steps, and products have the rows of all steps of one client."""
        return bool(self.products) and self.low_rank_steps > 1

    @property
    def has_own_rows(self) -> bool:
        """Whether the columns hold the rows of each client, one client after the other, and nothing else."""
        return self.rows_in_order and self.has_own_factors


MAX_JOINED_ROWS = 384
"""Rows of the largest product that sums the factors of a block. Up to so many, an entry is one chain of additions, to
which the zero rows between clients, whose number other clients decide, add nothing.
"""

MOST_EMPTY = 1 / 8
"""The largest part of empty lanes in calls whose groups are wide."""

LEAST_SAVED = 1 / 16
"""The part of a call's padded rows that half steps save at least; they are built for no less."""

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


@attrs.frozen
class ClientLeaves:
    """Leaves of the arguments of a call's clients; each property is computed once and shared by all packings.

    Args:
        each: the leaves of each client.
    """

    each: SequenceOf[SequenceOf]

    @functools.cached_property
    def sequences(self) -> dict[int, list[Columns]]:
        """Position of a sequence leaf -> the columns of each client."""
        positions = [i for i, leaf in enumerate(self.each[0]) if isinstance(leaf, Columns)]
        return {i: [leaves[i] for leaves in self.each] for i in positions}

    @functools.cached_property
    def identities(self) -> dict[int, bytes]:
        """Position of a sequence leaf -> the identities of its columns."""
        return {i: identities(columns) for i, columns in self.sequences.items()}

    @functools.cached_property
    def is_seed_independent(self) -> bool:
        """Whether there is exactly one sequence and its rows do not depend on a seed."""
        columns = [c for of_clients in self.sequences.values() for c in of_clients]
        return len(self.sequences) == 1 and not any(c.is_random for c in columns)

    @functools.cached_property
    def rows_in_order(self) -> bool:
        """Whether there is exactly one sequence and its batches are its examples in order."""
        return self.is_seed_independent and all(c.is_in_order for columns in self.sequences.values() for c in columns)


def pack_clients(
    leaves: ClientLeaves,
    positions: SequenceOf[int],
    seeds: np.ndarray,
    numbers: SequenceOf[int],
    *,
    width: int,
    capacity: int,
    cache: PackingCache,
    low_rank: int = 0,
    products: str = JOINED,
    halves: bool = False,
    block: int = 1,
    wide: int = 0,
    gives_products: bool = False,
) -> tuple[PackedLayout, list]:
    """The flat tensors of a call: seeds of the lanes, lane of each client, then the tensors of each leaf.

    A tensor leaf becomes one tensor [lanes, …]. A sequence leaf becomes its columns, `rows` and `sizes`; the module
    docstring has an example.

    Args:
        leaves: leaves of the present clients.
        positions: position of each present client within the call; clients at other positions are absent.
        seeds: int64, seed of each present client.
        numbers: number of each leaf among the leaves of the call's arguments; see `realize.pack`.
        width: lanes of a group; the number of lanes is a multiple of the layout's width.
        capacity: number of clients of a full call, present and absent.
        cache: cache for the tensors that do not depend on the seeds.
        low_rank: the plan's rank, from which kernels are kept low-rank; 0 keeps none.
        products: the plan's attribute, see `own_rows`; batches are padded to the batch size of their data set if it is
            not `JOINED`.
        halves: steps of small batches may be built for half of the padded rows.
        block: clients of a block.
        wide: lanes of a group if all clients take one step, and few lanes are empty; 0 for no other width.
        gives_products: the function of the call is given products of the clients' rows, where it can use some.
    """
    rules: dict[str, Any] = {
        "low_rank": low_rank,
        "products": products,
        "halves": halves,
        "block": block,
        "wide": wide,
        "gives_products": gives_products,
    }
    arrange = functools.partial(_arranged, leaves, numbers, seeds, positions, width, capacity, **rules)
    if leaves.is_seed_independent:
        ((position, columns),) = leaves.sequences.items()
        given = (position, len(leaves.each[0]), tuple(positions), width, capacity, *rules.values())
        layout, client_of, lane_of, *rest = cache.get(
            ("lanes", *given), columns, functools.partial(_as_tensors, arrange), leaves.identities[position]
        )
    else:
        layout, client_of, lane_of, *rest = arrange()
    client_of = np.asarray(client_of)
    tensors: list = [np.where(client_of == ABSENT, 0, seeds[client_of]), lane_of]
    for position in range(len(layout.layouts)):
        if position not in leaves.sequences:
            values = np.stack([np.asarray(of_client[position]) for of_client in leaves.each])
            tensors.append(values[np.maximum(client_of, 0)])
            continue
        columns, padded, (rows, sizes, *rest) = leaves.sequences[position], layout.batch_rows[position], rest
        if layout.has_own_rows:
            counts = _by_client(np.asarray(sizes).sum(axis=1), client_of)
            kind: Hashable = ("own rows", counts.tobytes())
            make = functools.partial(_concatenated_columns, columns, counts.tolist())
        elif layout.rows_in_order:
            kind = ("rows", padded, layout.width, layout.single_step, client_of.tobytes())
            shape = (-1, padded) if layout.single_step else (-1,)
            of_lanes = _rows_of_lanes(np.asarray(sizes), padded, layout.width)
            make = functools.partial(
                _rows_in_order, columns, client_of, sizes, np.repeat(of_lanes, layout.width), shape
            )
        else:
            kind, make = "columns", functools.partial(_concatenated_columns, columns)
        packed = cache.get(kind, columns, functools.partial(_as_tensors, make), leaves.identities[position])
        tensors.extend([*packed, rows, sizes])
    return layout, tensors


def _arranged(
    leaves: ClientLeaves,
    numbers: SequenceOf[int],
    seeds: np.ndarray,
    positions: SequenceOf[int],
    width: int,
    capacity: int,
    *,
    low_rank: int,
    products: str,
    halves: bool,
    block: int,
    wide: int,
    gives_products: bool,
) -> tuple:
    """The layout, the client of each lane, the lane of each client, then `rows` and `sizes` for each sequence."""
    low_rank_steps = _low_rank_steps(leaves, low_rank)
    has_own_factors = bool(products) and low_rank_steps > 1
    halves &= len(leaves.sequences) == 1 and not products
    width, client_of, *rest = _assign_lanes(
        leaves,
        numbers,
        seeds,
        width,
        wide if low_rank_steps == 1 else 0,
        pads_fully=bool(products),
        low_rank_steps=low_rank_steps,
        sorts_by_rows=halves or low_rank_steps > 1,
    )
    lane_of = np.full(capacity, ABSENT, np.int64)
    lane_of[np.asarray(positions)[client_of[client_of != ABSENT]]] = np.flatnonzero(client_of != ABSENT)
    count = len(leaves.each)
    all_sizes = [sizes[:count] for sizes in rest[1::3]]
    equal_steps = bool((lane_of[:count] == np.arange(count)).all()) and all(s.all() for s in all_sizes)
    padded = dict(zip(leaves.sequences, rest[2::3], strict=True))
    layout = PackedLayout(
        tuple(leaf.layout if i in padded else None for i, leaf in enumerate(leaves.each[0])),
        tuple(padded.get(i, 0) for i in range(len(leaves.each[0]))),
        leaves.rows_in_order,
        equal_steps,
        single_step=equal_steps and all(s.shape[1] == 1 for s in all_sizes) and not has_own_factors,
        has_half_steps=halves and _saved_by_halves(rest[1], rest[2], width) >= LEAST_SAVED,
        products=products,
        width=width,
    )
    if low_rank_steps:
        rows = block * _batch_size(leaves)
        joins = has_own_factors or (low_rank_steps == 1 and rows <= MAX_JOINED_ROWS)
        joined_rows = rows if joins and products and not has_own_factors else 0
        layout = attrs.evolve(layout, joins_blocks=joins, joined_rows=joined_rows)
        exceeds = any(s.shape[1] > low_rank_steps for s in all_sizes)
        kept = attrs.evolve(
            layout,
            low_rank=low_rank,
            low_rank_steps=low_rank_steps,
            exceeds_low_rank=exceeds,
            is_given_products=gives_products and leaves.rows_in_order and low_rank_steps > 1 and not exceeds,
        )
        all_dense = kept.keeps_one_step and exceeds and all((s[:, 1] > 0).all() for s in all_sizes)
        layout = layout if all_dense else kept
    return layout, client_of, lane_of, *(item for i, item in enumerate(rest) if i % 3 != 2)


def _low_rank_steps(leaves: ClientLeaves, low_rank: int) -> int:
    """Number of steps whose batches have `low_rank` rows, at least 1; 0 if a step has no batch of rows.

    The batch sizes of the datasets decide, not those of the call's batches, so the bits of a client do not depend on
    the other clients of its call.
    """
    if not low_rank or len(leaves.sequences) != 1:
        return 0
    (columns,) = leaves.sequences.values()
    return steps_of_rank(columns, low_rank)


def _batch_size(leaves: ClientLeaves) -> int:
    """The largest batch size of the clients' only datasets, which are batched."""
    (columns,) = leaves.sequences.values()
    return max(c.batch_size or 0 for c in columns)


def steps_of_rank(columns: list[Columns], low_rank: int) -> int:
    """As `_low_rank_steps`, for clients with one sequence each."""
    sizes = [c.batch_size for c in columns]
    if not columns[0].layout.batched or not all(sizes):
        return 0
    return max(1, low_rank // max(sizes))


def _as_tensors(make: Callable[[], tuple]) -> tuple:
    """The results of `make`, with arrays converted to tensors."""
    return tuple(_tensor(item) if isinstance(item, np.ndarray) else item for item in make())


def _assign_lanes(
    leaves: ClientLeaves,
    numbers: SequenceOf[int],
    seeds: np.ndarray,
    width: int,
    wide: int,
    *,
    pads_fully: bool,
    low_rank_steps: int,
    sorts_by_rows: bool,
) -> tuple:
    """The width of a group, the client of each lane, then `rows`, `sizes` and the padded size of a batch for each
    sequence.
    """
    count = len(leaves.each)
    all_rows = {
        i: [c.read(int(s), numbers[i]) for c, s in zip(columns, seeds, strict=True)]
        for i, columns in leaves.sequences.items()
    }
    steps = np.zeros(count, np.int64)
    for of_clients in all_rows.values():
        steps = np.maximum(steps, [len(rows) for rows in of_clients])
    if wide and steps.max() == 1 and -count % wide <= MOST_EMPTY * count:
        width = wide
    order = np.argsort(-steps, kind="stable")
    if sorts_by_rows:  # clients of equally many steps by the rows of their last batch
        (of_clients,) = all_rows.values()
        last = np.array([rows.sizes[-1] if rows.sizes is not None and len(rows) else 0 for rows in of_clients])
        order = np.lexsort((-last, -steps))
    longer = int((steps > low_rank_steps).sum()) if low_rank_steps else 0
    client_of = np.concatenate([_whole_groups(part, width) for part in (order[:longer], order[longer:])])
    results: list = [width, client_of]
    for i, of_clients in all_rows.items():
        columns = leaves.sequences[i]
        padded = _padded_size(of_clients, columns, fully=pads_fully) if columns[0].layout.batched else 0
        sizes = _sizes_by_lane(of_clients, client_of)
        if leaves.rows_in_order and pads_fully and low_rank_steps > 1:
            counts = _by_client(sizes.sum(axis=1), client_of)
            rows = np.where(sizes.any(axis=1), (np.cumsum(counts) - counts)[client_of], 0)
        elif leaves.rows_in_order:
            rows = np.cumsum([0, *_rows_of_lanes(sizes, padded, width) * width])
        else:
            rows = _rows_by_lane(columns, of_clients, client_of, padded)
        results.extend([rows, sizes, padded])
    return tuple(results)


def _whole_groups(clients: np.ndarray, width: int) -> np.ndarray:
    """The clients of the lanes of whole groups."""
    return np.concatenate([clients, np.full(-len(clients) % width, ABSENT, np.int64)])


def _sizes_by_lane(rows: list[Rows], client_of: np.ndarray) -> np.ndarray:
    """int64 [lanes, steps]: rows of each batch; 1 for an element that is not a batch, 0 after the client's end."""
    sizes = np.zeros((len(client_of), max(map(len, rows))), np.int64)
    for lane in np.flatnonzero(client_of != ABSENT).tolist():
        of_client = rows[client_of[lane]]
        sizes[lane, : len(of_client)] = of_client.sizes if of_client.sizes is not None else 1
    return sizes


def _rows_by_lane(columns: list[Columns], rows: list[Rows], client_of: np.ndarray, padded: int) -> np.ndarray:
    """int64 [lanes, steps(, padded)]: row numbers in the concatenated columns of all clients."""
    lengths = np.array([len(c.arrays[0]) for c in columns])
    starts = np.cumsum(lengths) - lengths
    steps = max(map(len, rows))
    by_lane = np.zeros((len(client_of), steps, padded) if padded else (len(client_of), steps), np.int64)
    last = max(int(lengths.sum()) - 1, 0)
    for lane in np.flatnonzero(client_of != ABSENT).tolist():
        client = client_of[lane]
        of_client, start = rows[client], starts[client]
        count = len(of_client)
        by_lane[lane, count:] = min(start, last)
        if count:
            by_lane[lane, :count] = (_pad_rows(of_client.rows, padded) if padded else of_client.rows) + start
    return by_lane


def _pad_rows(rows: np.ndarray, width: int) -> np.ndarray:
    """[steps, n] -> [steps, width]: rows are cut off, or each batch's last row is repeated."""
    missing = width - rows.shape[1]
    return rows[:, :width] if missing <= 0 else np.concatenate([rows, np.repeat(rows[:, -1:], missing, axis=1)], axis=1)


def _padded_size(rows: list[Rows], columns: list[Columns], *, fully: bool) -> int:
    """The padded size of a batch: the size of the longest batch, rounded up to a power of two, so that few graphs are
    built; at least 2, since products of one row have other bits, and at most the batch size of the dataset.

    Args:
        fully: the batch size of the dataset.
    """
    longest = max((int(r.sizes.max()) for r in rows if r.sizes is not None and len(r.sizes)), default=1)
    limit = max(c.batch_size or longest for c in columns)
    return limit if fully else min(limit, 1 << (max(longest, 2) - 1).bit_length())


def _saved_by_halves(sizes: np.ndarray, padded: int, width: int) -> float:
    """The part of the padded rows of all groups that last steps of half the rows do not have."""
    largest = sizes.reshape(len(sizes) // width, width, sizes.shape[1]).max(axis=1)
    half = padded // 2
    taken = (largest > 0).sum()
    whole = np.where(largest > half, np.arange(1, sizes.shape[1] + 1), 0).max(axis=1, initial=0).sum()
    return float((taken - whole) * (padded - half) / (taken * padded)) if half > 1 and taken else 0.0


def _by_client(of_lanes: np.ndarray, client_of: np.ndarray) -> np.ndarray:
    """[clients] of the numbers of all lanes."""
    lanes = np.flatnonzero(client_of != ABSENT)
    of_clients = np.zeros(len(lanes), of_lanes.dtype)
    of_clients[client_of[lanes]] = of_lanes[lanes]
    return of_clients


def _rows_of_lanes(sizes: np.ndarray, padded: int, width: int) -> np.ndarray:
    """int64 [groups]: the number of rows of each lane of a group.

    It is that of the client with most rows; a last batch of one row has two, since products of one row have other bits.
    If no client takes two steps, it is a whole batch, so that clients of a single step have equally many.
    """
    most = sizes.sum(axis=1).reshape(len(sizes) // width, width).max(axis=1)
    if sizes.shape[1] == 1:
        return np.where(most > 0, padded, 0)
    return most + (most % max(padded, 1) == 1)


def _rows_in_order(
    columns: list[Columns], client_of: np.ndarray, sizes, of_lanes: np.ndarray, shape: tuple[int, ...]
) -> tuple:
    """The columns as rows, group after group, and lane after lane; [*shape, …].

    The rows of a client are filled up with its last row, those of a client without rows with a row of any client, or
    with zeros if that row is not finite. The graph computes with padded rows too, so they must be valid inputs of the
    model; products with zeros may read them, so they must be finite where the client's own rows are.

    Args:
        of_lanes: int64 [lanes], the number of rows of each lane.
    """
    counts = np.asarray(sizes).sum(axis=1).tolist()
    results = []
    for position in range(len(columns[0].arrays)):
        arrays = [np.asarray(c.arrays[position]) for c in columns]
        row = _filling_row(arrays)
        pieces = [row[:0]]
        for client, count, rows in zip(client_of.tolist(), counts, of_lanes.tolist(), strict=True):
            last = row
            if count:
                pieces.append(arrays[client][:count])
                last = arrays[client][count - 1 : count]
            if count < rows:
                pieces.append(np.broadcast_to(last, (rows - count, *last.shape[1:])))
        results.append(_concatenated(pieces).reshape(*shape, *row.shape[1:]))
    return tuple(results)


def _filling_row(arrays: list[np.ndarray]) -> np.ndarray:
    """[1, …]: the first row of a client; zeros if there is none, or if it is not finite."""
    zeros = np.zeros((1, *arrays[0].shape[1:]), arrays[0].dtype)
    row = next((a[:1] for a in arrays if len(a)), zeros)
    return zeros if row.dtype.kind in "fc" and not np.isfinite(row).all() else row


def _concatenated_columns(columns: list[Columns], counts: SequenceOf[int | None] | None = None) -> tuple:
    """Each column of all clients, one client after the other; one row of zeros if no client has rows.

    Args:
        counts: how many rows of each client, the first ones; None: all.
    """
    counts = [None] * len(columns) if counts is None else counts
    results = []
    for i in range(len(columns[0].arrays)):
        column = _concatenated([np.asarray(c.arrays[i])[:n] for c, n in zip(columns, counts, strict=True)])
        results.append(column if len(column) else np.zeros((1, *column.shape[1:]), column.dtype))
    return tuple(results)


def _concatenated(arrays: list[np.ndarray]) -> np.ndarray:
    """`np.concatenate` into memory that is aligned, so that TensorFlow uses it without a copy."""
    shape, dtype = (sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype
    if dtype.hasobject:
        return np.concatenate(arrays)
    buffer = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT_BYTES, np.uint8)
    begin = -buffer.ctypes.data % ALIGNMENT_BYTES
    out = buffer[begin : len(buffer) - ALIGNMENT_BYTES + begin].view(dtype).reshape(shape)
    return np.concatenate(arrays, out=out)


def _tensor(array: np.ndarray) -> tf.Tensor:
    """The array as a tensor; the memory is shared if TensorFlow can use it."""
    usable = array.dtype.kind in "biufc" and array.flags.c_contiguous and array.flags.writeable
    if usable and array.size and not array.ctypes.data % ALIGNMENT_BYTES:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.convert_to_tensor(array)


def pack_for_loop(
    leaves: ClientLeaves, seeds: np.ndarray, numbers: SequenceOf[int], *, cache: PackingCache
) -> tuple[tuple[Layout | None, ...], list]:
    """The layouts and flat tensors of a loop over clients in the graph, leaf by leaf.

    A tensor leaf becomes one tensor [clients, …]. A sequence leaf becomes its columns of all clients, one after the
    other; the row numbers of all clients' elements or batches; the sizes of batches, if there are batches; and the row
    splits of the two by client, int64 [clients + 1].

    Args:
        leaves: leaves of the clients, whose layouts are equal.
        seeds: int64, seed of each client.
        numbers: number of each leaf among the leaves of the call's arguments; see `realize.pack`.
        cache: cache for the columns.
    """
    tensors: list = []
    layouts: list[Layout | None] = []
    for position, leaf in enumerate(leaves.each[0]):
        if position not in leaves.sequences:
            layouts.append(None)
            tensors.append(np.stack([np.asarray(of_client[position]) for of_client in leaves.each]))
            continue
        columns = leaves.sequences[position]
        layouts.append(leaf.layout)
        make = functools.partial(_concatenated_columns, columns)
        known = leaves.identities[position]
        tensors.extend(cache.get("columns", columns, functools.partial(_as_tensors, make), known))
        orders = [c.read(int(s), numbers[position]) for c, s in zip(columns, seeds, strict=True)]
        starts = np.cumsum([0, *(len(c.arrays[0]) for c in columns[:-1])])
        if leaf.layout.batched:
            width = max(order.rows.shape[1] for order in orders)
            rows = [_pad_rows(order.rows, width) if len(order) else np.zeros((0, width), np.int64) for order in orders]
        else:
            rows = [order.rows for order in orders]
        tensors.append(np.concatenate([r + start for r, start in zip(rows, starts, strict=True)]))
        if leaf.layout.batched:
            tensors.append(np.concatenate([order.sizes for order in orders if order.sizes is not None]))
        tensors.append(np.cumsum([0, *map(len, orders)]))
    return tuple(layouts), tensors
