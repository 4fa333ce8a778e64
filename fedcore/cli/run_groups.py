"""Trainings by the settings in which they differ, for the legend of a diagram."""

from collections.abc import Sequence
from typing import Any

from fedcore.cli.configuration import RUN_CONTROL, settings_of
from fedcore.cli.runs import Run

_LONGEST = 60  # characters of a label


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of equal settings but for those of `RUN_CONTROL`, by a text of the settings in which the groups differ.

    A setting is named by its last word, or in full where two settings have the same one.
    """
    settings = [settings_of(run.configuration) for run in runs]
    keys = [key for key in dict.fromkeys(key for values in settings for key in values) if key not in RUN_CONTROL]
    differing = [key for key in keys if len({repr(values.get(key)) for values in settings}) > 1]
    words = [key.split(".")[-1] for key in differing]
    names = {key: word if words.count(word) == 1 else key for key, word in zip(differing, words, strict=True)}
    by_values: dict[str, list[Run]] = {}  # text of the settings -> runs that have them
    for run, values in zip(runs, settings, strict=True):
        key = ", ".join(f"{name}={_text(values[key])}" for key, name in names.items() if key in values)
        by_values.setdefault(key, []).append(run)
    groups: dict[str, list[Run]] = {}
    for text, group in by_values.items():
        name = group[0].directory.name  # for runs that no setting tells apart, and where two labels are equal
        label = text or (name if len(group) == 1 else f"{len(group)} runs")
        label = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
        groups[label if label not in groups else name] = group
    return groups


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
