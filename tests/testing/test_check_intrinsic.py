import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
import fedcore.intrinsics  # declares ours
from fedcore.ir import registry
from fedcore.testing import intrinsics
from fedcore.testing.generated import calls_of

# What tracing and lowerings append; nobody calls them by name.
APPENDED = {"struct", "item", "literal", "call", "bind", "as_row", "append_rows", "columns_of_sequence", "random_seed"}
OURS = sorted(n for n, op in registry.registered().items() if op.level in ("placed", "local") and n not in APPENDED)
WITH_CASES = ("federated_secure_aggregate", "generic_zero", "sequence_from_groups")


def some_calls_of(op):
    """The first and the last of the calls of a local intrinsic: each is mapped over clients in several ways.

    The last has a struct of integers and floats. That of `where` has strings, and only the one before has conditions.
    """
    calls = list(calls_of(op))
    return calls[:1] + calls[1:][-1:] if op.level == "local" and op.name != "where" else calls


LIKE_OTHERS = {"generic_minus", "generic_multiply", "minimum", "less"}
"""Each is lowered as another intrinsic is: `generic_plus`, `maximum`, `equal`."""


@pytest.mark.parametrize(
    ("name", "every_call"),
    [
        pytest.param(name, every_call, marks=pytest.mark.soak if every_call or name in LIKE_OTHERS else ())
        for name in OURS
        if name not in WITH_CASES
        for every_call in (False, True)
    ],
)
def test_an_intrinsic_of_ours_keeps_the_laws(name, every_call, monkeypatch):
    """`tests/conformance` has every intrinsic at every dtype."""
    if not every_call:
        monkeypatch.setattr(intrinsics, "calls_of", some_calls_of)
    # A sequence is made outside of graphs, so clients that make one run one after the other.
    assert fc.testing.check_intrinsic(name, batched=name != "sequence_from_rows") > 0


def test_generic_zero_keeps_the_laws():
    zeros = fc.federated_computation(lambda: fc.generic_zero({"a": "int32", "b": ("float32", (2,))}))
    assert fc.testing.check_intrinsic("generic_zero", [(zeros, [])]) == 1


def test_federated_secure_aggregate_keeps_the_laws():
    @fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
    def total(counts):
        def plus(a, b):
            return a + b

        return fc.federated_secure_aggregate(counts, 0, plus, plus, lambda n: n, ("0..9",))

    assert fc.testing.check_intrinsic("federated_secure_aggregate", [(total, [[1, 2, 3]])]) == 1


def test_sequence_from_groups_keeps_the_laws():
    @fc.federated_computation(("float32", (4,)))
    def total(rows):
        groups = fc.sequence_from_groups(rows, np.array([0, 1, 1, 4]))
        size = fc.tf_computation(("float32", [None]))(lambda x: tf.reduce_sum(x) * tf.cast(tf.size(x), tf.float32))
        return fc.sequence_sum(fc.sequence_map(size, groups))

    assert fc.testing.check_intrinsic("sequence_from_groups", [(total, [[1.0, 2.0, 3.0, 4.0]])]) == 1


@pytest.fixture
def declared(monkeypatch):
    """Intrinsics declared in a test are forgotten after it."""
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))


SIGNATURE = "(value: {T}@CLIENTS -> T@SERVER) where T: numeric"


def doubled_sum(lowering, documentation="Twice the sum.\n\nExample:\n    >>> total = doubled_sum(x)\n", rule=None):
    def doubled_sum(value, *, T):
        total = fc.intrinsics.numerics.zeros(T)
        for x in value:
            total = fc.intrinsics.numerics.add(total, x)
        return fc.intrinsics.numerics.multiply(total, np.int32(2))

    doubled_sum.__doc__ = documentation
    op = fc.intrinsic(SIGNATURE, rule=rule)(doubled_sum)
    if lowering is not None:
        op.lowering(lowering)
    return op


def twice(value):
    return fc.federated_apply(lambda x: fc.generic_multiply(x, 2), fc.federated_sum(value))


def once(value):
    return fc.federated_sum(value)


def broken(op, **kwargs) -> str:
    with pytest.raises(fc.testing.LawBroken) as raised:
        fc.testing.check_intrinsic(op, **kwargs)
    return str(raised.value)


def test_a_right_one_passes(declared):
    assert fc.testing.check_intrinsic(doubled_sum(twice)) == 28


def test_a_wrong_lowering_is_found_and_shown(declared):
    text = broken(doubled_sum(once))
    assert text.startswith("the law is broken: doubled_sum: the lowering gives the meaning's result\n  the result is")
    assert "it is lowered to\n  fedcore 1 lowered" in text
    assert "inputs: [[" in text
    assert "= doubled_sum(" in text


def test_a_missing_example_is_found(declared):
    assert "its documentation has no example" in broken(doubled_sum(twice, "Twice the sum."))


def test_a_missing_sentence_is_found(declared):
    assert "its documentation begins with a sentence, not 'twice'" in broken(doubled_sum(twice, "twice"))


def test_an_example_that_fails_is_found(declared):
    text = broken(doubled_sum(twice, "Twice.\n\nExample:\n    >>> total = doubled_sum(x, x)\n"))
    assert "the example of doubled_sum runs" in text
    assert "too many positional arguments" in text


def test_an_example_of_something_else_is_found(declared):
    assert "does not call doubled_sum" in broken(
        doubled_sum(twice, "Twice.\n\nExample:\n    >>> fc.federated_sum(x)\n")
    )


def test_an_example_that_does_not_parse_is_found(declared):
    assert "invalid syntax" in broken(doubled_sum(twice, "Twice.\n\nExample:\n    >>> doubled_sum(x x)\n"))


def test_a_meaning_that_differs_from_the_local_runtime_is_found(declared):
    from fedcore.graphs.stages import kernels

    @fc.intrinsic("(value: T -> T) where T: numeric", level="local")
    def negated(value):
        """Minus the value.

        Example:
            >>> minus = negated(x)
        """
        return fc.intrinsics.numerics.leafwise(np.negative, value)

    kernels.kernels["negated"] = lambda op, value: value
    try:
        assert "negated: the local runtime gives the meaning's result" in broken(negated)
    finally:
        del kernels.kernels["negated"]


def test_a_case_without_the_intrinsic_is_refused(declared):
    other = fc.federated_computation(lambda x: x, fc.FederatedType("int32", fc.SERVER))
    assert "a case holds the intrinsic" in broken(doubled_sum(twice), cases=[(other, [1])])


def test_an_intrinsic_without_a_signature_needs_cases(declared):
    assert "generic_zero is run" in broken("generic_zero")


def test_a_refusal_without_both_sides_is_found(declared):
    op = doubled_sum(twice)

    def result_type(types, attributes):
        raise fc.errors.TypeMismatch("no")

    good = op.result_type
    op.result_type = lambda types, attributes: (
        good(types, attributes) if types[0].placement == fc.CLIENTS else result_type(types, attributes)
    )
    assert "refuses a wrong `value` with both sides shown\n  given int32@SERVER it says: no" in broken(
        op
    ) or "with both sides shown" in broken(op)


def test_taking_a_wrong_argument_is_found(declared):
    @fc.intrinsic("(value: T -> T@SERVER)")
    def placed_anyhow(value):
        """Places it.

        Example:
            >>> s = placed_anyhow(x)
        """
        return value

    placed_anyhow.lowering(lambda value: fc.federated_value(value, fc.SERVER))
    assert fc.testing.check_intrinsic(placed_anyhow) > 0


# What cannot be fooled: each of these gives what its meaning gives on a few small numbers at the server.


def total_of(value, *, T):
    total = fc.intrinsics.numerics.zeros(T)
    for x in value:
        total = fc.intrinsics.numerics.add(total, x)
    return total


FLOAT_SUM = "({T}@CLIENTS -> T@SERVER) where T: inexact"


def test_a_lowering_that_loses_small_parts_of_large_numbers_is_found(declared):
    @fc.intrinsic("({float32}@CLIENTS -> float32@SERVER)")
    def halved_sum(value):
        """The sum.

        Example:
            >>> total = halved_sum(x)
        """
        return np.float32(sum(value))

    @halved_sum.lowering
    def _(value):
        half = fc.federated_map(lambda x: fc.cast(fc.cast(x, "float16"), "float32"), value)
        return fc.federated_sum(half)

    assert "halved_sum: the lowering gives the meaning's result" in broken(halved_sum)


def test_a_formula_that_cancels_is_found(declared):
    @fc.intrinsic("({float32}@CLIENTS -> float32@SERVER)")
    def variance(value):
        """The variance; 0 without clients.

        Example:
            >>> v = variance(x)
        """
        return np.float32(np.var(np.array(value, np.float64))) if value else np.float32(0)

    @variance.lowering
    def _(value):
        one = fc.federated_map(lambda x: (x, x * x, 1.0), value)
        sums = fc.federated_sum(one)

        def report(sums):
            count = fc.maximum(sums[2], 1.0)
            mean = sums[0] / count
            return sums[1] / count - mean * mean

        return fc.federated_map(report, sums)

    assert "variance: the lowering gives the meaning's result" in broken(variance)


def test_a_kernel_that_forgets_its_attribute_is_found_by_a_long_sequence(declared, monkeypatch):
    from fedcore.graphs.stages import kernels

    @fc.intrinsic("(value: float32* -> float32)", level="local", attributes=("count",))
    def sum_of_first(value, count):
        """Adds up the first `count` elements.

        Example:
            >>> total = sum_of_first(xs, 3)
        """
        return np.float32(sum(value[:count]))

    def forgetful(op, sequence):
        return sequence.reduce(tf.constant(0.0), lambda total, x: total + x, op.type)

    monkeypatch.setitem(kernels.kernels, "sum_of_first", forgetful)
    assert "sum_of_first: the local runtime gives the meaning's result" in broken(sum_of_first)


def _softsign(declared_by=None):
    @fc.intrinsic("(value: float32[4] -> float32[4])", level="local")
    def squashed(value):
        """x / (1 + |x|) for each number.

        Example:
            >>> y = squashed(x)
        """
        return value / (np.float32(1) + np.abs(value))

    return squashed


def test_a_wrong_batching_rule_is_found_at_the_clients(declared, monkeypatch):
    from fedcore.graphs.batched.batched_value import batching_rules
    from fedcore.graphs.stages import kernels

    op = _softsign()
    monkeypatch.setitem(kernels.kernels, "squashed", lambda op, value: tf.nn.softsign(value))
    assert fc.testing.check_intrinsic(op) > 0
    monkeypatch.setitem(batching_rules, "Softsign", lambda call, node, x: x)
    text = broken(op)
    assert "squashed: the local runtime gives the meaning's result" in text
    assert "{float32[4]}@CLIENTS" in text


def test_a_kernel_that_crashes_is_shown_with_the_program(declared, monkeypatch):
    from fedcore.graphs.stages import kernels

    def crash(op, value):
        raise KeyError("depth")

    monkeypatch.setitem(kernels.kernels, "squashed", crash)
    text = broken(_softsign())
    assert "squashed: the local runtime gives the meaning's result\n  the result is" in text
    assert "KeyError" in text
    assert "= squashed(" in text


# Implementations, and batching.


HOMES = ("@{}.lowering: ", "@{}.in_stage: ", "crosses=TO_CLIENTS or TO_SERVER: ", "@kernel('{}'): ")


def test_a_placed_intrinsic_without_an_implementation_is_refused_with_all_homes(declared):
    op = doubled_sum(None)
    text = broken(op)
    assert text.startswith("the law is broken: doubled_sum has an implementation\n  it has no implementation; give it")
    assert all(home.format(op.name) in text for home in HOMES)


def test_a_local_intrinsic_whose_meaning_needs_numpy_is_refused_with_all_homes(declared):
    op = _close()
    text = broken(op)
    assert "its meaning does not run on tensors (NotImplementedError: Cannot convert a symbolic tf.Tensor" in text
    assert all(home.format(op.name) in text for home in HOMES)


def test_a_local_intrinsic_whose_meaning_runs_on_tensors_needs_no_kernel(declared):
    @fc.intrinsic("(value: float32[4] -> float32[4])", level="local")
    def opposite(value):
        """Minus the value.

        Example:
            >>> minus = opposite(x)
        """
        return -value

    assert fc.testing.check_intrinsic(opposite) > 0


def _close():
    @fc.intrinsic("(left: float32[4], right: float32[4] -> bool[4])", level="local")
    def close(left, right):
        """Whether numbers differ by at most 0.5.

        Example:
            >>> near = close(reading, centre)
        """
        return np.abs(left - right) <= np.float32(0.5)

    return close


@pytest.fixture
def close(declared, monkeypatch):
    """A local operation whose kernel has no batching rule."""
    from fedcore.graphs.stages import kernels

    def kernel(op, left, right):
        return tf.raw_ops.ApproximateEqual(x=left, y=right, tolerance=0.5)

    monkeypatch.setitem(kernels.kernels, "close", kernel)
    return _close()


def _as_if_both_were_of_clients(evaluation, node, left, right):
    from fedcore.graphs.graphdef.form.checked_operations import emit

    return left.with_tensor(*emit(node.op, [evaluation.tensor(left), evaluation.tensor(right)], node.attributes))


def test_a_missing_batching_rule_is_found(close):
    text = broken(close)
    assert text.startswith(
        "the law is broken: close: its clients are batched\n"
        "  they run one after the other (strategy=loop): "
        "ApproximateEqual: the operation has no rule\n"
        "  fix: write a batching rule, or call check_intrinsic with batched=False, which accepts this\n"
    )
    assert "{float32[4]}@CLIENTS" in text


def test_a_loop_is_accepted_where_it_is_asked_for(close):
    assert fc.testing.check_intrinsic(close, batched=False) > 0


@pytest.mark.parametrize("shared", ["left", "right"])
def test_a_batching_rule_that_fails_for_a_shared_operand_is_found(close, shared, monkeypatch):
    from fedcore.graphs.batched.batched_value import NoBatchingRule, batching_rules

    def rule(evaluation, node, left, right):
        if not {"left": left, "right": right}[shared].batched:
            raise NoBatchingRule(node.op, f"{shared} is shared")
        left, right = (x.with_tensor(evaluation.with_client_axis(x)) for x in (left, right))
        found = _as_if_both_were_of_clients(evaluation, node, left, right)
        return type(found)(found.tensor, True)

    monkeypatch.setitem(batching_rules, "ApproximateEqual", rule)
    text = broken(close)
    assert text.startswith("the law is broken: close: its clients are batched")
    assert f"ApproximateEqual: {shared} is shared" in text


def test_a_batching_rule_that_takes_each_operand_for_a_clients_own_is_found(close, monkeypatch):
    from fedcore.graphs.batched.batched_value import batching_rules

    monkeypatch.setitem(batching_rules, "ApproximateEqual", _as_if_both_were_of_clients)
    assert "ApproximateEqual: Shapes must be equal rank" in broken(close)


def test_a_batching_rule_that_forgets_padded_rows_is_found(declared, monkeypatch):
    """The clients of generated calls have values of equal shapes, so the rule is checked by itself."""
    from fedcore.graphs.batched.batched_value import BatchedValue, batching_rules
    from fedcore.graphs.dataflow import operations as ops
    from fedcore.graphs.stages import kernels

    def rule(evaluation, node, x, axis):
        axes = [int(a) % evaluation.rank(x) for a in evaluation.constant_operand(node, axis).reshape(-1)]
        norm = ops.reduce_euclidean_norm(evaluation.tensor(x), [a + int(x.batched) for a in axes], node["keep_dims"])
        return BatchedValue(norm, x.batched)

    def length(value):
        """The Euclidean length.

        Example:
            >>> size = length(step)
        """
        return np.sqrt(np.sum(value * value))

    monkeypatch.setitem(kernels.kernels, "length", lambda op, value: tf.math.reduce_euclidean_norm(value))
    monkeypatch.setitem(batching_rules, "EuclideanNorm", rule)
    text = broken(fc.intrinsic("(value: float32[4] -> float32)", level="local")(length))
    assert text.startswith(
        "the law is broken: the batching rule of EuclideanNorm (tests/testing/test_check_intrinsic.py:"
    )
    assert "padded along axis 0" in text


def test_a_kernel_without_a_rule_is_found_in_cases(close, monkeypatch):
    monkeypatch.setattr(intrinsics, "programs_of", lambda op, calls: iter(()))

    @fc.federated_computation(("float32", (4,)), ("float32", (4,)))
    def at_the_server(left, right):
        return close(left, right)

    text = broken(close, cases=[(at_the_server, [np.zeros(4, "f"), np.ones(4, "f")])])
    assert "close: its clients are batched\n  no batching rule: ApproximateEqual\n  fix: write batching rules" in text
    assert fc.testing.check_intrinsic(close, [(at_the_server, [np.zeros(4, "f"), np.ones(4, "f")])], batched=False) == 1
