"""Attributes and result types that operations get from their operands."""

import struct
import types

import pytest
import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow import shape_inference
from fedcore.graphs.dataflow.graph import new_region
from fedcore.graphs.dataflow.shape_inference import Inference, encoded_attributes, hashable, infer


def infer_for(op, *types, inputs=lambda *values: values, **attributes) -> Inference:
    """The inference for arguments of given dtypes and shapes.

    Args:
        inputs: arguments -> operands of the operation.
    """
    inferences = []
    new_region(types, lambda *values: inferences.append(infer(op, inputs(*values), attributes)) or [])
    return inferences[0]


def test_unknown_sizes_stay_unknown():
    inference = infer_for("BatchMatMulV2", (tf.float32, [None, 4, 3]), (tf.float32, [3, 5]))
    assert inference.types == ((tf.float32, tf.TensorShape([None, 4, 5])),)
    assert inference.attributes == {"T": tf.float32}


def test_lists_of_operands_give_their_length_and_dtypes():
    vector = (tf.int64, [2])
    packed = infer_for("Pack", vector, vector, inputs=lambda a, b: [[a, b]], axis=1)
    assert packed.attributes == {"axis": 1, "N": 2, "T": tf.int64}
    assert packed.types == ((tf.int64, tf.TensorShape([2, 2])),)
    several = infer_for("IdentityN", vector, (tf.bool, []), inputs=lambda a, b: [[a, b]])
    assert [dtype for dtype, _ in several.types] == [tf.int64, tf.bool]


def test_static_operands_decide_shapes():
    def reduce_axis(axis):
        return infer_for("Sum", (tf.float32, [2, 3]), inputs=lambda x: [x, ops.constant(axis, tf.int32)]).types[0][1]

    assert (reduce_axis(0), reduce_axis(1)) == ([3], [2])


def test_large_static_operands_are_no_part_of_the_cache(monkeypatch):
    keys = []
    cache = types.SimpleNamespace(get=lambda key, run: keys.append(key) or run())
    monkeypatch.setattr(shape_inference, "_INFERENCES", cache)
    infer_for("Sum", inputs=lambda: [ops.zeros([1 << 10, 1 << 10], tf.int32), ops.constant(0)])
    large, axis = keys[-1][-1]
    assert large is None
    assert axis is not None


def test_sizes_that_are_known_in_part_decide_the_shape_in_part():
    def operands(x, n):
        return [x, ops.stack([n, ops.constant(3)])]

    ((_, shape),) = infer_for("Reshape", (tf.float32, [None]), (tf.int32, []), inputs=operands).types
    assert shape.as_list() == [None, 3]


def test_operands_of_several_dtypes_are_refused():
    with pytest.raises(ValueError, match="AddV2 takes y of float32, but is given int32"):
        infer_for("AddV2", (tf.float32, []), (tf.int32, []))


def test_operands_whose_shapes_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        infer_for("MatMul", (tf.float32, [2, 3]), (tf.float32, [4, 5]))


def test_encoded_attributes_have_the_defaults():
    names = [name for name, _ in encoded_attributes("BatchMatMulV2", {"T": tf.float32})]
    assert names == ["T", "adj_x", "adj_y", "grad_x", "grad_y"]
    assert encoded_attributes("Cast", {"SrcT": tf.int32, "DstT": tf.bool}) != encoded_attributes(
        "Cast", {"SrcT": tf.int32, "DstT": tf.int64}
    )


def test_shape_functions_get_no_text():
    static_sizes = []

    def body(x):
        static_sizes.extend(map(shape_inference._static_size, (ops.constant("text"), ops.constant(2.5))))
        return [x]

    new_region([(tf.float32, [])], body)
    assert static_sizes == [None, 2.5]


NAN = struct.unpack("<2d", struct.pack("<2Q", 0x7FF8 << 48, 0xFFF8 << 48 | 1))


@pytest.mark.parametrize("values", [(1, 1.0), (1, True), (0.0, -0.0), ([1, 2], [2, 1]), (b"a", "a"), NAN])
def test_attributes_of_equal_numbers_and_other_types_differ(values):
    first, second = map(hashable, values)
    assert hash(first) is not None
    assert first != second


def test_equal_attributes_are_equal():
    assert hashable([tf.TensorShape([1, None]), 2.5]) == hashable([tf.TensorShape([1, None]), 2.5])
