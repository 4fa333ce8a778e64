"""Measures the strategies of each client stage of a plan, stage by stage."""

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import attrs

from fedcore import context
from fedcore.cli.json_values import as_json
from fedcore.compiler import compile_module, pipeline_with
from fedcore.compiler.passes.plan import BLOCK
from fedcore.errors import FedcoreError
from fedcore.graphs.batched.cost_model import PARALLEL
from fedcore.ir import Module, Operation, verify
from fedcore.runtime import Report, Runtime

WORTH_IT = 0.97
"""A strategy replaces the compiler's strategy if it takes at most this fraction of its time."""

LOOP_BLOCKS = (1, 2, 4)
"""The block sizes that loops are tried with, unless the caller names others."""

WIDEST = 128
"""The greatest width that is tried, unless the caller names widths."""

_VARIED = ("vectorize", "block_size", "xla")  # options of the pass plan that the tuning sets


@attrs.define
class Trial:
    """The measurement of a strategy of a stage.

    Args:
        attributes: the stage's attributes in the plan, which hold the strategy.
        first_s: seconds of the first call, which traces and optimises graphs.
        rounds_s: seconds of each further call.
        same_bits: whether the result has the bits of the compiler's plan.
        note: notes of the report, or the error.
        chosen: whether the tuned plan has this strategy.
        failed: whether a call with this strategy raised.
    """

    attributes: dict[str, object]
    first_s: float = 0.0
    rounds_s: list[float] = attrs.field(factory=list)
    same_bits: bool = True
    note: str = ""
    chosen: bool = False
    failed: bool = False

    @property
    def median_s(self) -> float:
        return statistics.median(self.rounds_s) if self.rounds_s else float("inf")


@attrs.frozen
class Tuned:
    """The measured strategies of each stage, and the plan with the best strategies.

    Args:
        trials: stage -> its trials: first the strategy that the compiler's rules choose. One of them is `chosen`.
    """

    trials: dict[str, list[Trial]]
    plan: Module


def tune(
    module: Module,
    arguments: list,
    *,
    clients: int,
    rounds: int,
    widths: Sequence[int] = (),
    blocks: Sequence[int] = (),
    seed: int = 0,
    pipeline: str = "default",
    say: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """Measures the strategies of a traced module.

    Args:
        arguments: arguments that can be read several times.
        clients: number of clients in the arguments.
        rounds: timed calls of each strategy; the strategies alternate.
        widths: the widths to try. Default: powers of two up to the number of clients.
        blocks: the block sizes to try. Default: the compiler's for vectorised strategies, 1, 2 and 4 for loops.
        pipeline: the passes that make the plan, `plan` among them.
        say: called with a text about the progress.
    Raises:
        FedcoreError: the program has no client stage, or the pipeline has no pass `plan`.
    """
    prefix, with_options = _around_plan(pipeline)
    unplanned = compile_module(module, prefix)
    plan = verify(compile_module(unplanned, with_options({})))
    works = [op for op in plan.main.operations if op.kind in ("fold", "collect")]
    if not works:
        raise FedcoreError(f"@{module.main.name} has no client stage: there is nothing to tune")
    trials: dict[str, list[Trial]] = {}
    for work in works:
        stage = _stage_of(work)
        if stage in trials:  # several operations run it
            continue
        candidates = _candidate_attributes(unplanned, with_options, work, clients, widths, blocks)
        first = dict(plan.function(stage).attributes)
        tried = [Trial(first), *(Trial(a) for a in candidates if _strategy(a) != _strategy(first))]
        _measure(plan, stage, tried, arguments, rounds, seed, say)
        best = min((t for t in tried if not t.failed), key=lambda t: t.median_s, default=tried[0])
        if best.median_s > tried[0].median_s * WORTH_IT:
            best = tried[0]
        best.chosen = True
        if "why" in first and not tried[0].note:
            tried[0].note = f"not vectorised: {first['why']}"
        trials[stage] = tried
        plan = _with_attributes(plan, stage, best.attributes)
    return Tuned(trials, plan)


def _around_plan(pipeline: str) -> tuple[str, Callable[[dict[str, object]], str]]:
    """The passes before `plan`, and a function from options of `plan` to the pipeline from `plan` on.

    That pipeline's `plan` keeps the options of the pipeline but for those that the tuning sets; no options keep all.

    Raises:
        FedcoreError: the pipeline has no pass `plan`.
    """
    parts = re.fullmatch(r"(?P<before>.*),plan(?P<own>\{[^}]*\})?(?P<after>,.*)?", pipeline_with({}, pipeline))
    if parts is None:
        raise FedcoreError(f"the pipeline {pipeline} has no pass plan, which decides the strategies")
    own, suffix = parts["own"] or "", parts["after"] or ""
    fixed = [pair for pair in own.strip("{}").split(",") if pair.partition("=")[0].strip() not in (*_VARIED, "")]
    fixed_options = f"{{{','.join(fixed)}}}" if fixed else ""
    return parts["before"], lambda options: pipeline_with(options, f"plan{fixed_options if options else own}{suffix}")


def _stage_of(work: Operation) -> str:
    """The name of the client stage of a fold or a collect; the first operand of a fold is its zero."""
    return work.operands[1 if work.kind == "fold" else 0].name


def _candidate_attributes(
    unplanned: Module,
    with_options: Callable[[dict[str, object]], str],
    work: Operation,
    clients: int,
    widths: Sequence[int],
    blocks: Sequence[int],
) -> Iterator[dict[str, object]]:
    """The attributes of a stage under each choice of options of the pass `plan`, without duplicates.

    Args:
        unplanned: the module before the pass `plan`.
        with_options: as of `_around_plan`.
        work: the operation of the plan that runs the stage.
    """
    strategies = []
    widest = min(WIDEST, max(2, 1 << (max(clients, 1) - 1).bit_length()))
    tried_widths = widths or [1 << i for i in range(1, widest.bit_length())]
    # (vectorize, block_size, xla)
    choices = [("false", str(b), "false") for b in (blocks or LOOP_BLOCKS)]
    choices += [(str(w), str(b), "false") for w in tried_widths for b in (blocks or ("auto",))]
    choices.append(("auto", "auto", "true"))
    can_be_vectorised = False
    for vectorize, block, xla in choices:
        options: dict[str, object] = {"vectorize": vectorize, "block_size": block, "xla": xla}
        planned = compile_module(unplanned, with_options(options))
        attributes = dict(planned.function(_stage_of(work)).attributes)
        can_be_vectorised = can_be_vectorised or attributes["strategy"] == "vectorised"
        if _strategy(attributes) not in strategies:
            strategies.append(_strategy(attributes))
            yield attributes
    if can_be_vectorised:  # then its clients' tensors have one size, and no operation has an effect
        for clients_of_block in blocks or (BLOCK,):
            yield {"strategy": "loop", "block": clients_of_block, "parallel": PARALLEL}


def _strategy(attributes: dict[str, object]) -> dict[str, object]:
    """The attributes of a stage without the reason for its strategy."""
    return {key: value for key, value in attributes.items() if key != "why"}


def _with_attributes(plan: Module, stage: str, attributes: dict[str, object]) -> Module:
    """The plan with other attributes of a stage, and so with another strategy."""
    functions = tuple(attrs.evolve(f, attributes=attributes) if f.name == stage else f for f in plan.functions)
    return verify(attrs.evolve(plan, functions=functions))


def _measure(
    plan: Module, stage: str, trials: list[Trial], arguments: list, rounds: int, seed: int, say: Callable[[str], object]
) -> None:
    """Fills in the measurements of the trials of a stage.

    Runs each strategy once, which traces it; then measures them in alternation, so that other load affects all.
    """
    runtime = context.current_runtime()
    plans = [_with_attributes(plan, stage, t.attributes) for t in trials]
    expected = None  # the result of the first trial, which is the compiler's choice
    for trial, candidate_plan in zip(trials, plans, strict=True):
        say(f"@{stage} {format_strategy(trial.attributes)}")
        report = Report(seed=seed)
        try:
            trial.first_s, result = _time_run(runtime, candidate_plan, arguments, report)
        except Exception as error:
            if trial is trials[0]:
                raise  # the program itself fails
            trial.failed, trial.note = True, f"{type(error).__name__}: {error}".partition("\n")[0]
            continue
        output = as_json(result)
        expected = output if expected is None else expected
        trial.same_bits = output == expected
        trial.note = "; ".join(n for n in report.notes if f"@{stage}" in n)
    for number in range(rounds):
        say(f"@{stage} round {number + 1} of {rounds}")
        for trial, candidate_plan in zip(trials, plans, strict=True):
            if not trial.failed:
                trial.rounds_s.append(_time_run(runtime, candidate_plan, arguments, Report(seed=seed))[0])


def _time_run(runtime: Runtime, plan: Module, arguments: list, report: Report) -> tuple[float, object]:
    """The seconds of a call of a plan, and its result."""
    began = time.perf_counter()
    result = runtime.run(plan, arguments, report)
    return time.perf_counter() - began, result


def format_strategy(attributes: dict[str, object]) -> str:
    """A strategy as text, such as `vectorised, width=4, block=8, call=8`."""
    options = [f"{key}={value}" for key, value in _strategy(attributes).items() if key != "strategy"]
    return ", ".join([str(attributes.get("strategy", "loop")), *options])
