"""Executes the operations of a plan: server stages on the server's device, client stages by a `ClientsExecutor`."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import TypeMismatch
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.stages.realize import Realized, pack, realize_stage
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.graphs.tensors.sizes import measured_bits, measured_leaves
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.intrinsics.planned import fold_of, split_operands
from fedcore.intrinsics.sent_values import sent_by
from fedcore.ir import Function, Module, Operation, Ref
from fedcore.runtime.arguments import ClientValues, leaf_numbers
from fedcore.runtime.client_count import ClientCount
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.failures import failures_of
from fedcore.runtime.clients.protocols import ClientsExecutor, checked_run
from fedcore.runtime.clients.workers import Workers
from fedcore.runtime.devices.device import DeviceExecutor
from fedcore.runtime.reports.report import Report
from fedcore.runtime.stopping import Stop
from fedcore.types import SequenceType, Type, leaves, member_of
from fedcore.types.placing import is_client_value

MAX_PLANS = 64
"""Number of plans whose facts are cached (LRU)."""

MAX_RESULTS = 8
"""Number of results of server stages that are cached (LRU); an entry lives at most as long as its arguments."""


@attrs.frozen
class _Facts:
    """The facts of a plan that do not depend on a call.

    Args:
        numbers: result of `leaf_numbers`: name of a value -> number of its first leaf.
        broadcasts: name of a fold or collect -> the number of its broadcasts, its first operands.
        measured: names of the broadcasts whose types leave the size open.
        struct_stages: names of the stages with struct operations only, see `_has_only_struct_operations`.
        works: name of a fold or collect -> the fields of its `ClientWork` except plan, arguments and seed.
        types: name of a value of the main function -> its type.
    """

    numbers: dict[str, int]
    broadcasts: dict[str, int]
    measured: frozenset[str]
    struct_stages: frozenset[str]
    works: dict[str, dict[str, Any]]
    types: dict[str, Type]

    def work(self, module: Module, digest: str, name: str, operands: list, seed: int, count: ClientCount) -> ClientWork:
        """The `ClientWork` of the fold or collect `name`.

        Args:
            operands: the values of its operands: first the broadcasts, then the cohorts.
        """
        count_of_broadcasts = self.broadcasts[name]
        broadcasts, cohorts = tuple(operands[:count_of_broadcasts]), tuple(operands[count_of_broadcasts:])
        return ClientWork(
            module, digest, broadcasts=broadcasts, cohorts=cohorts, seed=seed, count=count, **self.works[name]
        )


class PlanExecutor:
    """Runs planned modules.

    Guarantees:
      - Makes one graph call for each server stage and for each slice, and (slices - 1) calls for each merge. Slices in
        progress when a client's work is first found not to be finite make one more call; see `DeviceStage`. A server
        stage of struct operations only needs no graph call. A pure server stage whose operands are the tensor objects
        of an earlier run, such as the model in a second evaluation, does not run again.
      - Server values stay on the server's device between stages. A leaf that a server stage returns unchanged, such as
        frozen weights, is the tensor object that was given.
      - The main thread runs no graph call itself, so that it handles Ctrl-C at once.
      - A generator that several stages would read is refused before any stage runs.
    """

    def __init__(
        self, server: DeviceExecutor, clients: ClientsExecutor, default_num_clients: int | None = None
    ) -> None:
        """Makes an executor of plans from an executor for each placement.

        Args:
            default_num_clients: number of clients of a call without client arguments; None is 0.
        """
        self._default = ClientValues(range(default_num_clients or 0), lambda value, path: value, "default_num_clients")
        self._server = server
        self._clients = clients
        self._facts: IdentityCache[_Facts] = IdentityCache(MAX_PLANS)
        self._results: IdentityCache[tuple] = IdentityCache(MAX_RESULTS)
        self._server_thread = Workers(1, 1, name="fedcore-server")

    def run(self, module: Module, digest: str, arguments: list, report: Report, stop: Stop) -> Any:
        """The result of a plan, as a nested tuple.

        Args:
            digest: digest of the plan.
            arguments: prepared arguments; see `arguments.prepare`.
        Raises:
            TypeMismatch: client arguments have different lengths, or several stages read one generator.
        """
        main = module.main
        count = ClientCount.of(arguments, [p.type for p in main.parameters])
        _check_readings(module, arguments)
        scope: dict[str, object] = dict(zip((p.name for p in main.parameters), self._place(arguments), strict=True))
        facts = self._facts.get(digest, [module], lambda: _facts(module))
        for op in main.operations:
            seed = report.seed  # the operation folds its salt into the seed
            operands = [scope[o.name] for o in op.operands if isinstance(o, Ref)]
            if op.kind == "run":
                with report.span("run", op.operands[0].name, device=self._server.device):
                    scope[op.name] = self._run(module, digest, op, operands, facts, seed, report, stop)
            elif op.kind in ("fold", "collect"):
                work = facts.work(module, digest, op.name, operands, seed, count)
                if not work.cohorts:
                    work = attrs.evolve(work, counted=_any_cohort(arguments) or self._default)
                with report.span("clients", work.stage):
                    scope[op.name] = self._stage(op, work, report, stop)
            else:
                scope[op.name] = _without_graph_call(op, operands, facts.types)
                if op.name in facts.measured:
                    _measure(op, operands[0], report)
        return scope[main.result.name]

    def _place(self, arguments: list) -> list:
        """The arguments with their arrays on the server's device, so that several stages share one copy."""
        arrays = [leaf for value in arguments for leaf in flatten(value) if isinstance(leaf, np.ndarray | np.generic)]
        placed = iter(self._server.put(arrays))
        return [_with_tensors(value, placed) for value in arguments]

    def _run(
        self,
        module: Module,
        digest: str,
        op: Operation,
        arguments: list,
        facts: _Facts,
        seed: int,
        report: Report,
        stop: Stop,
    ) -> Any:
        """The result of a server stage, the operation `run`."""
        stage = op.operands[0].name
        if stage in facts.struct_stages:
            function = module.function(stage)
            result = _restructure(function, arguments, self._server)
            return unflatten(self._server.put(flatten(result)), function.result_type)
        numbers = [facts.numbers[o.name] for o in op.operands if isinstance(o, Ref)]
        packed = [pack(argument, seed, number) for argument, number in zip(arguments, numbers, strict=True)]
        layouts = tuple(layout for layout, _ in packed)
        realized = self._server.functions.get(
            ("stage", digest, stage, layouts), lambda: realize_stage(module, stage, layouts)
        )
        operands = [tensor for _, tensors in packed for tensor in tensors]

        def compute() -> tuple:
            report.count("server")
            tensors = self._server.put([np.int64(seed), *operands])
            with failures_of(module, stage):
                if threading.current_thread() is not threading.main_thread():
                    return self._server.call(realized, tensors, stop)
                return self._server_thread.call(lambda: self._server.call(realized, tensors, stop), stop)

        if realized.pure and operands and all(isinstance(operand, tf.Tensor) for operand in operands):
            result = self._results.get((digest, stage), operands, compute)
        else:
            result = compute()
        return _with_operands(result, realized, operands)

    def close(self) -> None:
        """Ends the server's thread."""
        self._server_thread.close()

    def _stage(self, op: Operation, work: ClientWork, report: Report, stop: Stop) -> Any:
        """The result of a client stage: a partial for a fold, client values for a collect; a pair if it has both."""
        merged, kept_values = checked_run(self._clients, work, report, stop)
        values = ClientValues(kept_values, lambda value, path: value, work.stage)
        if op.kind == "collect":
            return values
        return (merged, values) if work.keeps else merged


def _with_tensors(value: Any, tensors: Iterator[tf.Tensor]) -> Any:
    """A nested tuple with the next one of the tensors in the place of each array."""
    if isinstance(value, tuple):
        return tuple([_with_tensors(part, tensors) for part in value])
    return next(tensors) if isinstance(value, np.ndarray | np.generic) else value


def _with_operands(result: Any, realized: Realized, operands: list) -> Any:
    """A stage's result with the operands themselves as the leaves that the stage returns unchanged.

    TensorFlow returns such a leaf as a new tensor object, so caches that are keyed by identity would miss it. A leaf
    on another device than its operand stays. The cache of results has the result before this: a result that held an
    operand would keep its own key alive, so the entry would never end.

    Args:
        result: nested tuple of tensors.
        operands: the stage's tensors without the seed.
    """
    if not realized.unchanged:
        return result
    result_leaves = flatten(result)
    for number, position in realized.unchanged:
        operand = operands[position]
        if isinstance(operand, tf.Tensor) and operand.device == result_leaves[number].device:
            result_leaves[number] = operand
    return unflatten(result_leaves, realized.result)


def _has_only_struct_operations(function: Function) -> bool:
    """Whether a stage only takes structs apart and builds structs, also of literals; its result holds no sequence."""
    return all(op.kind in ("item", "struct", "literal") for op in function.operations) and not any(
        isinstance(leaf, SequenceType) for _, leaf in leaves(function.result_type)
    )


def _restructure(function: Function, arguments: list, server: DeviceExecutor) -> Any:
    """The result of a function of struct operations only; literals become tensors on the server's device."""
    scope, types = dict(zip((p.name for p in function.parameters), arguments, strict=True)), function.types()
    for op in function.operations:
        if op.kind == "literal":
            scope[op.name] = server.constant(op.attributes["value"])
        else:
            operands = [scope[o.name] for o in op.operands if isinstance(o, Ref)]
            scope[op.name] = _without_graph_call(op, operands, types)
    return scope[function.result.name]


def _measure(op: Operation, value: Any, report: Report) -> None:
    """Adds the measured bits of a broadcast to the report."""
    report.measure(op.name, [int(size) for size in measured_bits(value, member_of(op.type))])


def _check_readings(module: Module, arguments: list) -> None:
    """Refuses an iterator, such as a generator, that several client stages read."""
    if not any(isinstance(leaf, ClientValues) and leaf.is_read_once for leaf in flatten(tuple(arguments))):
        return
    # The plan's values, of which only arguments and their parts matter here; others are missing or None.
    scope: dict[str, object] = dict(zip((p.name for p in module.main.parameters), arguments, strict=True))
    readers: dict[int, list[str]] = {}  # id of the user's value -> the stages that read it
    cohorts: dict[int, ClientValues] = {}  # id of the user's value -> a cohort of it
    types = module.main.types()
    for op in module.main.operations:
        operands = [scope.get(o.name) for o in op.operands if isinstance(o, Ref)]
        if op.kind in ("fold", "collect"):
            stage = [o.name for o in op.operands if not isinstance(o, Ref)][-1]
            stage_cohorts = [v for v in operands if isinstance(v, ClientValues)]
            if not any(is_client_value(types[o.name]) for o in op.operands if isinstance(o, Ref)):
                counted = _any_cohort(arguments)  # read for the number of clients, see `ClientWork.counted`
                stage_cohorts = [] if counted is None else [counted]
            for cohort in stage_cohorts:
                cohorts[id(cohort.given)] = cohort
                readers.setdefault(id(cohort.given), []).append(f"@{stage}")
        elif op.kind == "struct":
            scope[op.name] = tuple(operands)
        elif op.kind == "item" and operands[0] is not None:
            source = operands[0]
            scope[op.name] = source if isinstance(source, ClientValues) else source[op.attributes["index"]]  # type: ignore[index]
    for key, stages in readers.items():
        cohort = cohorts[key]
        if len(stages) > 1 and cohort.is_read_once:
            raise TypeMismatch(
                f"{cohort.path} is a {type(cohort.given).__name__}, which can be read once, but the plan "
                f"reads it {len(stages)} times, in {', '.join(stages)}: give a list, or an fc.Cohort"
            )


def _any_cohort(arguments: list) -> ClientValues | None:
    """The first cohort among prepared arguments; None if there is none."""
    return next((leaf for leaf in flatten(tuple(arguments)) if isinstance(leaf, ClientValues)), None)


def client_work(module: Module, operation: str) -> ClientWork:
    """A client stage of a plan without values, for the place that computes a client.

    Args:
        operation: name of the plan's fold or collect.
    Raises:
        KeyError: the plan has no such operation.
    """
    fields = _facts(module).works[operation]
    return ClientWork(module, module.digest(), broadcasts=(), cohorts=(), seed=0, **fields)


def _facts(module: Module) -> _Facts:
    """The facts of a plan."""
    main, numbers = module.main, leaf_numbers(module.main)
    operations, types = {op.name: op for op in main.operations}, main.types()
    merges = {fold_of(op, operations).name: op for op in main.operations if op.kind == "merge"}  # fold -> its merge
    broadcasts, works = {}, {}
    for op in main.operations:
        if op.kind in ("fold", "collect"):
            operand_names = [o.name for o in op.operands if isinstance(o, Ref)]
            broadcasts[op.name] = split_operands([types[name] for name in operand_names])
            cohorts = operand_names[broadcasts[op.name] :]
            cohort_numbers = [range(n := numbers[c], n + len(leaves(member_of(types[c])))) for c in cohorts]
            works[op.name] = _work_fields(module, op, merges.get(op.name), broadcasts[op.name], cohort_numbers)
    measured = [
        op.name
        for op in main.operations
        if op.kind == "broadcast" and op.attributes.get("bits") != 0 and measured_leaves(member_of(op.type))
    ]
    struct_stages = [f.name for f in module.functions if _has_only_struct_operations(f)]
    return _Facts(numbers, broadcasts, frozenset(measured), frozenset(struct_stages), works, types)


def _work_fields(
    module: Module, op: Operation, merge: Operation | None, broadcasts: int, numbers: list[range]
) -> dict[str, Any]:
    """The fields of a `ClientWork` that the plan gives.

    Args:
        op: a fold or collect.
        merge: the merge of the fold's partials.
        broadcasts: number of the broadcasts among the operands.
        numbers: as of `ClientWork`.
    """
    stage = ClientStage.from_operation(module, op, merge, broadcasts)
    sent = {} if merge is None else sent_by(module, op)
    return {
        "operation": op.name,
        "zero": stage.zero,
        "stage": stage.name,
        "join": stage.join,
        "numbers": tuple(numbers),
        "keeps": stage.keeps,
        "merge": None if merge is None else merge.name,
        "secure": () if merge is None else merge.attributes.get("secure", ()),
        "measured": tuple(name for name, value in sent.items() if measured_leaves(value.type, stage.table_rows)),
    }


def _without_graph_call(op: Operation, operands: list, types: Mapping[str, Type]) -> Any:
    """The result of an operation that needs no graph call: `struct`, `item`, `broadcast` or `merge`."""
    if op.kind == "struct":
        return tuple(operands)
    if op.kind == "broadcast" or op.kind == "merge":
        return operands[-1]
    index = op.attributes["index"]
    return operands[0].part(index) if is_client_value(types[op.operands[0].name]) else operands[0][index]
