"""Checks the laws of a pass on generated programs."""

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import fedcore as fc
from fedcore.compiler import all_passes, compile_module, get_pass
from fedcore.compiler.client_data import NotFollowed
from fedcore.compiler.disclosures import disclosures
from fedcore.compiler.passes.plan import crossing_bits
from fedcore.compiler.pipeline import Pass
from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.graphs.capture.graph_import import eager_callable
from fedcore.ir import Graph, Module, Operation, Symbol, lookup, parse_module, verify
from fedcore.ir.interpret import Interpreter, Seed
from fedcore.ir.registry import registered
from fedcore.ir.values import is_placed
from fedcore.runtime.reference import ONE_BLOCK, evaluator, interpreter_arguments
from fedcore.runtime.same_meaning import change_of_result, folds_clients, runs_in_parts
from fedcore.testing.covering_programs import covering_programs
from fedcore.testing.generated import COHORTS, Values
from fedcore.testing.laws import LawBroken, describe_raised
from fedcore.testing.programs import arguments, federated_modules
from fedcore.testing.siblings import module_siblings
from fedcore.testing.values import special_values
from fedcore.types import CLIENTS, FederatedType, FunctionType, StructType, TensorType, Type, fits
from fedcore.types.placing import is_client_value

GENERATED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
"""How hypothesis generates programs: equal ones in each run, and the smallest one that breaks a law."""

SPECIAL_COHORTS = range(4, 13)
"""Numbers of clients of cases with special numbers: a parameter without axes is another number in each."""


@attrs.frozen
class Checked:
    """The numbers of programs that a pass was checked on, and the operations in them.

    Args:
        programs: number of programs: covering and generated ones, and cases.
        changed: number of programs that the pass changed.
        changed_operations: names of the operations that the pass removed, added or rewrote, sorted.
        unmet: names of the registered operations that no program had when the pass got it, sorted. Of a pass that
            looks for these, the check says nothing.
    """

    programs: int
    changed: int
    changed_operations: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()


@attrs.define
class _Tally:
    """The programs of a check so far."""

    changed: list[bool] = attrs.field(factory=list)
    changed_operations: set[str] = attrs.field(factory=set)
    met: set[str] = attrs.field(factory=set)

    def add(self, one: Pass, module: Module, inputs: dict[int, list]) -> None:
        self.met.update(op.kind for f in module.functions for op in f.operations)
        result = check_laws(one, module, inputs)
        self.changed.append(result is not module)
        self.changed_operations |= changed_operations(module, result)

    def result(self) -> Checked:
        unmet = tuple(sorted(registered().keys() - self.met))
        return Checked(len(self.changed), sum(self.changed), tuple(sorted(self.changed_operations)), unmet)


def check_pass(
    one: str | Pass | Callable,
    *,
    before: str | Sequence[str] = ("",),
    programs: int = 25,
    cases: str | Iterable[str] = (),
) -> Checked:
    """Checks the laws of a pass on programs with every registered operation, on generated and on given programs.

    Laws: the pass changes at least one program; it keeps the meaning and the type, also where clients are added up in
    blocks that are merged in a tree (for 1, 3 and 65 clients); the result is a valid module; nothing that crossed in
    secure sums reaches the server otherwise; crossings have the bits that their types tell; every operation has a line
    that an operation or function had before (none only where one had none; or the pass removes all), and its own in a
    function that the pass leaves; no client makes more graph calls (a local operation may become a graph call, if the
    sum of both does not grow); the pass makes equal modules of one, whatever it ran on before; on its own result it
    changes nothing (unless it is declared with `idempotent=False`).

    Args:
        one: a pass, its name, or a function from module to module.
        before: a pipeline or several; each prepares programs for the pass. Default: traced programs.
        programs: how many programs to generate for each pipeline, beside about 140 that have every registered
            operation. 0: `cases` only.
        cases: a program or several as text, of any stage, to which the pass is applied directly. They call no graphs,
            since text has no bytes of graphs. Needed for a pass that changes no other program. Each is also checked
            with other dtypes, where it is valid with them, with other constants, with functions of the same names that
            return twice as much, and with special numbers.
    Returns:
        How many programs there were, how many of them the pass changed, which operations it changed, and which no
        program had.
    Raises:
        LawBroken: names the law, shows the smallest program found and the inputs, and describes the difference.
        FedcoreError: a case does not parse, is not valid, or calls a graph; or there is no such pass.
    Example:
        >>> fc.testing.check_pass('dce', before=['', 'inline'])
    """
    checked = one if isinstance(one, Pass) else get_pass(one) if isinstance(one, str) else _find_pass(one)
    tally = _Tally()
    for text in [cases] if isinstance(cases, str) else cases:
        module = _case(text)
        tally.add(checked, module, _inputs_of(module))
        for sibling in module_siblings(text):
            check_laws(attrs.evolve(checked, idempotent=False), sibling, _inputs_of(sibling))
    pipelines = [before] if isinstance(before, str) else before
    for pipeline in pipelines if programs else ():
        for program in covering_programs():
            tally.add(checked, compile_module(program.module, pipeline), program.inputs)
        _check_generated(checked, pipeline, programs, tally)
    if not any(tally.changed):
        raise LawBroken(
            f"{checked.name} changes a program",
            f"it changed none of {len(tally.changed)}: nothing was checked. Give programs that it changes as text, in "
            "cases=, or the pipelines that prepare programs for it, in before=",
        )
    return tally.result()


def _find_pass(fn: Callable) -> Pass:
    if not callable(fn):
        raise TypeMismatch(f"check_pass takes a pass, its name or a function from module to module, not {brief(fn)}")
    return next((p for p in all_passes() if p.run is fn), Pass(getattr(fn, "__name__", "pass"), fn))


def _case(text: str) -> Module:
    module = verify(parse_module(text))
    if module.graphs:
        raise FedcoreError(f"a case calls the graph @{module.graphs[0].name}, whose bytes are not in the text:\n{text}")
    return module


class _Special(Values):
    """The special numbers of each dtype in turn, from another one on for each number of clients."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients, [clients], "special")
        self._next = clients

    def _tensor(self, type_: TensorType) -> Any:
        if type_.dtype.name == "str":
            return super()._tensor(type_)
        dtype = type_.dtype.numpy
        self._next += 1
        return np.resize(np.roll(np.array(special_values(dtype), dtype), -self._next), [s or 0 for s in type_.sizes])


def _inputs_of(module: Module) -> dict[int, list]:
    values = {n: Values(n, [n], spread) for n, spread in COHORTS} | {n: _Special(n) for n in SPECIAL_COHORTS}
    return {n: [v.value(p.type) for p in module.main.parameters] for n, v in values.items()}


def _check_generated(one: Pass, pipeline: str, programs: int, tally: _Tally) -> None:
    @settings(GENERATED, max_examples=programs)
    @given(st.data())
    def on_programs(data: st.DataObject) -> None:
        traced = data.draw(federated_modules())
        inputs = {n: data.draw(arguments(traced, n, spread)) for n, spread in COHORTS}
        tally.add(one, compile_module(traced, pipeline), inputs)

    on_programs()


def changed_operations(before: Module, after: Module) -> set[str]:
    """The operations that are in one of two modules only; names of bindings and functions do not count."""
    if before is after:
        return set()
    have, want = _operations(after), _operations(before)
    return {kind for kind, *_ in [*(have - want), *(want - have)]}


def _operations(module: Module) -> collections.Counter:
    """Each operation with its attributes and type, and with the producers of its operands in place of their names."""
    counts: collections.Counter = collections.Counter()
    for function in module.functions:
        producers = {p.name: f"parameter {i}" for i, p in enumerate(function.parameters)}
        numbers: collections.Counter = collections.Counter()
        for op in function.operations:
            operands = tuple("function" if isinstance(o, Symbol) else producers[o.name] for o in op.operands)
            counts[op.kind, repr(sorted(op.attributes.items())), op.type, operands] += 1
            producers[op.name] = f"{op.kind} {numbers[op.kind]}"
            numbers[op.kind] += 1
    return counts


@np.errstate(all="ignore")
def check_laws(pass_: Pass, module: Module, inputs: dict[int, list]) -> Module:
    """Checks the laws for one program; returns the module after the pass.

    Args:
        inputs: number of clients -> arguments of the program's main function; three clients must be among them.
    """

    def broken(law: str, what: str, given_inputs: list | None = None) -> LawBroken:
        return LawBroken(f"{pass_.name} {law}", what, program=module, inputs=given_inputs)

    try:
        result = pass_.run(module)
    except Exception as error:
        raise broken("runs", f"it raises {describe_raised(error)}") from error
    if not isinstance(result, Module):
        raise broken("returns a module", f"it returns {brief(result)}")
    try:
        verify(result)
    except FedcoreError as error:
        raise broken("leaves a valid module", f"{error}, in\n{_text(result)}") from None
    for problem in _wrong_lines(module, result):
        raise broken("keeps the user's lines", f"{problem}, in\n{result}")
    if result == module and result.blobs.keys() == module.blobs.keys():
        return result
    have, want = _as_planned(result.main.type), _as_planned(module.main.type)
    if not (fits(have, want) and fits(want, have)):
        raise broken("keeps the type", f"{want} became {have}")
    runs = [(values, ONE_BLOCK) for values in inputs.values()]
    if folds_clients(module) or folds_clients(result):
        runs += runs_in_parts(module, inputs[3])
    for values, block_size in runs:
        mismatch = change_of_result(module, result, values, block_size)
        if mismatch is not None:
            raise broken("keeps the meaning", f"{mismatch}, in\n{result}", values)
    disclosed = added_disclosures(module, result)
    if disclosed:
        raise broken(
            "adds no disclosure", f"the server gets {', '.join(disclosed)} outside of secure sums, in\n{result}"
        )
    for problem in wrong_bits(module, result):
        raise broken("keeps the bits of crossings", f"{problem}, in\n{result}")
    does, did = client_work(result, inputs[3]), client_work(module, inputs[3])
    if does["call"] > did["call"] and does.total() > did.total():
        what = f"a client makes {does['call']} graph calls, not {did['call']}, in\n{result}"
        raise broken("adds no client work", what, inputs[3])
    again = pass_.run(module)
    if again != result:
        raise broken("makes equal modules of one", f"{_text(result)}\nand, when it ran again,\n{_text(again)}")
    if pass_.idempotent:
        twice = pass_.run(result)
        if twice != result:
            raise broken("run twice changes nothing more", f"{result}\nbecame\n{twice}")
    return result


def _text(module: Module) -> str:
    """The module as text; its `repr` if the module is not valid and cannot be printed."""
    try:
        return str(module)
    except Exception:
        return repr(module)


def _wrong_lines(before: Module, after: Module) -> list[str]:
    """The operations after a pass without a line, with one that nothing had before, or with that of another operation.

    Only functions whose operations stay are compared operation by operation: names do not tell which operation of a
    changed function was which before. None if the pass removes all lines.
    """
    have = [(op, op.location) for f in after.functions for op in f.operations]
    lines = {f.location for f in before.functions} | {op.location for f in before.functions for op in f.operations}
    if all(line is None for _, line in have):
        return []
    functions = {f.name: f for f in before.functions}
    unchanged = [(f, functions[f.name]) for f in after.functions if f == functions.get(f.name)]
    moved = [
        f"%{op.name} = {op.kind} has {op.location}, and had {old.location} before"
        for f, old_f in unchanged
        for op, old in zip(f.operations, old_f.operations, strict=True)
        if op.location in lines and op.location != old.location
    ]
    return moved + [
        f"%{op.name} = {op.kind} has {'no line, as nothing' if line is None else f'{line}, which nothing'} had before"
        for op, line in have
        if line not in lines
    ]


def _as_planned(type_: FunctionType) -> FunctionType:
    """The type with unplaced values of the result placed at SERVER, as in a plan."""

    def place(result: Type) -> Type:
        if isinstance(result, FederatedType):
            return result
        whole = not isinstance(result, StructType) or not is_placed(result)
        return FederatedType(result, fc.SERVER) if whole else result.map_children(place)

    return FunctionType(type_.parameter, place(type_.result))


def added_disclosures(before: Module, after: Module) -> list[str]:
    """The tensors that clients send in the clear after a pass, more of a type than before.

    Programs without secure sums are not compared: all that crosses in them does so in the clear.
    """
    operations = [op for f in before.functions for op in f.operations]
    if not any("secure" in op.attributes or op.kind.startswith("federated_secure") for op in operations):
        return []
    try:
        counts = [collections.Counter(d.type for d in disclosures(m)) for m in (before, after)]
    except NotFollowed:
        return []
    counts[1].subtract(counts[0])
    return [f"{n} more of {type_}" for type_, n in counts[1].items() if n > 0]


def wrong_bits(before: Module, after: Module) -> list[str]:
    """The crossings of a plan that have other bits than the pass `plan` gives them; none where it gave none before."""
    if after.stage != "planned" or not any("bits" in op.attributes for op in before.main.operations):
        return []
    by_name = {op.name: op for op in after.main.operations}
    constants = {op.name for op in before.main.operations if op.kind == "broadcast" and op.attributes.get("bits") == 0}
    problems = []
    for op in after.main.operations:
        is_constant = op.name in constants and op.attributes.get("bits") == 0
        want = None if is_constant else crossing_bits(after, op, by_name)
        if want is not None and op.attributes.get("bits") != want:
            problems.append(f"%{op.name} crosses with {want} bits, and says {op.attributes.get('bits')}")
    return problems


_FREE = {"struct", "item", "literal", "generic_zero", "message", "call"}
"""Local operations that do not count as work. The work of a call is counted in the called function."""


def client_work(module: Module, three: list) -> collections.Counter:
    """The graph calls ("call") and the local operations, by kind, that a third client adds to two."""
    types = [p.type for p in module.main.parameters]
    two = [v[:2] if is_client_value(t) else v for v, t in zip(three, types, strict=True)]
    work = _work(module, three, 3)
    work.subtract(_work(module, two, 2))
    return +work


def _work(module: Module, arguments: list, clients: int) -> collections.Counter:
    """The graph calls ("call") and the local operations of a run, by kind."""
    counts: collections.Counter = collections.Counter()
    values, _ = interpreter_arguments(module.main, arguments, default_num_clients=clients)
    meaning = evaluator(clients)

    def evaluate(op: Operation, *rest: Any) -> Any:
        if op.kind == "federated_random_seed" and op.attributes["placement"] == CLIENTS.name:
            counts["random_seed"] += clients  # `partition` makes a local operation of it
        elif lookup(op.kind).level == "local" and op.kind not in _FREE:
            counts[op.kind] += 1
        return meaning(op, *rest)

    def graph(node: Graph, data: bytes) -> Callable:
        run = eager_callable(node, data)

        def call(*operands: Any, **seed: Any) -> Any:
            counts["call"] += 1
            return run(*operands, **seed)

        return call

    Interpreter(module, evaluate, graph).run(module.main, *values, seed=Seed(0))
    return counts
