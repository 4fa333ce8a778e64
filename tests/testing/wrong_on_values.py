"""Wrong batching rules and rewrites that ordinary numbers do not tell: each is right for small floats and 0 and 1."""

from collections.abc import Callable

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, batching_rules
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node
from fedcore.graphs.dataflow.rewriting import const, op, pattern, var

RULES: list[tuple[str, str, Callable]] = []
"""(operation, mistake, rule)."""


def add_rule(operation: str, mistake: str) -> Callable:
    def add(build: Callable) -> Callable:
        RULES.append((operation, mistake, build(batching_rules[operation])))
        return build

    return add


def _changed(evaluation, x: BatchedValue, change: Callable) -> BatchedValue:
    if not x.batched:
        return x
    return attrs.evolve(x.with_tensor(change(evaluation.tensor(x))), padding=x.padding)


def _through(dtype: tf.DType, of: tf.DType, count: int) -> Callable:
    """From a rule to one that rounds its first operands, if they are of a dtype."""

    def build(right: Callable) -> Callable:
        def rule(evaluation, node, *values):
            def rounded(t):
                return ops.cast(ops.cast(t, dtype), of) if t.dtype == of else t

            return right(evaluation, node, *(_changed(evaluation, x, rounded) for x in values[:count]), *values[count:])

        return rule

    return build


for operation, of, count in (
    ("Max", tf.int32, 1),
    ("Sum", tf.int32, 1),
    ("Equal", tf.int32, 2),
    ("Mul", tf.float64, 2),
    ("Prod", tf.float64, 1),
    ("Cumsum", tf.float64, 1),
):
    add_rule(operation, f"goes through float32 for {of.name}")(_through(tf.float32, of, count))
add_rule("Neg", "goes through int8 for int32")(_through(tf.int8, tf.int32, 1))


@add_rule("ArgMax", "takes the last of ties")
def _last_largest(right):
    def rule(evaluation, node, x, axis):
        t = evaluation.tensor(x)
        along = int(evaluation.constant_operand(node, axis)) % evaluation.rank(x)
        if x.padded_axis == along:
            return right(evaluation, node, x, axis)
        place, size = along + int(x.batched), t.shape[along + int(x.batched)]
        first = right(evaluation, node, x.with_tensor(ops.reverse(t, [place])), axis)
        return first.with_tensor(ops.constant(size - 1, first.tensor.dtype) - first.tensor)

    return rule


@add_rule("TopKV2", "takes the last of ties first")
def _last_of_ties(right):
    def rule(evaluation, node, x, k):
        t = evaluation.tensor(x)
        if x.padded_axis == evaluation.rank(x) - 1:
            return right(evaluation, node, x, k)
        size = t.shape[-1]
        values, places = right(evaluation, node, x.with_tensor(ops.reverse(t, [t.shape.rank - 1])), k)
        return [values, places.with_tensor(ops.constant(size - 1, places.tensor.dtype) - places.tensor)]

    return rule


@add_rule("FloorDiv", "rounds to zero")
def _truncated(right):
    return lambda evaluation, node, x, y: right(evaluation, Node("TruncateDiv", (), node.attributes), x, y)


@add_rule("UnsortedSegmentSum", "takes negative segments for positive ones")
def _positive_segments(right):
    return lambda evaluation, node, x, segments, count: right(
        evaluation, node, x, _changed(evaluation, segments, lambda t: ops.operation("Abs", t)), count
    )


@add_rule("Softmax", "does not subtract the maximum")
def _plain_softmax(right):
    def rule(evaluation, node, x):
        out = right(evaluation, node, x)
        infinite = ops.operation("Exp", evaluation.tensor(x))
        return out.with_tensor(out.tensor + infinite * ops.constant(0, infinite.dtype))

    return rule


@add_rule("Minimum", "loses NaN")
def _least_number(right):
    def rule(evaluation, node, x, y):
        out = right(evaluation, node, x, y)
        if not out.tensor.dtype.is_floating:
            return out
        is_nan = ops.operation("IsNan", out.tensor)
        return out.with_tensor(ops.operation("SelectV2", is_nan, ops.zeros_like(out.tensor), out.tensor))

    return rule


@add_rule("Relu", "takes NaN for 0")
def _relu_of_numbers(right):
    def rule(evaluation, node, x):
        t = evaluation.tensor(x)
        return x.with_tensor(ops.operation("SelectV2", t > ops.zeros_like(t), t, ops.zeros_like(t)))

    return rule


@add_rule("Select", "adds products with the condition")
def _products(right):
    def rule(evaluation, node, condition, x, y):
        if not evaluation.tensor(x).dtype.is_floating:
            return right(evaluation, node, condition, x, y)
        zeros = [_changed(evaluation, v, lambda t: t * ops.constant(0, t.dtype)) for v in (x, y)]
        out, other = right(evaluation, node, condition, x, y), right(evaluation, node, condition, *zeros[::-1])
        return out.with_tensor(out.tensor + other.tensor)

    return rule


@add_rule("Abs", "takes the root of the square")
def _root_of_square(right):
    def rule(evaluation, node, x):
        t = evaluation.tensor(x)
        return x.with_tensor(ops.operation("Sqrt", t * t)) if t.dtype.is_floating else right(evaluation, node, x)

    return rule


@add_rule("Max", "gives 0 for no entries")
def _zero_of_nothing(right):
    def rule(evaluation, node, x, axis):
        out = right(evaluation, node, x, axis)
        empty = 0 in evaluation.tensor(x).shape
        return out.with_tensor(ops.zeros_like(evaluation.tensor(out))) if empty else out

    return rule


@add_rule("Conj", "gives the operand")
def _not_conjugated(right):
    return lambda evaluation, node, x: x


# Rewrites, each with a region that it changes.

REWRITES: list[tuple[str, Callable, str]] = []
"""(mistake, pattern, region)."""


def _region(dtype: str, *lines: str, arguments: str = "%x: {}[9]") -> str:
    arguments = arguments.replace("{}", dtype)
    return f"region({arguments}) {{\n" + "".join(f"  {line}\n" for line in lines) + f"  return %{len(lines) - 1}\n}}\n"


def add_rewrite(mistake: str, region: str) -> Callable:
    def add(one: Callable) -> Callable:
        REWRITES.append((mistake, one, region))
        return one

    return add


@add_rewrite(
    "takes int32 -> int8 -> int32 for the identity",
    _region("int32", "%0 = Cast(%x) : int8[9] {DstT=int8}", "%1 = Cast(%0) : int32[9] {DstT=int32}"),
)
@pattern(op("Cast", op("Cast", var("x"))))
def _no_casts(x):
    return x


@add_rewrite("takes x == x for true", _region("float32", "%0 = Equal(%x, %x) : bool[9]"))
@pattern(op("Equal", var("x"), var("x")))
def _always_equal(x):
    return ops.constant([True] * x.shape[0])


@add_rewrite(
    "multiplies by the reciprocal of a constant",
    _region("float32", "%0 = Const() : float32 {value=3.0}", "%1 = RealDiv(%x, %0) : float32[9]"),
)
@pattern(op("RealDiv", var("x"), const(3)))
def _reciprocal(x):
    return x * ops.constant(1 / 3, x.dtype)


@add_rewrite("takes Abs for the root of the square", _region("float32", "%0 = Abs(%x) : float32[9]"))
@pattern(op("Abs", var("x")))
def _square_root(x):
    return ops.operation("Sqrt", ops.operation("Square", x))


@add_rewrite(
    "compares for Minimum",
    _region("float32", "%0 = Minimum(%x, %y) : float32[9]", arguments="%x: {}[9], %y: {}[9]"),
)
@pattern(op("Minimum", var("x"), var("y")))
def _compared(x, y):
    return ops.operation("SelectV2", x < y, x, y)


@add_rewrite("takes Relu for a selection", _region("float32", "%0 = Relu(%x) : float32[9]"))
@pattern(op("Relu", var("x")))
def _selected(x):
    return ops.operation("SelectV2", x > ops.zeros_like(x), x, ops.zeros_like(x))


@add_rewrite("drops Conj", _region("complex64", "%0 = Conj(%x) : complex64[9]"))
@pattern(op("Conj", var("x")))
def _real(x):
    return x


@add_rewrite(
    "rounds FloorDiv to zero",
    _region("int32", "%0 = Const() : int32 {value=3}", "%1 = FloorDiv(%x, %0) : int32[9]"),
)
@pattern(op("FloorDiv", var("x"), const(3)))
def _to_zero(x):
    return ops.operation("TruncateDiv", x, ops.constant(3, x.dtype))
