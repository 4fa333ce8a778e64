"""The log of a site: a JSON line for each plan and run, with what left."""

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class SiteLog:
    """Appends to a file of JSON lines.

    Guarantees:
      - A line is on the disk before the reply leaves.
      - The budgets of a day survive a restart, since they are counted from the file.

    Args:
        path: the file; it is made when the first line is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def write(self, what: str, **facts: Any) -> None:
        """Adds a line: the time in UTC, what happened, and its facts."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="seconds"), "what": what, **facts})
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The lines, oldest first; a line that a crash has cut is left out."""
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    continue

    def today(self) -> Iterator[dict[str, Any]]:
        """The lines of this day, in UTC, about runs: that they have started, and that they have ended."""
        day = datetime.now(UTC).date().isoformat()
        return (
            line
            for line in self
            if line.get("what") in ("started", "ran") and str(line.get("time", "")).startswith(day)
        )
