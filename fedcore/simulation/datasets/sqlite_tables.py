"""Queries of an SQLite database from elsewhere, in bounded time and memory."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from fedcore.ir.regular_files import ALWAYS_TAKEN_BYTES, check_taken

_STEPS_AT_ONCE = 10_000
"""Steps of SQLite's machine after which it asks whether to go on."""

_LONGEST_VALUE = 10**9
"""Bytes of the longest value that SQLite's default allows."""


class _StepBudget:
    """The steps that a query may take, counted by `_STEPS_AT_ONCE`. The connection keeps it: it knows no `Tables`."""

    def __init__(self, most_calls: int) -> None:
        self.most_calls = most_calls
        self.calls = 0

    @property
    def is_spent(self) -> bool:
        return self.calls > self.most_calls

    def count(self) -> bool:
        """SQLite's progress handler: whether the query ends here."""
        self.calls += 1
        return self.is_spent


class Tables:
    """The tables of a database.

    Guarantees:
      - Nothing that the file says is evaluated: views, virtual tables and computed columns are refused.
      - A query ends: at Ctrl-C, or after steps in proportion to the size of the file.
      - The rows of a query take no more bytes than the file, or 16 MiB.
      - Threads may share an object; it runs one query at a time.
      - The connection ends with the object, or by `close()`.

    Args:
        path: path of the database, which is not written.
    """

    def __init__(self, path: str) -> None:
        self.size_bytes = os.path.getsize(path)
        # One row takes several bytes and several steps.
        self._steps = _StepBudget(20 + 10 * self.size_bytes // _STEPS_AT_ONCE)
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False)
        longest = min(_LONGEST_VALUE, max(ALWAYS_TAKEN_BYTES, self.size_bytes))
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
        self._connection.execute("PRAGMA trusted_schema=OFF")
        self._connection.execute("PRAGMA cell_size_check=ON")
        self._connection.set_progress_handler(self._steps.count, _STEPS_AT_ONCE)
        self.close = weakref.finalize(self, self._connection.close)

    def columns(self, table: str) -> set[str]:
        """The names of a table's columns; none if there is no table.

        Raises:
            ValueError: it is a view or another table that is computed.
        """
        schema = self.rows("SELECT sql FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type != 'index'", table)
        if not schema:
            return set()
        computed = ValueError(f"`{table}` is computed by the database, as a view is; only tables are read")
        if not all(re.match(r"CREATE TABLE\b", sql or "") for (sql,) in schema):
            raise computed  # before SQLite is asked for columns: of a virtual table its module tells them
        columns = self.rows(f"PRAGMA table_xinfo({table})")
        if any(row[6] for row in columns):
            raise computed
        return {row[1] for row in columns}

    def rows(self, query: str, *arguments: Any) -> list[tuple]:
        """The rows of a query, all at once.

        Raises:
            ValueError, sqlite3.DatabaseError: they cannot be read.
        """
        rows: list[tuple] = []
        self.visit(rows.append, query, *arguments)
        return rows

    def visit(self, visitor: Callable[[tuple], object], query: str, *arguments: Any) -> None:
        """Calls the visitor with each row of a query.

        Raises:
            ValueError, sqlite3.DatabaseError: they cannot be read.
        """
        size_bytes = 0
        with self._lock:
            self._steps.calls = 0
            try:
                for row in self._connection.execute(query, arguments):
                    size_bytes += sum(len(value) for value in row if isinstance(value, str | bytes))
                    check_taken("a query", size_bytes, self.size_bytes, ratio=1)
                    visitor(row)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                    raise
                if not self._steps.is_spent:  # an interrupt in `count`, which sqlite3 does not pass on
                    raise KeyboardInterrupt from None
                raise ValueError("a query takes more steps than a database of its size needs") from None
