"""The clients of one call as flat tensors: their values side by side, one lane a client.

Clients stand in lanes by how many steps they take, those with most first, and run in groups of one width; lanes
without a client fill the last group. `place` says where a client went: the fold takes them in the order of their
indices.
"""

import functools
import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.sequences.columns import Columns, Rows
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.tensors.identity_cache import IdentityCache

ABSENT = -1
"""The place of a client that a call does not have."""

ALIGNMENT = 64
"""Bytes; what TensorFlow asks of memory that it does not copy."""


@attrs.frozen
class CallShape:
    """What of a call decides its graph.

    Args:
        layouts: of each leaf of a client's arguments; None for a tensor.
        rows: the padded size of batches, for each leaf; 0 where a leaf is no batched sequence.
        in_slots: the one sequence comes as whole batches, in the order in which the groups read them; else rows say
            which examples a batch has.
        alike: all clients take equally many steps, so they stand in lanes in the order of their indices; none is
            absent before another.
        single: and that is one step.
    """

    layouts: tuple[Layout | None, ...]
    rows: tuple[int, ...]
    in_slots: bool = False
    alike: bool = False
    single: bool = False


REMEMBERED = 1024
"""Calls' packings of which it is known that they came before."""

Packed = IdentityCache[tuple]
"""What was packed of the same columns before. Columns do not change after they were given to a dataset."""


def packed(max_bytes: int) -> Packed:
    """Keeps what is packed for clients that come again side by side, from the second time on: cohorts mostly differ."""
    return IdentityCache(
        max_bytes, lambda parts: sum(_bytes(p) for p in parts if isinstance(p, tf.Tensor)), remembered=REMEMBERED
    )


def _bytes(tensor: tf.Tensor) -> int:
    return tensor.dtype.size * math.prod(tensor.shape)


@attrs.frozen
class Leaves:
    """What the clients of a call are given, flat; what it is like is worked out once, however often it is packed.

    Args:
        each: of each client.
    """

    each: SequenceOf[SequenceOf]

    @functools.cached_property
    def sequences(self) -> dict[int, list[Columns]]:
        """The sequences of all clients, by the position of their leaf."""
        found = [i for i, leaf in enumerate(self.each[0]) if isinstance(leaf, Columns)]
        return {i: [leaves[i] for leaves in self.each] for i in found}

    @functools.cached_property
    def is_steady(self) -> bool:
        """Whether there is one sequence, and what is drawn from it depends on no seed."""
        columns = [c for of_clients in self.sequences.values() for c in of_clients]
        return len(self.sequences) == 1 and not any(c.is_random for c in columns)

    @functools.cached_property
    def in_slots(self) -> bool:
        """Whether its batches are its examples in order."""
        return self.is_steady and all(c.is_in_order for columns in self.sequences.values() for c in columns)


def pack_clients(
    leaves: Leaves,
    positions: SequenceOf[int],
    seeds: np.ndarray,
    numbers: SequenceOf[int],
    *,
    width: int,
    places: int,
    kept: Packed,
) -> tuple[CallShape, list]:
    """The flat tensors of a call: the lanes' seeds, each client's place, then those of the arguments' leaves.

    A tensor leaf is stacked by lane; a sequence gives its columns, those of one client after the other, and the rows
    and sizes of every lane's elements. Where one sequence's batches are its examples in order, they come as they are
    read, a batch a slot, and with the slot of each step's first lane.

    Args:
        positions: where each client stands among those of the call; the others are absent.
        numbers: of each leaf of a client, among the leaves of the call's arguments; see `realize.pack`.
        width: clients of a group; the lanes are a multiple of it.
        places: clients of a call that is not the last.
    """
    sequences = leaves.sequences
    pack = functools.partial(_lanes, leaves, numbers, seeds, width)
    if leaves.is_steady:
        (columns,) = sequences.values()
        lanes, *rest = kept.get(f"rows by {width}", columns, functools.partial(_as_tensors, pack))
    else:
        lanes, *rest = pack()
    client_of = np.asarray(lanes)
    place = np.full(places, ABSENT, np.int64)
    place[np.asarray(positions)[client_of[client_of != ABSENT]]] = np.flatnonzero(client_of != ABSENT)
    count = len(leaves.each)
    taken = [np.asarray(sizes)[:count] for sizes in rest[1::3]]
    alike = bool((place[:count] == np.arange(count)).all()) and all(t.all() for t in taken)
    single = alike and all(t.shape[1] == 1 for t in taken)
    tensors: list = [np.where(client_of == ABSENT, 0, seeds[client_of]), place]
    layouts: list[Layout | None] = []
    widths: list[int] = []
    for position, leaf in enumerate(leaves.each[0]):
        if position not in sequences:
            layouts.append(None)
            widths.append(0)
            values = np.stack([np.asarray(of_client[position]) for of_client in leaves.each])
            tensors.append(values[np.maximum(client_of, 0)])
            continue
        columns, (rows, sizes, padded, *rest) = sequences[position], rest
        layouts.append(leaf.layout)
        widths.append(padded)
        if leaves.in_slots:
            kind, make = f"slots by {width}", functools.partial(_slots, columns, client_of, sizes, padded, width)
        else:
            kind, make = "columns", functools.partial(_all_together, columns)
        tensors.extend([*kept.get(kind, columns, functools.partial(_as_tensors, make)), rows, sizes])
    return CallShape(tuple(layouts), tuple(widths), leaves.in_slots, alike, single), tensors


def _as_tensors(make: Callable[[], tuple]) -> tuple:
    """What is made, its arrays (there are numbers beside them) as tensors."""
    return tuple(_tensor(m) if isinstance(m, np.ndarray) else m for m in make())


def _lanes(leaves: Leaves, numbers: SequenceOf[int], seeds: np.ndarray, width: int) -> tuple:
    """The client of each lane (ABSENT for none); then rows, sizes and padded size of a batch for each sequence.

    Where batches come in slots, the slot of each step's first lane stands instead of rows.
    """
    count = len(leaves.each)
    drawn = {
        i: [c.read(int(s), numbers[i]) for c, s in zip(columns, seeds, strict=True)]
        for i, columns in leaves.sequences.items()
    }
    steps = np.zeros(count, np.int64)
    for of_clients in drawn.values():
        steps = np.maximum(steps, [len(rows) for rows in of_clients])
    client_of = np.full(-(-count // width) * width, ABSENT, np.int64)
    client_of[:count] = np.argsort(-steps, kind="stable")
    found: list = [client_of]
    for i, of_clients in drawn.items():
        columns = leaves.sequences[i]
        padded = _padded_size(of_clients, columns) if columns[0].layout.batched else 0
        sizes = _sizes_by_lane(of_clients, client_of)
        rows = _first_slots(sizes, width) if leaves.in_slots else _rows_by_lane(columns, of_clients, client_of, padded)
        found.extend([rows, sizes, padded])
    return tuple(found)


def _sizes_by_lane(drawn: list[Rows], client_of: np.ndarray) -> np.ndarray:
    """int64 [lanes, steps]."""
    sizes = np.zeros((len(client_of), max(map(len, drawn))), np.int64)
    for lane, client in enumerate(client_of[: len(drawn)].tolist()):
        one = drawn[client]
        sizes[lane, : len(one)] = one.sizes if one.sizes is not None else 1
    return sizes


def _rows_by_lane(values: list[Columns], drawn: list[Rows], client_of: np.ndarray, padded: int) -> np.ndarray:
    """int64 [lanes, steps(, padded)] into the columns of all clients one after the other."""
    lengths = np.array([len(c.arrays[0]) for c in values])
    starts = np.cumsum(lengths) - lengths
    steps = max(map(len, drawn))
    rows = np.zeros((len(client_of), steps, padded) if padded else (len(client_of), steps), np.int64)
    last = max(int(lengths.sum()) - 1, 0)
    for lane, client in enumerate(client_of[: len(values)].tolist()):
        one, start = drawn[client], starts[client]
        count = len(one)
        rows[lane, count:] = min(start, last)
        if count:
            rows[lane, :count] = (_widened(one.rows, padded) if padded else one.rows) + start
    return rows


def _widened(rows: np.ndarray, width: int) -> np.ndarray:
    missing = width - rows.shape[1]
    return rows[:, :width] if missing <= 0 else np.concatenate([rows, np.repeat(rows[:, -1:], missing, axis=1)], axis=1)


def _padded_size(drawn: list[Rows], columns: list[Columns]) -> int:
    """The padded size of a batch: few different ones, so that few graphs are made."""
    longest = max((int(r.sizes.max()) for r in drawn if r.sizes is not None and len(r.sizes)), default=1)
    asked = max(next((s.number for s in c.steps if s.kind == "batch"), longest) for c in columns)
    return min(asked, 1 << (max(longest, 1) - 1).bit_length())


def _all_together(columns: list[Columns]) -> tuple:
    """The columns of all clients, one client after the other."""
    return tuple(_together([c.arrays[i] for c in columns]) for i in range(len(columns[0].arrays)))


def _groups(sizes: np.ndarray, width: int) -> np.ndarray:
    """For each step how many groups take it: the first ones, since lanes are sorted by their steps."""
    return sizes.reshape(-1, width, sizes.shape[1]).any(axis=1).sum(axis=0)


def _first_slots(sizes: np.ndarray, width: int) -> np.ndarray:
    """int64 [steps]: the slot of each step's first lane."""
    slots = _groups(sizes, width) * width
    return np.cumsum(slots) - slots


def _slots(columns: list[Columns], client_of: np.ndarray, sizes, padded: int, width: int) -> tuple:
    """The batches of all clients, [slots, padded, …], step after step, and in a step lane after lane.

    Where a batch lacks rows, its last one stands, and in a lane that has ended some row of the call: rows that are not
    counted take part in a step, so they are such as the model could be given.
    """
    asked, sizes = [next(s.number for s in c.steps if s.kind == "batch") for c in columns], np.asarray(sizes)
    batches: list[tuple[int, int, int]] = []  # client, begin and rows of each slot; no rows where the lane has ended
    for step, lanes in enumerate((_groups(sizes, width) * width).tolist()):
        taken = zip(client_of[:lanes].tolist(), sizes[:lanes, step].tolist(), strict=True)
        batches.extend((client, step * asked[client], size) for client, size in taken)
    joined = []
    for position in range(len(columns[0].arrays)):
        arrays = [np.asarray(c.arrays[position]) for c in columns]
        row = next((a[:1] for a in arrays if len(a)), np.zeros((1, *arrays[0].shape[1:]), arrays[0].dtype))
        parts = [row[:0]]
        for client, begin, size in batches:
            if size:
                parts.append(arrays[client][begin : begin + size])
            if size < padded:
                last = arrays[client][begin + size - 1 :][:1] if size else row
                parts.append(np.broadcast_to(last, (padded - size, *last.shape[1:])))
        joined.append(_aligned(parts).reshape(len(batches), padded, *row.shape[1:]))
    return tuple(joined)


def _aligned(parts: list[np.ndarray]) -> np.ndarray:
    """The parts one after the other, in memory that TensorFlow takes over as it is."""
    shape, dtype = (sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype
    if dtype.hasobject:
        return np.concatenate(parts)
    buffer = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8)
    begin = -buffer.ctypes.data % ALIGNMENT
    out = buffer[begin : len(buffer) - ALIGNMENT + begin].view(dtype).reshape(shape)
    return np.concatenate(parts, out=out)


def _tensor(array: np.ndarray) -> tf.Tensor:
    """The array as a tensor, over the same memory where TensorFlow can read it."""
    readable = array.dtype.kind in "biufc" and array.flags.c_contiguous and array.flags.writeable
    if readable and array.size and not array.ctypes.data % ALIGNMENT:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.convert_to_tensor(array)


def _together(arrays: list):
    joined = _aligned([np.asarray(a) for a in arrays])
    return joined if len(joined) else np.zeros((1, *joined.shape[1:]), joined.dtype)
