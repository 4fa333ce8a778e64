"""The check `lossy-cast`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedcore.compiler.client_outputs import accumulation_line
from fedcore.compiler.leaf_sets import count, flat, holds_sequence, nonempty_leaves, start_of
from fedcore.compiler.lint.program import ClientFold, Program, user_name
from fedcore.compiler.lint.registry import Finding, lint_check
from fedcore.errors import Location
from fedcore.intrinsics.sent_values import sent_by
from fedcore.ir import Function, Graph, Operation, Ref
from fedcore.types import TensorType, Type

if TYPE_CHECKING:
    from fedcore.graphs.dataflow.graph import Value

_HALVES = ("float16", "bfloat16")


@lint_check("lossy-cast")
def lossy_cast(program: Program) -> Iterator[Finding]:
    """Casts that lose precision: there and back, before a sum of integers, or before a sum of 16-bit floats.

    `tf.round` and `tf.floor` before a cast to integers say that the fractions are not wanted. Casts to integers that
    stay in a graph, such as of labels or indices, are left alone, and so are messages of encoders, which the server
    adds as float32.

    Before:
        def in_cents(price):
            return tf.cast(price * 100.0, tf.int32)  # 0.29 becomes 28; the server adds these
    After:
        def in_cents(price):
            return tf.cast(tf.round(price * 100.0), tf.int32)
    """
    from fedcore.graphs.graphdef.analysis.lossy_casts import round_trips
    from fedcore.graphs.graphdef.form.captured_graph import captured_graph

    for call in program.graph_calls:
        for cast in round_trips(captured_graph(call.graph, program.stages.blob(call.graph.digest))):
            to_integers = "int" in cast.target
            loss = "fractions are cut off, towards 0" if to_integers else f"digits beyond {cast.target} are lost"
            yield Finding(
                f"@{call.graph.name} casts {cast.source} to {cast.target} and back: {loss}, and no bit is saved",
                _fix_of_fractions(cast.target) if to_integers else "leave both casts out",
                call.location,
            )
    for fold in program.folds:
        yield from _sent_value_casts(program, fold)


def _sent_value_casts(program: Program, fold: ClientFold) -> Iterator[Finding]:
    """The casts of values that clients send."""
    stage = fold.stage
    sum_dtypes = {leaf.dtype.name for leaf in flat(stage.parameters[0].type) if isinstance(leaf, TensorType)}
    for name, sent in sent_by(program.stages, fold.fold).items():
        for source, target in _casts_of(program, stage, name):
            label, line = user_name(sent.label), _line_of(stage, name) or accumulation_line(stage, name)
            if target in _HALVES and target in sum_dtypes:
                yield Finding(
                    f"{label} is cast from {source} to {target} before it is added up: from some clients on,"
                    " the sum no longer changes",
                    f"send {source}, or add in {source} what an encoder sends in {target} (docs/extending.md)",
                    line,
                )
            elif "int" in target:
                yield Finding(
                    f"{label} is cast from {source} to {target} before it is sent: fractions are cut off, towards 0",
                    _fix_of_fractions(target),
                    line,
                )


def _fix_of_fractions(target: str) -> str:
    """The fix of a cast to integers that cuts off fractions."""
    return f"round first, as in tf.cast(tf.round(x), tf.{target}); tf.floor, where fractions are not wanted"


def _casts_of(program: Program, stage: Function, name: str) -> Iterator[tuple[str, str]]:
    """(source, target), names of dtypes, of the lossy casts that make leaves of a value of a stage."""
    from fedcore.graphs.graphdef.analysis.lossy_casts import cast_of_result

    op = next((op for op in stage.operations if op.name == name), None)
    if op is not None and op.kind == "message" and "secure" in op.attributes:
        yield from _casts_of(program, stage, op.operands[0].name)
        return
    if op is not None and op.kind == "cast":
        source = op.operands[0].name
        for source_dtype, target_dtype in _casts_of_types(stage.types()[source], op.type):
            if target_dtype in _HALVES or not _is_whole(program, stage, source):
                yield source_dtype, target_dtype
        return
    for result in _results_of_graphs(program, stage, name):
        cast = cast_of_result(result)
        if cast is not None:
            yield cast.source, cast.target


def _casts_of_types(source: Type, target: Type) -> Iterator[tuple[str, str]]:
    """(source, target), names of dtypes, for each leaf that a `cast` of types makes an integer or a 16-bit float."""
    for a, b in zip(flat(source), flat(target), strict=True):
        if isinstance(a, TensorType) and isinstance(b, TensorType) and "float" in a.dtype.name:
            narrows = b.dtype.name in _HALVES and a.dtype.name not in _HALVES
            if narrows or "int" in b.dtype.name:
                yield a.dtype.name, b.dtype.name


def _is_whole(program: Program, stage: Function, name: str) -> bool:
    """Whether a value of a stage has whole numbers, as far as the stage tells."""
    from fedcore.graphs.graphdef.analysis.lossy_casts import is_whole

    by_name, types = {op.name: op for op in stage.operations}, stage.types()
    visited, waiting = {name}, [name]
    while waiting:
        current = waiting.pop()
        if not any(isinstance(leaf, TensorType) and "float" in leaf.dtype.name for leaf in flat(types[current])):
            continue
        _, op = _origin(by_name, current)
        if op is None or op.kind == "generic_divide":
            return False
        if op.kind == "literal":
            values = op.attributes["value"].to_numpy()
            if not np.array_equal(values, np.round(values)):
                return False
        elif op.kind == "call":
            if not all(map(is_whole, _results_of_graphs(program, stage, current))):
                return False
        else:
            operands = {o.name for o in op.operands if isinstance(o, Ref)} - visited
            visited |= operands
            waiting.extend(operands)
    return True


def _results_of_graphs(program: Program, stage: Function, name: str) -> Iterator["Value"]:
    """The results of a graph that are the leaves of a value which it returns."""
    from fedcore.graphs.graphdef.form.captured_graph import captured_graph

    start, op = _origin({op.name: op for op in stage.operations}, name)
    callee = program.stages[op.operands[0].name] if op is not None and op.kind == "call" else None
    if not isinstance(callee, Graph) or holds_sequence(callee.type.result):
        return
    results = captured_graph(callee, program.stages.blob(callee.digest)).main.results
    for leaf, result in zip(nonempty_leaves(callee.type.result), results, strict=True):
        if start <= leaf < start + count(stage.types()[name]):
            yield result


def _origin(by_name: dict[str, Operation], name: str) -> tuple[int, Operation | None]:
    """The position of a value's first leaf in the result of the operation that holds it, and that operation.

    Args:
        by_name: the operations of the stage; a parameter is the result of none.
    """
    start, op = 0, by_name.get(name)
    while op is not None and op.kind == "item":
        source = op.operands[0].name
        inner = by_name.get(source)
        if inner is None:
            return 0, None
        start += start_of(inner.type, op.attributes["index"])
        op = inner
    return start, op


def _line_of(stage: Function, name: str) -> Location | None:
    """The line of the operation whose result holds a value."""
    _, op = _origin({op.name: op for op in stage.operations}, name)
    return None if op is None else op.location
