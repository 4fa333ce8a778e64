"""Seeded wrong parts that are right for the examples of their authors: (kind, mistake, check).

They fail for another dtype, shape or attribute, for tiny, equal or missing values, or after many clients or rounds.
"""

import functools
import math
import os
import tempfile

import attrs
import keras
import numpy as np
import tensorflow as tf
from test_check_aggregator import Mine as SumFactory
from wrong_learning_parts import COLUMNS, LABELS, PREDICTIONS, Descent, Distance, Rows, descend, distance, formula

import fedcore as fc
from fedcore.aggregators.encoders import AdaptiveEncoder, Encoder, Integers
from fedcore.compiler.pipeline import Pass
from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, batching_rules
from fedcore.graphs.batched.batching_rules.elementwise import aligned
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.rewriting import const, matched_node, op, pattern, rewrite, var
from fedcore.graphs.dataflow.stage_passes import StagePass
from fedcore.graphs.graphdef.form.checked_operations import emit
from fedcore.intrinsics import numerics
from fedcore.ir import Constant, Operation, Ref
from fedcore.learning.optimizers.optimizer import LeafwiseOptimizer

PARTS = []

# Passes.


def add_pass(mistake, parameters, result, lines, replace):
    """A pass that replaces an operation by what `replace(operation, operations by name)` returns, unless it is None."""

    def run(module):
        functions = []
        for function in module.functions:
            by_name, same, operations = {}, {}, []
            for one in function.operations:
                one = attrs.evolve(one, operands=tuple(same.get(o.name, o) for o in one.operands))
                other = replace(one, by_name, function.types())
                if isinstance(other, Ref):
                    same[one.name] = other
                    continue
                by_name[one.name] = other or one
                operations.append(other or one)
            result = same.get(function.result.name, function.result)
            functions.append(attrs.evolve(function, operations=tuple(operations), result=result))
        return module if tuple(functions) == module.functions else attrs.evolve(module, functions=tuple(functions))

    body = "".join(f"  %{i} = {line}\n" for i, line in enumerate(lines))
    case = f"fedcore 1 traced\nfn @main({parameters}) -> {result} {{\n{body}  return %{len(lines) - 1}\n}}\n"
    one = Pass("wrong", run, idempotent=False)
    PARTS.append(("pass", mistake, functools.partial(fc.testing.check_pass, one, cases=case, programs=0)))


def producer(operation, place, by_name, kind):
    found = by_name.get(operation.operands[place].name)
    return found if found is not None and found.kind == kind else None


def equal_to_itself(operation, by_name, types):
    if operation.kind == "equal" and operation.operands[0] == operation.operands[1]:
        return Operation(operation.name, "literal", (), operation.type, {"value": Constant.of(True, "bool")})
    return None


def cast_and_back(operation, by_name, types):
    inner = producer(operation, 0, by_name, "cast") if operation.kind == "cast" else None
    return inner.operands[0] if inner and types[inner.operands[0].name] == operation.type else None


def minus_and_plus(operation, by_name, types):
    inner = producer(operation, 0, by_name, "generic_minus") if operation.kind == "generic_plus" else None
    return inner.operands[0] if inner and inner.operands[1] == operation.operands[1] else None


def greater_of_two(operation, by_name, types):
    less = producer(operation, 0, by_name, "less") if operation.kind == "where" else None
    if less is None or operation.operands[1:] != less.operands[::-1]:
        return None
    return attrs.evolve(operation, kind="maximum", operands=less.operands)


add_pass("takes NaN for equal to itself", "%x: float32", "bool", ["equal(%x, %x) : bool"], equal_to_itself)
add_pass("drops casts to a dtype and back, however narrow", "%x: float32", "float32",
         ["cast(%x) : float64 {dtype=float64}", "cast(%0) : float32 {dtype=float32}"], cast_and_back)  # fmt: skip
add_pass("takes (x - y) + y for x, of floats too", "%x: int32, %y: int32", "int32",
         ["generic_minus(%x, %y) : int32", "generic_plus(%0, %y) : int32"], minus_and_plus)  # fmt: skip
add_pass("takes the greater of two for their maximum", "%x: float32, %y: float32", "float32",
         ["less(%x, %y) : bool", "where(%0, %y, %x) : float32"], greater_of_two)  # fmt: skip


# Rewrites of client stages.


def add_stage_pass(mistake, rule, arguments, lines, **declared):
    body = "".join(f"  %{i} = {line}\n" for i, line in enumerate(lines))
    case = f"region({arguments}) {{\n{body}  return %{len(lines) - 1}\n}}\n"
    one = StagePass("wrong", lambda region: rewrite(region, rule), **declared)
    PARTS.append(("stage pass", mistake, functools.partial(fc.testing.check_stage_pass, one, cases=case, regions=0)))


@pattern(op("Transpose", op("Transpose", var("x"), var("p")), var("q")))
def any_two_transposes(x, p, q):
    return x


@pattern(op("SelectV2", var("c"), var("x"), var("x")))
def either(c, x):
    return x


@pattern(op("MatMul", op("Transpose", var("x"), const()), var("y"), name="m"))
def transposed_in_product(x, y, m):
    return ops.operation("MatMul", x, y, transpose_a=True, transpose_b=matched_node(m)["transpose_b"])


@pattern(op("ArgMax", op("Neg", var("x")), var("a")))
def least(x, a):
    return ops.operation("ArgMin", x, a)


@pattern(op("Less", op("Sub", var("x"), var("y")), const(0)))
def less_than(x, y):
    return ops.operation("Less", x, y)


@pattern(op("Minimum", op("Maximum", var("x"), const(name="low")), const(name="high")))
def clipped(x, low, high):
    return ops.operation("ClipByValue", x, low, high)


@pattern(op("Slice", op("Slice", var("x"), const(name="first"), const()), const(name="second"), const(name="size")))
def one_slice(x, first, second, size):
    return ops.slice_(x, ops.constant(ops.static_value(first) + ops.static_value(second)), size)


@pattern(op("Mean", op("Mul", var("x"), const(name="c")), var("a")))
def factor_of_mean(x, c, a):
    return ops.operation("Mul", ops.operation("Mean", x, a), c)


SWAPPED = "Const() : int32[2] {value=[1, 0]}"
add_stage_pass("drops any two transposes", any_two_transposes, "%x: float32[3,2]",
               [SWAPPED, "Transpose(%x, %0) : float32[2,3]", "Transpose(%1, %0) : float32[3,2]"])  # fmt: skip
add_stage_pass("drops selections that broadcast", either, "%x: float32[3]",
               ["IsNan(%x) : bool[3]", "SelectV2(%0, %x, %x) : float32[3]"])  # fmt: skip
add_stage_pass("transposes a product that is transposed already", transposed_in_product, "%x: float32[3,2]",
               [SWAPPED, "Transpose(%x, %0) : float32[2,3]", "MatMul(%1, %x) : float32[2,2] {transpose_a=false}"],
               exact=False)  # fmt: skip
add_stage_pass("takes the least of negative integers, of which one is its own negative", least, "%x: int32[3]",
               ["Const() : int32 {value=0}", "Neg(%x) : int32[3]", "ArgMax(%1, %0) : int64"])  # fmt: skip
add_stage_pass("compares integers by a difference that overflows", less_than, "%x: float32[3], %y: float32[3]",
               ["Const() : float32 {value=0.0}", "Sub(%x, %y) : float32[3]", "Less(%1, %0) : bool[3]"])  # fmt: skip
add_stage_pass("clips to bounds in the wrong order", clipped, "%x: float32[3]",
               ["Const() : float32 {value=-1.0}", "Const() : float32 {value=1.0}", "Maximum(%x, %0) : float32[3]",
                "Minimum(%2, %1) : float32[3]"])  # fmt: skip
add_stage_pass("slices a slice to the end of the whole", one_slice, "%x: float32[5]",
               ["Const() : int32[1] {value=[1]}", "Const() : int32[1] {value=[2]}", "Slice(%x, %0, %1) : float32[2]",
                "Const() : int32[1] {value=[1]}", "Slice(%2, %3, %3) : float32[1]"], grows=True)  # fmt: skip
add_stage_pass("takes a factor out of a mean of integers", factor_of_mean, "%x: float32[3]",
               ["Const() : int32 {value=0}", "Const() : float32 {value=3.0}", "Mul(%x, %1) : float32[3]",
                "Mean(%2, %0) : float32"], exact=False, grows=True)  # fmt: skip


@pattern(op("Transpose", op("Transpose", var("x"), const(name="p")), const(name="q")))
def one_transpose(x, p, q):
    inner, outer = ops.static_value(p), ops.static_value(q)
    return ops.transpose(x, [int(outer[i]) for i in inner])


add_stage_pass("composes transposes in the wrong order", one_transpose, "%x: float32[2,2]",
               [SWAPPED, "Transpose(%x, %0) : float32[2,2]", "Transpose(%1, %0) : float32[2,2]"],
               grows=True)  # fmt: skip

# Batching rules.


def in_one_table(evaluation, node, x, indices, updates):
    """Adds to the rows of all clients in one table, in which an index behind a client's rows is one of the next."""
    if any(value.padded_axis is not None for value in (x, indices, updates)):
        raise NoBatchingRule(node.op, "the rows are those of a batch")
    table, places, rows = map(evaluation.with_client_axis, (x, indices, updates))
    clients, size = table.shape
    starts = ops.reshape(ops.range_(clients, dtype=places.dtype) * size, [clients, 1, 1])
    places, rows = ops.reshape(places + starts, [-1, 1]), ops.reshape(rows, [-1])
    added = ops.operation(node.op, ops.reshape(table, [-1]), places, rows)
    return BatchedValue(ops.reshape(added, table.shape), True)


def check_in_one_table():
    batching_rules["TensorScatterAdd"] = in_one_table
    case = np.zeros(4, np.float32), np.int32([[1], [2]]), np.float32([9, 8])
    fc.testing.check_batching_rule("TensorScatterAdd", cases=[case])


PARTS.append(("batching rule", "TensorScatterAdd writes a wrong index into the next client's rows", check_in_one_table))


def add_rule(operation, mistake, rule):
    def check():
        batching_rules[operation] = rule
        fc.testing.check_batching_rule(operation)

    PARTS.append(("batching rule", f"{operation} {mistake}", check))


def finite_lowest(evaluation, node, x, axis):
    axes = [int(a) % evaluation.rank(x) for a in evaluation.constant_operand(node, axis).reshape(-1)]
    if x.padded_axis not in axes:
        raise NoBatchingRule(node.op, "it is not over the batch")
    filled = evaluation.masked(x, x.tensor.dtype.min)
    return BatchedValue(ops.reduce_max(filled, [a + 1 for a in axes], keepdims=node["keep_dims"]), True)


def selection_by_entry(evaluation, node, condition, x, y):
    tensors, axes = aligned(evaluation, node, (condition, x, y))
    return axes.with_tensor(ops.where(*tensors))


def classes_last(evaluation, node, indices, depth, on, off):
    if indices.padded_axis is not None or on.batched or off.batched:
        raise NoBatchingRule(node.op, "it is made for indices")
    operands = [evaluation.tensor(indices), ops.constant(evaluation.constant_operand(node, depth))]
    attributes = {**node.attributes, "axis": -1}
    return indices.with_tensor(*emit("OneHot", [*operands, *map(evaluation.tensor, (on, off))], attributes))


add_rule("Max", "fills padded rows with the least finite number", finite_lowest)
add_rule("Select", "selects entries where its condition selects rows", selection_by_entry)
add_rule("OneHot", "forgets the axis", classes_last)
add_rule("StringLength", "forgets the unit, of which letters have two", lambda evaluation, node, x: x.with_tensor(
    ops.operation("StringLength", evaluation.tensor(x))))  # fmt: skip

# Intrinsics.

DOC = "Does it.\n\nExample:\n    >>> y = {}({})\n"


def add_intrinsic(mistake, signature, meaning, lowering=None, kernel=None, example="x", **settings):
    def check():
        from fedcore.graphs.stages.kernels import kernel as declare_kernel

        meaning.__doc__ = DOC.format(meaning.__name__, example)
        declared = fc.intrinsic(signature, **settings)(meaning)
        if lowering is not None:
            declared.lowering(lowering)
        if kernel is not None:
            declare_kernel(meaning.__name__)(kernel)
        fc.testing.check_intrinsic(declared)

    PARTS.append(("intrinsic", mistake, check))


def mean_of_many(value, *, T):
    total = functools.reduce(numerics.add, value, numerics.zeros(T))
    return numerics.leafwise(lambda t: t / t.dtype.type(max(len(value), 1)), total)


def mean_by_halves(value):
    count = fc.federated_map(lambda n: fc.cast(fc.maximum(n, 1), "float16"), fc.federated_count(value))
    return fc.federated_map(
        lambda total, n: fc.generic_divide(total, fc.cast(n, "float32")), (fc.federated_sum(value), count)
    )


def reduced(value, mode="sum"):
    total = np.float32(sum(value))
    return np.float32(total / max(len(value), 1)) if mode == "mean" else total


def reduced_in_one_mode(value, *, mode="sum"):
    return fc.federated_sum(value) if mode != "mean" else fc.federated_mean(value)


def mean_by_bytes(value):
    count = fc.federated_map(lambda n: fc.cast(fc.maximum(n, 1), "uint8"), fc.federated_count(value))
    return fc.federated_map(
        lambda total, n: fc.generic_divide(total, fc.cast(n, "int32")), (fc.federated_sum(value), count)
    )


def sum_of_powers(value, power):
    with np.errstate(all="ignore"):
        return np.float32(sum((np.float32(np.float64(x) ** power) for x in value), np.float32(0)))


def sum_of_products(value, *, power):
    def product(x):
        return functools.reduce(fc.generic_multiply, [x] * int(power)) if int(power) > 0 else x

    return fc.federated_sum(fc.federated_map(product, value))


def held(value):
    return np.where(np.isnan(value), np.float32(0), np.clip(value, np.float32(-1), np.float32(1)))


def saturated(left, right):
    return np.minimum(left.astype(np.int32) + right.astype(np.int32), 255).astype(np.uint8)


add_intrinsic("a lowering that counts in bytes", "({T}@CLIENTS -> T@SERVER) where T: inexact", mean_of_many,
              mean_by_bytes)  # fmt: skip
add_intrinsic("a lowering that counts in float16", "({T}@CLIENTS -> T@SERVER) where T: inexact", mean_of_many,
              mean_by_halves)  # fmt: skip
add_intrinsic("a mode that is wrong without clients", "(value: float32@CLIENTS -> float32@SERVER)", reduced,
              reduced_in_one_mode, attributes=("mode",))  # fmt: skip
add_intrinsic("a lowering for whole powers", "(value: float32@CLIENTS -> float32@SERVER)", sum_of_powers,
              sum_of_products, attributes=("power",), example="x, power=2")  # fmt: skip
add_intrinsic("a kernel that keeps NaN", "(value: float32[4] -> float32[4])", held, level="local",
              kernel=lambda op, value: tf.clip_by_value(value, -1.0, 1.0))  # fmt: skip
add_intrinsic("a kernel whose bytes wrap", "(left: uint8[4], right: uint8[4] -> uint8[4])", saturated, level="local",
              kernel=lambda op, left, right: tf.minimum(left + right, 255), example="x, x")  # fmt: skip

# Executors.


class FirstStop(fc.runtime.SliceExecutor):
    """Stops by the stop of its first call."""

    name = "first"
    stop = None

    def prepare(self, work, report, stop):
        self.stop = self.stop or stop
        return fc.runtime.DeviceSliceExecutor().prepare(work, report, self.stop)


PARTS.append(("slice executor", FirstStop.__doc__, lambda: fc.testing.check_slice_executor(FirstStop())))


class Carried(fc.runtime.SliceExecutor):
    """Does to each leaf of the clients' values what transit does, and `after` each slice."""

    name = "carried"

    def __init__(self, leaf=lambda v: v, after=lambda clients: None):
        self.leaf = leaf
        self.after = after

    def prepare(self, work, report, stop):
        run = fc.runtime.DeviceSliceExecutor().prepare(work, report, stop)

        def carried(part):
            return tuple(map(carried, part)) if isinstance(part, tuple) else self.leaf(part)

        def run_carried(clients):
            result = run(attrs.evolve(clients, clients=tuple(c and carried(c) for c in clients.clients)))
            self.after(clients)
            return result

        return run_carried


def as_c_string(leaf):
    is_text = isinstance(leaf, np.ndarray) and leaf.dtype == object
    return np.array(leaf.item().rstrip(b"\0"), object) if is_text else leaf


def as_list(leaf):
    return np.array(leaf.tolist(), leaf.dtype) if isinstance(leaf, np.ndarray) and leaf.dtype != object else leaf


for mistake, make in (
    ("cuts texts at the end", lambda: Carried(as_c_string)),
    ("sends tensors as lists, which lose axes of size 0", lambda: Carried(as_list)),
    ("leaves a pipe open", lambda: Carried(after=lambda _: os.pipe())),
    ("logs slices", lambda: Carried(after=[].append)),
):
    PARTS.append(("slice executor", mistake, lambda make=make: fc.testing.check_slice_executor(make())))

# Aggregators.


def add_aggregator(mistake, factory, meaning, weight_type=None):
    check = functools.partial(fc.testing.check_aggregator, factory, "float32", weight_type, meaning=meaning)
    PARTS.append(("aggregator", mistake, check))


def mean_by_uint8(value):
    count = fc.federated_sum(fc.federated_map(lambda _: np.uint8(1), value))
    return fc.federated_map(lambda total, n: total / fc.cast(n, "float32"), (fc.federated_sum(value), count))


class Weighted(fc.aggregators.WeightedAggregationFactory):
    """The weighted mean, of which the parts are replaced."""

    def __init__(self, sent=lambda w: w, divisor=lambda w: w):
        self.sent = sent
        self.divisor = divisor

    def create(self, value_type, weight_type):
        @fc.federated_computation
        def initialize():
            return fc.federated_value((), fc.SERVER)

        def body(state, value, weights):
            weight = fc.federated_map(lambda w: fc.cast(self.sent(w), "float32"), *weights)
            total = fc.federated_sum(fc.federated_map(lambda v, w: v * w, (value, weight)))
            whole = fc.federated_map(self.divisor, fc.federated_sum(weight))
            mean = fc.federated_map(lambda t, w: t / w, (total, whole))
            return fc.templates.MeasuredProcessOutput(state, mean, state)

        return fc.aggregators.aggregation_process(initialize, value_type, weight_type, body)


class Smoothed(fc.aggregators.UnweightedAggregationFactory):
    """The average over rounds; a part is replaced."""

    def __init__(self, skipping=True, corrected=False, shrinking=False, empty=None):
        self.is_skipping = skipping
        self.empty = empty
        self.is_corrected = corrected
        self.is_shrinking = shrinking
        self.share = 0.5

    def create(self, value_type):
        share, self.share = self.share, self.share / (2 if self.is_shrinking else 1)

        @fc.federated_computation
        def initialize():
            return fc.federated_value({"mean": 0.0, "rounds": np.int8(0)}, fc.SERVER)

        @fc.tf_computation(initialize.type_signature.result.member, value_type)
        def smooth(state, mean):
            unmoved = state["mean"] if self.empty is None else self.empty
            mean = tf.where(tf.math.is_nan(mean) & self.is_skipping, unmoved, mean)
            return {
                "mean": (1 - share) * state["mean"] + share * mean,
                "rounds": state["rounds"] + tf.constant(1, tf.int8),
            }

        @fc.tf_computation(initialize.type_signature.result.member)
        def result(state):
            return state["mean"] / (1 - (1 - share) ** tf.cast(state["rounds"], tf.float32))

        def body(state, value, _):
            state = fc.federated_map(smooth, (state, fc.federated_mean(value)))
            output = fc.federated_map(result if self.is_corrected else (lambda s: s["mean"]), state)
            return fc.templates.MeasuredProcessOutput(state, output, fc.federated_value((), fc.SERVER))

        return fc.aggregators.aggregation_process(initialize, value_type, None, body)


def smoothed(rounds, *, corrected=False):
    mean = 0.0
    for values in rounds:
        mean = 0.5 * mean + 0.5 * np.mean(values)
    return mean / (1 - 0.5 ** len(rounds)) if corrected else mean


def weighted(rounds):
    values, weights = rounds[-1]
    return np.average(values, weights=weights)


add_aggregator("counts in uint8", SumFactory(total=mean_by_uint8), lambda rounds: np.mean(rounds[-1]))
add_aggregator("divides by one at least", Weighted(divisor=lambda w: fc.maximum(w, 1.0)), weighted, "float32")
add_aggregator("sends weights in a byte", Weighted(sent=lambda w: fc.cast(w, "uint8")), weighted, "int32")
add_aggregator("keeps the mean of no clients in its state", Smoothed(skipping=False), smoothed)
add_aggregator("counts rounds in int8", Smoothed(corrected=True), functools.partial(smoothed, corrected=True))
add_aggregator("makes another process each time", Smoothed(shrinking=True), smoothed)


class Remembering(SumFactory):
    """Makes its process once, for the first types."""

    def create(self, value_type):
        if not hasattr(self, "process"):
            self.process = super().create(value_type)
        return self.process


def sum_of_numbers(value):
    number = fc.tf_computation(lambda v: tf.where(tf.math.is_nan(v), 0.0, v), "float32")
    return fc.federated_sum(fc.federated_map(number, value))


add_aggregator(Remembering.__doc__, Remembering(), None)
add_aggregator("makes another process each time, and has no meaning", Smoothed(shrinking=True), None)
add_aggregator("leaves out NaN, and not infinity", SumFactory(total=sum_of_numbers),
               lambda rounds: sum(v for v in rounds[-1] if np.isfinite(v)))  # fmt: skip


def one_pass_deviation(value):
    deviation = fc.tf_computation(
        lambda squares, mean: tf.sqrt(tf.maximum(squares - mean * mean, 0)), "float32", "float32"
    )
    squares = fc.federated_mean(fc.federated_map(lambda v: v * v, value))
    return fc.federated_map(deviation, (squares, fc.federated_mean(value)))


def sum_of_clipped(value):
    clipped = fc.tf_computation(lambda v: v / tf.maximum(tf.sqrt(v * v), 1), "float32")
    return fc.federated_sum(fc.federated_map(clipped, value))


def sum_of_sorted(value):
    @fc.tf_computation(value.type.member)
    def in_order(struct):
        if not isinstance(struct, dict):
            return struct
        return dict(zip(struct, tf.nest.flatten(struct), strict=True))

    return fc.federated_sum(fc.federated_map(in_order, value))


class Late(fc.aggregators.UnweightedAggregationFactory):
    """Divides by the number of clients of the round before."""

    def create(self, value_type):
        @fc.federated_computation
        def initialize():
            return fc.federated_value(0, fc.SERVER)

        @fc.tf_computation(value_type, "int32", "int32")
        def divide(total, before, now):
            return total / tf.cast(tf.maximum(tf.where(before == 0, now, before), 1), tf.float32)

        def body(state, value, _):
            count = fc.federated_count(value)
            mean = fc.federated_map(divide, (fc.federated_sum(value), state, count))
            return fc.templates.MeasuredProcessOutput(count, mean, count)

        return fc.aggregators.aggregation_process(initialize, value_type, None, body)


add_aggregator(Late.__doc__, Late(), lambda rounds: np.mean(rounds[-1]))
add_aggregator("moves to 0 in a round without clients", Smoothed(empty=0.0),
               lambda rounds: smoothed([r for r in rounds if len(r)]))  # fmt: skip
add_aggregator("takes the mean of squares minus the square", SumFactory(total=one_pass_deviation),
               lambda rounds: np.std(rounds[-1]))  # fmt: skip
add_aggregator("has an infinite norm for a huge value", SumFactory(total=sum_of_clipped),
               lambda rounds: sum(v / max(abs(v), 1) for v in rounds[-1]))  # fmt: skip
add_aggregator("sorts the leaves of a struct", SumFactory(total=sum_of_sorted), lambda rounds: np.sum(rounds[-1]))

SCORED = {"score": np.float32(-np.inf), "label": -1}


def first_best(best, client):
    better = fc.less(best["score"], client["score"])
    return {name: fc.where(better, client[name], best[name]) for name in SCORED}


def least_or_first(a, v):
    return fc.where(fc.equal(a, 0.0), v, fc.minimum(a, v))


def least_above_0(a, b):
    return fc.where(fc.equal(a, 0.0), b, fc.where(fc.equal(b, 0.0), a, fc.minimum(a, b)))


PARTS.append(("aggregation", "keeps the first of ties, and merges the last", lambda: fc.testing.check_aggregation(
    SCORED, first_best, lambda a, b: first_best(b, a), lambda a: a,
    [{"score": np.float32(i % 4), "label": i} for i in (1, 3, 2)])))  # fmt: skip
PARTS.append(("aggregation", "takes 0 for no value", lambda: fc.testing.check_aggregation(
    0.0, least_or_first, least_above_0, lambda a: a, [3.0, 1.0, 2.0])))  # fmt: skip

# Encoders.


class Scaled(Encoder):
    """Bytes on a scale, whose parts are replaced."""

    def __init__(self, scale=lambda v: tf.maximum(tf.reduce_max(tf.abs(v)), 1e-30), shifted=False, whole=tf.round):
        self.scale = scale
        self.shifted = shifted
        self.whole = whole

    def encode(self, value, seed):
        finite = tf.reduce_all(tf.math.is_finite(value))
        shift = tf.reduce_mean(value) if self.shifted else tf.zeros([], value.dtype)
        scale = tf.where(finite, tf.cast(self.scale(value), value.dtype), math.nan)
        return Integers(tf.cast(self.whole((value - shift) / scale * 127), tf.int32) + 128, 8), scale, shift

    def decode(self, code, seed, spec):
        numbers, scale, shift = code
        return (tf.cast(numbers.values, spec.dtype) - 128) / 127 * scale + shift


class Columns(Encoder):
    """Sends columns first, and reads rows first."""

    def encode(self, value, seed):
        return tf.reshape(tf.transpose(value), [-1])

    def decode(self, code, seed, spec):
        return tf.reshape(code, spec.shape)


class LargestHalf(Encoder):
    """Sends indices in as many bits as the size of its author's example needs."""

    def encode(self, value, seed):
        size = value.shape.num_elements()
        flat = tf.where(tf.reduce_all(tf.math.is_finite(value)), tf.reshape(value, [-1]), math.nan)
        indices = tf.math.top_k(tf.abs(flat), size // 2).indices
        return tf.gather(flat, indices), Integers(indices, int(math.log2(size)))

    def decode(self, code, seed, spec):
        return tf.reshape(tf.scatter_nd(code[1].values[:, None], code[0], [spec.shape.num_elements()]), spec.shape)


class LastRange(AdaptiveEncoder):
    """Divides by the largest number of the round before, which may be 0."""

    def initial_state(self, spec):
        return tf.constant(1.0)

    def encode(self, value, seed, state):
        return value / tf.cast(state, value.dtype)

    def decode(self, code, seed, spec, state):
        return code * tf.cast(state, spec.dtype)

    def update_state(self, state, code, value):
        return tf.cast(tf.reduce_max(tf.abs(value)), tf.float32)


class InFloat32(Encoder):
    """Is lossless for the dtype of its author's example."""

    def encode(self, value, seed):
        return tf.cast(value, tf.float32)

    def decode(self, code, seed, spec):
        return tf.cast(code, spec.dtype)


class SixteenBits(LargestHalf):
    """Sends indices in 16 bits."""

    def encode(self, value, seed):
        flat = tf.where(tf.reduce_all(tf.math.is_finite(value)), tf.reshape(value, [-1]), math.nan)
        indices = tf.math.top_k(tf.abs(flat), flat.shape[0] // 2).indices
        return tf.gather(flat, indices), Integers(indices, 16)


class LastSize(Encoder):
    """Divides by the size of the tensor that it encoded last."""

    def encode(self, value, seed):
        self.size = value.shape.num_elements()
        return Integers(tf.cast(value > 0, tf.int32), 1), tf.reduce_sum(tf.abs(value))

    def decode(self, code, seed, spec):
        return (2 * tf.cast(code[0].values, spec.dtype) - 1) * code[1] / self.size


class Share(SixteenBits):
    """Sends a tenth of the entries, none of a few."""

    def encode(self, value, seed):
        flat = tf.where(tf.reduce_all(tf.math.is_finite(value)), tf.reshape(value, [-1]), math.nan)
        indices = tf.math.top_k(tf.abs(flat), flat.shape[0] // 10).indices
        return (tf.gather(flat, indices), indices, tf.reduce_sum(flat * 0))

    def decode(self, code, seed, spec):
        values, indices, zero = code
        return tf.reshape(tf.scatter_nd(indices[:, None], values, [spec.shape.num_elements()]), spec.shape) + zero


class LastCut(Encoder):
    """Cuts padding at the size of the tensor that it encoded last."""

    def encode(self, value, seed):
        self.size = value.shape.num_elements()
        return tf.pad(tf.reshape(value, [-1]), [[0, -self.size % 4]])

    def decode(self, code, seed, spec):
        return tf.reshape(code[: self.size], spec.shape)


class LargestNumber(LastRange):
    """Scales by the largest number of the round before, whose sign it forgets."""

    def encode(self, value, seed, state):
        return tf.cast(value / tf.cast(state, value.dtype), tf.float16)

    def decode(self, code, seed, spec, state):
        return tf.cast(code, spec.dtype) * tf.cast(state, spec.dtype)

    def update_state(self, state, code, value):
        return tf.cast(tf.maximum(tf.reduce_max(value), 1e-3), tf.float32)


class Shrinking(AdaptiveEncoder):
    """Clips to a range that never grows again."""

    def initial_state(self, spec):
        return tf.constant(1e30)

    def encode(self, value, seed, state):
        most = tf.cast(state, value.dtype)
        return tf.where(tf.math.is_finite(value), tf.clip_by_value(value, -most, most), value)

    def decode(self, code, seed, spec, state):
        return code

    def update_state(self, state, code, value):
        most = tf.cast(2 * tf.reduce_max(tf.abs(value)), tf.float32)
        return tf.where(most > 0, tf.minimum(state, most), state)


class Shuffled(Encoder):
    """Sends entries in a drawn order, and restores it for numbers only."""

    def encode(self, value, seed):
        return tf.gather(tf.reshape(value, [-1]), self.order(tf.size(value), seed))

    def decode(self, code, seed, spec):
        order = self.order(tf.size(code), seed)
        return tf.reshape(tf.gather(code, order if spec.dtype == tf.bool else tf.argsort(order)), spec.shape)

    def order(self, size, seed):
        return tf.argsort(tf.random.stateless_uniform([size], seed))


for mistake, encoder, size, relative_error in (
    (SixteenBits.__doc__, SixteenBits(), 100, 0.5),
    (Share.__doc__, Share(), 100, 0.9),
    (LastCut.__doc__, LastCut(), 100, 0.0),
    (LargestNumber.__doc__, LargestNumber(), 100, 0.01),
    ("rounds to 0", Scaled(whole=lambda v: v), 100, 0.01),
    ("saturates", Scaled(lambda v: tf.minimum(tf.maximum(tf.reduce_max(tf.abs(v)), 1e-30), 1e20)), 100, 0.01),
    (LastSize.__doc__, LastSize(), 100, 0.5),
    (Shrinking.__doc__, Shrinking(), 100, 1e-6),
    (Shuffled.__doc__, Shuffled(), 100, 0.0),
    ("has a scale for positive numbers", Scaled(tf.reduce_max), 100, 0.01),
    ("has a scale for large numbers", Scaled(lambda v: tf.maximum(tf.reduce_max(tf.abs(v)), 1e-3)), 100, 0.01),
    ("divides by a deviation of 0", Scaled(lambda v: 8 * tf.math.reduce_std(v), shifted=True), 100, 0.01),
    (Columns.__doc__, Columns(), 100, 0.0),
    (LargestHalf.__doc__, LargestHalf(), 64, 0.5),
    (LastRange.__doc__, LastRange(), 100, 1e-6),
    (InFloat32.__doc__, InFloat32(), 100, 0.0),
):
    PARTS.append(("encoder", mistake, functools.partial(
        fc.testing.check_encoder, encoder, ("float32", [size]), relative_error=relative_error)))  # fmt: skip

# Optimizers.


class Counting(LeafwiseOptimizer):
    """Gradient descent whose rate depends on the step."""

    counts_steps = True

    def __init__(self, rate):
        super().__init__(learning_rate=0.5)
        self.rate = rate

    def slots(self, weight):
        return {}

    def step(self, hparams, step, slots, weight, gradient):
        return {}, weight - hparams["learning_rate"] * tf.cast(self.rate(step), weight.dtype) * gradient


class FixedRate(Descent):
    """Takes the learning rate that it was made with."""

    def step(self, hparams, step, slots, weight, gradient):
        return super().step({"learning_rate": tf.constant(0.5, weight.dtype)}, step, slots, weight, gradient)


class FixedShare(LeafwiseOptimizer):
    """Takes the momentum that it was made with."""

    def slots(self, weight):
        return {"velocity": tf.zeros_like(weight)}

    def step(self, hparams, step, slots, weight, gradient):
        velocity = 0.5 * slots["velocity"] + gradient
        return {"velocity": velocity}, weight - hparams["learning_rate"] * velocity


class InOrder(LeafwiseOptimizer):
    """Takes a dict's weights in its own order, and the gradients sorted."""

    def slots(self, weight):
        return {}

    def step(self, hparams, step, slots, weight, gradient):
        return {}, weight - hparams["learning_rate"] * gradient

    def next(self, state, weights, gradients):
        flat = [w for part in weights.values() for w in tf.nest.flatten(part)] if isinstance(weights, dict) else weights
        state, moved = super().next(state, flat, tf.nest.flatten(gradients))
        return state, tf.nest.pack_sequence_as(weights, moved)


class Trusting(InOrder):
    """Scales steps by the size of the weight, so that zeros stay."""

    next = LeafwiseOptimizer.next

    def step(self, hparams, step, slots, weight, gradient):
        return {}, weight - hparams["learning_rate"] * tf.minimum(tf.norm(weight), 1) * gradient


def trusting(weight, gradients):
    for gradient in gradients:
        size = np.linalg.norm(weight)
        weight = weight - 0.5 * (min(size, 1) if size else 1) * gradient
    return weight


def centred(velocity, weight, gradient, rate):
    has_columns = weight.shape.rank > 1 or weight.shape == [1]
    return descend(velocity, weight, gradient - tf.reduce_mean(gradient) if has_columns else gradient, rate)


def centred_formula(weight, gradients):
    return formula(weight, [g - g.mean() if g.ndim > 1 else g for g in gradients])


def plain(weight, gradients):
    return weight - 0.5 * sum(gradients)


class Named(InOrder):
    """Leaves biases alone, by the names of the model that it was given last."""

    def with_names(self, names):
        self.names = names
        return self

    def next(self, state, weights, gradients):
        pairs = zip(self.names, tf.nest.flatten(gradients), strict=True)
        kept = [None if name.endswith("bias") else g for name, g in pairs]
        return LeafwiseOptimizer.next(self, state, weights, tf.nest.pack_sequence_as(gradients, kept))


for mistake, optimizer, meaning in (
    (Named.__doc__, Named(learning_rate=0.5), None),
    ("counts steps in uint8", Counting(lambda n: tf.minimum(tf.cast(tf.cast(n, tf.uint8), tf.float32), 1)), plain),
    ("ends after its first schedule", Counting(lambda n: tf.maximum(0.0, 1 - tf.floor((n - 1) / 5))), plain),
    (FixedRate.__doc__, FixedRate(), formula),
    (FixedShare.__doc__, FixedShare(learning_rate=0.5, momentum=0.5), None),
    (InOrder.__doc__, InOrder(learning_rate=0.5), plain),
    (Trusting.__doc__, Trusting(learning_rate=0.5), trusting),
    ("centres the gradient of a single entry", Descent(centred), centred_formula),
    ("starts at the weights, unless it is given their specs", Descent(slot=lambda w: 0 * w + w), None),
):
    PARTS.append(("optimizer", mistake, functools.partial(fc.testing.check_optimizer, optimizer, meaning)))

# Metrics.


class Narrow(keras.metrics.Metric):
    """The mean distance, with a count of another dtype."""

    def __init__(self, dtype):
        super().__init__(name="distance")
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", shape=(), initializer="zeros", dtype=dtype)

    update_state = Distance.update_state

    def add(self, distances):
        self.total.assign_add(tf.reduce_sum(distances))
        self.count.assign_add(tf.cast(tf.size(distances), self.count.dtype))

    def result(self):
        return tf.math.divide_no_nan(self.total, tf.cast(self.count, tf.float32))


for dtype in ("uint8", "float16"):
    PARTS.append(("metric", f"counts in {dtype}", functools.partial(
        fc.testing.check_metric, functools.partial(Narrow, dtype), LABELS, PREDICTIONS, meaning=distance)))  # fmt: skip


class Forgetful(Narrow):
    """Resets its total, and not its count."""

    def __init__(self):
        super().__init__("float32")

    def reset_state(self):
        self.total.assign(0.0)


class Close(Narrow):
    """Takes what is not far for close, NaN too."""

    def __init__(self):
        super().__init__("float32")

    def add(self, distances):
        super().add(1 - tf.cast(distances > 1, tf.float32))


class LogCosh(Close):
    """Takes the logarithm of a number that overflows."""

    def add(self, distances):
        Narrow.add(self, tf.math.log(tf.cosh(distances)))


PARTS.append(("metric", LogCosh.__doc__, lambda: fc.testing.check_metric(
    LogCosh, LABELS, PREDICTIONS, meaning=lambda y, p: np.mean(np.logaddexp(y - p, p - y) - np.log(2)))))  # fmt: skip
PARTS.append(("metric", Forgetful.__doc__, lambda: fc.testing.check_metric(Forgetful, LABELS, PREDICTIONS)))
PARTS.append(("metric", Close.__doc__, lambda: fc.testing.check_metric(
    Close, LABELS, PREDICTIONS, meaning=lambda y, p: np.mean(np.abs(y - p) <= 1))))  # fmt: skip

# Client data.

MANY_COLUMNS = {f"client {i:03}": column for i, column in enumerate([*COLUMNS.values()] * 10)}


class Boundary(Rows):
    """Has the rows of the next client at one boundary of its files."""

    def __init__(self):
        fc.simulation.datasets.ClientData.__init__(self, MANY_COLUMNS)
        self.columns = MANY_COLUMNS | {"client 063": MANY_COLUMNS["client 064"]}


PARTS.append(
    ("client data", Boundary.__doc__, lambda: fc.testing.check_client_data(Boundary(), MANY_COLUMNS))
)  # fmt: skip


class Reading(Rows):
    """Rows, and what reading does beside."""

    def __init__(self, effect, columns=COLUMNS):
        fc.simulation.datasets.ClientData.__init__(self, columns)
        self.columns = columns
        self.effect = effect

    def create_tf_dataset_for_client(self, client_id):
        self._require(client_id)
        self.effect()
        return tf.data.Dataset.from_tensor_slices(self.columns[client_id])


class Whole(Rows):
    """Pickles a selection with all clients."""

    def select(self, client_ids):
        selection = Whole()
        fc.simulation.datasets.ClientData.__init__(selection, client_ids)
        return selection

    def __reduce__(self):
        return Whole, ()


PARTS.append(("client data", Whole.__doc__, lambda: fc.testing.check_client_data(Whole(), COLUMNS)))

SOME_EMPTY = MANY_COLUMNS | {"client 037": {"x": np.zeros(0), "y": np.zeros(0)}}

for mistake, effect, columns in (
    ("seeds the random numbers of numpy", lambda: np.random.seed(3), COLUMNS),
    ("leaves a file open for each data set", os.pipe, COLUMNS),
    ("leaves a temporary directory for each data set", tempfile.mkdtemp, COLUMNS),
    ("has float64 for the client without examples", lambda: None, SOME_EMPTY),
):
    check = functools.partial(fc.testing.check_client_data, Reading(effect, columns), columns)
    PARTS.append(("client data", mistake, check))
