"""Functions that are made again for every client are traced once, where they do the same."""

import functools
import types

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.data.client_dataset import traced_map
from fedcore.data.function_equivalence import equivalence_key
from fedcore.types import TensorType

FLOAT = TensorType("float32")
SCALE = 2.0
SETTINGS = types.ModuleType("settings")
SETTINGS.shift = 1.0
NAMES = [1.0]


def scaled(x):
    return x * SCALE


def by(factor, call=scaled):
    return lambda x: tf.cast(call(x) * factor, tf.float32)


def shifted():
    return lambda x: x + SETTINGS.shift


def test_equivalent_functions_are_traced_once():
    assert traced_map(by(3.0), FLOAT) is traced_map(by(3.0), FLOAT)
    assert traced_map(by(3.0), FLOAT) is not traced_map(by(4.0), FLOAT)


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (1, True), (0, None), (0.0, -0.0), ((1, 2), (1, 3)), (scaled, abs)]
)
def test_what_a_function_holds_tells_it_apart(one, other):
    assert equivalence_key(by(one)) == equivalence_key(by(one))
    assert equivalence_key(by(one)) != equivalence_key(by(other))
    assert equivalence_key(by(1.0, one)) != equivalence_key(by(1.0, other))


def test_functions_of_equal_text_are_two():
    def first(x):
        return x

    def second(x):
        return x

    assert equivalence_key(first) == equivalence_key(first) != equivalence_key(second)


def test_a_constant_that_changes_between_two_clients_is_seen(monkeypatch):
    before = equivalence_key(by(1.0))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert equivalence_key(by(1.0)) != before
    before = equivalence_key(shifted())
    monkeypatch.setattr(SETTINGS, "shift", 2.0)
    assert equivalence_key(shifted()) != before
    monkeypatch.setattr(SETTINGS, "shift", [2.0])
    assert equivalence_key(shifted()) is None


@pytest.mark.parametrize("held", [[1.0], {"a": 1.0}, np.ones(2), object(), {1.0}], ids=lambda v: type(v).__name__)
def test_what_may_change_unseen_is_never_the_same(held):
    assert equivalence_key(by(held)) is None
    assert equivalence_key(lambda x: x + NAMES[0]) is None
    assert equivalence_key(by) is not None
    assert equivalence_key(np.add) is None


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


def of_container(held, key):
    return lambda x: x * held[key], lambda patch: held.__setitem__(key, 3.0)


def of_instance(scale):
    return scale, lambda patch: patch.setattr(scale, "factor", 3.0)


def of_partial(held):
    return functools.partial(lambda c, x: x * c[0], held), lambda patch: held.__setitem__(0, 3.0)


@pytest.mark.parametrize(
    ("fn", "change"),
    [
        (scaled, lambda patch: patch.setitem(globals(), "SCALE", 3.0)),
        (lambda x: x + SETTINGS.shift, lambda patch: patch.setattr(SETTINGS, "shift", 2.0)),
        of_container([2.0], 0),
        of_container({"a": 2.0}, "a"),
        of_container(np.float32([2.0]), 0),
        of_instance(Scale(2.0)),
        of_partial([2.0]),
    ],
    ids=["global", "module", "list", "dict", "array", "instance", "partial"],
)
def test_a_function_is_traced_again_when_what_it_refers_to_has_changed(monkeypatch, fn, change):
    dataset = fc.data.ClientDataset.from_columns(np.float32([1]))
    assert traced_map(fn, FLOAT) is traced_map(fn, FLOAT)
    (before,) = dataset.map(fn).as_numpy_iterator()
    change(monkeypatch)
    (after,) = dataset.map(fn).as_numpy_iterator()
    assert after == before + 1


def countdown(x):
    return x if x is None else countdown(None)


def test_a_function_may_call_itself():
    assert equivalence_key(countdown) == equivalence_key(countdown)


def test_a_preprocessing_function_for_every_client_makes_one_graph():
    def preprocess(dataset):
        def batch_format(x):
            return tf.reshape(x, [-1, 1])

        return dataset.batch(2).map(batch_format)

    clients = [preprocess(fc.data.ClientDataset.from_columns(np.ones(4, np.float32))) for _ in range(3)]
    (first,), *others = [client.columns.layout.after for client in clients]
    assert all(graph is first for (graph,) in others)
