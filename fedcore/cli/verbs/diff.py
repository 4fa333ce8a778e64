"""`fedcore diff`: the differences of two modules."""

import json
import sys

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedcore.cli.comparing import Comparison, comparison, summary
from fedcore.cli.exit_codes import OK, WRONG_PROGRAM
from fedcore.cli.isolation import FileCommand
from fedcore.cli.loading import import_extension, load_option, quiet_start, read_target, trusted_option
from fedcore.cli.printing import has_colours
from fedcore.cli.reproducer import Work
from fedcore.compiler import DEFAULT_PIPELINE, LOWERING, compile_module
from fedcore.ir import Module


@click.command(cls=FileCommand)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--stage", type=click.Choice(["traced", "lowered", "planned"]), help="Compile both to this stage first.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@load_option
@trusted_option
@click.pass_context
def diff(
    ctx: click.Context, a: str, b: str, stage: str | None, format_: str, extensions: tuple[str, ...], trusted: bool
) -> None:
    """Compares two computations, each a file or MODULE:NAME; exits with 0 if they are equal and with 1 if not.

    Names of bindings, parameters, functions and graphs do not count, nor do source locations. Graphs are equal if their
    digests are equal; of graphs that differ, the operations are compared. The last line has figures of both: their
    operations, and for plans the stages and the bits that a client receives and sends in a round.

    \b
    Examples:
      fedcore diff before.fed after.fed
      fedcore diff my_module:next_round round.fed --stage planned
    """
    for name in extensions:
        import_extension(name)
    left, right = (_module(path, stage, trusted) for path in (a, b))
    with quiet_start():
        result = comparison(left, right)
    if format_ == "json":
        click.echo(json.dumps({"equal": result.equal, "changes": result.changes}, indent=2))
    else:
        _show(result, a, b)
        if not result.equal:
            click.echo(f"// {summary(left, right)}")
    ctx.exit(OK if result.equal else WRONG_PROGRAM)


def _module(path: str, stage: str | None, trusted: bool) -> Module:
    """The module of a file or of MODULE:NAME, compiled to a stage unless that is None.

    Raises:
        click.BadParameter: the module is at a later stage.
        FedcoreError: the file is wrong.
    """
    module = read_target(path, Work(), trusted=trusted)
    stages = ("traced", "lowered", "planned")
    if stage is None or module.stage == stage:
        return module
    if stages.index(stage) < stages.index(module.stage):
        raise click.BadParameter(f"{path} is {module.stage}: it holds no {stage} module", param_hint="--stage")

    with quiet_start():
        return compile_module(module, LOWERING if stage == "lowered" else DEFAULT_PIPELINE)


def _show(result: Comparison, a: str, b: str) -> None:
    """Prints a comparison: side by side on a terminal with colours, else as a unified diff.

    Args:
        a, b: the names of the two modules, as on the command line.
    """
    if result.equal:
        click.echo("equal" + ("" if result.same_text else ", up to names"))
        return
    if not has_colours(sys.stdout):
        click.echo(f"--- {a}\n+++ {b}")
        for line in result.diff_lines():
            click.echo(line)
        return

    table = Table(expand=True, box=None, padding=(0, 1), show_edge=False)
    for title in (a, b):
        table.add_column(title, ratio=1, overflow="fold")
    for kind, left, right in result.rows():
        left_style, right_style = {"same": ("", ""), "gap": ("bright_black",) * 2}.get(kind, ("red", "green"))
        table.add_row(Text(left, style=left_style), Text(right, style=right_style))
    Console(file=sys.stdout).print(table)
