"""`fedcore tune`: measures the strategies of each client stage, and writes a plan with the fastest ones."""

import errno
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from fedcore.cli.isolation import FileCommand
from fedcore.cli.json_values import bind_arguments, read_argument
from fedcore.cli.loading import (
    computations_of,
    import_extensions,
    load_option,
    parsed_pipeline,
    passes_option,
    quiet_start,
    read_target,
    target_option,
    trusted_option,
    with_target,
)
from fedcore.cli.output_path import OutputPath, write_module
from fedcore.cli.reproducer import Work
from fedcore.compiler import compile_module
from fedcore.compiler.pinned_plans import pin_plan
from fedcore.ir import Module
from fedcore.ir.limits import MAX_CLIENTS_AT_ONCE
from fedcore.types import FederatedType, Type

if TYPE_CHECKING:
    from fedcore.cli.tuning import Trial, Tuned


@click.command(cls=FileCommand)
@click.argument("target", metavar="MODULE:NAME|FILE.fed|MODULE")
@click.option("--all", "all_", is_flag=True,
              help="Report where the rules' choice is not the fastest; write no plan.")  # fmt: skip
@click.option("--arg", "arguments", multiple=True, metavar="[NAME=]VALUE",
              help="As for run. Default: values generated from the types.")  # fmt: skip
@click.option("--clients", type=click.IntRange(min=1), default=100, show_default=True, help="Generated clients.")
@click.option(
    "--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Elements of a generated sequence."
)
@click.option("--rows", type=click.IntRange(min=1), default=20, show_default=True,
              help="Size of unknown dimensions, such as a batch's, in generated values.")  # fmt: skip
@click.option("--width", "widths", type=click.IntRange(min=2), multiple=True,
              help="A width (clients at once) to try. Default: powers of two up to the clients.")  # fmt: skip
@click.option("--block", "blocks", type=click.IntRange(min=1), multiple=True,
              help="A block size to try; the size decides the order of sums, and so the bits.")  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Timed calls of each strategy."
)
@click.option("-o", "--output", type=OutputPath(dir_okay=False), default="pinned.fed", show_default=True,
              help="Where the plan is written.")  # fmt: skip
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@passes_option
@target_option
@load_option
@trusted_option
@click.pass_obj
def tune(
    work: Work,
    target: str,
    all_: bool,
    arguments: tuple[str, ...],
    clients: int,
    steps: int,
    rows: int,
    widths: tuple[int, ...],
    blocks: tuple[int, ...],
    rounds: int,
    output: str,
    format_: str,
    pipeline: str,
    machine: str | None,
    extensions: tuple[str, ...],
    trusted: bool,
) -> None:
    """Measures the strategies of each client stage on this machine, and writes a pinned plan with the fastest ones.

    The compiler decides strategies by shapes only, so that equal programs give equal bits on every machine.
    Measurements have an effect only through a pinned plan, which must be named. The report has its digest.

    With --all it compares only: a line for each client stage says which strategy the compiler's rules choose, and which
    strategy is faster, with the share of the time that it takes. All computations of a MODULE are measured.

    \b
    Examples:
      fedcore tune train:process.next --clients 100 -o pinned.fed
      FEDCORE_PLANS=pinned.fed python train.py      # or in Python: with fc.use(plans="pinned.fed"):
      fedcore run pinned.fed --arg '[1.0, 2.0]'     # the plan as it is
      fedcore tune mean.fed --arg @readings.json --width 4 --width 16 --format json
      fedcore tune --all train                      # each client stage of train.py
    """
    import_extensions(extensions, work)
    pipeline = with_target(pipeline, machine)
    parsed_pipeline(pipeline)
    _check_sizes("--width", widths)
    _check_sizes("--block", blocks)
    if not all_:
        _check_can_be_written(output)
    modules = _modules(target, work, trusted=trusted, all_=all_)

    def measure(module: Module) -> "Tuned":
        from fedcore.cli.synthetic_arguments import Sizes, synthetic_argument
        from fedcore.cli.tuning import tune

        parameters = module.main.parameters
        bound_values = bind_arguments([read_argument(text) for text in arguments], parameters) if arguments else None
        rng = np.random.default_rng(0)
        values = bound_values or [synthetic_argument(p.type, Sizes(clients, steps, rows), rng) for p in parameters]
        counts = [len(v) for v, p in zip(values, parameters, strict=True) if _has_value_by_client(p.type)]
        return tune(
            module,
            values,
            clients=counts[0] if counts else clients,
            rounds=rounds,
            widths=widths,
            blocks=blocks,
            pipeline=pipeline,
            say=_progress(),
        )

    with quiet_start():
        tunings = {name: measure(module) for name, module in modules.items()}
    if all_ and format_ == "json":
        click.echo(json.dumps({"stages": _comparisons(tunings)}, indent=2))
        return
    if all_:
        _print_comparisons(tunings)
        return
    ((name, tuned),) = tunings.items()
    plan = pin_plan(tuned.plan, modules[name].digest())
    write_module(plan, output, "-o")
    (_print_json if format_ == "json" else _print)(tuned, plan, output)


def _modules(target: str, work: Work, *, trusted: bool, all_: bool) -> dict[str, Module]:
    """Name -> traced module of the target; with `all_`, of each computation of a Python module that has clients.

    Raises:
        click.BadParameter: there is no such computation, or it is compiled already.
    """
    if all_ and ":" not in target and not os.path.exists(target) and target != "-":
        traced = {f"{target}:{name}": c.to_module("traced") for name, c in computations_of(target).items()}
        modules = {name: module for name, module in traced.items() if _has_clients(module)}
        if not modules:
            raise click.BadParameter(f"{target} has no computation with a client stage: there is nothing to tune")
        return modules
    module = read_target(target, work, trusted=trusted)
    if module.stage != "traced":
        raise click.BadParameter(f"{target} is {module.stage}; only a traced program can be tuned")
    return {target: module}


def _has_clients(module: Module) -> bool:
    """Whether the plan of a module has a client stage."""
    return any(op.kind in ("fold", "collect") for op in compile_module(module).main.operations)


def _check_sizes(option: str, numbers: Iterable[int]) -> None:
    """Raises click.BadParameter if a width or a block of an option has more clients than a plan may have at once."""
    if max(numbers, default=0) > MAX_CLIENTS_AT_ONCE:
        raise click.BadParameter(f"it is at most {MAX_CLIENTS_AT_ONCE} clients", param_hint=option)


def _has_value_by_client(type_: Type) -> bool:
    """Whether values of the type hold a value for each client."""
    return isinstance(type_, FederatedType) and type_.placement.name == "CLIENTS" and not type_.all_equal


def _progress() -> Callable[[str], None]:
    """A function that shows on a terminal what is measured now.

    It writes to a copy of stderr, since stderr is held back while TensorFlow starts.
    """
    if not sys.stderr.isatty():
        return lambda text: None
    terminal = os.fdopen(os.dup(2), "w")

    def say(text: str) -> None:
        terminal.write(f"\r\x1b[K{text}")
        terminal.flush()

    return say


def _check_can_be_written(output: str) -> None:
    """Refuses an output in a directory that cannot be written, before minutes are spent on measurements."""
    directory = os.path.dirname(os.path.realpath(output))
    number = errno.ENOENT if not os.path.isdir(directory) else errno.EACCES
    if not os.access(directory, os.W_OK):
        raise click.BadParameter(f"cannot write {output}: {os.strerror(number)}", param_hint="-o")


_NARROWEST = 80  # columns that hold the table; a narrower terminal wraps its lines


def _print(tuned: "Tuned", plan: Module, output: str) -> None:
    """Prints a table for each stage, the pinned plan's digest, and how to use it."""
    columns = max(Console().width, _NARROWEST) if sys.stdout.isatty() else 200  # in a file no line is wrapped
    console = Console(width=columns, highlight=False)
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)  # clears the line of the progress
    for stage, trials in tuned.trials.items():
        table = Table(title=f"@{stage}", title_justify="left", box=None, header_style="bold", pad_edge=False)
        for column in ("", "strategy", "width", "block", "first call", "a round", "of the plan's", "bits", "note"):
            table.add_column(
                column, justify="right" if column in ("width", "block", "first call", "a round") else "left"
            )
        for trial in trials:
            table.add_row(*_row(trial, trials[0]), style="bold green" if trial.chosen else None)
        console.print(table)
    console.print(f"{output}: plan {plan.digest()[:16]}…", soft_wrap=True)
    console.print(
        f"to run by it: FEDCORE_PLANS={output}, or fc.use(plans={output!r}), or fedcore run {output}", soft_wrap=True
    )


def _row(trial: "Trial", first: "Trial") -> list[str]:
    """The cells of a trial in the table of `_print`.

    Args:
        first: the trial of the compiler's choice, which times are compared with.
    """
    attributes = trial.attributes
    strategy = f"{attributes.get('strategy', '')}{', xla' if attributes.get('xla') else ''}"
    named = [strategy, str(attributes.get("width", "")), str(attributes.get("block", ""))]
    if trial.failed:
        return ["", *named, "", "", "", "", trial.note]
    share = f"{trial.median_s / first.median_s:.2f}" + (" (the plan's)" if trial is first else "")
    times = [f"{trial.first_s:.2f} s", f"{trial.median_s * 1e3:.1f} ms"]
    return ["*" if trial.chosen else "", *named, *times, share, "same" if trial.same_bits else "other", trial.note]


def _comparisons(tunings: "dict[str, Tuned]") -> list[dict[str, Any]]:
    """For each stage of each computation the strategies that the compiler's rules and the measurements choose.

    `share` is the time of the fastest strategy over that of the rules' choice, which is the first trial of a stage.
    """
    from fedcore.cli.tuning import format_strategy

    return [
        {
            "computation": name,
            "stage": stage,
            "rules": format_strategy(trials[0].attributes),
            "fastest": format_strategy(best.attributes),
            "share": best.median_s / trials[0].median_s,
        }
        for name, tuned in tunings.items()
        for stage, trials in tuned.trials.items()
        for best in trials
        if best.chosen
    ]


def _print_comparisons(tunings: "dict[str, Tuned]") -> None:
    """Prints a line for each stage: the rules' choice, and the fastest strategy if it is another one."""
    for stage in _comparisons(tunings):
        title, rules, fastest = f"{stage['computation']} @{stage['stage']}", stage["rules"], stage["fastest"]
        if fastest == rules:
            click.echo(f"{title}: the rules' choice is the fastest: {rules}")
        else:
            share = f"{fastest} takes {stage['share']:.2f} of its time"
            click.echo(f"{title}: the rules' choice is not the fastest: {rules}; {share}")


def _print_json(tuned: "Tuned", plan: Module, output: str) -> None:
    """Prints each stage's trials, and the file and digest of the pinned plan, as JSON."""
    stages = {
        stage: [
            {
                **trial.attributes,
                "first_s": trial.first_s,
                "rounds_s": trial.rounds_s,
                "median_s": trial.median_s if math.isfinite(trial.median_s) else None,
                "same_bits": trial.same_bits and not trial.failed,
                "chosen": trial.chosen,
                "note": trial.note,
            }
            for trial in trials
        ]
        for stage, trials in tuned.trials.items()
    }
    click.echo(json.dumps({"stages": stages, "plan": {"file": output, "digest": plan.digest()}}, indent=2))
