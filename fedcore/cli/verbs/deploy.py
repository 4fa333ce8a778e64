"""`fedcore deploy`: tries a federation on this machine."""

from pathlib import Path

import click

from fedcore.cli.loading import quiet_start
from fedcore.cli.projects import call_function, import_program
from fedcore.deployment.engines import engine_installed
from fedcore.errors import FedcoreError


@click.group(no_args_is_help=True)
def deploy() -> None:
    """Tries a federation of `fedcore new --template network` on this machine.

    \b
    Examples:
      fedcore deploy try
    """


@deploy.command("try", short_help="Trains with a server and site processes on the loopback interface.")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
@click.option("--rounds", type=click.IntRange(min=1), default=10, show_default=True)
def try_(directory: Path, rounds: int) -> None:
    """Provisions certificates and keys, starts the sites of DIRECTORY, trains, and prints what each site let out.

    The sites are processes of their own, which the server reaches with mutual TLS over the loopback interface. All
    files are in a folder `.trial` of DIRECTORY, which is removed at the end, and all processes end. Nothing starts if
    `fedcore site check` finds something wrong at a site; an error shows the last lines that the sites have printed.
    """
    with quiet_start(), engine_installed():
        from fedcore.deployment.trial import trial

    program = directory / "server.py"
    if not program.is_file() or not any(directory.glob("sites/*/site.toml")):
        raise FedcoreError(
            f"{directory} has no server.py and sites/*/site.toml; fedcore new --template network has them"
        )
    with trial(directory) as running:
        click.echo(f"{', '.join(running.sites)}: connected with mutual TLS to {running.address}")
        history = call_function(
            import_program(program), program, "train", {"exchange": running.exchange, "rounds": rounds}
        )
        for row in history:
            metrics = ", ".join(f"{k} {v:.4f}" for k, v in row.items() if isinstance(v, float) and "/" not in k)
            click.echo(f"round {row['round']}: {metrics}")
        for site in running.sites:
            _print_log(site, running.log(site))


def _print_log(site: str, lines: list[dict]) -> None:
    """Prints a site's number of runs, the bits and the tensors that they sent, and the errors of failed requests.

    Args:
        lines: of the `SiteLog`.
    """
    runs = [line for line in lines if line["what"] == "ran"]
    masks = " before masks" if any(line["masked"] for line in runs) else ""
    click.echo(f"{site}: {len(runs)} runs, sent {sum(line['bits'] for line in runs)} bits{masks}")
    for sent in dict.fromkeys(tuple(line["sent"]) for line in runs):
        click.echo("  in masked sums: " if all(line["masked"] for line in runs) else "  ", nl=False)
        click.echo(", ".join(sent))
    failed = [line["error"] for line in lines if line["what"] == "failed"]  # the server may not know
    for error in dict.fromkeys(failed):
        click.echo(f"  {failed.count(error)} failed: {error}")
