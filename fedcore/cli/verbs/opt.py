"""`fedcore opt`: runs chosen passes on a module."""

import difflib
import itertools
import textwrap
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from fedcore.cli.dump_regions import optimize_regions
from fedcore.cli.exit_codes import InternalError
from fedcore.cli.isolation import FileCommand
from fedcore.cli.json_values import bind_arguments, read_argument
from fedcore.cli.loading import (
    import_extensions,
    load_option,
    parsed_pipeline,
    quiet_start,
    read_target,
    target_option,
    trusted_option,
    with_target,
)
from fedcore.cli.output_path import OutputPath, write_module
from fedcore.cli.printing import heading, show, write_bytes
from fedcore.cli.reproducer import Work
from fedcore.compiler import all_passes, run_pass
from fedcore.compiler.pipeline import Pass
from fedcore.errors import FedcoreError, VerifyError
from fedcore.ir import Module, bundle

if TYPE_CHECKING:
    from fedcore.graphs.dataflow.stage_passes import StagePass

REGION = ".region"
"""The suffix of texts of regions."""


@click.command(cls=FileCommand)
@click.argument("target", metavar="MODULE:NAME|FILE.fed|FILE.region", required=False)
@click.option(
    "-p",
    "--passes",
    "pipeline",
    metavar="PASSES",
    default="",
    help="'a,b{option=1}'; 'default' names the default pipeline. Default: no pass.",
)
@click.option("-o", "--output", type=OutputPath(dir_okay=False, allow_dash=True), help="Write this file; - is stdout.")
@click.option("--print-after-all", is_flag=True, help="Print the module after every pass, on stderr.")
@click.option("--print-after-change", is_flag=True, help="Print it after passes that changed it, on stderr.")
@click.option("--verify-each", is_flag=True, help="Check the module after every pass.")
@click.option("--check-each", is_flag=True,
              help="Run the program after every pass, and name the first pass that changes a result.")  # fmt: skip
@click.option("--arg", "arguments", multiple=True, metavar="[NAME=]VALUE",
              help="Argument for --check-each, as of fedcore run. Default: generated, for 3 clients.")  # fmt: skip
@target_option
@load_option
@click.option("--list", "list_", is_flag=True, help="Print passes, their options, and batching rules.")
@trusted_option
@click.pass_obj
def opt(
    work: Work,
    target: str | None,
    pipeline: str,
    output: str | None,
    print_after_all: bool,
    print_after_change: bool,
    verify_each: bool,
    check_each: bool,
    arguments: tuple[str, ...],
    machine: str | None,
    extensions: tuple[str, ...],
    list_: bool,
    trusted: bool,
) -> None:
    """Runs passes on a computation, or stage passes on a .region text, and prints the result as text.

    TARGET is a file (text or bundle; - is stdin), or a name in a Python module that can be imported from the current
    directory. Text has the names of graphs but not their bytes, which some passes read; -o writes the bytes, too.

    \b
    Examples:
      fedcore opt my_module:next_round -p 'inline,lower-intrinsics' --print-after-change
      fedcore opt round.fed -p 'inline,lower-intrinsics,cse,dce,partition,fuse' -o planned.fed
      fedcore opt round.fed -p 'lowering,mine,planning' --load my_passes -o planned.fed
      fedcore opt my_module:next_round -p 'lowering,mine' --load my_passes --check-each
      fedcore dump my_module:next_round --stage batched > round.region; fedcore opt round.region -p cse,dce
      fedcore opt --list
    """
    import_extensions(extensions, work)
    if list_:
        _print_passes()
        return
    if target is None:
        raise click.UsageError("Missing argument 'MODULE:NAME|FILE.fed|FILE.region'.")
    if target.endswith(REGION):
        if output or verify_each or check_each or machine:
            raise click.UsageError("-o, --verify-each, --check-each and --target are for modules, not for regions")
        optimize_regions(target, pipeline, after_all=print_after_all, after_change=print_after_change)
        return
    passes = parsed_pipeline(with_target(pipeline, machine))
    work.options += ("--verify-each",) * verify_each + ("--check-each",) * check_each + ("--trusted",) * trusted
    work.options += tuple(part for argument in arguments for part in ("--arg", argument))
    module = read_target(target, work, trusted=trusted)
    results = _Results(module, arguments) if check_each else None
    if arguments and results is None:
        raise click.UsageError("--arg is for --check-each; fedcore run calls a program")
    for i, (pass_, options) in enumerate(passes):
        work.pipeline = ",".join(_format_pass(*p) for p in passes[i:])
        result = _run(pass_, options, module, verify_each)
        if print_after_all or (print_after_change and result is not module):
            _print_after(_format_pass(pass_, options), result, unchanged=result is module)
        if results is not None and result is not module:
            results.check(pass_, module, result)
        work.module = module = result
    if results is not None:
        click.echo(f"{results.count} results are the same after every pass", err=True)
    _write(module, output)


def _format_pass(pass_: "Pass | StagePass", options: dict) -> str:
    """A pass with its options in the notation of pipelines, such as `plan{vectorize=false}`."""
    texts = {key: str(value).lower() if isinstance(value, bool) else value for key, value in options.items()}
    settings = ",".join(f"{key}={text}" for key, text in texts.items())
    return f"{pass_.name}{{{settings}}}" if settings else pass_.name


def _run(pass_: Pass, options: dict, module: Module, verify_each: bool) -> Module:
    try:
        with quiet_start():
            return run_pass(pass_, module, options, verify_each=verify_each)
    except VerifyError as error:  # the module was valid before the pass
        raise InternalError(str(error)) from error


class _Results:
    """The results of a program, which no pass may change.

    Args:
        module: the program before all passes.
        arguments: as `fedcore run` takes them; if there are none, several lists are generated.
    Attributes:
        inputs: lists of arguments, for each of which results are compared.
    """

    def __init__(self, module: Module, arguments: tuple[str, ...]) -> None:
        from fedcore.cli.synthetic_arguments import argument_lists

        if arguments:
            self.inputs = [bind_arguments([read_argument(text) for text in arguments], module.main.parameters)]
            self._shown = "for the arguments of --arg"
        with quiet_start():
            if not arguments:
                self.inputs = argument_lists(module.main, lambda inputs: self._result(module, inputs))
                self._shown = "for generated arguments; --arg gives others"
            for inputs in self.inputs:
                self._result(module, inputs)  # raises what the program raises
        self._module = module

    @property
    def count(self) -> int:
        return len(self.inputs)

    def check(self, pass_: Pass, before: Module, after: Module) -> None:
        """Runs the module after a pass for all inputs.

        Raises:
            InternalError, FedcoreError: a result has changed, by a pass of fedcore's or another. The message shows the
                difference, and the lines that the pass changed.
        """
        from fedcore.runtime.reference import ONE_BLOCK
        from fedcore.runtime.same_meaning import change_of_result, folds_clients

        sizes = (ONE_BLOCK, 1, 2) if folds_clients(after) else (ONE_BLOCK,)  # clients of a block, which merges need
        for inputs, size in itertools.product(self.inputs, sizes):
            with quiet_start(), np.errstate(all="ignore"):
                problem = change_of_result(self._module, after, inputs, size)
            if problem is not None:
                lines = "".join(f"\n    {line}" for line in _changed_lines(before, after))
                text = f"{pass_} changes the result: {problem}\n  {self._shown}\n  what it changed:{lines}"
                raise InternalError(text) if pass_.is_built_in else FedcoreError(text)

    def _result(self, module: Module, inputs: list) -> Any:
        """The result of a module by the reference runtime."""
        from fedcore.runtime import Report, reference

        with np.errstate(all="ignore"):
            return reference(default_num_clients=0).run(module, inputs, Report(seed=0))


_MAX_CHANGED_LINES = 12


def _changed_lines(before: Module, after: Module) -> list[str]:
    """The first lines that differ, those of `before` with `-` and those of `after` with `+` in front."""
    old, new = str(before).split("\n"), str(after).split("\n")
    lines = [line for line in difflib.unified_diff(old, new, n=0, lineterm="") if line[:2] not in ("--", "++", "@@")]
    more = len(lines) - _MAX_CHANGED_LINES
    return lines if more <= 0 else [*lines[:_MAX_CHANGED_LINES], f"… and {more} lines more"]


def _print_after(name: str, module: Module, *, unchanged: bool) -> None:
    show(heading(f"after {name}", module, unchanged=unchanged) + ("" if unchanged else f"{module}\n"), err=True)


def _write(module: Module, output: str | None) -> None:
    if output is None:
        show(str(module))
    elif output == "-":
        write_bytes(bundle.to_bytes(module))
    else:
        write_module(module, output, "-o")


def _print_passes() -> None:
    """Prints what `fedcore opt --list` shows: passes of modules, stages and graphs, rewrites, and batching rules."""
    with quiet_start():
        from fedcore.graphs.batched.batching_rewrites import BATCHING_REWRITES
        from fedcore.graphs.dataflow.stage_passes import GRAPH_PASSES, all_stage_passes, get_stage_pass

        stage_passes, graph_passes = all_stage_passes(), [get_stage_pass(name) for name in GRAPH_PASSES]
    rows = [(_signature(pass_), pass_.summary) for pass_ in all_passes()]
    stage_rows = [(_signature(pass_), pass_.summary) for pass_ in stage_passes]
    graph_rows = [(_signature(pass_), pass_.summary) for pass_ in graph_passes]
    width = max(len(left) for left, _ in (*rows, *stage_rows, *graph_rows))
    for left, summary in rows:
        click.echo(f"{left:<{width}}  {summary}")
    click.echo("\nstage passes, on the regions of vectorised client stages; plan{without=NAME} switches one off:")
    for left, summary in stage_rows:
        click.echo(f"{left:<{width}}  {summary}")
    click.echo("\nstage passes that run on the bodies of graphs, before these are batched or imported:")
    for left, summary in graph_rows:
        click.echo(f"{left:<{width}}  {summary}")
    click.echo("\nrewrites of batching, while it builds these regions; plan{without=NAME} switches one off:")
    for left, summary in BATCHING_REWRITES.items():
        click.echo(f"{left:<{width}}  {summary}")
    click.echo("\nbatching rules, of the operations that clients beside each other may use:")
    click.echo(textwrap.fill(" ".join(_operations_with_rules()), 100, break_long_words=False))


def _operations_with_rules() -> list[str]:
    """The operations with batching rules; those of extensions with their files and lines."""
    with quiet_start():
        import fedcore.graphs.batched.batching_rules  # noqa: F401  registers them
        from fedcore.graphs.batched.batched_value import batching_rules, place_of_rule

        extensions = {op for op, fn in batching_rules.items() if not fn.__module__.startswith("fedcore.graphs.")}
        return [f"{op} ({place_of_rule(op)})" if op in extensions else op for op in sorted(batching_rules)]


def _signature(pass_: "Pass | StagePass") -> str:
    """A pass with the defaults of its options."""
    return _format_pass(pass_, pass_.options())
