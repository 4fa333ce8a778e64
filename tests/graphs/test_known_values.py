"""Operations on known values: those that numpy runs have TensorFlow's results."""

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs.batched import known_values
from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue
from fedcore.graphs.graphdef.parsed_graph import Node, emit

MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
MATRIX = np.arange(12, dtype=np.int64).reshape(3, 4)


def slices(*masks) -> dict:
    return dict(zip(MASKS, masks, strict=True))


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Pack", [np.int32(3), np.int32(4)], {"axis": 0, "N": 2}),
        ("Pack", [MATRIX, MATRIX], {"axis": -1, "N": 2}),
        ("Tile", [np.float32([3]), np.int32([5])], {}),
        ("Tile", [np.float32(3), np.zeros(0, np.int32)], {}),
        ("Tile", [MATRIX, np.int32([0, 2])], {}),
        ("StridedSlice", [MATRIX, np.int32([1]), np.int32([2]), np.int32([1])], slices(0, 0, 0, 0, 1)),
        ("StridedSlice", [MATRIX, np.int32([-1]), np.int32([0]), np.int32([1])], slices(0, 0, 0, 0, 1)),
        ("StridedSlice", [MATRIX, np.int32([0, 1]), np.int32([2, 9]), np.int32([1, 2])], slices(0, 0, 0, 0, 0)),
        ("StridedSlice", [MATRIX, np.int32([7, 2]), np.int32([0, 7]), np.int32([-1, -2])], slices(1, 2, 0, 0, 0)),
        ("StridedSlice", [MATRIX, np.int32([0, 1]), np.int32([0, 2]), np.int32([1, 1])], slices(0, 0, 1, 0, 2)),
        ("StridedSlice", [MATRIX, np.int32([0, 1]), np.int32([0, 2]), np.int32([1, 1])], slices(0, 0, 0, 1, 2)),
        ("StridedSlice", [MATRIX, np.int32([3]), np.int32([4]), np.int32([1])], slices(0, 0, 0, 0, 1)),
    ],
)
def test_folding_gives_the_results_of_tensorflow(op, operands, attributes):
    operands = [np.asarray(o) for o in operands]
    values = [BatchedValue(None, False, known=KnownValue.of_constant(o)) for o in operands]
    found = known_values.fold(Node("node", op, (), attributes), values)
    try:
        (wanted,) = emit(op, [tf.constant(o) for o in operands], attributes)
    except tf.errors.InvalidArgumentError:
        assert found is None
        return
    (value,) = found[0].values[:1]
    assert value.dtype == wanted.numpy().dtype
    np.testing.assert_array_equal(value, wanted.numpy(), strict=True)


def test_entries_of_shapes_are_moved_without_tensorflow(monkeypatch):
    monkeypatch.setattr(known_values, "emit", None)
    shape = BatchedValue(None, False, known=KnownValue.of_constant(np.int32([20, 7])))
    bounds = [BatchedValue(None, False, known=KnownValue.of_constant(np.int32([i]))) for i in (1, 2, 1)]
    (size,) = known_values.fold(Node("node", "StridedSlice", (), slices(0, 0, 0, 0, 1)), [shape, *bounds])
    assert size.values[0] == 7
