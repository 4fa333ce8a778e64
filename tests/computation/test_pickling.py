"""Modules and computations pickle, to copies that are equal and run alike in other processes."""

import pickle

import numpy as np
import pytest
import tensorflow as tf
import warm_processes

import fedcore as fc
from fedcore.ir import Module

CLIENT_VALUES = fc.FederatedType(fc.TensorType("float32", [3]), fc.CLIENTS)


@fc.tf_computation(fc.TensorType("float32", [3]))
def scaled(x):
    return tf.nn.softmax(x) * np.linspace(0, 1, 3, dtype=np.float32)


@fc.federated_computation(CLIENT_VALUES)
def average(xs):
    return fc.federated_mean(fc.federated_map(scaled, xs))


VALUES = [[1.0, 2.0, 3.0], [0.0, 5.0, 0.5], [2.0, 2.0, 2.0]]


def _pickled(value):
    return pickle.loads(pickle.dumps(value))


def _cloudpickled(value):
    cloudpickle = pytest.importorskip("cloudpickle")
    return pickle.loads(cloudpickle.dumps(value))


@pytest.mark.parametrize("copied", [_pickled, _cloudpickled])
@pytest.mark.parametrize("stage", ["traced", "lowered", "planned"])
def test_a_module_pickles_at_every_stage(copied, stage):
    module = average.to_module(stage)
    copy = copied(module)
    assert isinstance(copy, Module)
    assert copy == module
    assert copy.digest() == module.digest()
    assert copy.source_digest() == module.source_digest()


@pytest.mark.parametrize("copied", [_pickled, _cloudpickled])
def test_a_computation_pickles_and_runs_alike(copied):
    copy = copied(average)
    assert copy == average
    assert copy is not average
    assert {copy: 1}[average] == 1
    assert (copy.digest, copy.__name__, copy.type_signature) == (average.digest, "average", average.type_signature)
    np.testing.assert_array_equal(copy(VALUES), average(VALUES))


def test_computations_that_differ_are_not_equal():
    @fc.federated_computation(CLIENT_VALUES)
    def total(xs):
        return fc.federated_sum(fc.federated_map(scaled, xs))

    assert total != average
    assert average != "average"


def test_the_next_of_a_learning_process_stays_one():
    """Its rounds draw by the state's seed and number, also after pickling."""
    from fedcore.learning.process import _Next

    copy = _pickled(_Next(average.module, "next"))
    assert type(copy) is _Next
    assert copy.__name__ == "next"


def test_a_computation_runs_in_another_process(tmp_path):
    """Its main module and its modules of tests are other ones; tests/examples/test_process_pool.py spawns processes."""
    (tmp_path / "average").write_bytes(pickle.dumps((average, VALUES)))
    code = """
import pickle
average, values = pickle.load(open("average", "rb"))
print(average.digest, average(values).tobytes().hex())
"""
    digest, result = warm_processes.python({"code": code}, cwd=tmp_path).split()
    assert digest == average.digest
    assert result == average(VALUES).tobytes().hex()
