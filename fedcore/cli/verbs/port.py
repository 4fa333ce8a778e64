"""`fedcore port`: the lines of a program of TFF that need an edit."""

import json

import attrs
import click

from fedcore.cli.exit_codes import WRONG_PROGRAM
from fedcore.cli.loading import quiet_start
from fedcore.compat.program_edits import edits
from fedcore.errors import FedcoreError
from fedcore.ir.regular_files import read_text

MAX_PROGRAM_BYTES = 2**22


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE.py...")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def port(ctx: click.Context, files: tuple[str, ...], format_: str) -> None:
    """Lists what to edit so that a program of TensorFlow Federated runs on fedcore and Keras 3: each line, what it has,
    and what to write.

    A program is read, not run. TFF's names are followed from its imports. A call of Keras 2 is told by its name, so
    another object may have a method of that name. docs/porting.md says what else differs. The exit code is 1 if a line
    needs an edit.

    \b
    Examples:
      fedcore port train.py
      fedcore port *.py --format json
    """
    with quiet_start():
        edits_by_file = {}
        for file in files:
            try:
                edits_by_file[file] = edits(read_text(file, MAX_PROGRAM_BYTES))
            except (FedcoreError, OSError, ValueError) as error:
                raise FedcoreError(f"{file}: {error}") from None
    if format_ == "json":
        click.echo(
            json.dumps(
                [{"file": file, **attrs.asdict(edit)} for file, needed in edits_by_file.items() for edit in needed],
                indent=2,
            )
        )
    else:
        for file, needed in edits_by_file.items():
            for edit in needed:
                click.echo(f"{file}:{edit.line}: {edit.has}\n  write {edit.write}")
        if not any(edits_by_file.values()):
            click.echo(f"no line needs an edit in {', '.join(files)}")
    if any(edits_by_file.values()):
        ctx.exit(WRONG_PROGRAM)
