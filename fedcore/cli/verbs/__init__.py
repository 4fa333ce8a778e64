"""The verbs of the `fedcore` command; those of fedcore are modules here, which are imported when they are called.

Other packages add verbs by the entry-point group `fedcore.commands`.
"""

import importlib
from importlib.metadata import EntryPoint, entry_points

import click

ENTRY_POINTS = "fedcore.commands"

SUMMARIES = {
    "demo": "Trains a digit classifier on this machine.",
    "deploy": "Tries a federation on this machine.",
    "diff": "Prints the differences of two computations.",
    "doctor": "Prints versions, devices, limits and settings.",
    "dump": "Prints a computation at each stage.",
    "eval": "Evaluates a trained model on all evaluation clients.",
    "lint": "Finds lines that cost bits, time, privacy or precision.",
    "list": "Lists trainings.",
    "new": "Writes a small project to start from.",
    "opt": "Runs passes on a module.",
    "policy": "Checks plans against a site's policy, and signs them.",
    "port": "Lists the lines of a program of TFF that need an edit.",
    "report": "Writes a page about recorded calls.",
    "resume": "Goes on with a training.",
    "run": "Calls a computation, prints its result.",
    "show": "Shows the settings, metrics and checkpoints of a training.",
    "show-values": "Prints intermediate values of recorded clients.",
    "site": "Runs a site of a network, with its own data and policy.",
    "sweep": "Searches for the best settings, by Optuna.",
    "train": "Trains what a TOML file describes.",
    "tune": "Measures strategies, writes a pinned plan.",
    "verify": "Checks that files hold valid modules.",
}
"""For each verb of fedcore the line of `fedcore --help`, which does not import the verb."""

_MODULES = {"eval": "evaluate", "list": "list_runs", "show": "show_run", "show-values": "show_values"}
"""The modules of verbs that are not named as the verb; the command of a module has the module's name."""


def all_verbs() -> list[str]:
    """The names of all verbs: those of fedcore, then those that other packages add."""
    others = {entry.name for entry in entry_points(group=ENTRY_POINTS)} - SUMMARIES.keys()
    return [*sorted(SUMMARIES), *sorted(others)]


def summaries() -> dict[str, str]:
    """The lines of `fedcore --help`, by verb; without those that other packages hide."""
    others = {verb: load_verb(verb) for verb in all_verbs() if verb not in SUMMARIES}
    shown = {verb: command.get_short_help_str(60) for verb, command in others.items() if command and not command.hidden}
    return dict(sorted(SUMMARIES.items())) | shown


def load_verb(name: str) -> click.Command | None:
    """The command of a verb; None if there is none of this name.

    If the verb of another package does not load, returns a command that fails with the reason, so that `fedcore
    --help` still works.
    """
    if name in SUMMARIES:
        module = _MODULES.get(name, name)
        command: click.Command = getattr(importlib.import_module(f"fedcore.cli.verbs.{module}"), module)
        return command
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
