"""`federated_aggregate`: states wider than their zero, merges that run, what its functions may hold."""

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context
from fedcore.errors import TracingError, TypeMismatch

FLOATS = fc.FederatedType("float32", fc.CLIENTS)
INTS = fc.FederatedType("int32", fc.CLIENTS)
STACKS = [fc.runtime.local, fc.runtime.reference]


@pytest.fixture(params=STACKS, ids=lambda make: make.__name__)
def runtime(request):
    made = request.param()
    with fc.use(made):
        yield made
    made.close()


@fc.tf_computation
def appended(rows, x):
    return tf.concat([rows, x[tf.newaxis]], 0)


@fc.tf_computation
def joined(left, right):
    return tf.concat([left, right], 0)


@fc.federated_computation(FLOATS)
def gathered(xs):
    zero = np.zeros(0, np.float32)
    return fc.federated_aggregate(xs, zero, appended, joined, lambda rows: rows)


def test_a_zero_may_be_narrower_than_the_accumulator():
    (op,) = [o for o in gathered.module.main.operations if o.kind == "federated_aggregate"]
    assert str(op.type) == "float32[?]@SERVER"


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7])
def test_an_accumulator_grows_in_client_order(runtime, n):
    values = [float(k) for k in range(n)]
    np.testing.assert_array_equal(gathered(values), np.float32(values))


@fc.federated_computation(FLOATS)
def gathered_and_counted(xs):
    zero = {"n": 0, "rows": np.zeros(0, np.float32)}
    return fc.federated_aggregate(
        xs,
        zero,
        lambda s, x: {"n": s.n + 1, "rows": appended(s.rows, x)},
        lambda a, b: {"n": a.n + b.n, "rows": joined(a.rows, b.rows)},
        lambda s: s,
    )


def test_a_struct_of_states_may_widen_in_one_leaf(runtime):
    result = gathered_and_counted([5.0, 6.0, 7.0])
    assert result["n"] == 3
    np.testing.assert_array_equal(result["rows"], [5.0, 6.0, 7.0])


class Gathered(NamedTuple):
    n: int
    rows: np.ndarray


def test_a_state_that_widens_keeps_its_python_class(runtime):
    @fc.federated_computation(FLOATS, fc.FederatedType(fc.SequenceType("float32"), fc.SERVER))
    def of_clients_and_of_a_sequence(xs, sequence):
        zero = Gathered(np.int32(0), np.zeros(0, np.float32))

        @fc.tf_computation
        def accumulate(state, x):
            assert isinstance(state, Gathered)
            return Gathered(state.n + 1, tf.concat([state.rows, [x]], 0))

        @fc.tf_computation
        def merge(a, b):
            return Gathered(a.n + b.n, tf.concat([a.rows, b.rows], 0))

        report = fc.tf_computation(lambda state: state)
        return fc.federated_aggregate(xs, zero, accumulate, merge, report), fc.sequence_reduce(
            sequence, zero, accumulate
        )

    for found in of_clients_and_of_a_sequence([5.0, 6.0, 7.0], [5.0, 6.0, 7.0]):
        assert isinstance(found, Gathered)
        assert found.n == 3
        np.testing.assert_array_equal(found.rows, [5.0, 6.0, 7.0])


def test_declared_functions_may_be_wider_than_the_zero(runtime):
    rows = fc.TensorType("float32", (None,))
    accumulate = fc.tf_computation(rows, "float32")(lambda r, x: tf.concat([r, [x]], 0))
    merge = fc.tf_computation(rows, rows)(lambda a, b: tf.concat([a, b], 0))
    report = fc.tf_computation(rows)(lambda r: tf.reduce_sum(r))
    total = fc.federated_computation(
        lambda xs: fc.federated_aggregate(xs, np.zeros(0, np.float32), accumulate, merge, report), FLOATS
    )
    assert total([1.0, 2.0, 3.0]) == 6.0
    assert total([]) == 0.0


def test_a_sequence_may_be_folded_into_a_wider_state(runtime):
    computation = fc.federated_computation(
        lambda s: fc.sequence_reduce(s, np.zeros(0, np.float32), appended),
        fc.FederatedType(fc.SequenceType("float32"), fc.SERVER),
    )
    np.testing.assert_array_equal(computation([1.0, 2.0]), [1.0, 2.0])
    np.testing.assert_array_equal(computation([]), [])


def test_client_values_of_unknown_shape_are_aggregated(runtime):
    type_ = fc.FederatedType(fc.TensorType("float32", (None,)), fc.CLIENTS)
    sizes = fc.federated_computation(
        lambda xs: fc.federated_sum(fc.federated_map(fc.tf_computation(lambda x: tf.reduce_sum(x)), xs)), type_
    )
    assert sizes([np.float32([1, 2]), np.float32([]), np.float32([3])]) == 6.0


def test_a_sum_of_unknown_shape_says_that_its_zero_is_not_known():
    type_ = fc.FederatedType(fc.TensorType("float32", (None,)), fc.CLIENTS)
    total = fc.federated_computation(lambda xs: fc.federated_sum(xs), type_)
    with pytest.raises(TypeMismatch, match=r"generic_zero: float32\[\?\] has unknown dimensions"):
        total([np.float32([1])])


def test_merges_run_in_a_tree():
    with fc.use(fc.runtime.local(workers_per_device=1)) as runtime:
        gathered([float(k) for k in range(8)])
        report = context.last_report()
        runtime.close()
    blocks = report.graph_calls["blocks"]
    assert blocks > 1
    assert report.graph_calls["merges"] == blocks - 1


def test_a_wrong_zero_shows_what_accumulate_takes():
    accumulate = fc.tf_computation("float32", "float32")(lambda a, x: a + x)
    with pytest.raises(TypeMismatch) as raised:
        fc.federated_computation(
            lambda xs: fc.federated_aggregate(xs, 0, accumulate, lambda a, b: a + b, lambda a: a), FLOATS
        )
    text = str(raised.value)
    assert text.startswith("federated_aggregate: `zero` does not fit what `accumulate` takes first\n")
    assert "wants  float32\n" in text
    assert "has    int32\n" in text


def test_an_accumulate_that_gives_another_dtype_shows_both():
    with pytest.raises(TypeMismatch, match=r"federated_aggregate: `accumulate` does not fit\n.*\n.*float32"):
        fc.federated_computation(
            lambda xs: fc.federated_aggregate(xs, 0, lambda n, x: x, lambda a, b: a, lambda a: a), FLOATS
        )


def test_a_merge_of_another_type_shows_both():
    merge = fc.tf_computation("float32", "float32")(lambda a, b: a + b)
    with pytest.raises(TypeMismatch, match="federated_aggregate: `merge` does not fit"):
        fc.federated_computation(
            lambda xs: fc.federated_aggregate(xs, 0, lambda n, x: n + 1, merge, lambda a: a), FLOATS
        )


@pytest.mark.parametrize("which", ["accumulate", "merge", "report"])
def test_functions_of_an_aggregate_capture_constants(which, runtime):
    def added(xs):
        two = fc.generic_zero("int32") + 0
        literal = fc.federated_aggregate(
            xs,
            0,
            (lambda n, x: n + x + 2 - 2) if which == "accumulate" else (lambda n, x: n + x),
            lambda a, b: a + b,
            lambda a: a,
        )
        del two
        return literal

    assert fc.federated_computation(added, INTS)([1, 2, 3]) == 6


@pytest.mark.parametrize("which", ["accumulate", "merge", "report"])
def test_a_captured_value_is_refused_with_advice(which):
    def added(xs, shift):
        functions = {"accumulate": lambda n, x: n + x, "merge": lambda a, b: a + b, "report": lambda a: a}
        plain = functions[which]
        functions[which] = (lambda a: plain(a) + shift) if which == "report" else (lambda a, b: plain(a, b) + shift)
        return fc.federated_aggregate(xs, 0, **functions)

    with pytest.raises(TracingError, match=r"federated_aggregate: a function of it captures a value of type int32"):
        fc.federated_computation(added, INTS, "int32")


def plus(a, b):
    return a + b


NOTE = "note: the first argument of this function has the type of `zero`, int32; write 0.0 in place of 0"


def test_a_whole_zero_of_a_sum_of_floats_is_named():
    with pytest.raises(fc.errors.TypeMismatch) as raised:
        fc.federated_computation(lambda xs: fc.federated_aggregate(xs, 0, plus, plus, lambda n: n), FLOATS)
    assert str(raised.value).startswith("generic_plus: `right` does not fit\n")
    assert str(raised.value).endswith(f"\n  {NOTE}")


def test_a_whole_zero_of_a_declared_sum_of_floats_is_named():
    add = fc.tf_computation(plus, "float32", "float32")
    with pytest.raises(fc.errors.TypeMismatch) as raised:
        fc.federated_computation(lambda xs: fc.federated_aggregate(xs, 0, add, add, lambda n: n), FLOATS)
    assert "`zero` does not fit what `accumulate` takes first" in str(raised.value)
    assert str(raised.value).endswith("\n  fix: write 0.0 in place of 0")


def test_a_whole_zero_is_named_where_tensorflow_refuses_the_sum():
    add = fc.tf_computation(plus)
    with pytest.raises(TypeError) as raised:
        fc.federated_computation(lambda xs: fc.federated_aggregate(xs, 0, add, add, lambda n: n), FLOATS)
    assert raised.value.__notes__ == [NOTE]


def test_a_zero_of_the_values_dtype_is_named_without_a_fix():
    with pytest.raises(fc.errors.TypeMismatch) as raised:
        fc.federated_computation(
            lambda xs: fc.federated_aggregate(xs, 0.0, lambda n, x: n + fc.cast(x, "int32"), plus, lambda n: n), FLOATS
        )
    assert str(raised.value).endswith("has the type of `zero`, float32")


def test_a_placed_zero_is_what_is_refused():
    def total(xs, zero):
        return fc.federated_aggregate(xs, zero, lambda a, x: a + x, lambda a, b: a + b, lambda a: a)

    with pytest.raises(TypeMismatch, match=r"`zero` does not fit(.|\n)*float32@SERVER(.|\n)*Z must be local"):
        fc.federated_computation(total, FLOATS, fc.FederatedType("float32", fc.SERVER))
