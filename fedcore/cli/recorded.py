"""Reads the files that a program wrote under FEDCORE_TRACE."""

from collections.abc import Iterator
from pathlib import Path

import attrs

import fedcore.intrinsics  # noqa: F401  the verifier knows the operations that are imported
from fedcore.cli.recording_schema import CallRecord, ModuleRecord, StageRecord, read_record
from fedcore.cli.sizes import sizes
from fedcore.errors import FedcoreError
from fedcore.ir import Module, parse_module, verify
from fedcore.ir.source_table import table_of, with_table
from fedcore.ir.sources import sources_of

_FIGURES = (
    "name", "process", "number", "seconds", "compile_seconds", "clients", "graph_calls", "broadcast_bits",
    "aggregate_bits", "seed", "plan", "error", "notes", "dropped",
)  # fmt: skip


@attrs.frozen
class Computation:
    """A recorded computation, as one plan ran it.

    Args:
        plan_digest: empty if the calls have no plan.
        stages: the module after each pass.
        sources: name in locations -> text of the user's file.
        calls: its calls, in the order in which they began.
        file: that of its stages, if they were read from one.
        graphs: digest -> text of a graph's operations.
        node_sources: of the plan; see `fedcore.ir.source_table`.
    Attributes:
        lines: of the sources.
    """

    name: str
    digest: str
    plan_digest: str
    stages: list[StageRecord]
    sources: dict[str, str]
    calls: list[CallRecord]
    file: Path | None = None
    graphs: dict[str, str] = attrs.field(factory=dict)
    node_sources: str = ""
    lines: dict[str, list[str]] = attrs.field(init=False)

    @lines.default
    def _lines(self) -> dict[str, list[str]]:
        return {name: text.split("\n") for name, text in self.sources.items()}

    @property
    def plan(self) -> str | None:
        """The text of the plan; None if the calls have no plan."""
        texts = [s.text for s in self.stages if s.text is not None]
        return texts[-1] if texts and texts[-1].startswith("fedcore 1 planned") else None

    def parse_plan(self) -> Module | None:
        """The plan as a module; None if the calls have no plan.

        Raises:
            FedcoreError: the recorded plan is not valid.
        """
        if self.plan is None:
            return None
        try:
            plan = verify(parse_module(self.plan))
            return with_table(plan, self.node_sources.encode()) if self.node_sources else plan
        except FedcoreError as error:
            raise FedcoreError(f"{self.file}: the plan of @{self.name} is not valid: {error}") from None


@attrs.frozen
class Recorded:
    """The recordings in a directory.

    Args:
        timelines: files that Perfetto opens.
    """

    directory: Path
    computations: list[Computation]
    calls: list[CallRecord]
    timelines: list[Path]

    def figures(self) -> list[dict]:
        """The figures of each call, with the bits of each tensor that crossed."""
        return [
            {key: getattr(call, key) for key in _FIGURES}
            | {"compilation": None if call.compilation is None else attrs.asdict(call.compilation)}
            | {"crossings": [attrs.asdict(c) for c in call.crossings]}
            for call in self.calls
        ]

    def sizes(self) -> list[dict]:
        """The sizes of the parts of each computation's plan, for one client."""
        plans = [(computation, computation.parse_plan()) for computation in self.computations]
        return [
            {
                "name": computation.name,
                "plan": computation.plan_digest,
                "sizes": [attrs.asdict(size) for size in sizes(plan)],
            }
            for computation, plan in plans
            if plan is not None
        ]


def read_recorded(directory: Path) -> Recorded:
    """The recordings in a directory, with calls in the order in which they began.

    Raises:
        FedcoreError: the directory has no recording, or a file is no recording of fedcore.
    """
    calls = [read_record(CallRecord, path) for path in sorted(directory.glob("call-*.json"))]
    modules = {path: read_record(ModuleRecord, path) for path in sorted(directory.glob("module-*.json"))}
    if not calls and not modules:
        raise FedcoreError(f"{directory} holds no recording; run the program with FEDCORE_TRACE={directory}")
    calls.sort(key=lambda c: (c.began, c.number))
    by_plan: dict[tuple[str, str], list[CallRecord]] = {}
    for call in calls:
        by_plan.setdefault((call.digest, call.plan), []).append(call)
    modules_by_plan = {(m.digest, m.plan_digest): (m, path) for path, m in modules.items()}
    order = list(dict.fromkeys([*by_plan, *modules_by_plan]))
    computations = [_computation(key, modules_by_plan.get(key, (None, None)), by_plan.get(key, [])) for key in order]
    return Recorded(directory, computations, calls, sorted(directory.glob("timeline-*.json")))


def _computation(
    digests: tuple[str, str], source: tuple[ModuleRecord | None, Path | None], calls: list[CallRecord]
) -> Computation:
    """A recorded computation.

    Args:
        digests: of the traced program, and of the plan.
        source: the record of its passes and the record's file; None if there is none.
    """
    module, file = source
    if module is None:  # run by a runtime that does not compile, or not compiled because of an error
        return Computation(calls[0].name, *digests, [], {}, calls)
    return Computation(
        module.name, *digests, module.stages, module.sources, calls, file, module.graphs, module.node_sources
    )


def computation_of(module: Module, passes: Iterator[tuple[str, Module]]) -> Computation:
    """A computation without calls, from a module and the passes over it."""
    from fedcore.runtime.reports.recording import graph_texts, stages_of

    pass_records, modules = stages_of(module, passes)
    plan = modules[-1]
    stages = [StageRecord(name=s["pass"], text=s["text"], seconds=s["seconds"]) for s in pass_records]
    digests = module.source_digest(), plan.digest()
    texts, table = graph_texts(modules), table_of(plan).decode()
    return Computation(
        module.main.name, *digests, stages, sources_of(module, plan), [], graphs=texts, node_sources=table
    )
