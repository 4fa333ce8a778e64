"""Random regions for the laws of texts, analyses and passes, and their results."""

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import call, computed_if, cond, scan, while_loop
from fedcore.graphs.dataflow.first_known import Known
from fedcore.graphs.dataflow.graph import Region, Value, new_region
from fedcore.graphs.dataflow.selection import select_by_client
from fedcore.graphs.emission.region_function import region_function
from fedcore.graphs.tensors.cancellation import Cancellation

CLIENTS, ROWS, COLUMNS = 3, 4, 4
SHAPE = (CLIENTS, ROWS, COLUMNS)


@attrs.frozen
class Argument:
    """An argument of the random regions."""

    name: str
    dtype: tf.DType
    shape: tuple[int, ...]
    known: Known


ARGUMENTS = (
    Argument("rate", tf.float32, (), Known.BROADCAST),
    Argument("w", tf.float32, (ROWS, COLUMNS), Known.BROADCAST),
    Argument("x", tf.float32, SHAPE, Known.DATA),
    Argument("steps", tf.int64, (CLIENTS,), Known.DATA),
)


def argument_values(seed: int) -> list[np.ndarray]:
    """A value for each of `ARGUMENTS`; clients take 0 to 3 steps."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 4, a.shape) if a.dtype == tf.int64 else rng.standard_normal(a.shape).astype(np.float32)
        for a in ARGUMENTS
    ]


def results_of(region: Region, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a region that is emitted into TensorFlow."""
    return results_function(region)(arguments)


def results_function(region: Region) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """From arguments to the results of a region, which is emitted into TensorFlow once.

    It runs as it is: TensorFlow's own rewrites would hide a difference, such as that of `x + 0.0` and x for -0.0.
    """
    function, calls = region_function(region, name="region"), Cancellation()
    return lambda arguments: [t.numpy() for t in calls.call(function, [*map(tf.constant, arguments)])]


def node_count(region: Region) -> int:
    """The nodes of a region and of the regions in it."""
    return sum(1 + sum(map(node_count, node.regions)) for node in region.nodes)


@st.composite
def regions(draw: st.DrawFn) -> Region:
    """A region of `ARGUMENTS`: chains of operations with loops, branches and calls, some of them equal or unused."""

    def body(rate: Value, w: Value, x: Value, steps: Value) -> list[Value]:
        pool = _Pool(draw, rate, w, steps)
        values = pool.grow([x, x * rate], draw(st.integers(2, 8)), depth=2)
        return [values[draw(st.integers(0, len(values) - 1))] for _ in range(draw(st.integers(1, 3)))] + values[-1:]

    return new_region([(a.dtype, a.shape) for a in ARGUMENTS], body)


@attrs.frozen
class _Pool:
    """Draws operations on float32 values of `SHAPE`, whose entries stay small."""

    draw: Callable
    rate: Value
    w: Value
    steps: Value

    def grow(self, values: list[Value], count: int, depth: int) -> list[Value]:
        """The values and those of further operations.

        Args:
            depth: how deep loops, branches and calls may nest.
        """
        values = list(values)
        for _ in range(count):
            operations = [*_PLAIN, *(_NESTED if depth else ())]
            operands = [values[self.draw(st.integers(0, len(values) - 1))] for _ in range(2)]
            values.append(self.draw(st.sampled_from(operations))(self, *operands, depth))
        return values

    def inner(self, values: Sequence[Value], depth: int) -> Value:
        return self.grow([*values], self.draw(st.integers(1, 3)), depth - 1)[-1]

    def loop(self, x: Value, y: Value, depth: int) -> Value:
        def step(number: Value, a: Value, b: Value) -> tuple[list[Value], Value | None]:
            active = self.steps > number if self.draw(st.booleans()) else None
            number_of_step = ops.cast(number, tf.float32) / 8.0
            return [self.inner([a, b, y, y * number_of_step], depth), b], active

        return scan(step, ops.reduce_max(self.steps), [x, y])[0]

    def accumulation(self, x: Value, y: Value, depth: int) -> Value:
        def step(number: Value, total: Value, largest: Value, steps: Value) -> tuple[list[Value], None]:
            addend = self.inner([y, y * 0.25], depth)
            return [total + addend, ops.reduce_max(addend, [1, 2]) + largest, steps + 1.0], None

        zeros = ops.zeros([CLIENTS])
        total, largest, steps = scan(step, ops.constant(2, tf.int64), [x, zeros, zeros])
        return ops.operation("Tanh", total + ops.reshape(largest / steps, [CLIENTS, 1, 1]))

    def while_loop(self, x: Value, y: Value, depth: int) -> Value:
        shapes = [tf.TensorShape([]), tf.TensorShape(SHAPE)]
        _, result = while_loop(
            lambda i, v: i < 2, lambda i, v: [i + 1, self.inner([v, y], depth)], [ops.constant(0), x], shapes
        )
        return result

    def branch(self, x: Value, y: Value, depth: int) -> Value:
        condition = ops.reduce_any(self.steps > 2)
        return cond(condition, lambda: [self.inner([x, y], depth)], lambda: [y])[0]

    def computation(self, x: Value, y: Value, depth: int) -> Value:
        condition = ops.reduce_all(x > y - 1.0)  # as loop-variant as the operands: a loop hoists no half of a branch
        return computed_if(condition, lambda a: [self.grow([a], 2, 0)[-1] + a], [x], [y])[0]

    def call(self, x: Value, y: Value, depth: int) -> Value:
        kind = self.draw(st.sampled_from(["function", "fused", "unordered"]))
        return call(lambda a, b: [self.inner([a, b, y], depth)], [x, y], kind=kind)[0]


_PLAIN: list[Callable] = [
    lambda pool, x, y, _: x + pool.draw(st.sampled_from([0.0, 1.0, -0.5])),
    lambda pool, x, y, _: x * pool.draw(st.sampled_from([0.5, 1.0, pool.rate / 4])),
    lambda pool, x, y, _: ops.operation("Tanh", x + y),
    lambda pool, x, y, _: ops.operation("Tanh", x - y),
    lambda pool, x, y, _: ops.operation("Tanh", ops.operation("BatchMatMulV2", x, y, adj_y=True)),
    lambda pool, x, y, _: ops.operation("Tanh", ops.operation("BatchMatMulV2", x, pool.w)),
    lambda pool, x, y, _: y + ops.reduce_mean(x, pool.draw(st.integers(0, 2)), keepdims=True),
    lambda pool, x, y, _: ops.reshape(ops.concat([x, y], 1)[:, 1 : ROWS + 1], SHAPE),
    lambda pool, x, y, _: select_by_client(pool.steps > pool.draw(st.integers(0, 2)), [x], [y])[0],
]
_NESTED = [_Pool.loop, _Pool.accumulation, _Pool.while_loop, _Pool.branch, _Pool.computation, _Pool.call]
