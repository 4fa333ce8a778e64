"""The file of a training that holds its releases, also those of rounds that a crash took back.

Decision 0219.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import InvalidValue
from fedcore.privacy.events import Round
from fedcore.privacy.mechanism import Mechanism
from fedcore.whole_files import write_whole


@attrs.frozen
class Release:
    """One result of a round.

    Args:
        count: rounds of noise that the process had done with it.
        digest: SHA-256 of the model's weights.
        round: its noise and its clients.
    """

    count: int
    digest: str
    round: Round


def digest_of(weights: Any) -> str:
    """SHA-256 of nested tensors: their dtypes, shapes and numbers."""
    digest = hashlib.sha256()
    for leaf in map(np.asarray, tf.nest.flatten(weights)):
        digest.update(f"{leaf.dtype}{leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def round_of_plain(plain: dict[str, Any]) -> Round:
    """The `Round` of which `attrs.asdict` made a dict, also after JSON, which makes lists of tuples."""
    mechanism = dict(plain["mechanism"])
    if mechanism["coefficients"] is not None:
        mechanism["coefficients"] = tuple(map(float, mechanism["coefficients"]))
    return Round(Mechanism(**mechanism), int(plain["cohort"]), int(plain.get("releases", 1)))


class ReleaseJournal:
    """The releases of a training, a line of JSON for each.

    Guarantees:
      - A release is on the disk when `append` returns.
      - A line that a crash cut off is no release: its result had not been looked at.

    Args:
        path: of the file; None for releases in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._releases: tuple[Release, ...] = ()
        if path is not None and path.exists():
            self._read(path)

    @property
    def releases(self) -> Sequence[Release]:
        return self._releases

    def digests_of(self, count: int) -> set[str]:
        """The digests of the results that the round had."""
        return {release.digest for release in self._releases if release.count == count}

    def append(self, release: Release) -> None:
        """Adds a release.

        Raises:
            OSError: the file cannot be written.
        """
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(attrs.asdict(release)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        self._releases = (*self._releases, release)

    def _read(self, path: Path) -> None:
        """Reads the releases of a file, and removes its last line if a crash cut it off.

        Raises:
            InvalidValue: a line is no release.
        """
        lines = path.read_text(encoding="utf-8").split("\n")
        if lines.pop():
            write_whole(path, "".join(f"{line}\n" for line in lines))
        try:
            plain = [json.loads(line) for line in lines]
            self._releases = tuple(
                Release(int(p["count"]), str(p["digest"]), round_of_plain(p["round"])) for p in plain
            )
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidValue(
                f"{path} is damaged: it holds the releases of a training, of which epsilon must know: {error}"
            ) from None
