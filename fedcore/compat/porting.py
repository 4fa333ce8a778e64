"""`python -m fedcore.compat.porting` prints what became of each public name of TFF.

The site has these tables on its page of `docs/porting.md`.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import fedcore
from fedcore.compat.names import GONE, Gone, gone
from fedcore.compat.tff_public_names import COMPILER_INTERNALS, EARLIER, NAMES


def value_of(name: str) -> Any:
    """The object that a dotted name below `fc` refers to, such as `learning.algorithms`.

    Raises:
        AttributeError: it is not there.
    """
    value: Any = fedcore
    for part in name.split("."):
        value = getattr(value, part)
    return value


def resolves(name: str) -> bool:
    """Whether `fc.name` is there."""
    try:
        value_of(name)
    except AttributeError:
        return False
    return True


def qualify(names: Mapping[str, Iterable[str]]) -> list[str]:
    """The names of modules with the module before each, as they stand below `tff` and `fc`.

    Args:
        names: by module; the module of the package's own names is "".
    """
    return [f"{module}.{name}".lstrip(".") for module, inner in names.items() for name in inner]


def counts(names: Iterable[str]) -> dict[str, int]:
    """How many names resolve, are replaced, are not planned, or are none of these."""
    totals = {"resolve": 0, "replaced": 0, "not planned": 0, "open": 0}
    for name in names:
        totals[status(name)] += 1
    return totals


def status(name: str) -> str:
    """`resolve`, `replaced`, `not planned`, or `open` for a name that nothing here knows."""
    if resolves(name):
        return "resolve"
    why = gone(name)
    if why is None:
        return "open"
    return "replaced" if why.use else "not planned"


def tables() -> str:
    """The counts by module, and what to use instead of each name that is gone, in Markdown."""
    public, internals, earlier = map(qualify, (NAMES, COMPILER_INTERNALS, EARLIER))
    lines = ["### Counts\n", "| names of | all | resolve | replaced | not planned | open |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for module, names in sorted(NAMES.items()):
        lines.append(_row(f"`tff.{module}`" if module else "`tff`", qualify({module: names})))
    lines += [_row("all of these", public), _row("`federated_language.framework`, for compilers", internals)]
    lines += [_row("earlier versions of `tff`", earlier), ""]
    still_open = [name for name in public + internals + earlier if status(name) == "open"]
    if still_open:
        lines += ["Open: " + ", ".join(f"`{name}`" for name in still_open), ""]
    lines += ["### Names that are gone\n", "| TFF's names | use instead | why |", "|---|---|---|"]
    lines += [_gone_row(entry) for entry in sorted(GONE, key=lambda entry: entry.names)]
    return "\n".join(lines) + "\n"


def _row(title: str, names: list[str]) -> str:
    """A row of the table of counts."""
    numbers = counts(names)
    return f"| {title} | {len(names)} | " + " | ".join(str(number) for number in numbers.values()) + " |"


def _gone_row(entry: Gone) -> str:
    """A row of the table of names that are gone."""
    instead = f"`{entry.use}`" if entry.use else "not planned"
    return f"| {', '.join(f'`{name}`' for name in entry.names)} | {instead} | {entry.why} |"


if __name__ == "__main__":
    sys.stdout.write(tables())
