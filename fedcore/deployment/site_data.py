"""A site's own data: a table whose columns make the elements that a plan asks for."""

from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from fedcore.deployment.site_tables import Columns, parse_texts, state_of
from fedcore.errors import TypeMismatch
from fedcore.types import SequenceType, StructType, TensorType, Type, leaves
from fedcore.types.walk import element_path


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
        elements: path of an element's leaf, such as `x.numbers` -> its column, or the columns that are its vector; a
            path of `""` is the whole element.
        batches: how rows become a data set.
        drops_missing: leave out rows that have a blank cell in a column of the element.
        categories: by column the texts that its cells may have, which become numbers from 0.
        held_out_every: each so many rows one, the last, is for evaluations only. None for none.
        readable: the columns that are read; where a leaf has others, zeros or empty texts stand in its place. None for
            all.
    """

    read: Callable[[Sequence[str]], Columns] = attrs.field(repr=False)
    elements: Mapping[str, str | tuple[str, ...]]
    file: Path
    batches: Batches = Batches()
    drops_missing: bool = False
    categories: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    held_out_every: int | None = None
    readable: frozenset[str] | None = None

    def only(self, columns: frozenset[str]) -> "TableData":
        """The data without the content of columns other than these: neither values nor blank cells of others count."""
        return attrs.evolve(self, readable=columns)

    @property
    def version(self) -> str:
        """A text that differs when the file has changed."""
        return state_of(self.file)

    @property
    def holds_out(self) -> bool:
        """Whether rows are for evaluations only."""
        return self.held_out_every is not None

    def columns_of(self, leaf: str) -> tuple[str, ...]:
        """The table's columns that a leaf of the element is made of."""
        columns = self.elements[leaf]
        return (columns,) if isinstance(columns, str) else columns

    def dataset(self, type_: Type, *, whole_passes: bool = False, held_out: bool = False) -> Any:
        """The data set of a type.

        Args:
            whole_passes: as for `Batches.of`.
            held_out: the rows for evaluations, each once; else the others.
        Raises:
            TypeMismatch: the site has no such elements, a cell is blank, or a column does not convert to the dtype.
        """
        from fedcore.data import ClientDataset  # imports TensorFlow

        if not isinstance(type_, SequenceType):
            raise TypeMismatch(f"the plan asks for a client's {type_}, but a site has a table: a sequence of elements")
        wanted_types = dict(leaves(type_.element))
        if sorted(wanted_types) != sorted(self.elements):
            has = ", ".join(self.elements)
            raise TypeMismatch(f"the elements of the plan and of the site differ\n  plan  {type_}\n  site  has {has}")
        texts = {name for path, leaf in wanted_types.items() if _is_text(leaf) for name in self.columns_of(path)}
        rows = self._part_of(self.rows(texts), held_out=held_out)
        arrays = {path: self._leaf(path, leaf, rows) for path, leaf in wanted_types.items()}
        columns = _build_element(arrays, type_.element)
        batches = Batches(self.batches.size) if held_out else self.batches
        return batches.of(ClientDataset.from_columns(columns), whole_passes=whole_passes)

    def _part_of(self, rows: Columns, *, held_out: bool) -> Columns:
        """The rows that are held out, or the others, by position: a seeded part would change with appended rows."""
        if self.held_out_every is None:
            return rows
        place_in_group = np.arange(len(next(iter(rows.values())))) % self.held_out_every
        is_held_out = place_in_group == self.held_out_every - 1
        return {name: column[is_held_out == held_out] for name, column in rows.items()}

    def rows(self, texts: Container[str] = ()) -> Columns:
        """The columns of the element, without the rows that have blank cells if `drops_missing`.

        Args:
            texts: names of columns that the plan takes as texts: there an empty cell is a value, not a blank one.
        Raises:
            TypeMismatch: there are blank cells, or columns of different lengths.
        """
        all_names = [*dict.fromkeys(name for leaf in self.elements for name in self.columns_of(leaf))]
        names = [name for name in all_names if self._may_read(name)]
        table = self.read(names or all_names[:1])  # how many rows there are, any column tells
        sizes = {len(column) for column in table.values()}
        if len(sizes) > 1:
            raise TypeMismatch(f"the columns of {self.file.name} differ in length")
        blanks = {name: is_blank(table[name], is_text=name in texts) for name in names}
        if not any(blank.any() for blank in blanks.values()):
            return table
        if not self.drops_missing:
            counts = ", ".join(f"{name} {int(b.sum())}" for name, b in blanks.items() if b.any())
            raise TypeMismatch(
                f"columns of the site have blank cells, of {sizes.pop()} rows: {counts}\n"
                '  fix: data.missing = "drop" in site.toml leaves these rows out'
            )
        has_blank = np.logical_or.reduce([*blanks.values()])
        return {name: column[~has_blank] for name, column in table.items()}

    def _leaf(self, path: str, type_: Type, rows: Columns) -> np.ndarray:
        """The array of a leaf of the element, with a row for each row of the table.

        A leaf is zeros, or empty texts, if the policy does not allow one of its columns.
        """
        assert isinstance(type_, TensorType)
        if not all(map(self._may_read, self.columns_of(path))):  # no stage of an accepted plan reads it
            row_count, dtype = len(next(iter(rows.values()))), object if _is_text(type_) else type_.dtype.numpy
            row_sizes = (type_.shape or ())[0 if self.batches.size is None else 1 :]  # batches have one more in front
            return np.full((row_count, *(size or 0 for size in row_sizes)), b"" if _is_text(type_) else 0, dtype)
        columns = [self._column(name, rows[name], type_) for name in self.columns_of(path)]
        return columns[0] if isinstance(self.elements[path], str) else np.stack(columns, axis=1)

    def _may_read(self, name: str) -> bool:
        return self.readable is None or name in self.readable

    def _column(self, name: str, column: np.ndarray, type_: TensorType) -> np.ndarray:
        """A column of the table in the dtype of a leaf: texts as bytes, categories as their numbers."""
        if _is_text(type_):
            return np.array([v if isinstance(v, bytes) else str(v).encode() for v in column.tolist()], object)
        if name in self.categories:
            column = _category_numbers(column, name, self.categories[name])
        return _as_dtype(column, type_, name)


def is_blank(column: np.ndarray, *, is_text: bool = False) -> np.ndarray:
    """bool [rows]: whether a cell is missing: None, NaN, or, unless it is a text, of white space only."""
    if column.dtype.kind == "f":
        return np.isnan(column.reshape(len(column), -1)).any(1)
    if column.dtype.kind not in "OUS":
        return np.zeros(len(column), bool)
    return np.array([_is_missing(v) or (not is_text and not text_of(v).strip()) for v in column.tolist()], bool)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def text_of(value: Any) -> str:
    """A cell as a text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _is_text(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.name == "str"


def _category_numbers(column: np.ndarray, name: str, categories: tuple[str, ...]) -> np.ndarray:
    """The positions of the cells among the categories, int64.

    Raises:
        TypeMismatch: a cell is none of them.
    """
    positions = {text: position for position, text in enumerate(categories)}
    numbers = [positions.get(text_of(v).strip(), -1) for v in column.tolist()]
    unknown = numbers.count(-1)
    if unknown:
        raise TypeMismatch(
            f"{unknown} of {len(numbers)} cells of the site's column {name} are none of data.categories.{name}"
        )
    return np.array(numbers, np.int64)


def _build_element(arrays: Mapping[str, np.ndarray], type_: Type, path: str = "") -> Any:
    """The arrays in the containers of an element's type: dicts where all fields have names, else tuples.

    Args:
        arrays: by the path of a leaf in the whole element.
        path: of `type_` in the whole element.
    """
    if not isinstance(type_, StructType):
        return arrays[path]
    parts = [_build_element(arrays, part, element_path(path, i, name)) for i, (name, part) in enumerate(type_.elements)]
    names = [name for name, _ in type_.elements if name]
    return dict(zip(names, parts, strict=True)) if len(names) == len(parts) else tuple(parts)


def _as_dtype(column: np.ndarray, type_: TensorType, name: str) -> np.ndarray:
    """The column in a dtype, if no value changes; floats may be rounded, but not to infinity.

    Raises:
        TypeMismatch: a value does not convert. It is counted and not quoted.
    """
    dtype = type_.dtype.numpy
    if column.dtype.kind in "OUS":
        column = parse_texts(column.tolist())
    if column.dtype.kind == "O":
        count = sum(not _is_number(v) for v in column.tolist())
        raise TypeMismatch(
            f"{count} of {len(column)} cells of the site's column {name} are no numbers, but the plan asks for "
            f'{dtype.name}\n  fix: [data.categories] of site.toml, with {name} = ["…", "…"], numbers texts from 0'
        )
    with np.errstate(invalid="ignore", over="ignore"):
        converted = column.astype(dtype)
        if np.issubdtype(dtype, np.floating):
            changed = np.isinf(converted) & np.isfinite(column)
        else:
            changed = converted.astype(np.float64) != column.astype(np.float64)
    if changed.any():
        raise TypeMismatch(
            f"the site's column {name} has values that are no {dtype.name}: {int(changed.sum())} of {changed.size}"
        )
    return converted


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


class FunctionData:
    """Data that a function of the site's owner returns.

    Args:
        function: returns columns by the names of the element's leaves, or a data set; for a struct of data sets, such
            as that of a personalization, a dict of them; for a tensor, its value.
    """

    version = ""
    holds_out = False

    def __init__(self, function: Callable[[], Any], batches: Batches) -> None:
        self._function = function
        self._batches = batches

    def columns_of(self, leaf: str) -> tuple[str, ...]:
        return (leaf,)

    def only(self, columns: frozenset[str]) -> "FunctionData":
        """Itself: its values have one dtype, and no rows that are left out."""
        return self

    def dataset(self, type_: Type, *, whole_passes: bool = False, held_out: bool = False) -> Any:
        """The client's value of a type; `whole_passes` as for `Batches.of`."""
        return self._part(self._function(), type_, whole_passes)

    def _part(self, value: Any, type_: Type, whole_passes: bool) -> Any:
        """A part of the function's value as a data set, if it is columns and the type a sequence; else as it is."""
        from fedcore.data import ClientDataset

        if isinstance(type_, StructType) and isinstance(value, Mapping):  # such as data to train and to test with
            return {name: self._part(value[name], part, whole_passes) for name, part in type_.items() if name in value}
        if isinstance(type_, SequenceType) and isinstance(value, Mapping | tuple | np.ndarray):
            return self._batches.of(ClientDataset.from_columns(value), whole_passes=whole_passes)
        return value


SiteData = TableData | FunctionData
