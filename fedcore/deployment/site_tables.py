"""Reads columns of a site's table: a CSV, Parquet, HDF5 or SQLite file, or a folder of images.

The sites agree on labels and categories: numbered by its own data, a site that lacks a class would train wrong labels.
"""

import contextlib
import csv
import functools
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch, brief

Columns = Mapping[str, np.ndarray]
"""The columns of a table by name, each with an entry for each row."""


def table_reader(
    file: Path,
    table: str | None,
    image_size: tuple[int, int] | None = None,
    labels: tuple[str, ...] | None = None,
) -> Callable[[Sequence[str]], Columns]:
    """The function (names) -> columns of a file, or of a folder of images.

    A set of columns is read once, and again when the file has changed.

    Args:
        table: of a SQLite database; the group of an HDF5 file, by default its root.
        image_size: height and width to which the images of a folder are resized.
        labels: the folders of a folder of images, in the order of their numbers.
    Raises:
        InvalidValue: the file is of a format that sites do not read.
        FedcoreError: from the function: the file cannot be read, or lacks a column.
    """
    readers: dict[str, Callable[[Path, Sequence[str], str | None], Columns]] = {
        ".csv": _read_csv,
        ".parquet": _read_parquet,
        ".h5": _read_hdf5,
        ".hdf5": _read_hdf5,
        ".sqlite": _read_sqlite,
        ".db": _read_sqlite,
    }
    readers[""] = functools.partial(_read_images, size=image_size, labels=labels)  # of a folder
    suffix = "" if file.is_dir() else file.suffix or "."
    if suffix not in readers:
        raise InvalidValue(
            f"{file}: a site's table is a file {', '.join(filter(None, readers))}, or a folder of images; or "
            "data.function names a function"
        )
    read = readers[suffix]

    @functools.lru_cache(maxsize=64)
    def read_once(names: tuple[str, ...], state: str) -> Columns:
        return read(file, names, table)

    def columns(names: Sequence[str]) -> Columns:
        try:
            return read_once(tuple(names), state_of(file))
        except _UnknownColumn as error:
            columns_there = ", ".join(map(brief, error.columns_there[:20]))
            raise TypeMismatch(f"{file} has no column {error.name}; it has {columns_there}") from None
        except FedcoreError:
            raise
        except OSError as error:
            raise FedcoreError(f"cannot read {file}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise FedcoreError(f"{file} is no text in UTF-8: save it in that encoding") from None
        except (sqlite3.Error, KeyError, ValueError) as error:  # a damaged file, or no such table in it
            raise FedcoreError(f"cannot read {file}: {error}") from None

    return columns


class _UnknownColumn(Exception):
    """A table has no column `name`."""

    def __init__(self, name: str, columns_there: Sequence[str]) -> None:
        super().__init__(name)
        self.name = name
        self.columns_there = columns_there


def _check_columns(names: Sequence[str], columns_there: Sequence[str]) -> None:
    """Raises _UnknownColumn where a name is none of the table's columns."""
    for name in names:
        if name not in columns_there:
            raise _UnknownColumn(name, columns_there)


def state_of(file: Path) -> str:
    """A text that is another one when the content of a file or of a folder is: also of one that is restored with its
    times, and of a database whose newest rows are in a journal beside it.
    """
    journals = (file.with_name(f"{file.name}{end}") for end in ("-wal", "-journal"))
    files = [file, *(sorted(file.rglob("*")) if file.is_dir() else filter(Path.exists, journals))]
    stats = [(path, path.stat()) for path in files]
    return str([(str(path), s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in stats])


def _read_images(
    folder: Path,
    names: Sequence[str],
    table: str | None,
    *,
    size: tuple[int, int] | None = None,
    labels: tuple[str, ...] | None = None,
) -> Columns:
    """The images of a folder that has a folder for each label, in the order of their paths.

    Columns: `image`, uint8 [n, height, width, channels]; `label`, the position of the image's folder among `labels`;
    `file`, the path in the folder.

    Raises:
        InvalidValue: `label` is read without `labels`, a folder is none of them, a file is no image, or its size or
            channels differ from those of the first; the message names it by its number only.
    """
    _check_columns(names, ("image", "label", "file"))
    folders = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if labels is None and "label" in names:
        raise InvalidValue(
            "the labels of the site's images have no numbers\n"
            f"  fix: data.labels = {json.dumps(folders, ensure_ascii=False)} in site.toml, in one order at all sites, "
            "with the classes that this site lacks"
        )
    strange = [name for name in folders if name not in (labels or folders)]
    if strange:
        raise InvalidValue(f"the site's folders of images that are none of data.labels: {', '.join(strange)}")
    files = [path for name in folders for path in sorted((folder / name).iterdir()) if path.suffix.lower() in _IMAGES]
    columns: dict[str, np.ndarray] = {
        "label": np.array([(labels or folders).index(path.parent.name) for path in files], np.int64),
        "file": np.array([path.relative_to(folder).as_posix() for path in files], object),
    }
    if "image" in names:
        columns["image"] = _images(files, size)
    return {name: columns[name] for name in names}


_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


def _images(files: Sequence[Path], size: tuple[int, int] | None) -> np.ndarray:
    """uint8 [n, height, width, channels]: the decoded images, resized to (height, width) if `size` is given."""
    import tensorflow as tf

    images: list[np.ndarray] = []
    for number, file in enumerate(files):
        try:
            image = tf.io.decode_image(file.read_bytes(), expand_animations=False)
        except tf.errors.InvalidArgumentError:
            raise InvalidValue(f"file {number} of the site's images is no image") from None
        if size is not None:
            image = tf.cast(tf.round(tf.image.resize(image, size, antialias=True)), tf.uint8)
        if images and image.shape != images[0].shape:
            raise InvalidValue(
                f"the site's images differ in size or channels: image {number} is {tuple(image.shape)}, the first "
                f"{images[0].shape}\n  fix: data.image_size = [height, width], for sizes"
            )
        images.append(image.numpy())
    return np.stack(images) if images else np.zeros([0, *(size or (0, 0)), 3], np.uint8)


def _read_csv(file: Path, names: Sequence[str], table: str | None) -> Columns:
    with file.open(newline="", encoding="utf-8-sig") as text:
        rows = csv.DictReader(text)
        _check_columns(names, rows.fieldnames or [])
        content = []
        try:
            for row in rows:
                if None in row:
                    raise InvalidValue(f"{file}:{rows.line_num}: the row has more cells than the first line has names")
                content.append([row[name] for name in names])
        except csv.Error as error:
            raise InvalidValue(f"{file}:{rows.line_num}: {error}") from None
    return {name: parse_texts([row[i] for row in content]) for i, name in enumerate(names)}


def parse_texts(values: list) -> np.ndarray:
    """The cells of a column as numbers, if all are numbers or texts of numbers; else as an array of objects."""
    array = np.array(values)
    if array.dtype.kind in "biuf":
        return array
    for dtype in (np.int64, np.float64) if array.dtype.kind in "US" else (np.float64,):
        try:
            return array.astype(dtype)
        except (TypeError, ValueError, OverflowError):
            continue
    return np.array(values, object)


def _read_parquet(file: Path, names: Sequence[str], table: str | None) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise FedcoreError("a parquet file needs pyarrow: pip install pyarrow") from error
    _check_columns(names, parquet.read_schema(file).names)
    content = parquet.read_table(file, columns=list(names))
    return {name: content.column(name).to_numpy() for name in names}


def _read_hdf5(file: Path, names: Sequence[str], table: str | None) -> Columns:
    try:
        import h5py
    except ImportError as error:
        raise FedcoreError("an HDF5 file needs h5py: pip install 'fedcore[data]'") from error
    with h5py.File(file, "r") as content:
        group = content[table] if table else content
        _check_columns(names, list(group))
        return {name: group[name][()] for name in names}


def _read_sqlite(file: Path, names: Sequence[str], table: str | None) -> Columns:
    if not table:
        raise InvalidValue(f"{file} is a database: data.table names its table")
    with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
        columns_there = [row[1] for row in database.execute(f"pragma table_info({_quote(table)})")]
        if not columns_there:
            raise InvalidValue(f"{file} has no table {table}")
        _check_columns(names, columns_there)
        query = f"select {', '.join(map(_quote, names))} from {_quote(table)} order by rowid"
        rows = database.execute(query).fetchall()
    return {name: np.array([row[i] for row in rows]) for i, name in enumerate(names)}


def _quote(name: str) -> str:
    """A name of a table or column in SQL."""
    return '"' + name.replace('"', '""') + '"'
