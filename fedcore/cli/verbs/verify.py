"""`fedcore verify`: checks that files hold valid modules."""

import json
import os

import click

from fedcore.cli.exit_codes import WRONG_PROGRAM
from fedcore.cli.isolation import FileCommand
from fedcore.cli.loading import (
    import_computation,
    import_extension,
    load_option,
    quiet_start,
    read_module,
    trusted_option,
)
from fedcore.cli.printing import heading
from fedcore.cli.reproducer import Work
from fedcore.compiler.disclosures import disclosures
from fedcore.errors import FedcoreError
from fedcore.ir import Module


@click.command(cls=FileCommand)
@click.argument("files", nargs=-1, required=True, metavar="FILE...|MODULE:NAME...")
@click.option("--secure", is_flag=True, help="Also prove that clients' values reach the server in secure sums only.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@load_option
@trusted_option
@click.pass_context
def verify(
    ctx: click.Context, files: tuple[str, ...], secure: bool, format_: str, extensions: tuple[str, ...], trusted: bool
) -> None:
    """Checks each FILE (text or bundle): it parses, its types fit, and it obeys the rules of its stage.

    The graphs of a bundle must match their digests and hold only operations that fc.load accepts. The exit code is 1 if
    any file is wrong.

    A name in a Python module is compiled and checked in the same way. With --secure, a value that depends on a client's
    data and reaches the server outside of a secure sum (fc.federated_secure_sum, fc.aggregators.SecureSumFactory) is
    wrong too; its line and its tensor are shown.

    \b
    Examples:
      fedcore verify round.fed
      fedcore verify *.fed --format json
      fedcore verify --secure train:process.next
    """
    for name in extensions:
        import_extension(name)
    results, refused = [], []
    for file in files:
        try:
            if ":" in file and not os.path.exists(file):
                module = import_computation(file).to_module("traced")
            else:
                module = read_module(file, Work(), trusted=trusted)
            if secure:
                _check_secure(file, module)
        except FedcoreError as error:
            results.append({"file": file, "valid": False, "problems": str(error)})
        except OSError as error:
            refused.append(f"cannot read {file}: {error.strerror}")
        except click.BadParameter as error:
            refused.append(error.message)
        else:
            what = heading(module.stage, module).removeprefix("// ").strip()
            what += "; clients' values reach the server in secure sums only" * secure
            results.append({"file": file, "valid": True, "digest": module.digest(), "what": what})
    if format_ == "json":
        click.echo(json.dumps(results, indent=2))
    else:
        for result in results:
            click.echo(f"{result['file']}: {result['what']}" if result["valid"] else result["problems"])
    if refused:
        raise click.BadParameter("\n".join(refused))
    if not all(result["valid"] for result in results):
        ctx.exit(WRONG_PROGRAM)


def _check_secure(target: str, module: Module) -> None:
    """Raises FedcoreError if a client's value reaches the server outside of a secure sum."""
    with quiet_start():
        violations = disclosures(module)
    if violations:
        lines = [f"  {d.location or target}: {d.tensor} : {d.type}" for d in violations]
        raise FedcoreError("\n".join([f"{target}: clients' values reach the server outside of secure sums", *lines]))
