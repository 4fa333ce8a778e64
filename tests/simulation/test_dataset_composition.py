"""Computations whose clients make their data sets from their ids."""

import doctest

import numpy as np
import pytest

import fedcore as fc
from fedcore.simulation import dataset_composition as composition
from fedcore.simulation.datasets import TestClientData

DATA = TestClientData({"a": [1, 2], "b": [3]})
ROWS = fc.SequenceType("int32")
AT_CLIENTS = fc.FederatedType(ROWS, fc.CLIENTS)
AT_SERVER = fc.FederatedType("int32", fc.SERVER)


@fc.tf_computation(ROWS)
def sum_of(dataset):
    return dataset.reduce(np.int32(0), lambda x, y: x + y)


@fc.federated_computation(AT_CLIENTS)
def total(datasets):
    return fc.federated_sum(fc.federated_map(sum_of, datasets))


@fc.federated_computation
def start():
    return fc.federated_value(np.int32(0), fc.SERVER)


@fc.federated_computation(AT_SERVER, AT_CLIENTS)
def add(state, datasets):
    return fc.federated_map(lambda x, y: x + y, (state, total(datasets)))


SUMMING = fc.templates.IterativeProcess(start, add)


def with_computation(body):
    return composition.compose_dataset_computation_with_computation(DATA.dataset_computation, body)


def test_the_clients_of_a_computation_make_their_data_sets_from_their_ids():
    by_id = with_computation(total)
    assert str(by_id.type_signature) == "({str}@CLIENTS -> int32@SERVER)"
    assert by_id(["a", "b", "b"]) == 9


def test_the_data_set_may_stand_in_a_struct_and_the_other_parameters_keep_their_names():
    @fc.federated_computation(fc.StructType([("first", AT_SERVER), ("rest", fc.StructType([AT_CLIENTS]))]), AT_SERVER)
    def nested(values, more):
        sums = (values.first, total(values.rest[0]))
        return fc.federated_map(lambda a, b, c: a + b + c, (*sums, more))

    by_id = with_computation(nested)
    assert str(by_id.type_signature.parameter) == (
        "<values=<first=int32@SERVER,rest=<{str}@CLIENTS>>,more=int32@SERVER>"
    )
    assert by_id({"first": 10, "rest": (["a"],)}, 100) == 113


def test_a_process_takes_ids_and_keeps_its_state():
    by_id = composition.compose_dataset_computation_with_iterative_process(DATA.dataset_computation, SUMMING)
    state = by_id.next(by_id.initialize(), ["a"])
    assert by_id.next(state, ["a", "b"]) == 9
    assert SUMMING.next(0, [[7]]) == 7


def test_a_learning_process_stays_one():
    @fc.federated_computation(AT_SERVER, AT_CLIENTS)
    def learn(state, datasets):
        return fc.learning.LearningProcessOutput(add(state, datasets), state)

    process = fc.learning.LearningProcess(start, learn, hyperparameters={"finalizer": ["learning_rate"]})
    by_id = composition.compose_dataset_computation_with_learning_process(DATA.dataset_computation, process)
    assert type(by_id) is fc.learning.LearningProcess
    assert type(by_id.next) is type(process.next)
    assert by_id.hyperparameters == process.hyperparameters
    assert by_id.next.invoke(by_id.initialize(), ["b"], seed=0) == (3, 0)


@fc.federated_computation(AT_CLIENTS, AT_CLIENTS)
def two(one, other):
    return total(one)


@fc.federated_computation(fc.FederatedType(fc.SequenceType("float32"), fc.CLIENTS))
def floats(datasets):
    return fc.federated_count(datasets)


@fc.federated_computation(AT_SERVER)
def none(value):
    return value


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (two, composition.MultipleMatchingSequenceTypesError, r"`two` .* takes 2 data sets that int32\* fits, not one"),
        (floats, fc.simulation.SequenceTypeNotAssignableError, r"it takes  float32\*\n  made is   int32\*"),
        (none, fc.simulation.SequenceTypeNotFoundError, r"`none` .* takes no data set of clients"),
        (lambda x: x, TypeError, "computation_body is a computation with a type"),
    ],
    ids=["two", "floats", "none", "a function"],
)
def test_a_body_without_the_one_place_is_refused(body, error, message):
    with pytest.raises(error, match=message):
        with_computation(body)


@fc.tf_computation
def from_nothing():
    return DATA.serializable_dataset_fn("a")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (sum_of, r"returns a sequence, such as int32\*, not int32"),
        (from_nothing, r"takes an argument, such as a client's id; its type is \(-> int32\*\)"),
        (lambda i: i, "dataset_computation is a computation with a type"),
    ],
    ids=["no sequence", "no parameter", "a function"],
)
def test_what_makes_no_data_set_from_a_value_is_refused(made, message):
    with pytest.raises(TypeError, match=message):
        composition.compose_dataset_computation_with_iterative_process(made, SUMMING)


def test_what_is_no_process_is_refused():
    with pytest.raises(TypeError, match="process is an iterative process, not"):
        composition.compose_dataset_computation_with_iterative_process(DATA.dataset_computation, total)


def test_the_examples_of_the_docs_run():
    names = {"TestClientData": TestClientData, "total": total, "summing": SUMMING}
    assert doctest.testmod(composition, extraglobs=names).failed == 0
