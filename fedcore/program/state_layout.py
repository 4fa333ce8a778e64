"""States of one layout as rows of bytes, for buffers and files of many states.

A row has a state's arrays, those of large items first, so that each is aligned, and zeros up to a multiple of 16 bytes.
"""

import functools
import json
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from fedcore.program.state_files import STRUCTURES, StateParts, dtype_named, restore
from fedcore.program.structures import children_of, with_children
from fedcore.types.immutable_arrays import frozen

ROW_ALIGNMENT_BYTES = 16


def signature_of(value: Any, arrays: list) -> object:
    """A hashable of a state's classes, keys, dtypes and shapes; states of one signature have one layout.

    It costs much less than a layout, which is why each state is compared by it. A leaf that is no array is None in it.

    Args:
        arrays: gets the state's arrays and numpy scalars, in order.
    """
    kind = type(value)
    if kind is np.ndarray or issubclass(kind, np.generic):
        arrays.append(value)
        return kind, value.dtype, value.shape
    if kind is tuple or kind is list:
        return (kind, *[signature_of(child, arrays) for child in value])
    children = children_of(value)
    if children is None:
        return None
    return kind, *children, *[signature_of(child, arrays) for child in children.values()]


@attrs.frozen(slots=False)
class StateLayout:
    """The containers, dtypes and shapes of a state that has arrays only.

    Args:
        text: JSON of `{"tree": …, "dtypes": {name: [dtype, shape], …}}`, as in the manifest of `state_files`, the
            dtypes in the order of the row.
    """

    text: str

    @classmethod
    def of(cls, parts: StateParts) -> "StateLayout | None":
        """The layout of a state; None if it has leaves that are no arrays of this machine, or no bytes."""
        natives = [array for array in parts.arrays.values() if array.dtype.isnative]
        if len(natives) < len([*_leaves(parts.tree)]) or not any(array.nbytes for array in natives):
            return None
        arrays = sorted(parts.arrays.items(), key=lambda item: -item[1].itemsize)
        dtypes = {name: [array.dtype.name, list(array.shape)] for name, array in arrays}
        return cls(json.dumps({"tree": parts.tree, "dtypes": dtypes}, separators=(",", ":")))

    @functools.cached_property
    def _content(self) -> dict:
        return json.loads(self.text)

    @functools.cached_property
    def _columns(self) -> dict[str, tuple[int, int, np.dtype, list[int]]]:
        """Name of an array, in the order of the row -> (first byte in a row, byte after its last, dtype, shape)."""
        columns, end = {}, 0
        for name, (dtype, shape) in self._content["dtypes"].items():
            begin, end = end, end + math.prod(shape) * dtype_named(dtype).itemsize
            columns[name] = begin, end, dtype_named(dtype), shape
        return columns

    @functools.cached_property
    def row_bytes(self) -> int:
        return self._array_bytes + -self._array_bytes % ROW_ALIGNMENT_BYTES

    @property
    def _array_bytes(self) -> int:
        """The bytes of a row without the zeros at its end."""
        return max(end for _, end, _, _ in self._columns.values())

    @functools.cached_property
    def _order(self) -> list[int]:
        """For each array of a row its index among the state's arrays, as `signature_of` lists them."""
        numbers = {name: number for number, (_, name) in enumerate(_leaves(self._content["tree"]))}
        return [numbers[name] for name in self._columns]

    @functools.cached_property
    def _padding(self) -> bytes:
        return bytes(self.row_bytes - self._array_bytes)

    def pack(self, arrays: Sequence[np.ndarray]) -> bytes:
        """The row of a state.

        Args:
            arrays: those that `signature_of` gave.
        """
        row: list[Any] = [arrays[number] for number in self._order]
        try:
            return b"".join([*row, self._padding])
        except TypeError:  # an array with gaps, or in another order
            return b"".join([*[array.tobytes() for array in row], self._padding])

    def unpack(self, rows: np.ndarray, structure: Any = None) -> list:
        """The states of rows, which share their memory.

        Args:
            rows: uint8 [n, row_bytes], which nobody changes any more.
            structure: as for `from_files`.
        Raises:
            TypeMismatch: the states have another structure.
        """
        tree = self._content["tree"]
        assemble = _assembler(restore(tree, {name: _Place(i) for i, name in enumerate(self._columns)}, structure))
        scalars, leaves = {name for kind, name in _leaves(tree) if kind == "scalar"}, []
        for name, (begin, end, dtype, shape) in self._columns.items():
            column = frozen(rows[:, begin:end].view(dtype).reshape(len(rows), *shape))
            leaves.append(column if shape or name in scalars else [column[i, ...] for i in range(len(rows))])
        return [*map(assemble, zip(*leaves, strict=True))]


class _Place:
    """Stands in for the array of a number, in the order of a row; `[()]`, which takes a scalar out, changes nothing."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getitem__(self, key: object) -> "_Place":
        return self


def _leaves(tree: list) -> Iterator[list]:
    """The leaves of a manifest's tree (see `state_files`), in order.

    A node is a list. That of a structure is `[kind, [[key, node], …]]`, its kind one of `STRUCTURES`. All others are
    leaves, such as `["array", name]` or `["value", None]`.
    """
    if tree[0] not in STRUCTURES:
        yield tree
        return
    _, parts = tree
    for _, part in parts:
        yield from _leaves(part)


def _assembler(template: Any) -> Callable[[Sequence], Any]:
    """The function from the arrays of a row, in its order, to the state in the containers of `template`.

    Args:
        template: a state with a `_Place` for each array.
    """
    if isinstance(template, _Place):
        return operator.itemgetter(template.number)
    parts = [_assembler(child) for child in (children_of(template) or {}).values()]
    if type(template) is tuple:
        return lambda arrays: tuple([part(arrays) for part in parts])
    return lambda arrays: with_children(template, [part(arrays) for part in parts])
