"""The cases of a batching rule: operands found by its definition, those of a user, or those that specs describe."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.graphs import private_api
from fedcore.graphs.dataflow.op_signature import attribute_value, operand_names, signature
from fedcore.graphs.graphdef.form.captured_graph import captured_graph
from fedcore.graphs.tensors.specs import spec
from fedcore.ir.locations import describe
from fedcore.ir.module import Graph
from fedcore.testing.operand_search import draw_operand, find_operands, operand_kinds
from fedcore.testing.rule_cases import Operand, RuleCase, Structures, case_of_arrays, spread_over_clients
from fedcore.testing.rule_subjects import Function, Operation, Subject
from fedcore.testing.trial_process import OperandsRefused
from fedcore.types import TensorType, tensor_leaves, to_type

ROWS = 6
"""Rows of a batch in the specs of a function."""

Cases = list[tuple[Subject, RuleCase]]


def cases_of_operation(op: str, user_cases: Iterable[Sequence], structures: Structures | None = None) -> Cases:
    """The cases of an operation: the user's, or operands found by its definition if the user has none.

    Raises:
        OperandsNotFound: there are none.
    """
    user_cases = list(user_cases)
    if user_cases:
        return [_case_of_operands(op, case, structures) for case in user_cases]

    cases: Cases = []
    for match in find_operands(op, structures):
        subject = Operation(op, match.attributes)
        arrays, static = [c.array for c in match.candidates], [c.is_static for c in match.candidates]
        case = _case_of_arrays(subject, arrays, static, structures)
        if case is not None:
            cases.append((subject, attrs.evolve(case, is_variation=match.is_variation)))
    return cases


def _case_of_arrays(
    operation: Operation, arrays: Sequence[np.ndarray], static: Sequence[bool], structures: Structures | None
) -> RuleCase | None:
    """The case of one client's operands; None if they do not fit."""
    op, attributes = operation.name, operation.attributes
    kinds = operand_kinds(op, attributes)
    return case_of_arrays(operand_names(op, attributes), arrays, static, attributes, operation.alone, structures, kinds)


def _case_of_operands(op: str, user_case: Sequence, structures: Structures | None) -> tuple[Subject, RuleCase]:
    """The case of one client's operands, and maybe attributes at the end."""
    *operands, last = user_case
    attributes = dict(last) if isinstance(last, Mapping) else {}
    operands = operands if isinstance(last, Mapping) else [*operands, last]
    declared = signature(op).operands
    if len(operands) != len(declared):
        names = ", ".join(a.name for a in declared)
        raise TypeMismatch(
            f"a case of {op} has {len(declared)} operands ({names}), not {len(operands)}: {brief(user_case)}"
        )
    whole = {a.name: attribute_value(a.default_value) for a in private_api.op_definition(op).attr
             if a.HasField("default_value")}  # fmt: skip
    whole.update({k: v.encode() if isinstance(v, str) else v for k, v in attributes.items()})
    flat: list[np.ndarray] = []
    for argument, operand in zip(declared, operands, strict=True):
        parts = [np.asarray(v) for v in (operand if argument.is_list else [operand])]
        dtypes = [tf.as_dtype(p.dtype) if p.dtype != object else tf.string for p in parts]
        if argument.number_attr:
            whole[argument.number_attr] = len(parts)
        if argument.type_list_attr:
            whole[argument.type_list_attr] = dtypes
        if argument.type_attr and dtypes:
            whole[argument.type_attr] = dtypes[0]
        flat += parts
    subject = Operation(op, whole)
    subject.alone(flat)  # TensorFlow's error, if the case does not fit
    case = _case_of_arrays(subject, flat, [False] * len(flat), structures)
    assert case is not None
    return subject, case


def cases_in_graph(op: str, graph: Graph, data: bytes) -> list[tuple]:
    """The operands that an operation has in a graph outside of loops, as `cases` of `check_batching_rule`."""
    region = captured_graph(graph, data).main
    leaves = [] if graph.type.parameter is None else tensor_leaves(graph.type.parameter)
    values = {v: _array_of_spec(spec(t), i) for i, (v, t) in enumerate(zip(region.arguments, leaves, strict=False))}
    cases = []
    for node in region.nodes:
        operands = [values.get(v) for v in node.inputs]
        if node.regions or any(o is None for o in operands):
            continue
        arrays = [np.asarray(o) for o in operands]
        if node.op == op:
            cases.append((*signature(op).by_operand(arrays, node.attributes), dict(node.attributes)))
        try:
            results = Operation(node.op, node.attributes).alone(arrays)
        except OperandsRefused:
            continue
        values.update(zip(node.outputs, results, strict=True))
    return cases


def cases_of_function(fn: Callable, specs: Sequence, user_cases: Iterable[Sequence]) -> Cases:
    """The cases of a function: operands that its specs describe, and the user's."""
    specs = tuple(map(_tensor_spec, specs))
    subject = Function(describe(fn), fn, specs)
    if subject.graph.seeded:
        raise TypeMismatch(f"{subject.name} draws random numbers: give them a seed that is an argument")
    arrays = [[_array_of_spec(s, i) for i, s in enumerate(specs)], *map(list, user_cases)]
    return [(subject, _case_of_arguments(subject, list(map(np.asarray, each)))) for each in arrays]


def _case_of_arguments(subject: Function, arrays: list[np.ndarray]) -> RuleCase:
    """The case of one client's arguments of a function: open sizes of its specs are batch axes.

    Raises:
        TypeMismatch: the number of arguments differs.
        OperandsRefused: TensorFlow refuses them.
    """
    if len(arrays) != len(subject.specs):
        raise TypeMismatch(f"{subject.name} takes {len(subject.specs)} arguments, but a case has {len(arrays)}")
    subject.alone(arrays)
    rng = np.random.default_rng(0)
    operands = []
    for i, (array, each) in enumerate(zip(arrays, subject.specs, strict=True)):
        axes = tuple(a for a, size in enumerate(each.shape) if size is None)
        kind = "count" if array.dtype.kind in "iu" else "data"  # other integers may be sizes or numbers of steps
        operands.append(Operand(f"argument {i}", spread_over_clients(array, rng), batch_axes=axes, kind=kind))
    return RuleCase(tuple(operands))


def _tensor_spec(declared: object) -> tf.TensorSpec:
    """The spec that a user declares for an argument, as a spec or by what `fc.to_type` takes."""
    if isinstance(declared, tf.TensorSpec):
        return declared
    type_ = to_type(declared)
    if not isinstance(type_, TensorType):
        raise TypeMismatch(f"specs are tensors, not {brief(declared)}")
    return spec(type_)


def _array_of_spec(each: tf.TensorSpec, position: int) -> np.ndarray:
    """Random values of a spec, with `ROWS` in the place of open sizes; `position` is the seed."""
    if each.shape.rank is None:
        raise FedcoreError(f"the spec of argument {position} has no rank")
    shape = [ROWS if s is None else s for s in each.shape]
    return draw_operand(each.dtype, shape, np.random.default_rng(position))
