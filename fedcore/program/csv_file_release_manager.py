"""Values as rows of a CSV file."""

import csv
import enum
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import InvalidValue, brief
from fedcore.program.release_manager import ReleaseManager
from fedcore.program.structures import leaves_with_names
from fedcore.program.type_variables import ReleasableStructure
from fedcore.program.value_reference import materialize_value
from fedcore.scalars import whole_number
from fedcore.whole_files import write_whole

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,100}")


class CSVKeyFieldnameNotFoundError(InvalidValue):
    """The file has no column of the keys, so it is not that of a `CSVFileReleaseManager`."""

    def __init__(self, file_path: str | os.PathLike, key_fieldname: str) -> None:
        super().__init__(f"{os.fspath(file_path)} has no column {key_fieldname}: take another file or key_fieldname")


class CSVSaveMode(enum.Enum):
    """How a row is added.

    APPEND writes the row alone, unless it has a new column. WRITE writes the whole file.
    """

    APPEND = "append"
    WRITE = "write"


class CSVFileReleaseManager(ReleaseManager[ReleasableStructure, int]):
    """Releases values to a CSV file: a row for each key, a column for each leaf.

    A column's name joins the leaf's keys by `/`, as in `client_work/train/loss`; an array is written as a nested list.

    Guarantees:
      - Releasing under a key removes the rows of this key and of greater keys first. So the file of a program that was
        interrupted and resumed is that of a program that was not.
      - After a crash the file has whole rows: a row that was written in part is dropped when the file is next opened.

    Args:
        file_path: made where there is none, with its directory.
        save_mode: how a row is added.
        key_fieldname: the name of the column of the keys.
    Raises:
        InvalidValue: `file_path` or `key_fieldname` is empty, or the file has rows of something else.
        CSVKeyFieldnameNotFoundError: the file has no such column.
    Example:
        >>> manager = fc.program.CSVFileReleaseManager(folder + "/metrics.csv")
        >>> asyncio.run(manager.release({"train": {"loss": 0.5}}, key=1))
        >>> print(pathlib.Path(folder, "metrics.csv").read_text().strip())
        key,train/loss
        1,0.5
    """

    def __init__(
        self,
        file_path: str | os.PathLike,
        save_mode: CSVSaveMode = CSVSaveMode.APPEND,
        key_fieldname: str = "key",
    ) -> None:
        if not os.fspath(file_path) or not key_fieldname:
            raise InvalidValue("file_path and key_fieldname are not empty")
        self._path = Path(file_path)
        self._save_mode = CSVSaveMode(save_mode)
        self._key = key_fieldname
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._columns, rows = self._read()
        self._latest = max((int(row[self._key]) for row in rows), default=None)

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        """The names of the columns, and the rows as texts by column.

        A last line without an end is a row that a crash has cut: the file is written anew without it. A file that is
        empty or missing is written with the column of the keys only.

        Raises:
            InvalidValue: the file is no table of a `CSVFileReleaseManager`.
            CSVKeyFieldnameNotFoundError: it has no column of the keys.
        """
        try:
            text = self._path.read_bytes().decode()
        except FileNotFoundError:
            text = ""
        except UnicodeDecodeError as error:
            raise InvalidValue(f"{self._path} is no table in UTF-8: {error}: take another file") from None
        whole = text[: text.rfind("\n") + 1]
        if text and not whole:
            raise InvalidValue(f"{self._path} is no table: it has no whole line: take another file")
        if not whole:
            self._write([self._key], [])
            return [self._key], []
        reader = csv.DictReader(io.StringIO(whole, newline=""))
        try:
            columns, rows = list(reader.fieldnames or []), list(reader)
        except csv.Error as error:
            raise InvalidValue(f"{self._path} is no table: {error}: take another file") from None
        if self._key not in columns:
            raise CSVKeyFieldnameNotFoundError(self._path, self._key)
        for row in rows:
            if None in row or not _WHOLE_NUMBER.fullmatch(row[self._key] or ""):
                raise InvalidValue(
                    f"{self._path} has a row that no CSVFileReleaseManager wrote, of the {self._key} "
                    f"{brief(row[self._key])}: take another file"
                )
        if whole != text:
            self._write(columns, rows)
        return columns, rows

    def _write(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        write_whole(self._path, _as_csv(columns, rows, header=True))

    async def release(self, value: Any, key: int) -> None:
        """Writes a row.

        Raises:
            InvalidValue: a leaf has the name of the column of the keys.
        """
        key = whole_number("key", key)
        value = await materialize_value(value)
        row = {name: _plain(leaf) for name, leaf in leaves_with_names(value)}
        if self._key in row:
            raise InvalidValue(
                f"the value has a leaf {self._key}, which is the column of the keys; fix: take another key_fieldname"
            )
        row = {self._key: key, **row}
        if self._latest is not None and key <= self._latest:
            self._remove_from(key)
        new = [name for name in row if name not in self._columns]
        if new or self._save_mode is CSVSaveMode.WRITE:
            _, rows = self._read()
            self._write([*self._columns, *new], [*rows, row])
            self._columns += new  # not before: after a full disk the file has its old columns
        else:
            self._append(_as_csv(self._columns, [row], header=False).encode())
        self._latest = key

    def _remove_from(self, key: int) -> None:
        """Removes the rows of this key and of greater keys, and the columns that only these rows have."""
        rows = [row for row in self._read()[1] if int(row[self._key]) < key]
        columns = [name for name in self._columns if name == self._key or any(row[name] for row in rows)]
        self._write(columns, [{name: row[name] for name in columns} for row in rows])
        self._columns = columns

    def _append(self, line: bytes) -> None:
        """Appends a row, which is on the disk afterwards; if that fails, the file has its old rows."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
        try:
            end = os.fstat(descriptor).st_size
            try:
                while line:
                    line = line[os.write(descriptor, line) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)


def _as_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, header: bool) -> str:
    """The lines of rows, each a mapping from a column to its cell; a missing cell is empty."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _plain(value: Any) -> Any:
    """A leaf as a cell: a number, a text, or nested lists of them."""
    if hasattr(value, "as_numpy_iterator"):  # a sequence
        return [_plain(element) for element in value.as_numpy_iterator()]  # whose sizes may differ
    return np.asarray(value).tolist() if not isinstance(value, str | bytes) else value
