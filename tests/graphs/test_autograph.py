"""AutoGraph converts what users write, and nothing of fedcore."""

import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

import fedcore as fc


@pytest.fixture
def converted(monkeypatch):
    """The modules of the functions that AutoGraph converts."""
    modules: list[str] = []
    convert = api._convert_actual

    def spy(entity, program_ctx):
        modules.append(entity.__module__)
        return convert(entity, program_ctx)

    monkeypatch.setattr(api, "_convert_actual", spy)
    return modules


def folded(x):
    return x + 1.0 if x > 0.0 else x


one = fc.tf_computation("float32")(folded)
of_any_type = fc.tf_computation(folded)


def calls_one(x):
    return one(x) * 2.0 if x > 0.0 else x


def calls_of_any_type(x):
    return of_any_type(x) * 2.0


def defines_another(x):
    inner = fc.tf_computation("float32")(lambda y: y + 1.0)
    return inner(x) * 2.0


def walks_a_sequence(xs):
    total = 0.0
    for x in xs.map(folded).take(10):
        total += one(x)
    return xs.reduce(total, lambda t, x: t + one(x))


class Halving:
    def __call__(self, x):
        return self.halved(x)

    def halved(self, x):
        if x > 0.0:
            return x / 2.0
        return x

    @classmethod
    def of_the_class(cls, x):
        return cls().halved(x)

    @tf.function
    def function(self, x):
        return self.halved(x)


halving = Halving()


@pytest.mark.parametrize(
    "fn",
    [
        Halving().halved,
        Halving.of_the_class,
        Halving(),
        halving.function,
        tf.function(Halving().halved),
        functools.partial(Halving.halved, Halving()),
    ],
    ids=["method", "class method", "object", "tf.function as a method", "method as a tf.function", "partial"],
)
def test_control_flow_of_any_callable_is_converted(fn):
    assert fc.tf_computation("float32")(fn)(3.0) == 1.5
    assert fc.tf_computation("float32")(fn)(-3.0) == -3.0
    halves = fc.tf_computation(fc.SequenceType("float32"))(lambda xs: xs.map(fn).reduce(0.0, lambda t, x: t + x))
    assert halves([3.0, -1.0]) == 0.5
    dataset = fc.simulation.datasets.from_arrays({"x": np.float32([3, -1])}, ["a", "a"]).preprocess(
        lambda d: d.map(lambda e: e["x"]).map(fn)
    )
    assert list(dataset.create_tf_dataset_for_client("a").as_numpy_iterator()) == [1.5, -1.0]


@pytest.mark.parametrize("fn", [calls_one, calls_of_any_type, defines_another])
def test_a_computation_inside_a_computation_is_called_as_it_is(fn, converted):
    assert fc.tf_computation("float32")(fn)(1.0) == 4.0
    assert __name__ in converted
    assert not [m for m in converted if m.partition(".")[0] == "fedcore"]


def test_a_computation_inside_a_tf_function_is_called_as_it_is(converted):
    assert tf.function(calls_one)(tf.constant(1.0)) == 4.0
    assert not [m for m in converted if m.partition(".")[0] == "fedcore"]


def test_a_computation_over_a_sequence_is_called_as_it_is(converted):
    assert fc.tf_computation(fc.SequenceType("float32"))(walks_a_sequence)([1.0, 2.0]) == 12.0
    assert __name__ in converted
    assert not [m for m in converted if m.partition(".")[0] == "fedcore"]


SCALE = 2.0


def scaled(x):
    return {"x": x * SCALE, "both": (x, -x)}


def scaled_if_it_is_positive(x):
    return x * SCALE if x > 0.0 else x


def scaled_and_added(x):
    return tf.add(x * SCALE, 1.0)


def second(x):
    return x[1]


def test_only_a_function_without_calls_and_branches_is_traced_as_it_is(converted):
    assert fc.tf_computation("float32")(scaled)(3.0) == {"x": 6.0, "both": (3.0, -3.0)}
    assert fc.tf_computation("float32", "float32")(lambda x, y: (x - y) / SCALE)(3.0, 1.0) == 1.0
    assert not converted
    for fn in (scaled_if_it_is_positive, scaled_and_added):
        assert fc.tf_computation("float32")(fn)(3.0) >= 6.0
    assert fc.tf_computation(fc.TensorType("str", [2]))(second)(["a", "b"]) == b"b"
    assert converted == [__name__] * 3


def test_deprecations_of_autographs_syntax_trees_do_not_end_a_conversion_where_warnings_are_errors(monkeypatch):
    transform = api._TRANSPILER.transform

    def warns_as_gast_does_on_python_3_13(entity, program_ctx):
        warnings.warn_explicit("a keyword", DeprecationWarning, "gast/astn.py", 23, module="gast.astn")
        return transform(entity, program_ctx)

    monkeypatch.setattr(api._TRANSPILER, "transform", warns_as_gast_does_on_python_3_13)

    def positive(x):
        return x if x > 0.0 else -x

    def sum_of_positives(xs):
        total = 0.0
        for x in xs:
            total += positive(x)
        return total

    assert fc.tf_computation(fc.SequenceType("float32"))(sum_of_positives)([1.0, -2.0]) == 3.0
