"""Checks the laws of an intrinsic, with calls that are generated from its declaration."""

import ast
import builtins
import doctest
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import fedcore as fc
from fedcore import context
from fedcore.computation import Computation
from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.graphs.batched.batched_value import batching_rules
from fedcore.graphs.graphdef.form.operations import operations_of
from fedcore.graphs.stages.kernels import kernels
from fedcore.ir import Intrinsic, Module, lookup, parse_module
from fedcore.ir.module import Graph
from fedcore.ir.operations import LOCAL
from fedcore.runtime import Report
from fedcore.runtime.reports.result_difference import difference
from fedcore.testing.batching_rules import check_batching_rule
from fedcore.testing.generated import Call, Values, calls_of
from fedcore.testing.intrinsic_programs import Program, program_at_clients, program_with, programs_of, traced_with
from fedcore.testing.laws import LawBroken, describe_raised
from fedcore.testing.operand_search import OperandsNotFound
from fedcore.testing.rule_operands import cases_in_graph
from fedcore.testing.rule_subjects import rule_place
from fedcore.types import FederatedType, Type


def check_intrinsic(
    op: Intrinsic | str, cases: Iterable[tuple[Computation, Sequence]] | None = None, *, batched: bool = True
) -> int:
    """Checks the laws of an intrinsic.

    Laws: it has an implementation; the documentation begins with a sentence and has an example that runs; a wrong
    argument is refused with both types shown; a program with the intrinsic prints and parses; the meaning, the lowering
    and the local runtime give equal results, for 0, 1, 2, 3, 7 and 2051 clients. A local intrinsic is also mapped over
    clients: over client values, and with each operand in turn shared by all clients. The local runtime must batch these
    maps: the operations of the kernel need batching rules, and `check_batching_rule` checks those that are not
    fedcore's. Numbers are near 0, near a large number, of several orders of magnitude, all 0, and special: NaN,
    infinite, the least and the largest integers. Sequences have up to 8 elements.

    Args:
        op: the intrinsic, or its name.
        cases: computations that use the intrinsic, each with its list of arguments, `[(computation, [1.0, 2.0])]`. They
            are checked in addition to the calls that are generated from the signature. Generated calls set every
            attribute other than `placement` and `dtype` to 3, and to 0, 2, -1, 0.5 and the words that stand in the
            functions of the intrinsic, where it takes these.
        batched: the clients of the generated maps must be batched, and operations of local cases must have batching
            rules. False accepts stages that run one client after the other. Maps over strings always do.
    Returns:
        How many programs were run.
    Raises:
        LawBroken: names the law, shows the program and the inputs, and describes the difference.
        FedcoreError: it is no intrinsic.
    Example:
        >>> fc.testing.check_intrinsic(fc.federated_sum)
    """
    op = lookup(op) if isinstance(op, str) else op
    if not isinstance(op, Intrinsic):
        raise TypeMismatch(f"check_intrinsic takes an intrinsic or its name, not {brief(op)}")
    example = _documentation(op)
    calls = list(calls_of(op))
    runtime = fc.runtime.local(workers_per_device=1, default_num_clients=0)
    try:
        _implementation(op, calls, runtime)
        _example(op, example, calls)
        for call in calls:
            _refusals(op, call)
        ran, programs_of_kernels = 0, list[Module]()
        for program in itertools.chain(
            programs_of(op, calls), (Program(c, [list(i)], is_case=True) for c, i in cases or ())
        ):
            ran += len(program.inputs)
            _check_program(op, program.module, program.inputs, runtime)
            if not batched:
                continue
            if program.batchable:
                _check_batched(op, program.module, runtime)
            if op.level == LOCAL and (program.batchable or program.is_case):
                programs_of_kernels.append(program.module)
        _check_rules(op, programs_of_kernels, runtime)
    finally:
        runtime.close()
    if not ran:
        raise LawBroken(f"{op.name} is run", "no calls can be generated from its signature, so give cases")
    return ran


# The implementation.


def _implementation(op: Intrinsic, calls: list[Call], runtime: context.Runtime) -> None:
    if op.lowered_by or op.staged_by or op.crosses or op.name in kernels:
        return
    problem = "it has no implementation"
    if op.level == LOCAL:
        reason = _why_not_on_tensors(op, calls, runtime)
        if reason is None:
            return
        problem = f"its meaning does not run on tensors ({reason})"
    raise LawBroken(
        f"{op.name} has an implementation",
        f"{problem}; give it one of\n"
        f"@{op.name}.lowering: other operations\n"
        f"@{op.name}.in_stage: local operations, for an operation that stays at its placement\n"
        f"crosses=TO_CLIENTS or TO_SERVER: the communication, for an operation that crosses between placements\n"
        f"@kernel({op.name!r}): TensorFlow, for level='local' (fedcore.graphs.stages.kernels)",
    )


def _why_not_on_tensors(op: Intrinsic, calls: list[Call], runtime: context.Runtime) -> str | None:
    """The error of compiling a map of a local operation without a kernel; None if it compiles."""
    for call in calls:
        try:
            module = program_at_clients(op, call, call.types()).module
        except TypeMismatch:
            continue
        try:
            _plan(runtime, module)
        except Exception as error:
            return _format_outcome(error.__cause__ or error).split("\n")[0]
    return None


# The documentation.


def _documentation(op: Intrinsic) -> str:
    doc = (op.__doc__ or "").strip()
    first = doc.split("\n")[0].rstrip()
    if not first or first[-1] not in ".;:":
        raise LawBroken(f"{op.name} is documented", f"its documentation begins with a sentence, not {first!r}")
    examples = doctest.DocTestParser().get_examples(op.__doc__ or "")
    if not examples:
        raise LawBroken(f"{op.name} is documented", "its documentation has no example (`Example:`, then `>>> …`)")
    return "".join(e.source for e in examples)


def _example(op: Intrinsic, source: str, calls: list[Call]) -> None:
    """Runs the example in a computation, with a generated value for each name that the example does not define."""
    law = f"the example of {op.name} runs"
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise LawBroken(law, f"{source.strip()}: {error}") from None
    matches = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _callee_name(node) == op.name]
    if not matches:
        raise LawBroken(law, f"{source.strip()} does not call {op.name}")
    problems = []
    for call in calls or [Call({}, {})]:
        types, names = _free_names(op, matches[0], tree, call)
        try:
            _run_example(op, source, types, names)
            return
        except Exception as error:
            problems.append(describe_raised(error))
    raise LawBroken(law, f"{source.strip()}\n{problems[-1]}")


def _callee_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _free_names(op: Intrinsic, node: ast.Call, tree: ast.AST, call: Call) -> tuple[dict[str, Type], dict]:
    """The free names of the example: name -> type of its value, and name -> function; both from the call."""
    parameters = list(op.__signature__.parameters)
    at: dict[str, str] = {}
    for i, argument in enumerate(node.args):
        for inner in ast.walk(argument) if not isinstance(argument, ast.Lambda) else ():
            if isinstance(inner, ast.Name):
                at.setdefault(inner.id, parameters[min(i, len(parameters) - 1)])
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {a.arg for n in ast.walk(tree) if isinstance(n, ast.Lambda) for a in n.args.args}
    types: dict[str, Type] = {}
    functions: dict[str, object] = {}
    for name in dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)):
        if name in bound or name in ("fc", "np", op.name) or hasattr(builtins, name):
            continue
        value = call.arguments.get(at.get(name, ""), fc.to_type("float32"))
        if isinstance(value, Type):
            types[name] = value
        else:
            functions[name] = value
    return types, functions


def _run_example(op: Intrinsic, source: str, types: dict[str, Type], functions: dict) -> None:
    def body(values: tuple) -> int:
        names = {"fc": fc, "np": np, op.name: op, **functions, **dict(zip(types, values, strict=True))}
        exec(compile(source, f"<example of {op.name}>", "exec"), names)
        return 0

    computation = traced_with(body, list(types.values()))
    values = Values(clients=2, seed=[0])
    _reference(computation.module, [values.value(t) for t in types.values()])


# Refused arguments.


def _refusals(op: Intrinsic, call: Call) -> None:
    """Checks that each placed argument is refused at the other placement."""
    types = call.types()
    for name, type_ in types.items():
        if isinstance(type_, FederatedType):
            other = fc.SERVER if type_.placement == fc.CLIENTS else fc.CLIENTS
            _refuses(op, call, {**types, name: FederatedType(type_.member, other)}, name)


def _refuses(op: Intrinsic, call: Call, types: dict[str, Type], name: str) -> None:
    law = f"{op.name} refuses a wrong `{name}` with both sides shown"
    try:
        program_with(op, call, types)
    except TypeMismatch as error:
        if ("wants" in str(error) and "has" in str(error)) or "fix: fc.federated_broadcast" in str(error):
            return
        raise LawBroken(law, f"given {types[name]} it says: {error}") from None
    except FedcoreError:
        return
    if op.level == "placed" and op.signature is not None and len(op.signature.alternatives) == 1:
        raise LawBroken(law, f"it takes {types[name]}")


# Results.


def _check_program(op: Intrinsic, module: Module, all_inputs: list[list], runtime: context.Runtime) -> None:
    def broken(law: str, what: str, inputs: list | None = None) -> LawBroken:
        return LawBroken(f"{op.name}: {law}", what, program=module, inputs=all_inputs[0] if inputs is None else inputs)

    if op.name not in {o.kind for f in module.functions for o in f.operations}:
        raise broken("a case holds the intrinsic", f"no operation of it is {op.name}")
    parsed = parse_module(str(module))
    if parsed != module:
        raise broken("a program prints and parses", f"it came back as\n{parsed}")
    lowered: Module | None = None
    for inputs in all_inputs:
        want = _outcome(_reference, module, inputs)
        if isinstance(want, Exception) and not isinstance(want, FedcoreError):
            raise broken("its meaning runs", _format_outcome(want), inputs)
        try:
            lowered = lowered or context.lower(module)
        except Exception as error:
            raise broken("it is lowered", _format_outcome(error), inputs) from error
        mismatch = _difference(_outcome(_reference, lowered, inputs), want)
        if mismatch is not None:
            raise broken("the lowering gives the meaning's result", f"{mismatch}; it is lowered to\n{lowered}", inputs)
        mismatch = _difference(_outcome(functools.partial(_local, runtime), module, inputs), want)
        if mismatch is not None:
            raise broken("the local runtime gives the meaning's result", mismatch, inputs)


def _check_batched(op: Intrinsic, module: Module, runtime: context.Runtime) -> None:
    plan = _plan(runtime, module)
    for stage in plan.functions:
        reason = stage.attributes.get("why")
        if reason is not None:
            raise LawBroken(
                f"{op.name}: its clients are batched",
                f"they run one after the other (strategy=loop): {reason}\n"
                f"fix: {_fix_of(str(reason))}, or call check_intrinsic with batched=False, which accepts this",
                program=module,
            )


def _fix_of(reason: str) -> str:
    """The fix that makes clients batched; the reason begins with an operation's name."""
    name = reason.split(" ", 1)[0]
    if name in batching_rules:
        return f"the batching rule of {name} ({rule_place(name)}) refuses these operands or raises; let it take them"
    return "write a batching rule"


def _check_rules(op: Intrinsic, modules: Sequence[Module], runtime: context.Runtime) -> None:
    """Checks that operations of the programs' graphs have batching rules, and those rules that are not built in."""
    checked: set[str] = set()
    for module in modules:
        plan = _plan(runtime, module)
        for graph in plan.graphs:
            data = plan.blob(graph.digest)
            names = sorted(operations_of(graph.digest, data))
            missing = [name for name in names if name not in batching_rules and name not in _WITHOUT_RULES]
            if missing:
                raise LawBroken(
                    f"{op.name}: its clients are batched",
                    f"no batching rule: {', '.join(missing)}\n"
                    "fix: write batching rules, or call check_intrinsic with batched=False, which accepts this",
                    program=module,
                )
            for name in set(names) - checked:
                checked.add(name)
                if name in batching_rules and not batching_rules[name].__module__.startswith("fedcore.graphs."):
                    _check_rule(name, graph, data)


def _check_rule(name: str, graph: Graph, data: bytes) -> None:
    """Checks a batching rule, with the operands of a graph where others are not found."""
    try:
        check_batching_rule(name)
    except OperandsNotFound:
        check_batching_rule(name, cases=cases_in_graph(name, graph, data))


_WITHOUT_RULES = ("Const", "NoOp", "Placeholder")


@np.errstate(all="ignore")
def _outcome(run: Callable, module: Module, inputs: list) -> Any:
    """The result, or the exception that was raised."""
    try:
        return run(module, inputs)
    except Exception as error:
        return error


def _difference(have: object, want: object) -> str | None:
    """The first difference of two outcomes; None if they are equal, or if both refuse the inputs."""
    if isinstance(have, FedcoreError) and isinstance(want, FedcoreError):
        return None
    if isinstance(have, Exception) or isinstance(want, Exception):
        return f"the result is {_format_outcome(have)}, not {_format_outcome(want)}"
    return difference(have, want)


def _format_outcome(outcome: object) -> str:
    return f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, Exception) else repr(outcome)


def _reference(module: Module, inputs: list) -> Any:
    return fc.runtime.reference().run(module, inputs, Report(seed=0))


def _plan(runtime: context.Runtime, module: Module) -> Module:
    with fc.use(runtime, pipeline="default"):
        return context.plan_of(module)


def _local(runtime: context.Runtime, module: Module, inputs: list) -> Any:
    with fc.use(runtime, pipeline="default"):
        return fc.invoke(module, inputs, seed=0)
