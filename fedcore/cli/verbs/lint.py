"""`fedcore lint`: lines of programs that cost bits, time, privacy or precision."""

import json
import os
from collections.abc import Iterator

import click

from fedcore.cli.exit_codes import WRONG_PROGRAM
from fedcore.cli.isolation import FileCommand
from fedcore.cli.loading import computations_of, import_extension, load_option, quiet_start, read_target, trusted_option
from fedcore.cli.reproducer import Work
from fedcore.compiler.lint import all_checks, get_check
from fedcore.compiler.lint import lint as lint_module
from fedcore.compiler.lint.registry import Finding
from fedcore.errors import FedcoreError
from fedcore.ir import Module
from fedcore.types import FederatedType, contains


@click.command(cls=FileCommand)
@click.argument("targets", nargs=-1, metavar="MODULE[:NAME]|FILE.fed...")
@click.option("--without", multiple=True, metavar="CHECK", help="Leave this check out.")
@click.option("--list", "lists_checks", is_flag=True, help="Print the checks.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@load_option
@trusted_option
@click.pass_context
def lint(
    ctx: click.Context,
    targets: tuple[str, ...],
    without: tuple[str, ...],
    lists_checks: bool,
    format_: str,
    extensions: tuple[str, ...],
    trusted: bool,
) -> None:
    """Checks programs that are valid for mistakes that nothing else tells: each with its line and a fix.

    A TARGET is a computation in a Python module that can be imported from the current directory, or a module, of which
    all federated computations with declared types are checked, or a file with a traced or a lowered module. The exit
    code is 1 if anything is found.

    The comment `# lint: allow CHECK` on a line says that it is meant.

    \b
    Examples:
      fedcore lint my_module:next_round
      fedcore lint my_module                       # all of its computations
      fedcore lint round.fed --format json
      fedcore lint my_module --without client-loop
      fedcore lint --list
    """
    for name in extensions:
        import_extension(name)
    if lists_checks:
        for check in all_checks():
            click.echo(f"{check.name:<18}{check.summary}")
        return
    if not targets:
        raise click.UsageError("Missing argument 'MODULE[:NAME]|FILE.fed...'.")
    try:
        for name in without:
            get_check(name)
    except FedcoreError as error:
        raise click.BadParameter(str(error), param_hint="--without") from None
    results = {}
    for target in targets:
        for name, module in _modules(target, trusted):
            with quiet_start():
                results[name] = lint_module(module, without=without)
    if format_ == "json":
        click.echo(json.dumps([_as_json(name, f) for name, findings in results.items() for f in findings], indent=2))
    else:
        for finding in dict.fromkeys(str(f) for findings in results.values() for f in findings):
            click.echo(finding)
        if not any(results.values()):
            click.echo(f"no findings in {len(results)} computation{'s' * (len(results) != 1)}")
    if any(results.values()):
        ctx.exit(WRONG_PROGRAM)


def _modules(target: str, trusted: bool) -> Iterator[tuple[str, Module]]:
    """Yields (name, module): the target itself, or each federated computation of a Python module.

    Raises:
        click.BadParameter: the Python module has none.
    """
    if ":" in target or target == "-" or os.path.exists(target):
        yield target, read_target(target, Work(), trusted=trusted)
        return
    modules = {f"{target}:{name}": c.to_module("traced") for name, c in computations_of(target).items()}
    federated = [
        (name, m) for name, m in modules.items() if contains(m.main.type, lambda t: isinstance(t, FederatedType))
    ]
    if not federated:
        raise click.BadParameter(f"{target} has no federated computations with declared types: name one, {target}:NAME")
    yield from federated


def _as_json(target: str, finding: Finding) -> dict:
    """A finding as `--format json` prints it; file and line are null if it has no location."""
    location = finding.location
    return {
        "target": target,
        "check": finding.check,
        "file": location and location.file,
        "line": location and location.line,
        "problem": finding.problem,
        "fix": finding.fix,
    }
