import keras
import numpy as np
import pytest
from wrong_learning_parts import LABELS, PREDICTIONS, Distance, FromOne, Largest, OfBatches, distance

import fedcore as fc
from fedcore.errors import InvalidValue, TypeMismatch

CLASSES = np.array([0, 1, 1, 0, 1]), np.float32([0.2, 0.7, 0.4, 0.6, 0.9])


@pytest.mark.parametrize(
    ("make", "examples", "meaning"),
    [
        (Distance, (LABELS, PREDICTIONS), distance),
        (keras.metrics.BinaryAccuracy, CLASSES, lambda y, p: np.mean((p > 0.5) == y)),
        (keras.metrics.AUC, CLASSES, None),
        (fc.learning.metrics.NumExamplesCounter, CLASSES, lambda y, p: len(y)),
        (fc.learning.metrics.NumBatchesCounter, CLASSES, None),
    ],
)
def test_a_right_metric_passes(make, examples, meaning):
    fc.testing.check_metric(make, *examples, meaning=meaning)


def broken(make, **settings) -> str:
    with pytest.raises(fc.testing.LawBroken) as raised:
        fc.testing.check_metric(make, LABELS, PREDICTIONS, **settings)
    return str(raised.value)


def test_states_that_do_not_add_up_are_shown_with_the_batches_of_each_client():
    text = broken(Largest)
    assert "Largest: the states of clients with the batches [[0], [1], [2]] add up to that of all\n  it[" in text
    assert "inputs: [(array([0.]" in text.replace(", dtype=float32", "")


def test_a_state_that_does_not_start_at_zero_is_found():
    assert "FromOne: a client without batches adds nothing, so its state is 0\n  it[0] is" in broken(FromOne)


def test_a_metric_that_adds_up_and_means_something_else_is_found_by_its_meaning():
    fc.testing.check_metric(OfBatches, LABELS, PREDICTIONS)
    assert "OfBatches: the result is that of `meaning`" in broken(OfBatches, meaning=distance)


def test_too_few_examples_and_other_metrics_are_refused():
    with pytest.raises(InvalidValue, match="check_metric takes four examples or more, not 2"):
        fc.testing.check_metric(Distance, [1, 2], [1, 2])
    with pytest.raises(TypeMismatch, match="Mean is a metric of one value"):
        fc.testing.check_metric(keras.metrics.Mean, LABELS, PREDICTIONS)
