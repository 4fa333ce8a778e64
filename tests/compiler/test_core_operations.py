"""A core operation of a third party is a declaration: no pass and no runtime knows its name."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.graphs.stages import kernels
from fedcore.ir import registry
from fedcore.ir.operations import LOCAL, TO_CLIENTS, TO_SERVER, Intrinsic

CLIENT_FLOATS = fc.FederatedType("float32", fc.CLIENTS)
SERVER_FLOAT = fc.FederatedType("float32", fc.SERVER)


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    """Operations and kernels that a test declares are forgotten after it."""
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    monkeypatch.setattr(kernels, "kernels", dict(kernels.kernels))


def paired():
    @fc.intrinsic(
        "(left: {T}@CLIENTS, right: {W}@CLIENTS, fn: (<T,W> -> U) -> {U}@CLIENTS)"
        " | (left: T@SERVER, right: W@SERVER, fn: (<T,W> -> U) -> U@SERVER)",
        per_client="fn",
    )
    def federated_paired(left, right, fn, *, operand_types):
        """Applies `fn` to two values of one placement.

        Example:
            >>> both = federated_paired(x, y, fn)
        """
        at_clients = operand_types[0].placement.name == "CLIENTS"
        return [fn(a, b) for a, b in zip(left, right, strict=True)] if at_clients else fn(left, right)

    @federated_paired.in_stage
    def _(left, right, fn):
        return fn(left, right)

    return federated_paired


def everywhere(computation, *arguments, seed: int = 3) -> list:
    """The results by the meanings, of the plan by the meanings, and of the plan by the local runtime."""
    found = []
    for runtime in (fc.runtime.reference(), fc.runtime.local(workers_per_device=1)):
        with fc.use(runtime):
            found.append(computation.invoke(*arguments, seed=seed))
        runtime.close()
    with fc.use(fc.runtime.reference()):
        found.append(fc.invoke(computation.to_module("planned"), list(arguments), seed=seed))
    return found


def test_an_operation_at_clients_joins_the_stage_of_its_operands():
    federated_paired = paired()

    @fc.federated_computation(CLIENT_FLOATS, SERVER_FLOAT)
    def spread(readings, centre):
        away = federated_paired(readings, fc.federated_broadcast(centre), lambda x, c: (x - c) * (x - c))
        return fc.federated_sum(away)

    kinds = [op.kind for op in spread.to_module("planned").main.operations]
    assert kinds == ["broadcast", "fold", "merge", "run"]
    assert everywhere(spread, [1.0, 2.0, 5.0], 2.0) == [10.0] * 3


def test_its_function_draws_by_client():
    federated_paired = paired()

    @fc.tf_computation("float32", "float32")
    def noisy(x, y):
        return x + y + tf.random.uniform(())

    @fc.federated_computation(CLIENT_FLOATS)
    def total(xs):
        return federated_paired(xs, xs, noisy)

    meant, *others = ([float(x) for x in one] for one in everywhere(total, [1.0, 1.0, 1.0]))
    assert len(set(meant)) == 3
    for other in others:
        np.testing.assert_allclose(other, meant, rtol=1e-6)


def test_an_operation_at_the_server_joins_the_stage_of_its_operands():
    federated_paired = paired()

    @fc.federated_computation(CLIENT_FLOATS, SERVER_FLOAT)
    def product(xs, scale):
        return federated_paired(fc.federated_sum(xs), scale, lambda a, b: a * b)

    assert everywhere(product, [1.0, 2.0], 3.0) == [9.0] * 3


def test_constants_of_it_are_computed_where_they_are_used():
    federated_paired = paired()

    @fc.federated_computation(CLIENT_FLOATS)
    def moved(xs):
        one = fc.federated_value(1.0, fc.CLIENTS)
        two = federated_paired(one, one, lambda a, b: a + b)
        return fc.federated_sum(federated_paired(xs, two, lambda a, b: a + b))

    assert [op.kind for op in moved.to_module("planned").main.operations] == ["fold", "merge", "run"]
    assert everywhere(moved, [1.0, 2.0]) == [7.0] * 3


def test_an_aggregation_crosses_to_the_server():
    @fc.intrinsic(
        "(value: {T}@CLIENTS, zero: Z, accumulate: (<A,T> -> A), merge: (<A,A> -> A), report: (A -> R) -> R@SERVER)",
        crosses=TO_SERVER,
        per_client="accumulate",
        widens={"A": "Z"},
    )
    def federated_counted_fold(value, zero, accumulate, merge, report):
        """Folds client values.

        Example:
            >>> n = federated_counted_fold(x, 0, lambda n, _: n + 1, lambda m, n: m + n, lambda n: n)
        """
        total = zero
        for x in value:
            total = accumulate(total, x)
        return report(merge(zero, total))

    @fc.federated_computation(CLIENT_FLOATS)
    def total(xs):
        return federated_counted_fold(xs, 0.0, lambda a, x: a + x, lambda a, b: a + b, lambda a: a * 2.0)

    assert [op.kind for op in total.to_module("planned").main.operations] == ["fold", "merge", "run"]
    assert everywhere(total, [1.0, 2.0, 4.0]) == [14.0] * 3


def test_a_value_is_sent_by_an_operation_that_says_so():
    @fc.intrinsic("(value: T@SERVER -> T@CLIENTS)", crosses=TO_CLIENTS)
    def federated_announced(value, *, clients):
        """Sends the server's value.

        Example:
            >>> y = federated_announced(x)
        """
        return fc.intrinsics.federated_broadcast.meaning(value, clients=clients)

    @fc.federated_computation(CLIENT_FLOATS, SERVER_FLOAT)
    def moved(xs, y):
        return fc.federated_sum(fc.federated_map(lambda x, y: x + y, (xs, federated_announced(y))))

    operations = moved.to_module("planned").main.operations
    assert [op.kind for op in operations] == ["broadcast", "fold", "merge", "run"]
    assert operations[0].attributes["bits"] == 32
    assert everywhere(moved, [1.0, 2.0], 0.5) == [4.0] * 3


def test_attributes_and_the_type_of_the_result_reach_the_form_in_a_stage():
    @fc.intrinsic("(value: T@SERVER -> T@SERVER) where T: numeric", attributes=("times",))
    def federated_scaled(value, times):
        """The value, times a constant.

        Example:
            >>> y = federated_scaled(x, 3)
        """
        return fc.intrinsics.numerics.multiply(value, np.int32(times))

    @federated_scaled.in_stage
    def _(value, *, times, result_type):
        assert str(result_type) == "<a=float32,b=float32>"
        return {"a": value[0] * times, "b": value[1] * times}

    @fc.federated_computation(fc.FederatedType({"a": "float32", "b": "float32"}, fc.SERVER))
    def scaled(value):
        return federated_scaled(value, 3)

    assert everywhere(scaled, {"a": 1.0, "b": 2.0}) == [{"a": 3.0, "b": 6.0}] * 3


def test_a_form_of_another_type_is_refused_with_both_types():
    federated_paired = paired()
    federated_paired.in_stage(lambda left, right, fn: (left, right))

    @fc.federated_computation(CLIENT_FLOATS)
    def total(xs):
        return fc.federated_sum(federated_paired(xs, xs, lambda a, b: a + b))

    with pytest.raises(FedcoreError) as raised:
        total.to_module("planned")
    said = str(raised.value)
    assert said.startswith("federated_paired (")
    assert said.endswith("gives <float32,float32> inside a stage, but its signature says float32")


def test_an_operation_without_lowering_and_form_says_what_is_missing():
    federated_paired = paired()
    federated_paired.staged_by = None

    @fc.federated_computation(CLIENT_FLOATS)
    def total(xs):
        return fc.federated_sum(federated_paired(xs, xs, lambda a, b: a + b))

    with pytest.raises(FedcoreError) as raised:
        total.to_module("planned")
    assert str(raised.value).endswith(
        "has neither a lowering (@federated_paired.lowering) nor a form inside a stage (@federated_paired.in_stage)"
    )


def test_a_local_operation_with_a_kernel_runs_for_clients_side_by_side():
    @fc.intrinsic("(value: T -> T) where T: inexact", level=LOCAL)
    def rectified(value):
        """The value, or 0 where it is negative.

        Example:
            >>> y = rectified(x)
        """
        return fc.intrinsics.numerics.leafwise(lambda x: np.maximum(x, np.zeros_like(x)), value)

    @kernels.kernel("rectified")
    def _(op, value):
        return tf.nest.map_structure(tf.nn.relu, value)

    @fc.federated_computation(CLIENT_FLOATS)
    def total(xs):
        return fc.federated_sum(fc.federated_map(rectified, xs))

    plan = total.to_module("planned")
    (stage,) = [f for f in plan.functions if f.attributes.get("strategy")]
    assert stage.attributes["strategy"] == "vectorised"
    assert everywhere(total, [-1.0, 2.0, -3.0, 4.0]) == [6.0] * 3


def test_an_operation_over_sequences_stays_out_of_graphs_and_draws_by_element():
    @fc.intrinsic("(value: T*, fn: (T -> float32) -> float32)", level=LOCAL, per_element="fn")
    def sequence_total(value, fn):
        """Adds up `fn` of the elements.

        Example:
            >>> y = sequence_total(xs, lambda x: 1.0)
        """
        return np.float32(sum(fn(x) for x in value))

    @kernels.kernel("sequence_total")
    def _(op, sequence, fn):
        return sequence.reduce(tf.constant(0.0), lambda total, x: total + fn(x), op.type)

    @fc.federated_computation(fc.FederatedType(fc.SequenceType("float32"), fc.CLIENTS))
    def total(data):
        return fc.federated_sum(fc.federated_map(lambda d: sequence_total(d, lambda x: x * x) + 1.0, data))

    assert everywhere(total, [[1.0, 2.0], [], [3.0]]) == [17.0] * 3


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (
            lambda op, x: tf.cast(x, tf.int32),
            r"the kernel of own gives <\w+ int32\[\]>, but its signature says",
        ),
        (lambda op, x: tf.stack([x, x]), r"the kernel of own gives <\w+ float32\[2\]>, but its"),
        (lambda op, x: (x, x), r"the kernel of own gives .*, .*, but its"),
        (lambda op, x: None, r"the kernel of own gives None, but its"),
    ],
    ids=["dtype", "shape", "structure", "None"],
)
def test_a_kernel_of_another_type_than_its_signature_is_refused(run, says):
    @fc.intrinsic("(value: T -> T) where T: inexact", level=LOCAL)
    def own(value):
        return value

    kernels.kernel("own")(run)
    alone = fc.federated_computation(lambda x: own(x), "float32")
    mapped = fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(own, xs)), CLIENT_FLOATS)
    for program in (alone, mapped):
        with pytest.raises(TypeMismatch, match=says):
            program.to_module("planned")


def test_a_local_operation_without_a_kernel_says_so_where_its_meaning_is_none():
    @fc.intrinsic("(value: T -> T) where T: inexact", level=LOCAL)
    def own(value):
        return np.float32(np.cumsum(value)[-1])

    with pytest.raises(FedcoreError, match=r"own has no kernel \(@kernel\('own'\)\), and its meaning does not run on"):
        fc.federated_computation(lambda x: own(x), "float32")(1.0)


@pytest.mark.parametrize(
    ("declaration", "says"),
    [
        ({"level": "somewhere"}, "other: `level` is placed or local, not 'somewhere'"),
        ({"attributes": ("how",)}, "other has no parameter 'how' to be an attribute"),
        ({"crosses": "sideways"}, "other: `crosses` is TO_CLIENTS or TO_SERVER, not 'sideways'"),
        ({"per_client": "gn"}, "other has no parameter 'gn'; it has fn, arg"),
        ({"crosses": TO_CLIENTS}, "other crosses to the clients, so it takes one value, which is sent unchanged"),
        (
            {"crosses": TO_SERVER},
            "other crosses to the server, so it takes value, zero, accumulate, merge, report; it takes fn, arg. "
            "Others are written in fc.federated_aggregate, by a lowering",
        ),
    ],
)
def test_a_declaration_that_does_not_fit_the_parameters_is_refused(declaration, says):
    def other(fn, arg):
        return fn(arg)

    with pytest.raises(FedcoreError) as raised:
        fc.intrinsic("(fn: (T -> U), arg: T@SERVER -> U@SERVER)", **declaration)(other)
    assert str(raised.value) == says


@pytest.mark.parametrize("signature", ["({T}@CLIENTS -> U@SERVER)", "({T}@CLIENTS, by?: U -> <T,U>@SERVER)"])
def test_a_result_of_a_variable_that_no_call_binds_is_refused(signature):
    def other(values, by=None):
        return values

    with pytest.raises(FedcoreError, match=r"^other: no required parameter of .* has U, so calls would not know"):
        fc.intrinsic(signature)(other)


@pytest.mark.parametrize(
    ("lowering", "says"),
    [
        (lambda a: a, r"\(value, weight, scale=\): `<lambda>` \(.*\) does not: too many positional arguments"),
        (lambda a, b, *, scale: a, r"\(value, scale=\): .* does not: missing a required argument: 'b'"),
        (lambda a, b=None: a, "does not: got an unexpected keyword argument 'scale'"),
        (3, "does not: 3 is not a callable object"),
    ],
)
def test_a_lowering_that_does_not_take_the_calls_is_refused(lowering, says):
    def scaled(value, weight=None, scale=2):
        return value

    signature = "(value: {T}@CLIENTS, weight?: {W}@CLIENTS -> T@SERVER)"
    scaled_sum = Intrinsic(scaled, level="placed", signature=signature, typing=None, attributes=("scale",))
    with pytest.raises(FedcoreError, match=r"^the lowering of scaled takes .*" + says):
        scaled_sum.lowering(lowering)
    assert scaled_sum.lowered_by is None
