"""The leaves of the argument values of a call's clients: tensors and `Columns`.

`Columns` are a sequence on the host: arrays with a row for each example, and the steps of a pipeline, such as `batch`.
"""

import functools
import sys
from collections.abc import Sequence

import attrs
import numpy as np

from fedcore.graphs.sequences.columns import Columns, Rows
from fedcore.graphs.sequences.steps import INFINITE
from fedcore.graphs.tensors.identity_cache import identities


@attrs.frozen
class ClientLeaves:
    """Leaves of the arguments of a call's clients; each property is computed once and shared by all packings.

    Args:
        each: the leaves of each client.
    """

    each: Sequence[Sequence]

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
    def _columns(self) -> list[Columns]:
        """The columns of all sequences of all clients."""
        return [c for columns in self.sequences.values() for c in columns]

    @functools.cached_property
    def is_seed_independent(self) -> bool:
        """Whether there is exactly one sequence and its rows do not depend on a seed."""
        return len(self.sequences) == 1 and not any(c.is_random for c in self._columns)

    @functools.cached_property
    def rows_in_order(self) -> bool:
        """Whether there is exactly one sequence and its batches are its examples in order."""
        return self.is_seed_independent and all(c.is_in_order for c in self._columns)

    @functools.cached_property
    def has_ragged_batches(self) -> bool:
        """Whether the data decide the sizes of all batches, as in a list of batches."""
        return bool(self._columns) and all(c.groups is not None for c in self._columns)

    @functools.cached_property
    def longest_batches(self) -> tuple[int, ...] | None:
        """Rows of the longest batch of each sequence; None if one has examples, or batches that pass a pipeline."""
        longest = []
        for columns in self.sequences.values():
            groups = [c.groups for c in columns if c.groups is not None and not c.steps]
            if len(groups) < len(columns):
                return None
            longest.append(max(int(np.diff(splits).max(initial=1)) for splits in groups))
        return tuple(longest)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of a client's tensors, without its sequences."""
        return sum(np.asarray(leaf).nbytes for i, leaf in enumerate(self.each[0]) if i not in self.sequences)

    @functools.cached_property
    def size_bytes(self) -> int:
        """Bytes of the clients' values."""
        arrays = (a for leaves in self.each for x in leaves for a in (x.arrays if isinstance(x, Columns) else [x]))
        return sum(getattr(a, "nbytes", 0) for a in arrays)

    @functools.cached_property
    def batch_rows(self) -> int:
        """Rows of the largest batch, or an upper bound; 1 if no elements are batches."""
        sizes = [int(np.diff(c.groups).max(initial=1)) for c in self._columns if c.groups is not None]
        return max([*(c.batch_size for c in self._columns if c.batch_size), *sizes], default=1)

    @functools.cached_property
    def most_steps(self) -> int:
        """An upper bound of the number of elements of a sequence."""
        return max(map(_most_elements, self._columns), default=1)

    def orders(self, seeds: np.ndarray, numbers: Sequence[int]) -> dict[int, list[Rows]]:
        """Position of a sequence leaf -> the reading order of each client: the rows of each element, in order.

        Args:
            seeds: int64, seed of each client.
            numbers: number of each leaf among the leaves of the call's arguments; see `realize.pack`.
        """
        return {
            i: [c.read(int(s), numbers[i]) for c, s in zip(columns, seeds, strict=True)]
            for i, columns in self.sequences.items()
        }


def _most_elements(columns: Columns) -> int:
    """An upper bound of the number of elements of a sequence."""
    count = columns.row_count if columns.groups is None else len(columns.groups) - 1
    for step in columns.steps:
        if step.kind == "batch":
            count = -(-count // step.number)
        elif step.kind == "repeat":
            count = sys.maxsize if count and step.number == INFINITE else count * step.number
        elif step.kind == "take" and step.number != INFINITE:
            count = min(count, step.number)
    return count
