"""Nodes that run regions: loops, branches and calls of functions."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from fedcore.graphs.dataflow.graph import Value, active_block, new_region
from fedcore.graphs.dataflow.operations import value

lowerings: dict[str, Callable] = {}
"""The functions of these names that add to a TensorFlow graph, for where no block is built; `emission` fills it."""

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
    """The loop variables after the given number of iterations; their shapes are those of the initial values.

    Args:
        step: (iteration number, *loop variables) -> (loop variables of equal shapes, active). `active` is bool [K];
            row k of every loop variable is left unchanged if `active[k]` is false. None: all rows are active.
        iterations: int64, the number of iterations.
        parallel_iterations: number of iterations that may overlap.
        kept_by_step: number of loop variables, the last ones, whose inactive rows the step itself leaves unchanged.
            Their shapes may change, in axes that are not static.
    """
    options = {"parallel_iterations": parallel_iterations, "kept_by_step": kept_by_step}
    block = active_block()
    if block is None:
        return lowerings["scan"](step, iterations, initial, **options)
    has_active = False

    def body(number: Value, *variables: Value) -> list[Value]:
        nonlocal has_active
        results, active = step(number, *variables)
        has_active = active is not None
        return [
            *(value(r, v.dtype) for r, v in zip(results, variables, strict=True)),
            *([active] if has_active else []),
        ]

    start = [value(v) for v in initial]
    region = new_region([(tf.int64, []), *((v.dtype, v.shape) for v in start)], body)
    attributes = {**options, "has_active": has_active}
    return list(block.add("scan", [iterations, *start], attributes, [(v.dtype, v.shape) for v in start], [region]))


def while_loop(
    test: Callable,
    body: Callable,
    initial: Sequence[Value],
    shapes: Sequence[tf.TensorShape],
    *,
    parallel_iterations: int = PARALLEL_ITERATIONS,
) -> list[Value]:
    """The loop variables when `test` of them is false.

    Args:
        shapes: those that the loop variables have in all iterations.
    """
    block = active_block()
    if block is None:
        return lowerings["while_loop"](test, body, initial, shapes, parallel_iterations)
    start = [value(v) for v in initial]
    types = [(v.dtype, shape) for v, shape in zip(start, shapes, strict=True)]
    regions = [
        new_region(types, lambda *variables: [value(test(*variables))]),
        new_region(types, lambda *variables: [value(r, t) for r, (t, _) in zip(body(*variables), types, strict=True)]),
    ]
    return list(block.add("while", start, {"parallel_iterations": parallel_iterations}, types, regions))


def cond(condition: Value, then: Callable, otherwise: Callable) -> list[Value]:
    """The results of `then` if the condition holds, else of `otherwise`; only one of the two runs."""
    block = active_block()
    if block is None:
        return lowerings["cond"](condition, then, otherwise)
    regions = [new_region([], lambda branch=branch: list(map(value, branch()))) for branch in (then, otherwise)]
    types = []
    for a, b in zip(*(region.results for region in regions), strict=True):
        types.append((a.dtype, a.shape.most_specific_compatible_shape(b.shape)))
    return list(block.add("if", [condition], {}, types, regions))


def computed_if(
    condition: Value, compute: Callable, operands: Sequence[Value], otherwise: Sequence[Value]
) -> list[Value]:
    """`compute(*operands)` where the condition (bool []) holds, else `otherwise`; only the taken side is computed.

    `cond` would leave a loop's frame. Each result of `compute` has to depend on an operand, and to have the shape of
    its value of `otherwise`. In a loop the condition changes if an operand or a value of `otherwise` does: TensorFlow
    waits for ever for the untaken side of a branch whose condition was computed before the loop.
    """
    block = active_block()
    if block is None:
        return lowerings["computed_if"](condition, compute, operands, otherwise)
    region = new_region([(v.dtype, v.shape) for v in operands], lambda *values: list(map(value, compute(*values))))
    results = [(v.dtype, v.shape) for v in otherwise]
    inputs = [condition, *operands, *otherwise]
    return list(block.add("if", inputs, {"operands": len(operands)}, results, [region]))


def call(body: Callable, operands: Sequence[Value], *, kind: str = "function") -> list[Value]:
    """The results of the body as a function of its own.

    Args:
        body: of the operands; it may also read values of the blocks around it.
        kind: `function`, `fused` (TensorFlow fuses its operations), `xla` (XLA compiles it), or `unordered` (its
            operations have no automatic control dependencies, so that it may hold loops of TensorFlow 1).
    """
    block = active_block()
    if block is None:
        return lowerings["call"](body, operands, kind)
    inputs = [value(v) for v in operands]
    region = new_region([(v.dtype, v.shape) for v in inputs], lambda *values: list(map(value, body(*values))))
    return list(block.add("call", inputs, {"kind": kind}, [(r.dtype, r.shape) for r in region.results], [region]))


def function_of_number(body: Callable) -> Callable:
    """A function of a number (int64) that loops call: built in place, its operations would be in the loop's frames."""
    block = active_block()
    if block is None:
        return lowerings["function_of_number"](body)
    region = new_region([(tf.int64, [])], lambda number: list(map(value, body(number))))
    types = [(r.dtype, r.shape) for r in region.results]

    def called(number: Value) -> list[Value]:
        here = active_block()
        assert here is not None
        return list(here.add("call", [number], {"kind": "unordered"}, types, [region]))

    return called
