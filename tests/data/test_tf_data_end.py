"""Whether a pipeline ends is TensorFlow's answer; choices end a dataset that TensorFlow takes for infinite."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.data.tf_data_end import is_endless
from fedcore.errors import FedcoreError

Data = tf.data.Dataset
FEW = Data.range(4)
REPEATED = FEW.repeat()
CHOICE = Data.range(2).repeat(3)


def choose(choice, *sources, stop=True):
    return Data.choose_from_datasets([*sources], choice, stop_on_empty_dataset=stop)


ENDING = {
    "a finite choice": lambda: choose(CHOICE, REPEATED, REPEATED),
    "a finite choice and no stop": lambda: choose(CHOICE, REPEATED, REPEATED, stop=False),
    "a source that stops": lambda: choose(CHOICE.repeat(), FEW, REPEATED),
    "a sample that stops": lambda: Data.sample_from_datasets([FEW, REPEATED], stop_on_empty_dataset=True, seed=1),
    "steps behind a choice": lambda: choose(CHOICE, REPEATED, REPEATED).map(lambda x: x).shuffle(3).repeat(2),
    "a choice in a choice": lambda: choose(CHOICE.repeat(), choose(CHOICE, REPEATED, REPEATED), REPEATED),
    "zip with a choice": lambda: Data.zip(choose(CHOICE, REPEATED, REPEATED), REPEATED).map(lambda x, _: x),
    "zip with one finite side": lambda: Data.zip(FEW, REPEATED).map(lambda x, _: x),
    "take behind interleave": lambda: REPEATED.interleave(lambda x: Data.range(2)).take(5),
    "take_while": lambda: REPEATED.enumerate().take_while(lambda i, _: i < 5).map(lambda _, x: x),
    "scan": lambda: FEW.scan(np.int64(0), lambda total, x: (total + x, total)),
    "a generator": lambda: Data.from_generator(lambda: iter([1, 2]), output_signature=tf.TensorSpec([], tf.int64)),
    "repetitions of nothing": lambda: FEW.take(0).repeat(),
    "repetitions of no rows": lambda: fc.data.ClientDataset.from_columns(np.zeros([0], np.int64)).repeat(),
}
ENDLESS = {
    "repeat": lambda: REPEATED,
    "an endless choice": lambda: choose(CHOICE.repeat(), REPEATED, REPEATED),
    "a choice that is repeated": lambda: choose(CHOICE, REPEATED, REPEATED).repeat(),
    "a choice before an endless part": lambda: choose(CHOICE, REPEATED, REPEATED).concatenate(REPEATED),
    "an endless sample": lambda: Data.sample_from_datasets([REPEATED, REPEATED]),
}


@fc.tf_computation(fc.SequenceType(np.int64))
def total(values):
    return values.reduce(np.int64(0), lambda a, b: a + b)


@pytest.mark.parametrize("name", ENDING)
def test_a_pipeline_that_ends_is_read(name):
    data = ENDING[name]()
    assert total(data) == sum(int(x) for x in data)


@pytest.mark.parametrize("name", ENDLESS)
def test_a_pipeline_without_end_is_refused(name):
    data = ENDLESS[name]()
    assert is_endless(data)
    with pytest.raises(FedcoreError, match="repeats without end"):
        total(data)
