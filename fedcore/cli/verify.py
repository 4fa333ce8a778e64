"""`fedcore verify`: checks that files hold valid modules."""

import click

from fedcore.cli.exit_codes import WRONG_PROGRAM
from fedcore.cli.isolation import FileCommand
from fedcore.cli.loading import trusted_option
from fedcore.cli.reproducer import Work


@click.command(cls=FileCommand, short_help="Checks that files hold valid modules.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@trusted_option
@click.pass_context
def verify(ctx, files, format_, trusted):
    """Checks each FILE (text or bundle): it parses, its types fit, and it obeys the rules of its stage.

    The graphs of a bundle must match their digests and hold only operations that fc.load accepts. The exit code is 1 if
    any file is wrong.

    \b
    Examples:
      fedcore verify round.fed
      fedcore verify *.fed --format json
    """
    import json

    from fedcore.cli.loading import read_module
    from fedcore.cli.show import heading
    from fedcore.errors import FedcoreError

    results = []
    for file in files:
        try:
            module = read_module(file, Work(), trusted=trusted)
        except FedcoreError as error:
            results.append({"file": file, "valid": False, "problems": str(error)})
        except OSError as error:
            raise click.BadParameter(f"cannot read {file}: {error.strerror}") from None
        else:
            what = heading(module.stage, module).removeprefix("// ").strip()
            results.append({"file": file, "valid": True, "digest": module.digest(), "what": what})
    if format_ == "json":
        click.echo(json.dumps(results, indent=2))
    else:
        for result in results:
            click.echo(f"{result['file']}: {result['what']}" if result["valid"] else result["problems"])
    if not all(result["valid"] for result in results):
        ctx.exit(WRONG_PROGRAM)
