"""The regions of client stages on the command line: `dump --stage batched`, and `opt` on their text."""

from pathlib import Path

import click

from fedcore.cli.loading import quiet_start
from fedcore.cli.printing import show
from fedcore.cli.reproducer import Work
from fedcore.compiler import compile_module, parse_pipeline
from fedcore.errors import FedcoreError, ParseError
from fedcore.ir import Function, Module


def print_regions(
    work: Work, module: Module, pipeline: str, sizes: dict[str, int], *, print_after_change: bool
) -> None:
    """Prints the region of each client stage that has one after the stage passes, below its schedule as a comment.

    Args:
        module: the computation, at any stage.
        sizes: fields of `AssumedClients`.
    """
    work.pipeline = pipeline
    with quiet_start():
        from fedcore.runtime.stage_regions import AssumedClients, stage_regions

        plan = module if module.stage == "planned" else compile_module(module, pipeline)
        assumed = AssumedClients(**sizes)
        stages = list(stage_regions(plan, assumed))
    for each in stages:
        if print_after_change:
            for logged in each.log:
                what = "as built" if logged.pass_ is None else f"after {logged.pass_}"
                show(f"// @{logged.function} {what}\n{each.text(logged.function, logged.region)}", err=True)
        schedule = "".join(f"// {line}\n" for line in str(each.schedule).splitlines())
        head = f"// stage @{each.stage}, assumed: {assumed}\n{schedule}"
        show(head + "\n".join(each.text(name, region) for name, region in each.regions.items()))
    for function in plan.stages():
        if function.attributes.get("strategy") == "loop" and function.name not in [each.stage for each in stages]:
            show(f"// stage @{function.name} has no region: its clients run one after another, {_reason(function)}")


def _reason(function: Function) -> str:
    """Why a stage runs its clients one after another, as the end of a sentence."""
    return f"since {function.attributes['why']}" if function.attributes.get("why") else "as the plan says"


def optimize_regions(path: str, pipeline: str, *, after_all: bool, after_change: bool) -> None:
    """Runs stage passes on the regions of a text, and prints them."""
    with quiet_start():
        from fedcore.graphs.dataflow.stage_passes import all_stage_passes, get_stage_pass, run_stage_pass
        from fedcore.graphs.dataflow.text_parser import parse_regions

        names = ",".join(p.name for p in all_stage_passes()) if pipeline == "default" else pipeline
        try:
            passes = parse_pipeline(names, get_stage_pass)
        except FedcoreError as error:
            raise click.BadParameter(str(error), param_hint="-p") from None
        try:
            regions = parse_regions(Path(path).read_text())
        except OSError as error:
            raise click.BadParameter(f"cannot read {path}: {error.strerror}", param_hint="TARGET") from None
        except ParseError as error:
            source = "\n".join(str(error).split("\n")[1:])
            raise FedcoreError(f"{path}:{error.line}:{error.column}: {error.problem}\n{source}") from None
    for parsed in regions:
        region = parsed.region
        for stage_pass, options in passes:
            with quiet_start():
                result = run_stage_pass(stage_pass, region, options)
            if after_all or (after_change and result is not region):
                unchanged = "" if result is not region else ", unchanged"
                show(f"// after {stage_pass.name}{unchanged}\n{parsed.print(result)}", err=True)
            region = result
        show(parsed.print(region))
