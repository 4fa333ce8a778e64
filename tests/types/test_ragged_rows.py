"""`RaggedRows`: the part of numpy's indexing that columns need."""

import numpy as np
import pytest

from fedcore.types.ragged_rows import RaggedRows, concatenate

ROWS = [[1, 2, 3], [], [4], [5, 6], []]


def ragged(rows=ROWS, dtype=np.int32):
    return RaggedRows(np.array([x for row in rows for x in row], dtype), [len(row) for row in rows])


def rows_of(column):
    return [column.values[a:b].tolist() for a, b in zip(column.splits[:-1], column.splits[1:], strict=True)]


@pytest.mark.parametrize("rows", [slice(0, 5), slice(1, 4), slice(2, 2), slice(5, 5), slice(None)])
def test_a_slice_has_consecutive_rows_as_views(rows):
    part = ragged()[rows]
    assert rows_of(part) == ROWS[rows]
    assert (len(part), part.shape, part.dtype) == (len(ROWS[rows]), (len(ROWS[rows]), None), np.int32)


@pytest.mark.parametrize("rows", [[4, 0, 0, 2], [], [1], [3, 2, 1, 0]])
def test_rows_by_their_numbers(rows):
    assert rows_of(ragged()[np.array(rows, np.int64)]) == [ROWS[i] for i in rows]


def test_columns_are_joined():
    assert rows_of(concatenate([ragged(), ragged([[7]])])) == [*ROWS, [7]]
    assert concatenate([np.zeros(2), np.ones(1)]).tolist() == [0, 0, 1]


def test_a_later_change_of_the_values_changes_nothing():
    values = np.arange(3)
    column = RaggedRows(values, [1, 2])
    values[:] = 9
    assert rows_of(column) == [[0], [1, 2]]
    assert column.nbytes == 3 * 8 + 3 * 8
