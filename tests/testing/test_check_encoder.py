"""`check_encoder` refuses codes that are none, and warns of no compilations."""

import warnings

import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.aggregators.encoders import Encoder, Integers
from fedcore.errors import TypeMismatch
from fedcore.ir.locations import warn_or_log
from fedcore.runtime.reports.compilations import Compilation
from fedcore.testing.laws import expected_compilations


class Levels(Encoder):
    """Sends the nearest integers as floats."""

    kind = "real"

    def encode(self, value, seed):
        return Integers(tf.round(tf.clip_by_value(value + 8, 0, 15)), bits=4)

    def decode(self, code, seed, spec):
        return tf.cast(code.values, spec.dtype) - 8


def test_integers_that_are_floats_are_refused():
    with pytest.raises(TypeMismatch) as raised:
        fc.testing.check_encoder(Levels(), ("float32", [10]), relative_error=0.5)
    assert "Levels: the values of its Integers are float32, not int32 or uint8" in str(raised.value)
    assert "fix: tf.cast(values, tf.int32), after rounding" in str(raised.value)


def test_a_check_in_a_loop_warns_of_no_compilations():
    compiled = Compilation("check.py:3", number=4, seconds=1.0, reason="closure", total_seconds=4.0)
    with pytest.warns(RuntimeWarning, match="compiled 4 times"):
        warn_or_log(str(compiled))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with expected_compilations():
            warn_or_log(str(compiled))
