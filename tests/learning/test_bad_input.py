"""What users get wrong, and clients too: an error that names it, or a documented result; the state stays usable."""

import keras
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import FedcoreError, InvalidValue, TracingError, TypeMismatch
from fedcore.learning import algorithms

from .conftest import client, random_clients


def sgd():
    return keras.optimizers.SGD(0.1)


def same(a, b):
    for x, y in zip(a.model.trainable, b.model.trainable, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    "columns",
    [
        (np.zeros((4, 6), np.float32), np.zeros(4, np.int32)),
        (np.zeros((4, 5), np.float32), np.zeros(4, np.int64)),
        (np.zeros((4, 5), np.float32),),
    ],
    ids=["other width", "other dtype", "no labels"],
)
def test_a_client_of_another_structure_is_named_and_the_state_goes_on(process, columns):
    good = random_clients([6])[0]
    state = process.initialize()
    with pytest.raises(TypeMismatch, match=r"data\[1\] does not fit"):
        process.next(state, [good, fc.data.ClientDataset.from_columns(columns).batch(2)])
    assert process.next(state, [good]).state.round == 1


def test_unbatched_examples_are_refused(process):
    columns = (np.zeros((4, 5), np.float32), np.zeros(4, np.int32))
    with pytest.raises(TypeMismatch, match=r"data\[0\] does not fit"):
        process.next(process.initialize(), [fc.data.ClientDataset.from_columns(columns)])


def test_a_model_fn_that_returns_a_keras_model_is_refused():
    with pytest.raises(TracingError, match=r"returns Sequential; it returns what fc.learning.from_keras_model makes"):
        algorithms.build_weighted_fed_avg(lambda: keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]), sgd)


def test_a_keras_model_instead_of_a_model_fn_is_refused():
    with pytest.raises(TracingError, match="model_fn is a function that makes a model, not Sequential"):
        algorithms.build_weighted_fed_avg(keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]), sgd)


def test_an_optimizer_class_instead_of_a_function_is_refused(model_fn):
    says = (
        r"keras.optimizers.SGD is a class, which is no optimizer: give keras.optimizers.SGD\(…\) with a learning rate"
    )
    with pytest.raises(FedcoreError, match=says):
        algorithms.build_weighted_fed_avg(model_fn, keras.optimizers.SGD)


def test_a_function_that_makes_an_optimizer_of_arguments_is_refused(model_fn):
    says = r"makes an optimizer of arguments \(missing a required argument: 'learning_rate'\), .*lambda: …"
    with pytest.raises(FedcoreError, match=says):
        algorithms.build_weighted_fed_avg(model_fn, lambda learning_rate: keras.optimizers.SGD(learning_rate))


def test_a_state_takes_the_weights_of_a_keras_model(process):
    net = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(3, bias_initializer="ones")]
    )
    state = process.set_model_weights(process.initialize(), net)
    for a, b in zip(state.model.trainable, net.trainable_variables, strict=True):
        np.testing.assert_array_equal(a, b.numpy())
    assert process.next(state, random_clients([4])).state.round == 1


def test_weights_that_a_state_does_not_take_are_named(process):
    state = process.initialize()
    other = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    says = r"than the state\n  the state has  \[5,4\], \[4\], \[4,3\], \[3\]\n  the model has  \[5,2\], \[2\]"
    with pytest.raises(InvalidValue, match=says):
        process.set_model_weights(state, other)
    with pytest.raises(
        TypeMismatch, match=r"a fc.learning.ModelWeights or a model, not .*ModelWeights.from_model\(ker"
    ):
        process.set_model_weights(state, np.zeros(3))


def test_weights_that_are_all_zero_change_nothing_whatever_the_server_optimizer(model_fn):
    process = algorithms.build_weighted_fed_avg(
        model_fn, sgd, lambda: keras.optimizers.Adam(0.1), client_weighting=lambda metrics: 0.0
    )
    state = process.initialize()
    after, _ = process.next(state, random_clients([6, 4]))
    same(after, state)
    assert after.finalizer["step"] == state.finalizer["step"] == 0


def test_only_infinite_updates_leave_the_model_as_it_was(process):
    bad = client(np.full((4, 5), np.inf), [0, 1, 2, 0])
    state = process.initialize()
    after, _ = process.next(state, [bad, bad])
    same(after, state)
    assert after.round == 1


def test_a_failed_round_leaves_the_state_that_was_passed(process):
    state = process.initialize()
    before = [w.copy() for w in state.model.trainable]
    with pytest.raises(TypeMismatch):
        process.next(state, [client(np.zeros((4, 6)), [0, 1, 2, 0])])
    for a, b in zip(state.model.trainable, before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not state.model.trainable[0].flags.writeable


def test_weights_of_another_model_are_refused_by_the_next_round(process):
    state = process.initialize()
    other = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    with pytest.raises(TypeMismatch):
        process.next(state.replace(model=fc.learning.ModelWeights.from_model(other)), random_clients([4]))
