"""The log of a site: a JSON line for each plan and run, with what left."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedcore.errors import printable, shorten

MAX_TEXT = 300
"""Characters of a text in a line. Longer ones are cut, since they may be the server's."""

MAX_TEXTS = 200
"""Texts of a list in a line."""

MAX_REFUSALS_PER_DAY = 1000
"""Lines of a day about requests that were refused or failed; the last of them says that there are no more."""

_LIMITED = ("refused", "failed")
"""Kinds of lines of which a day has at most `MAX_REFUSALS_PER_DAY`."""


class SiteLog:
    """Appends to a file of JSON lines.

    Guarantees:
      - A line is on the disk before the reply leaves.
      - The budgets of a day survive a restart, since they are counted from the file.
      - A line has boundedly many characters, all printable, and a day boundedly many lines about refused requests,
        whatever a server sends. Runs are always logged.
      - A line is read once by a process, however many runs there are.

    Args:
        path: the file; it is made when the first line is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tell: Callable[[dict[str, Any]], object] = lambda line: None
        """Gets each line that is written, for who watches the site."""
        self.policy = ""
        """Digest of the policy in force, which each line has."""
        self._lock = threading.Lock()
        self._day = ""
        self._runs: list[dict[str, Any]] = []  # lines of the day
        self._spent: list[dict[str, Any]] = []  # lines of all days
        self._refusals = 0  # of the day
        self._read_bytes = 0  # of the file, up to the end of the last whole line

    def write(self, what: str, **facts: Any) -> None:
        """Adds a line: the time in UTC, what happened, and its facts."""
        with self._lock:
            self._read_on()
            if what in _LIMITED:
                if self._refusals >= MAX_REFUSALS_PER_DAY:
                    return
                if self._refusals == MAX_REFUSALS_PER_DAY - 1:
                    facts = {"rule": "none", "error": "", "why": "further refusals of this day are not logged"}
            self._append({"what": what, **facts})

    def _append(self, facts: dict[str, Any]) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"time": time, **_bounded(facts), **({"policy": self.policy} if self.policy else {})}
        ends_in_cut_line = self.path.exists() and self.path.stat().st_size > self._read_bytes  # by a crash
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * ends_in_cut_line + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.tell(line)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The lines, oldest first; a line that a crash has cut is left out."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for text in file:
                line = _parse(text)
                if line is not None:
                    yield line

    def today(self) -> Iterator[dict[str, Any]]:
        """The lines of this day, in UTC, about runs: that they have started, and that they have ended."""
        with self._lock:
            self._read_on()
            return iter([*self._runs])

    def spent(self) -> list[dict[str, Any]]:
        """The lines of all days about the privacy of records that runs have spent."""
        with self._lock:
            self._read_on()
            return [*self._spent]

    def _read_on(self) -> None:
        """Reads the lines that were added since the last call, and counts anew on a new day.

        Reads the whole file again if it has become shorter, or if the clock was put back by a day.
        """
        day = datetime.now(UTC).date().isoformat()
        size_bytes = self.path.stat().st_size if self.path.exists() else 0
        if size_bytes < self._read_bytes or day < self._day:
            self._day, self._read_bytes, self._spent = "", 0, []
        if day != self._day:
            self._day, self._runs, self._refusals = day, [], 0
        if size_bytes == self._read_bytes:
            return
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            for text in file:
                if not text.endswith(b"\n"):  # another process is writing it
                    break
                self._read_bytes += len(text)
                line = _parse(text)
                if line is not None and line.get("what") == "spent":
                    self._spent.append(line)
                if line is None or not str(line.get("time", "")).startswith(day):
                    continue
                if line.get("what") in ("started", "ran", "ended"):
                    self._runs.append(line)
                self._refusals += line.get("what") in _LIMITED


class RunsToday:
    """Counts of this day's runs, in UTC: `count`, `failures`, and the `bits` that left or may yet leave.

    A run without a line of its end counts as a failure that the server has seen.
    """

    def __init__(self, log: SiteLog) -> None:
        bits_of_run: dict[Any, int] = {}  # by the run's number: planned bits until it has sent, then those sent
        ended = set()
        for line in log.today():
            number, is_start = line.get("number"), line["what"] == "started"
            bits = line.get("planned_bits" if is_start else "bits")  # the log has no number beyond 64 bits
            if is_start or (bits is not None and number in bits_of_run):
                bits_of_run[number] = int(bits or 0)
            if not is_start:
                ended.add(number)
        self.count = len(bits_of_run)
        self.failures = len(bits_of_run.keys() - ended)
        self.bits = sum(bits_of_run.values())


def _parse(text: bytes) -> dict[str, Any] | None:
    """The facts of a line; None if it is no JSON object, such as one that a crash has cut."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _bounded(value: Any) -> Any:
    """A value with a bound on its size, for a line of the log.

    Texts are cut to `MAX_TEXT` and their control characters escaped. A dict or list keeps `MAX_TEXTS` entries, and of
    these a list only texts. An integer beyond 64 bits, or a value of another type, becomes None.
    """
    match value:
        case bool() | float() | None:
            return value
        case int():
            return value if abs(value) < 2**64 else None
        case str():
            return printable(shorten(value, MAX_TEXT))
        case dict():
            return {shorten(str(key), MAX_TEXT): _bounded(part) for key, part in [*value.items()][:MAX_TEXTS]}
        case list() | tuple():
            return [text for text in map(_bounded, value[:MAX_TEXTS]) if isinstance(text, str)]
    return None
