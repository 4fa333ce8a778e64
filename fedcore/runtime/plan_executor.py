"""Walks a plan: server stages here, client stages through the `ClientsExecutor`."""

import attrs
import tensorflow as tf

from fedcore.errors import TypeMismatch
from fedcore.graphs.realize import pack, realize_stage
from fedcore.graphs.values import flatten
from fedcore.intrinsics.planned import split_operands
from fedcore.ir import Module, Operation, Ref
from fedcore.runtime.arguments import Cohort, leaf_numbers
from fedcore.runtime.clients import ClientsExecutor, ClientWork
from fedcore.runtime.device import DeviceExecutor
from fedcore.runtime.report import Report
from fedcore.types import FederatedType, leaves, member_of


class PlanExecutor:
    """Runs planned modules.

    Guarantees:
      - Makes exactly the graph calls of the plan: one a server stage, one a block, one less than blocks a merge.
      - Server values stay on the server's device between stages.
    """

    def __init__(self, server: DeviceExecutor, clients: ClientsExecutor):
        self._server = server
        self._clients = clients

    def run(self, module: Module, digest: str, arguments: list, report: Report):
        """The nested tuple of the result; `arguments` as `prepare` makes them."""
        main = module.main
        known: dict[str, object] = dict(zip((p.name for p in main.parameters), arguments, strict=True))
        types = main.types()
        joins, numbers = _joins(module), leaf_numbers(main)
        for op in main.operations:
            seed = report.seed  # what draws tells itself apart by the salt of its operation
            operands = [known[o.name] for o in op.operands if isinstance(o, Ref)]
            firsts = [numbers[o.name] for o in op.operands if isinstance(o, Ref)]
            if op.kind == "run":
                with report.span("run", op.operands[0].name, device=self._server.device):
                    known[op.name] = self._run(module, digest, op.operands[0].name, operands, firsts, seed, report)
            elif op.kind in ("fold", "collect"):
                operand_types = [types[o.name] for o in op.operands if isinstance(o, Ref)]
                work = _client_work(module, digest, op, operands, firsts, operand_types, joins.get(op.name), seed)
                work = work if work.cohorts else attrs.evolve(work, counted=_any_cohort(arguments))
                with report.span("clients", work.stage):
                    known[op.name] = self._stage(op, work, report)
            else:
                known[op.name] = _bookkeeping(op, operands, types)
        return known[main.result.name]

    def _run(self, module: Module, digest: str, stage: str, arguments: list, firsts, seed: int, report: Report):
        packed = [pack(a, seed, first) for a, first in zip(arguments, firsts, strict=True)]
        layouts = tuple(given for given, _ in packed)
        function = self._server.function(
            ("stage", digest, stage, layouts), lambda: realize_stage(module, stage, layouts)
        )
        report.count("server")
        tensors = self._server.put([t for _, ts in packed for t in ts])
        return self._server.call(function, [tf.constant(seed, tf.int64), *tensors])

    def _stage(self, op: Operation, work: ClientWork, report: Report):
        before = report.clients
        merged, kept = self._clients.run(work, report)
        if before and report.clients != before:
            raise TypeMismatch("the client values of one call are of equally many clients")
        if op.kind == "collect":
            return kept
        return (merged, kept) if work.keeps else merged


def _any_cohort(arguments: list) -> Cohort | None:
    return next((leaf for leaf in flatten(tuple(arguments)) if isinstance(leaf, Cohort)), None)


def _joins(module: Module) -> dict[str, str]:
    """For each fold the stage that joins its partials: that of the merge it leads to."""
    by_name = {op.name: op for op in module.main.operations}
    found = {}
    for op in module.main.operations:
        if op.kind == "merge":
            source = by_name[op.operands[1].name]
            fold = source.operands[0].name if source.kind == "item" else source.name
            found[fold] = op.operands[0].name
    return found


def _client_work(module, digest, op: Operation, operands, firsts, types, join: str | None, seed: int) -> ClientWork:
    broadcasts = split_operands(types)
    counts = [len(leaves(member_of(t))) for t in types]
    stages = [o.name for o in op.operands if not isinstance(o, Ref)]
    return ClientWork(
        module=module,
        digest=digest,
        zero=stages[0] if op.kind == "fold" else None,
        stage=stages[-1],
        join=join,
        broadcasts=tuple(operands[:broadcasts]),
        cohorts=tuple(operands[broadcasts:]),
        numbers=tuple(range(n, n + c) for n, c in zip(firsts[broadcasts:], counts[broadcasts:], strict=True)),
        keeps=bool(op.attributes.get("keeps")),
        seed=seed,
    )


def _bookkeeping(op: Operation, operands: list, types):
    """What costs nothing: parts of structs, and values that a stage has merged or will be given."""
    if op.kind == "struct":
        return tuple(operands)
    if op.kind == "broadcast" or op.kind == "merge":
        return operands[-1]
    index = op.attributes["index"]
    source = types[op.operands[0].name]
    of_clients = isinstance(source, FederatedType) and source.placement.name == "CLIENTS" and not source.all_equal
    return [v[index] for v in operands[0]] if of_clients else operands[0][index]
