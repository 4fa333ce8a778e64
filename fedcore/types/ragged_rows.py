"""Columns whose rows differ in length.

A column of lists is ragged for all clients or for none: otherwise a client whose lists happen to be equally long would
have another type than the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcore.types.immutable_arrays import frozen, immutable


class RaggedRows:
    """A column of one-dimensional rows of any lengths: row i is `values[splits[i]:splits[i + 1]]`.

    Guarantees:
      - Immutable, like the other columns of a client.
      - It has the part of an array's interface that columns need: `dtype`, `shape` with None for the length of rows,
        and rows by a slice or by their numbers.

    Args:
        values: the rows, one after the other.
        lengths: of the rows.
    """

    ndim = 2

    def __init__(self, values: np.ndarray, lengths: np.ndarray | Sequence[int]) -> None:
        self.values = immutable(values)
        self.lengths = frozen(np.array(lengths, np.int64))
        self.splits = frozen(np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64))

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, None]:
        return len(self), None

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.splits.nbytes

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice | np.ndarray) -> RaggedRows:
        """Consecutive rows, as views; or the rows with these numbers."""
        lengths = self.lengths[rows]
        if isinstance(rows, slice):
            start = self.splits[:-1][rows][0] if len(lengths) else 0
            return RaggedRows(self.values[start : start + lengths.sum()], lengths)
        starts = np.cumsum(lengths) - lengths  # of the rows in the result
        positions = np.arange(lengths.sum()) + np.repeat(self.splits[:-1][rows] - starts, lengths)
        return RaggedRows(frozen(self.values[positions]), lengths)


def concatenate(columns: Sequence[np.ndarray | RaggedRows]) -> np.ndarray | RaggedRows:
    """The rows of columns, all of arrays or all of several lengths, one after the other."""
    ragged = [column for column in columns if isinstance(column, RaggedRows)]
    if not ragged:
        return frozen(np.concatenate([np.asarray(column) for column in columns]))
    return RaggedRows(frozen(np.concatenate([c.values for c in ragged])), np.concatenate([c.lengths for c in ragged]))
