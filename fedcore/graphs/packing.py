"""The clients of one call as flat tensors: their values side by side, one lane a client.

Clients stand in lanes by how many steps they take, those with most first, and run in groups of one width; lanes
without a client fill the last group. `place` says where a client went: the fold takes them in the order of their
indices.
"""

import functools
import math
from collections.abc import Sequence as SequenceOf

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.columns import Columns, Rows
from fedcore.graphs.kept import KeptByInputs
from fedcore.graphs.sequences import Layout
from fedcore.graphs.values import flatten
from fedcore.seeds import fold_in

ABSENT = -1
"""The place of a client that a call does not have."""


@attrs.frozen
class CallShape:
    """What of a call decides its graph.

    Args:
        layouts: of each leaf of a client's arguments; None for a tensor.
        rows: the padded size of batches, for each leaf; 0 where a leaf is no batched sequence.
    """

    layouts: tuple[Layout | None, ...]
    rows: tuple[int, ...]


REMEMBERED = 1024
"""Calls' packings of which it is known that they came before."""

Packed = KeptByInputs[tuple]
"""What was packed of the same columns before. Columns do not change after they were given to a dataset."""


def packed(max_bytes: int) -> Packed:
    """Keeps what is packed for clients that come again side by side, from the second time on: cohorts mostly differ."""
    return KeptByInputs(
        max_bytes, lambda parts: sum(_bytes(p) for p in parts if isinstance(p, tf.Tensor)), remembered=REMEMBERED
    )


def _bytes(tensor: tf.Tensor) -> int:
    return tensor.dtype.size * math.prod(tensor.shape)


def pack_clients(
    clients: SequenceOf[tuple],
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
    and sizes of every lane's elements.

    Args:
        positions: where each client stands among those of the call; the others are absent.
        numbers: of each leaf of a client, among the leaves of the call's arguments; see `realize.pack`.
        width: clients of a group; the lanes are a multiple of it.
        places: clients of a call that is not the last.
    """
    leaves_of = [flatten(client) for client in clients]
    sequences = [i for i, leaf in enumerate(leaves_of[0]) if isinstance(leaf, Columns)]
    steady = len(sequences) == 1 and not any(leaf[sequences[0]].is_random for leaf in leaves_of)
    pack = functools.partial(_lanes, leaves_of, {i: numbers[i] for i in sequences}, seeds, width)
    if steady:  # nothing of the rows depends on a seed
        columns = [leaf[sequences[0]] for leaf in leaves_of]
        lanes, *rest = kept.get(f"rows in groups of {width}", columns, lambda: _as_tensors(pack()))
    else:
        lanes, *rest = pack()
    client_of = np.asarray(lanes)
    place = np.full(places, ABSENT, np.int64)
    place[np.asarray(positions)[client_of[client_of != ABSENT]]] = np.flatnonzero(client_of != ABSENT)
    tensors: list = [np.where(client_of == ABSENT, 0, seeds[client_of]), place]
    layouts: list[Layout | None] = []
    widths: list[int] = []
    for position, leaf in enumerate(leaves_of[0]):
        values = [leaves[position] for leaves in leaves_of]
        if position not in sequences:
            layouts.append(None)
            widths.append(0)
            tensors.append(np.stack([np.asarray(v) for v in values])[np.maximum(client_of, 0)])
            continue
        rows, sizes, padded = rest[3 * sequences.index(position) :][:3]
        layouts.append(leaf.layout)
        widths.append(padded)
        tensors.extend([*kept.get("columns", values, functools.partial(_all_together, values)), rows, sizes])
    return CallShape(tuple(layouts), tuple(widths)), tensors


def _as_tensors(parts: tuple) -> tuple:
    return tuple(tf.convert_to_tensor(p) if isinstance(p, np.ndarray) else p for p in parts)


def _lanes(leaves_of: list[list], sequences: dict[int, int], seeds: np.ndarray, width: int) -> tuple:
    """The client of each lane (ABSENT for none); then rows, sizes and padded size of a batch for each sequence.

    Args:
        sequences: which leaves are sequences, with the number of each.
    """
    count = len(leaves_of)
    drawn = {
        i: [leaves[i].draw(fold_in(int(s), number)) for leaves, s in zip(leaves_of, seeds, strict=True)]
        for i, number in sequences.items()
    }
    steps = np.zeros(count, np.int64)
    for of_clients in drawn.values():
        steps = np.maximum(steps, [len(rows) for rows in of_clients])
    client_of = np.full(-(-count // width) * width, ABSENT, np.int64)
    client_of[:count] = np.argsort(-steps, kind="stable")
    found: list = [client_of]
    for i, of_clients in drawn.items():
        found.extend(_drawn_by_lane([leaves[i] for leaves in leaves_of], of_clients, client_of))
    return tuple(found)


def _drawn_by_lane(values: list[Columns], drawn: list[Rows], client_of: np.ndarray) -> tuple:
    """int64 rows [lanes, steps(, padded size)] into the columns of all clients one after the other; their sizes."""
    lengths = np.array([len(c.arrays[0]) for c in values])
    starts = np.cumsum(lengths) - lengths
    batched = values[0].layout.batched
    steps = max(map(len, drawn))
    padded = _padded_size(drawn, values) if batched else 0
    rows = np.zeros((len(client_of), steps, padded) if batched else (len(client_of), steps), np.int64)
    sizes = np.zeros((len(client_of), steps), np.int64)
    last = max(int(lengths.sum()) - 1, 0)
    for lane, client in enumerate(client_of[: len(values)].tolist()):
        one, start = drawn[client], starts[client]
        count = len(one)
        rows[lane, count:] = min(start, last)
        if count:
            rows[lane, :count] = (_widened(one.rows, padded) if batched else one.rows) + start
            sizes[lane, :count] = one.sizes if one.sizes is not None else 1
    return rows, sizes, padded


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
    return _as_tensors(tuple(_together([c.arrays[i] for c in columns]) for i in range(len(columns[0].arrays))))


def _together(arrays: list):
    joined = np.concatenate([np.asarray(a) for a in arrays]) if len(arrays) > 1 else np.asarray(arrays[0])
    return joined if len(joined) else np.zeros((1, *joined.shape[1:]), joined.dtype)
