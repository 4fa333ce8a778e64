"""`fedcore new`: writes a small project."""

import random
from importlib import resources
from pathlib import Path

import click

from fedcore.cli.output_path import OutputPath
from fedcore.whole_files import write_whole

PROJECT = {name: f"{name}.tmpl" for name in ("train.toml", "model.py", "test_model.py")}
"""The files of a project, and their templates."""

SITES = ("east", "north", "south")  # of a network's project
NETWORK = {  # file of a project -> its template
    **{name: f"network/{name}.tmpl" for name in ("server.py", "test_server.py", "project.yml")},
    **{f"sites/{site}/{name}": f"network/site/{name}.tmpl" for site in SITES for name in ("site.toml", "policy.toml")},
}
TEMPLATES = {"digits": PROJECT, "network": NETWORK}
START = {"digits": "to train: cd {} && fedcore train train.toml", "network": "to try it: cd {} && fedcore deploy try"}


@click.command()
@click.argument("directory", type=OutputPath(file_okay=False, path_type=Path))
@click.option("--template", type=click.Choice([*TEMPLATES]), default="digits", show_default=True,
              help="digits trains a classifier on this machine; network has a server and three sites.")  # fmt: skip
def new(directory: Path, template: str) -> None:
    """Writes a small project: train.toml, model.py and a test. It trains a classifier of handwritten digits.

    With --template network, a server and three sites with a small table each, which train by masked sums.

    \b
    Examples:
      fedcore new digits
      cd digits && fedcore train train.toml
      fedcore new hospital --template network
      cd hospital && fedcore deploy try
    """
    files = TEMPLATES[template]
    there = [name for name in files if (directory / name).exists()]
    if there:
        raise click.BadParameter(f"{directory / there[0]} is there already", param_hint="DIRECTORY")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, source in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(directory / name, resources.files("fedcore.cli").joinpath("project", source).read_text())
        if template == "network":
            for seed, site in enumerate(SITES):
                write_whole(directory / "sites" / site / "patients.csv", _patients(seed))
    except OSError as error:
        raise click.BadParameter(f"cannot write {directory}: {error.strerror}", param_hint="DIRECTORY") from None
    click.echo(f"{directory}: {', '.join(files)}\n{START[template].format(directory)}")


def _patients(seed: int) -> str:
    """A table of 60 made-up patients, whose outcome depends on four measurements."""
    draw = random.Random(seed)
    rows = ["age,weight,pressure,glucose,outcome"]
    for _ in range(60):
        age, weight, pressure, glucose = (round(draw.gauss(0, 1), 2) for _ in range(4))
        outcome = int(age + 2 * glucose - weight + 0.3 * draw.gauss(0, 1) > 0)
        rows.append(f"{age},{weight},{pressure},{glucose},{outcome}")
    return "\n".join(rows) + "\n"
