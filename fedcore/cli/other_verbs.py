"""Verbs that other packages add by the entry-point group `fedcore.commands`."""

from importlib.metadata import EntryPoint, entry_points

import click

ENTRY_POINTS = "fedcore.commands"


def names_of_other_verbs() -> list[str]:
    return sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)})


def other_verb(name: str) -> click.Command | None:
    """The verb of another package; None if no package has it.

    If the verb does not load, returns a command that fails with the reason, so that `fedcore --help` still works.
    """
    entry = next(iter(entry_points(group=ENTRY_POINTS, name=name)), None)
    if entry is None:
        return None
    try:
        command = entry.load()
    except Exception as error:
        return _broken(entry, f"does not load: {type(error).__name__}: {error}")
    return command if isinstance(command, click.Command) else _broken(entry, "is no click.Command")


def _broken(entry: EntryPoint, why: str) -> click.Command:
    """A command in place of one that does not load: it takes any arguments, and fails with the reason."""
    problem = f"the entry point {entry.name} = {entry.value} of {ENTRY_POINTS} {why}"

    def fail(arguments: tuple[str, ...]) -> None:
        raise click.ClickException(problem)

    arguments = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    settings = {"ignore_unknown_options": True}
    return click.Command(entry.name, callback=fail, params=[arguments], help=problem, context_settings=settings)
