"""`fc.tensorflow`: types as TensorFlow's specs, and values as numpy's."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TypeMismatch

TYPE = fc.to_type(collections.OrderedDict(a=(np.int32, [2, None]), b=[np.str_, np.bool_]))


def test_a_type_becomes_specs_in_its_containers():
    specs = fc.tensorflow.type_to_tf_tensor_specs(TYPE)
    assert specs == collections.OrderedDict(
        a=tf.TensorSpec([2, None], tf.int32), b=[tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.bool)]
    )
    assert type(specs) is collections.OrderedDict
    assert fc.tensorflow.to_type(specs) == TYPE


def test_a_function_is_called_on_each_tensor_in_order():
    seen = []
    numbers = fc.tensorflow.structure_from_tensor_type_tree(lambda t: seen.append(t) or len(seen), TYPE)
    assert numbers == {"a": 1, "b": [2, 3]}
    assert [str(t) for t in seen] == ["int32[2,?]", "str", "bool"]


@pytest.mark.parametrize("type_", ["int32*", "(-> int32)", "<a=int32@SERVER>"])
def test_other_types_have_no_specs(type_):
    with pytest.raises(TypeMismatch, match="a type of tensors and structs is wanted, not one with"):
        fc.tensorflow.type_to_tf_tensor_specs(type_)


def test_tensorflow_types_are_types():
    assert fc.tensorflow.to_type(tf.string) == fc.TensorType(np.str_)
    assert fc.tensorflow.to_type((tf.int32, tf.TensorShape(None))) == fc.TensorType(np.int32, None)
    spec = tf.data.DatasetSpec({"x": tf.TensorSpec([None, 2], tf.float32)})
    assert str(fc.tensorflow.to_type([spec, tf.int8])) == "list<<x=float32[?,2]>*,int8>"


def test_tensors_variables_and_datasets_become_numpy_values():
    given = {"t": tf.constant([1, 2]), "v": (tf.Variable(1.5), "text"), "d": tf.data.Dataset.range(3)}
    found = fc.tensorflow.transform_args(given)
    assert found["t"].tolist() == [1, 2]
    assert found["v"] == (1.5, "text")
    assert found["d"] == [0, 1, 2]
    assert not any(map(tf.is_tensor, (found["t"], *found["v"])))
    assert fc.tensorflow.transform_result(tf.constant(b"x")) == b"x"


def test_symbolic_tensors_stay():
    traced = tf.function(lambda x: fc.tensorflow.transform_args(x) + 1)
    assert traced(tf.constant(1)).numpy() == 2
