"""Definitions of TensorFlow's operations: signatures, keywords of `tf.raw_ops`, effects."""

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs.dataflow.effects import has_effect
from fedcore.graphs.dataflow.graph import REGIONS
from fedcore.graphs.dataflow.op_signature import flat_operands, signature
from fedcore.graphs.dataflow.tf_keywords import keywords_of

# --- signatures ---


def test_operands_are_named_and_typed():
    condition, x, y = signature("Select").operands
    assert [a.name for a in (condition, x, y)] == ["condition", "t", "e"]
    assert (condition.dtype, x.dtype, x.type_attr) == (tf.bool, None, "T")


def test_attributes_have_kinds_and_defaults():
    product = signature("BatchMatMulV2")
    assert product.kinds == {"T": "type", "adj_x": "bool", "adj_y": "bool", "grad_x": "bool", "grad_y": "bool"}
    assert {"adj_x", "adj_y"} <= set(product.defaults)
    assert "T" not in product.defaults
    assert signature("Shape").default_types["out_type"] == tf.int32.as_datatype_enum


@pytest.mark.parametrize(
    ("op", "flat", "attributes", "grouped"),
    [
        ("ConcatV2", ["a", "b", "axis"], {"N": 2}, [["a", "b"], "axis"]),
        ("DynamicStitch", ["i", "j", "a", "b"], {"N": 2}, [["i", "j"], ["a", "b"]]),
        ("IdentityN", ["a", "b"], {"T": [tf.int32, tf.bool]}, [["a", "b"]]),
        ("AddV2", ["a", "b"], {}, ["a", "b"]),
    ],
)
def test_flat_operands_are_grouped_by_lists(op, flat, attributes, grouped):
    assert signature(op).by_operand(flat, attributes) == grouped
    assert flat_operands(grouped) == flat


def test_the_dtypes_of_results_are_those_of_attributes():
    (outputs,) = signature("IdentityN").results
    assert outputs.dtypes({"T": [tf.int32, tf.bool]}) == [tf.int32, tf.bool]
    (parts,) = signature("Split").results
    assert parts.dtypes({"T": tf.int64, "num_split": 3}) == [tf.int64] * 3
    (shape,) = signature("Shape").results
    assert shape.dtypes({"out_type": tf.int64}) == [tf.int64]


def test_an_operation_that_there_is_not_is_told():
    with pytest.raises(ValueError, match="TensorFlow has no operation Mull"):
        signature("Mull")


# --- keywords ---


def test_renamed_attributes_have_the_keywords_of_raw_ops():
    assert keywords_of("Neg")["x"] == "x"
    keywords = keywords_of("Max")
    assert (keywords["input"], keywords["reduction_indices"]) == ("input", "axis")


def test_an_operation_runs_by_its_keywords():
    names = keywords_of("Sum")
    operands = {"input": np.ones((2, 3), np.float32), "reduction_indices": 1}
    total = tf.raw_ops.Sum(**{names[k]: v for k, v in operands.items()}, **{names["keep_dims"]: True})
    np.testing.assert_array_equal(total, [[3], [3]])


# --- effects ---


@pytest.mark.parametrize("op", ["RandomUniform", "Assert", "PrintV2", "AssignVariableOp", "NoSuchOperation"])
def test_an_operation_with_effects_or_a_state_has_them(op):
    assert has_effect(op)


@pytest.mark.parametrize("op", ["AddV2", "Const", "StatelessRandomUniformV2", *REGIONS])
def test_an_operation_that_only_computes_has_no_effects(op):
    assert not has_effect(op)
