import keras
import pytest
import tensorflow as tf
from wrong_learning_parts import MOMENTUM, OPTIMIZERS, Descent, formula

import fedcore as fc
from fedcore.errors import FedcoreError, TypeMismatch

K, build = keras.optimizers, fc.learning.optimizers


@pytest.mark.parametrize(
    ("optimizer", "meaning"),
    [
        (Descent(), formula),
        (Descent(), MOMENTUM),
        (build.build_adam(0.01), K.Adam(0.01)),
        (K.RMSprop(0.01), K.RMSprop(0.01)),
        (build.build_adafactor(0.1), None),
        (K.Lion(0.01), K.Lion(0.01)),
        (lambda: K.SGD(0.1, global_clipnorm=0.1), K.SGD(0.1, global_clipnorm=0.1)),
    ],
)
def test_a_right_optimizer_passes(optimizer, meaning):
    fc.testing.check_optimizer(optimizer, meaning)


def broken(mistake) -> str:
    with pytest.raises(fc.testing.LawBroken) as raised:
        fc.testing.check_optimizer(OPTIMIZERS[mistake], formula)
    return str(raised.value)


def test_other_weights_than_the_formulas_are_shown():
    text = broken("climbs")
    assert text.startswith("the law is broken: Descent, float32: the weights after 5 steps are those of its formula\n")
    assert "\n  wants [[" in text
    assert "of the shape [3, 2]" in text


def test_gradients_are_large_enough_to_show_a_clip():
    assert "the weights after 5 steps are those of its formula\n" in broken("clips gradients at a million")


def test_another_dtype_is_shown_by_its_place():
    text = broken("computes in float32")
    assert "Descent, float64: a step keeps the type of the state\n  it.velocity" in text


def test_weights_that_are_not_finite_are_shown_with_their_gradients():
    text = broken("scales without epsilon")
    assert "step 1 leaves the weights finite\n  gradients {'scale': array(" in text
    assert "'dense': (" in text


def test_what_is_no_optimizer_or_meaning_is_refused():
    with pytest.raises(FedcoreError, match="3 is no optimizer"):
        fc.testing.check_optimizer(3)
    with pytest.raises(TypeMismatch, match="meaning is a Keras optimizer or a function, not 'adam'"):
        fc.testing.check_optimizer(Descent(), "adam")


def test_an_optimizer_that_raises_is_told():
    def fail(velocity, weight, gradient, rate):
        raise KeyError("slot")

    with pytest.raises(fc.testing.LawBroken, match="Descent, float32: takes steps\n  it raises KeyError: 'slot'"):
        fc.testing.check_optimizer(Descent(fail))
    assert tf.executing_eagerly()
