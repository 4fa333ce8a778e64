"""`fedcore doctor`: the facts about this machine and its packages that decide how fedcore runs."""

import json

import click

from fedcore.cli.examination import examine


@click.command()
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def doctor(format_: str) -> None:
    """Prints versions, devices, limits and settings, and missing packages.

    \b
    Examples:
      fedcore doctor
      fedcore doctor --format json
    """
    sections = examine()
    if format_ == "json":
        click.echo(json.dumps(sections, indent=2))
        return
    for title, rows in sections.items():
        click.echo(click.style(title, bold=True))
        if isinstance(rows, list):
            for row in rows or ["none"]:
                click.echo(f"  {row}")
            continue
        width = max(map(len, rows), default=0)
        for name, value in rows.items():
            click.echo(f"  {name:<{width}}  {value}")
