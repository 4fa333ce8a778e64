"""A site's own data: a table whose columns make the elements that a plan asks for."""

import functools
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch
from fedcore.types import SequenceType, StructType, TensorType, Type, leaves

Columns = Mapping[str, np.ndarray]


@attrs.frozen
class Batches:
    """How the rows become a data set: shuffled, repeated, then in batches.

    Args:
        size: rows of a batch; None for single rows.
        repeat: passes over the data.
        shuffle: rows of the shuffle's buffer; 0 for none.
    """

    size: int | None = None
    repeat: int = 1
    shuffle: int = 0

    def of(self, dataset: Any, *, whole_passes: bool = False) -> Any:
        """The data set in batches.

        Args:
            whole_passes: no batch has rows of two passes, so that none has a row twice.
        """
        if self.shuffle:
            dataset = dataset.shuffle(self.shuffle)
        if whole_passes and self.size is not None:
            return dataset.batch(self.size).repeat(self.repeat)
        if self.repeat > 1:
            dataset = dataset.repeat(self.repeat)
        return dataset if self.size is None else dataset.batch(self.size)


@attrs.frozen
class TableData:
    """Elements made of the columns of a table.

    Args:
        read: reads columns by name.
        file: the table's file.
        elements: name of an element's leaf -> its column, or the columns that are its vector; a name of `""` is the
            whole element.
        batches: how rows become a data set.
    """

    read: Callable[[Sequence[str]], Columns] = attrs.field(repr=False)
    elements: Mapping[str, str | tuple[str, ...]]
    file: Path
    batches: Batches = Batches()

    @property
    def version(self) -> int:
        """Changes when the file does."""
        return _modified_ns(self.file)

    def columns_of(self, leaf: str) -> tuple[str, ...]:
        """The table's columns that a leaf of the element is made of."""
        columns = self.elements[leaf]
        return (columns,) if isinstance(columns, str) else columns

    def dataset(self, type_: Type, *, whole_passes: bool = False) -> Any:
        """The data set of a type.

        Args:
            whole_passes: as for `Batches.of`.
        Raises:
            TypeMismatch: the site has no such elements, or a column does not convert to the dtype.
        """
        from fedcore.data import ClientDataset  # imports TensorFlow

        if not isinstance(type_, SequenceType):
            raise TypeMismatch(f"the plan asks for a client's {type_}, but a site has a table: a sequence of elements")
        wants = dict(leaves(type_.element))
        if sorted(wants) != sorted(self.elements):
            has = ", ".join(self.elements)
            raise TypeMismatch(f"the elements of the plan and of the site differ\n  plan  {type_}\n  site  has {has}")
        arrays = {name: self._leaf(name, leaf) for name, leaf in wants.items()}
        columns = arrays[""] if list(arrays) == [""] else _build_element(arrays, type_.element)
        return self.batches.of(ClientDataset.from_columns(columns), whole_passes=whole_passes)

    def _leaf(self, name: str, type_: Type) -> np.ndarray:
        assert isinstance(type_, TensorType)
        element, names = self.elements[name], self.columns_of(name)
        table = self.read(names)
        columns = [_as_dtype(table[n], type_, n) for n in names]
        return columns[0] if isinstance(element, str) else np.stack(columns, axis=1)


def _build_element(arrays: Mapping[str, np.ndarray], type_: Type) -> Any:
    if not isinstance(type_, StructType) or any(isinstance(t, StructType) for t in type_.types):
        raise TypeMismatch(f"a site's elements are one struct of columns, not {type_}")
    names = [name or f"[{i}]" for i, (name, _) in enumerate(type_.items())]
    columns = [arrays[name] for name in names]
    return dict(zip(names, columns, strict=True)) if all(n for n, _ in type_.items()) else tuple(columns)


def _as_dtype(column: np.ndarray, type_: TensorType, name: str) -> np.ndarray:
    """The column in a dtype, if no value changes; floats may be rounded.

    Raises:
        TypeMismatch: a value does not convert. It is not quoted, since messages leave the site.
    """
    if type_.dtype.name == "str":
        return np.array([v if isinstance(v, bytes) else str(v).encode() for v in column.tolist()], object)
    wants = type_.dtype.numpy
    try:
        converted = np.asarray(column).astype(wants)
        is_equal = np.issubdtype(wants, np.floating) or bool(
            (converted.astype(np.float64) == np.asarray(column).astype(np.float64)).all()
        )
    except (TypeError, ValueError):
        is_equal = False
    if not is_equal:
        raise TypeMismatch(f"the site's column {name} has values that are no {wants.name}")
    return converted


class FunctionData:
    """Data that a function of the site's owner returns.

    Args:
        function: returns columns by the names of the element's leaves, or a data set; for a struct of data sets, such
            as that of a personalization, a dict of them; for a tensor, its value.
    """

    version = 0

    def __init__(self, function: Callable[[], Any], batches: Batches) -> None:
        self._function = function
        self._batches = batches

    def columns_of(self, leaf: str) -> tuple[str, ...]:
        return (leaf,)

    def dataset(self, type_: Type, *, whole_passes: bool = False) -> Any:
        """The client's value of a type; `whole_passes` as for `Batches.of`."""
        return self._part(self._function(), type_, whole_passes)

    def _part(self, value: Any, type_: Type, whole_passes: bool) -> Any:
        from fedcore.data import ClientDataset

        if isinstance(type_, StructType) and isinstance(value, Mapping):  # such as data to train and to test with
            return {name: self._part(value[name], part, whole_passes) for name, part in type_.items() if name in value}
        if isinstance(type_, SequenceType) and isinstance(value, Mapping | tuple | np.ndarray):
            return self._batches.of(ClientDataset.from_columns(value), whole_passes=whole_passes)
        return value


SiteData = TableData | FunctionData


def table_reader(
    file: Path, table: str | None, image_size: tuple[int, int] | None = None
) -> Callable[[Sequence[str]], Columns]:
    """The function that reads columns of a file, or of a folder of images; each column is read once.

    Args:
        table: of a SQLite database; the group of an HDF5 file, by default its root.
        image_size: height and width to which the images of a folder are resized.
    Raises:
        InvalidValue: the file is of a format that sites do not read.
    """
    readers: dict[str, Callable[[Path, Sequence[str], str | None], Columns]] = {
        ".csv": _read_csv,
        ".parquet": _read_parquet,
        ".h5": _read_hdf5,
        ".hdf5": _read_hdf5,
        ".sqlite": _read_sqlite,
        ".db": _read_sqlite,
    }
    readers[""] = functools.partial(_read_images, size=image_size)  # of a folder
    suffix = "" if file.is_dir() else file.suffix or "."
    if suffix not in readers:
        raise InvalidValue(
            f"{file}: a site's table is a file {', '.join(filter(None, readers))}, or a folder of images; or "
            "data.function names a function"
        )
    read = readers[suffix]

    @functools.lru_cache(maxsize=64)
    def read_once(names: tuple[str, ...], modified: int) -> Columns:
        try:
            return read(file, names, table)
        except KeyError as error:
            raise TypeMismatch(f"{file} has no column {error.args[0]}") from None

    def columns(names: Sequence[str]) -> Columns:
        try:
            return read_once(tuple(names), _modified_ns(file))
        except OSError as error:
            raise FedcoreError(f"cannot read {file}: {error.strerror or error}") from None

    return columns


def _modified_ns(file: Path) -> int:
    """When a file, or a file of a folder, changed last."""
    return max(path.stat().st_mtime_ns for path in [file, *(file.rglob("*") if file.is_dir() else ())])


def _read_images(
    folder: Path, names: Sequence[str], table: str | None, *, size: tuple[int, int] | None = None
) -> Columns:
    """The images of a folder that has a folder for each label, in the order of their paths.

    Columns: `image`, uint8 [n, height, width, channels]; `label`, the number of the image's folder among the sorted
    ones, from 0; `file`, the path in the folder.

    Raises:
        InvalidValue: a file is no image, or its size or channels differ from those of the first; the message names it
            by its number only, since messages leave the site.
    """
    for name in names:
        if name not in ("image", "label", "file"):
            raise KeyError(name)
    labels = sorted(path.name for path in folder.iterdir() if path.is_dir())
    files = [path for label in labels for path in sorted((folder / label).iterdir()) if path.suffix.lower() in _IMAGES]
    columns: dict[str, np.ndarray] = {
        "label": np.array([labels.index(path.parent.name) for path in files], np.int64),
        "file": np.array([path.relative_to(folder).as_posix() for path in files], object),
    }
    if "image" in names:
        columns["image"] = _images(files, size)
    return {name: columns[name] for name in names}


_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


def _images(files: Sequence[Path], size: tuple[int, int] | None) -> np.ndarray:
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
    import csv

    with file.open(newline="", encoding="utf-8-sig") as text:
        rows = csv.DictReader(text)
        header = rows.fieldnames or []
        for name in names:
            if name not in header:
                raise KeyError(name)
        content = [[row[name] for name in names] for row in rows]
    return {name: _parse_texts([row[i] for row in content]) for i, name in enumerate(names)}


def _parse_texts(texts: list[str]) -> np.ndarray:
    """Numbers if all texts are; whole numbers if all are."""
    for dtype in (np.int64, np.float64):
        try:
            return np.array(texts).astype(dtype)
        except (ValueError, OverflowError):
            continue
    return np.array(texts, object)


def _read_parquet(file: Path, names: Sequence[str], table: str | None) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise FedcoreError("a parquet file needs pyarrow: pip install pyarrow") from error
    there = parquet.read_schema(file).names
    for name in names:
        if name not in there:
            raise KeyError(name)
    content = parquet.read_table(file, columns=list(names))
    return {name: content.column(name).to_numpy() for name in names}


def _read_hdf5(file: Path, names: Sequence[str], table: str | None) -> Columns:
    try:
        import h5py
    except ImportError as error:
        raise FedcoreError("an HDF5 file needs h5py: pip install 'fedcore[data]'") from error
    with h5py.File(file, "r") as content:
        group = content[table] if table else content
        for name in names:
            if name not in group:
                raise KeyError(name)
        return {name: group[name][()] for name in names}


def _read_sqlite(file: Path, names: Sequence[str], table: str | None) -> Columns:
    if not table:
        raise InvalidValue(f"{file} is a database: data.table names its table")
    with sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True) as database:
        there = [row[1] for row in database.execute(f"pragma table_info({_quote(table)})")]
        for name in names:
            if name not in there:
                raise KeyError(name)
        query = f"select {', '.join(map(_quote, names))} from {_quote(table)} order by rowid"
        rows = database.execute(query).fetchall()
    database.close()
    return {name: np.array([row[i] for row in rows]) for i, name in enumerate(names)}


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
