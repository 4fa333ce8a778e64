"""Records the bits of fedcore's results, and compares them with recorded ones, so that a change is seen to keep them.

python -m benchmarks.bits --save DIR                     # at the old commit
python -m benchmarks.bits --compare DIR [--reference]    # at the new commit, on the same machine
python -m benchmarks.bits --only 'mlp-*' --only sums
"""

import fnmatch
import hashlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
import numpy as np

if TYPE_CHECKING:
    from benchmarks.bit_configuration import Arrays, Configuration

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

EQUAL, DIFFERENT, MISSING = "equal", "different", "not recorded"


@attrs.frozen
class Fingerprint:
    """The results of a configuration.

    Args:
        sha256: of the bytes of all arrays, with their names, types and shapes.
        outcome: of the comparison with recorded results; None without one. The distances below are those of results
            that differ.
        distance: the largest distance of an array from the recorded one, relative to the latter's largest entry.
        from_reference, recorded_from_reference: the distances of the results, and of the recorded ones, from results in
            float64; None where there are none.
    """

    name: str
    sha256: str
    outcome: str | None = None
    distance: float | None = None
    from_reference: float | None = None
    recorded_from_reference: float | None = None


@click.command()
@click.option("--only", "patterns", multiple=True, help="Name or glob of configurations; may be given several times.")
@click.option("--save", "target", type=click.Path(path_type=Path), help="Folder where results are recorded.")
@click.option("--compare", "recorded", type=click.Path(exists=True, path_type=Path), help="Folder of recorded results.")
@click.option("--reference", is_flag=True, help="Where results differ, also the distances from results in float64.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(patterns: tuple[str, ...], target: Path | None, recorded: Path | None, reference: bool, form: str) -> None:
    """Exits with 1 if a result differs from the recorded one, or was not recorded."""
    fingerprints = []
    for name, configuration in _configurations(patterns or ("*",)).items():
        arrays = configuration.run()
        fingerprint = Fingerprint(name, sha256(arrays))
        if recorded is not None:
            fingerprint = _compared(fingerprint, arrays, recorded / f"{name}.npz")
            if reference and fingerprint.outcome == DIFFERENT and configuration.has_reference:
                exact = configuration.in_float64().run()
                fingerprint = attrs.evolve(
                    fingerprint,
                    from_reference=largest_distance(arrays, exact),
                    recorded_from_reference=largest_distance(load(recorded / f"{name}.npz"), exact),
                )
        if target is not None:
            save(arrays, target / f"{name}.npz")
        fingerprints.append(fingerprint)
    if form == "json":
        click.echo(json.dumps([attrs.asdict(f) for f in fingerprints], indent=1))
    else:
        _print(fingerprints)
    sys.exit(any(f.outcome not in (None, EQUAL) for f in fingerprints))


def _configurations(patterns: Iterable[str]) -> dict[str, "Configuration"]:
    """The configurations whose names match.

    Raises:
        click.BadParameter: none matches a pattern.
    """
    from benchmarks.bit_programs import PROGRAMS
    from benchmarks.bit_trainings import TRAININGS

    names = [*TRAININGS, *PROGRAMS]
    matches = {pattern: set(fnmatch.filter(names, pattern)) for pattern in patterns}
    for pattern, found in matches.items():
        if not found:
            raise click.BadParameter(f"no configuration is named {pattern}; there are {', '.join(names)}")
    wanted = set().union(*matches.values())
    return {name: c for name, c in (TRAININGS | PROGRAMS).items() if name in wanted}


def save(arrays: "Arrays", path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    by_name: dict[str, Any] = dict(arrays)
    np.savez_compressed(path, **by_name)


def load(path: Path) -> "Arrays":
    with np.load(path) as arrays:
        return dict(arrays)


def sha256(arrays: "Arrays") -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _compared(fingerprint: Fingerprint, arrays: "Arrays", path: Path) -> Fingerprint:
    """The fingerprint with the outcome of a comparison with recorded results."""
    if not path.exists():
        return attrs.evolve(fingerprint, outcome=MISSING)
    recorded = load(path)
    if sha256(recorded) == fingerprint.sha256:
        return attrs.evolve(fingerprint, outcome=EQUAL)
    return attrs.evolve(fingerprint, outcome=DIFFERENT, distance=largest_distance(arrays, recorded))


def largest_distance(arrays: "Arrays", others: "Arrays") -> float:
    """The largest relative distance between arrays of one name; infinite if their names or shapes differ."""
    if arrays.keys() != others.keys():
        return float("inf")
    return max((relative_distance(array, others[name]) for name, array in arrays.items()), default=0.0)


def relative_distance(array: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two entries, over the largest entry of `other`; infinite if only one is finite."""
    if array.shape != other.shape:
        return float("inf")
    a, b = array.astype(np.float64), other.astype(np.float64)
    differs = (a != b) & ~(np.isnan(a) & np.isnan(b))
    if not differs.any():
        return 0.0
    difference, scale = np.abs(a - b)[differs].max(), np.abs(b[np.isfinite(b)]).max(initial=0.0)
    return float(difference / scale) if np.isfinite(difference) and scale else float("inf")


def _print(fingerprints: list[Fingerprint]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("configuration", "SHA-256", title=f"{len(fingerprints)} configurations")
    columns = {"distance": "distance", "from_reference": "from float64", "recorded_from_reference": "recorded from it"}
    compares = any(f.outcome for f in fingerprints)
    shown = [field for field in columns if any(getattr(f, field) is not None for f in fingerprints)]
    for header in (["recorded"] if compares else []) + [columns[field] for field in shown]:
        table.add_column(header)
    for f in fingerprints:
        colour = "green" if f.outcome == EQUAL else "red"
        outcome = [f"[{colour}]{f.outcome}[/]"] if compares else []
        distances = [getattr(f, field) for field in shown]
        table.add_row(f.name, f.sha256[:16], *outcome, *("" if d is None else f"{d:.1e}" for d in distances))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
