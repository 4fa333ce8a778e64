"""Nodes that run regions: loops, branches and calls of functions.

Each function here calls the Python functions that it is given once, with values that stand for any run, to build the
regions, and adds one node that runs them: `scan`, `while`, `if` or `call` (see `graph`).
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from fedcore.graphs.dataflow.graph import Value, active_block, new_region
from fedcore.graphs.dataflow.operations import current_block, gather, operation, shape, value

PARALLEL_ITERATIONS = 10
"""The default of `tf.while_loop`."""


def scan(
    step: Callable,
    iterations: Value,
    initial: Sequence[Value],
    *,
    parallel_iterations: int = PARALLEL_ITERATIONS,
    kept_by_step: int = 0,
) -> list[Value]:
    """The loop variables after a number of iterations; their shapes are those of the initial values.

    Args:
        step: (iteration number, *loop variables) -> (loop variables of equal shapes, active). `active` is bool [K];
            row k of every loop variable is left unchanged if `active[k]` is false. None: all rows are active.
        iterations: int64, the number of iterations.
        initial: the initial loop variables.
        parallel_iterations: number of iterations that may overlap.
        kept_by_step: number of loop variables, the last ones, whose inactive rows the step itself leaves unchanged.
            Their shapes may change, in axes that are not static.
    """
    has_active = False

    def body(number: Value, *variables: Value) -> list[Value]:
        """The results of an iteration with the dtypes of the loop variables; behind them `active`, if there is one."""
        nonlocal has_active
        results, active = step(number, *variables)
        has_active = active is not None
        return [
            *(value(r, v.dtype) for r, v in zip(results, variables, strict=True)),
            *([active] if has_active else []),
        ]

    start = [value(v) for v in initial]
    region = new_region([(tf.int64, []), *((v.dtype, v.shape) for v in start)], body)
    attributes = {"parallel_iterations": parallel_iterations, "kept_by_step": kept_by_step, "has_active": has_active}
    types = [(v.dtype, v.shape) for v in start]
    return list(current_block().add("scan", [iterations, *start], attributes, types, [region]))


def while_loop(
    test: Callable,
    body: Callable,
    initial: Sequence[Value],
    shapes: Sequence[tf.TensorShape],
    *,
    parallel_iterations: int = PARALLEL_ITERATIONS,
) -> list[Value]:
    """Repeats `body` while `test` of the loop variables is true; returns the loop variables after the last iteration.

    Args:
        test: loop variables -> bool.
        body: loop variables -> loop variables after an iteration; a number or an array gets the variable's dtype.
        initial: the initial loop variables.
        shapes: static shape of each loop variable in all iterations.
        parallel_iterations: number of iterations that may overlap.
    """
    start = [value(v) for v in initial]
    types = [(v.dtype, s) for v, s in zip(start, shapes, strict=True)]
    regions = [
        new_region(types, lambda *variables: [value(test(*variables))]),
        new_region(types, lambda *variables: [value(r, t) for r, (t, _) in zip(body(*variables), types, strict=True)]),
    ]
    return list(current_block().add("while", start, {"parallel_iterations": parallel_iterations}, types, regions))


def map_rows(fn: Callable, operands: Sequence[Value], results: Sequence[tf.TensorSpec]) -> list[Value]:
    """The results of `fn(*row)` for the rows of the operands, each stacked along a leading axis.

    A loop stores the results of each row in TensorLists. Where no block is built, it is `tf.map_fn`.

    Args:
        fn: a row of each operand -> results of the row.
        results: spec of each result of one row.
    """
    if active_block() is None:
        return list(tf.map_fn(lambda row: tuple(fn(*row)), tuple(operands), fn_output_signature=tuple(results)))
    count = shape(operands[0])[0]
    sizes = [_sizes(spec.shape) for spec in results]
    lists = [
        operation("TensorListReserve", row_sizes, count, element_dtype=spec.dtype)
        for row_sizes, spec in zip(sizes, results, strict=True)
    ]

    def step(i: Value, *lists_so_far: Value) -> list[Value]:
        """Stores the results of row i; the first loop variable counts the rows."""
        rows = fn(*(gather(x, i) for x in operands))
        next_lists = [
            operation("TensorListSetItem", list_, i, row) for list_, row in zip(lists_so_far, rows, strict=True)
        ]
        return [i + 1, *next_lists]

    initial = [value(0, tf.int32), *lists]
    _, *lists = while_loop(lambda i, *_: i < count, step, initial, [v.shape for v in initial])
    stacks = []
    for list_, row_sizes, spec in zip(lists, sizes, results, strict=True):
        stacks.append(operation("TensorListStack", list_, row_sizes, element_dtype=spec.dtype))
        stacks[-1].set_shape([operands[0].shape[0], *spec.shape] if spec.shape.rank is not None else None)
    return stacks


def _sizes(shape: tf.TensorShape) -> np.ndarray:
    """A static shape as an operand of operations on TensorLists: -1 for an unknown size, or for an unknown rank."""
    sizes = -1 if shape.rank is None else [-1 if s is None else s for s in shape]
    return np.asarray(sizes, np.int32)


def cond(condition: Value, then: Callable, otherwise: Callable) -> list[Value]:
    """The results of `then` if the condition holds, else of `otherwise`; only one of the two runs.

    Both return equally many values of equal dtypes. A result has the most specific shape that fits both.
    """
    regions = [new_region([], lambda branch=branch: list(map(value, branch()))) for branch in (then, otherwise)]
    types = []
    for a, b in zip(*(region.results for region in regions), strict=True):
        types.append((a.dtype, a.shape.most_specific_compatible_shape(b.shape)))
    return list(current_block().add("if", [condition], {}, types, regions))


def computed_if(
    condition: Value, compute: Callable, operands: Sequence[Value], otherwise: Sequence[Value]
) -> list[Value]:
    """`compute(*operands)` where the condition (bool []) holds, else `otherwise`; only that side is computed.

    The operations of `compute` stay in the frame of a loop around it, which the function of a `cond` would leave. Each
    result of `compute` has to depend on an operand, and to have the shape of its value of `otherwise`. In a loop the
    condition has to change if an operand or a value of `otherwise` does: TensorFlow waits for ever for the untaken side
    of a branch whose condition was computed before the loop.
    """
    region = new_region([(v.dtype, v.shape) for v in operands], lambda *values: list(map(value, compute(*values))))
    results = [(v.dtype, v.shape) for v in otherwise]
    inputs = [condition, *operands, *otherwise]
    return list(current_block().add("if", inputs, {"operands": len(operands)}, results, [region]))


def call(body: Callable, operands: Sequence[Value], *, kind: str = "function") -> list[Value]:
    """The results of the body, which is called as a function of TensorFlow of its own.

    Args:
        body: of the operands; it may also read values of the blocks around it.
        kind: `function` as it is; `fused` where TensorFlow fuses operations, such as a convolution with its bias; `xla`
            where XLA compiles it; `unordered` without automatic control dependencies, as loops of TensorFlow 1 (`scan`)
            need it. Only out of `unordered` functions passes move nodes.
    """
    inputs = [value(v) for v in operands]
    region = new_region([(v.dtype, v.shape) for v in inputs], lambda *values: list(map(value, body(*values))))
    types = [(r.dtype, r.shape) for r in region.results]
    return list(current_block().add("call", inputs, {"kind": kind}, types, [region]))


def function_of_number(body: Callable) -> Callable:
    """A function of a number (int64 []) for the bodies of loops: each use is a call of one traced region.

    Built in place instead, its operations would be in the loop's frames.
    """
    region = new_region([(tf.int64, [])], lambda number: list(map(value, body(number))))
    types = [(r.dtype, r.shape) for r in region.results]

    def call_region(number: Value) -> list[Value]:
        """A call of the traced region."""
        return list(current_block().add("call", [number], {"kind": "unordered"}, types, [region]))

    return call_region
