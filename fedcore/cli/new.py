"""`fedcore new`: writes a small project."""

from pathlib import Path

import click

from fedcore.cli.output_path import OutputPath

FILES = ("train.toml", "model.py", "test_model.py")


@click.command(short_help="Writes a small project to start from.")
@click.argument("directory", type=OutputPath(file_okay=False, path_type=Path))
def new(directory: Path):
    """Writes a small project: train.toml, model.py and a test. It trains a classifier of handwritten digits.

    \b
    Examples:
      fedcore new digits
      cd digits && fedcore train train.toml
    """
    from importlib import resources

    from fedcore.whole_files import write_whole

    there = [name for name in FILES if (directory / name).exists()]
    if there:
        raise click.BadParameter(f"{directory / there[0]} is there already", param_hint="DIRECTORY")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            text = resources.files("fedcore.cli").joinpath("project", f"{name}.tmpl").read_text()
            write_whole(directory / name, text)
    except OSError as error:
        raise click.BadParameter(f"cannot write {directory}: {error.strerror}", param_hint="DIRECTORY") from None
    click.echo(f"{directory}: {', '.join(FILES)}\nto train: cd {directory} && fedcore train train.toml")
