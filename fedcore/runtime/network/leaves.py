"""Tensors of a type as named arrays of a message, and back.

A table of which a client changes few rows (`crosses_in_rows`) is two arrays where these are smaller:

    p3.rows   int32 [r]         the numbers of the rows with a bit that is not 0, in order
    p3        float32 [r, m]    these rows

A reader sees which rows the client has changed, as it does in the whole table. The size of a message tells the number
of these rows to those who see it pass. Tables that masks hide cross whole.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedcore.errors import FedcoreError
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.intrinsics.secure_ranges import OPEN, SecureRange
from fedcore.intrinsics.sent_values import crosses_in_rows, row_bits
from fedcore.runtime.network.messages import MAX_INDEX, MalformedMessage
from fedcore.types import TensorType, Type, leaves

_NUMPY = {"bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
          "uint64"}  # fmt: skip
"""Dtypes that cross as they are; others cross as bytes, with the item's size as the last dimension."""

MAX_RANK = 8
"""The highest rank of a tensor of texts, whose shape is an array of the message."""

_PARTS_OF_TEXTS = _ENDS, _SHAPE = ".ends", ".shape"
"""Suffixes of the names of the arrays that texts have beside the array of bytes; see `_texts`."""

_ROWS = ".rows"
"""Suffix of the name of the array with the numbers of a table's rows."""

CHUNK = 1 << 16
"""Number of integers whose bits are packed at once; a multiple of 8, so that their bits fill whole bytes."""


def array_names(type_: Type, prefix: str) -> set[str]:
    """The names of the arrays that `to_arrays` gives for a value that crosses whole."""
    names = set[str]()
    for number, (_, leaf) in enumerate(leaves(type_)):
        is_text = isinstance(leaf, TensorType) and leaf.dtype.name == "str"
        names |= {f"{prefix}{number}{suffix}" for suffix in (("", *_PARTS_OF_TEXTS) if is_text else ("",))}
    return names


def to_arrays(
    value: Any, type_: Type, prefix: str, ranges: Sequence[str] = (), table_rows: int = 0
) -> dict[str, np.ndarray]:
    """The arrays of a nested tuple of tensors, named by a prefix and the number of the leaf.

    Args:
        ranges: for each leaf the text of the range of its integers (see `SecureRange.parse`), in whose bits they cross.
            Default: no leaf has a range.
        table_rows: `ClientWork.table_rows` of the stage that computes the value; 0 for values that cross whole.
    Raises:
        FedcoreError: a leaf is a sequence, which does not cross, or its integers are not in their range.
    """
    arrays: dict[str, np.ndarray] = {}
    for number, (leaf, (path, leaf_type)) in enumerate(zip(flatten(value), leaves(type_), strict=True)):
        if not isinstance(leaf_type, TensorType):
            raise FedcoreError(f"a value of type {leaf_type}{f' at {path}' if path else ''} does not cross a network")
        array, name = np.asarray(leaf), f"{prefix}{number}"
        if leaf_type.dtype.name == "str":
            texts = [t if isinstance(t, bytes) else str(t).encode() for t in array.reshape(-1).tolist()]
            arrays[name] = np.frombuffer(b"".join(texts), np.uint8)
            arrays[f"{name}{_ENDS}"] = np.cumsum([len(t) for t in texts], dtype=np.int64)
            arrays[f"{name}{_SHAPE}"] = np.array(array.shape, np.int64)
        elif leaf_type.dtype.name == "code":
            arrays[name] = _used_bytes(array)
        elif (range_ := _narrow_range(leaf_type, ranges, number)) is not None:
            if not range_.holds(array):
                raise FedcoreError(f"a secure sum: a client's integers are not in the range {range_} of the plan")
            arrays[name] = _packed(array, range_.bits(leaf_type.dtype.numpy))
        elif crosses_in_rows(leaf_type, table_rows) and (rows := _fewer_rows(array, leaf_type)) is not None:
            arrays[name], arrays[f"{name}{_ROWS}"] = array[rows], rows
        elif array.dtype.name in _NUMPY:
            arrays[name] = array
        else:
            arrays[name] = array.reshape(*array.shape, 1).view(np.uint8)
    return arrays


def from_arrays(
    arrays: Mapping[str, np.ndarray], type_: Type, prefix: str, ranges: Sequence[str] = (), table_rows: int = 0
) -> Any:
    """The nested tuple of numpy arrays that `to_arrays` named.

    Args:
        ranges, table_rows: as for `to_arrays`.
    Raises:
        MalformedMessage: an array is missing, or does not fit the type.
    """
    values = []
    for number, (path, leaf_type) in enumerate(leaves(type_)):
        name = f"{prefix}{number}"
        if not isinstance(leaf_type, TensorType) or name not in arrays:
            raise MalformedMessage(f"a message lacks the tensor {path or number} : {leaf_type}")
        range_ = _narrow_range(leaf_type, ranges, number)
        if range_ is not None:
            value = _unpacked(arrays[name], leaf_type, range_)
        elif f"{name}{_ROWS}" in arrays and crosses_in_rows(leaf_type, table_rows):
            value = _from_rows(arrays[name], arrays[f"{name}{_ROWS}"], leaf_type)
        else:
            value = _from_stored(arrays, name, leaf_type)
        if not _fits(value.shape, leaf_type.shape):
            raise MalformedMessage(f"a message has {path or number} of shape {value.shape}; its type is {leaf_type}")
        values.append(value)
    return unflatten(values, type_)


def _from_stored(arrays: Mapping[str, np.ndarray], name: str, type_: TensorType) -> np.ndarray:
    """A leaf that crosses whole, in the dtype of its type; the caller checks its shape.

    Raises:
        MalformedMessage: the array has another dtype, or a value that the dtype does not have.
    """
    stored, dtype = arrays[name], type_.dtype
    if dtype.name == "str":
        return _texts(stored, arrays.get(f"{name}{_ENDS}"), arrays.get(f"{name}{_SHAPE}"))
    if dtype.name == "code":
        return _codes(stored, type_)
    numpy_dtype = dtype.numpy
    if numpy_dtype.name in _NUMPY and stored.dtype == numpy_dtype:
        if numpy_dtype.name == "bool" and stored.size and stored.view(np.uint8).max() > 1:
            raise MalformedMessage("a message has an array of bool with other bytes than 0 and 1")
        return stored
    if stored.dtype == np.uint8 and numpy_dtype.name not in _NUMPY and stored.shape[-1:] == (numpy_dtype.itemsize,):
        return np.ascontiguousarray(stored).view(numpy_dtype).reshape(stored.shape[:-1])
    raise MalformedMessage(f"a message has an array of dtype {stored.dtype}, but its type is {type_}")


def _narrow_range(type_: TensorType, ranges: Sequence[str], number: int) -> SecureRange | None:
    """The range of a leaf if its integers take fewer bits than their dtype; None for other leaves.

    Args:
        ranges: as for `to_arrays`.
        number: number of the leaf.
    """
    if not ranges or ranges[number] == OPEN:
        return None
    range_, dtype = SecureRange.parse(ranges[number]), type_.dtype.numpy
    return range_ if range_.bits(dtype) < 8 * dtype.itemsize else None


def _fewer_rows(table: np.ndarray, type_: TensorType) -> np.ndarray | None:
    """The numbers of the rows in which a table crosses, int32; None if the table is smaller whole.

    None also for an array that is not of the type, which the reader refuses.
    """
    if table.shape != type_.shape or table.dtype != np.float32:
        return None
    rows = np.flatnonzero(np.ascontiguousarray(table).view(np.int32).any(axis=1))  # as integers, since -0.0 has a bit
    return rows.astype(np.int32) if len(rows) * row_bits(type_) < (type_.size_bits or 0) else None


def _from_rows(values: np.ndarray, rows: np.ndarray, type_: TensorType) -> np.ndarray:
    """The table of these rows, float32 [n, m], with zeros in the other rows.

    Args:
        values: float32 [r, m].
        rows: int32 [r]: the numbers of the rows, in order.
    Raises:
        MalformedMessage: they are no rows of a table of the type.
    """
    count, width = sizes = [size or 0 for size in type_.sizes]
    if rows.dtype != np.int32 or rows.ndim != 1 or values.dtype != np.float32 or values.shape != (len(rows), width):
        raise MalformedMessage(
            f"a message has rows of {type_} as {values.dtype}{[*values.shape]}, with numbers {rows.dtype}"
            f"{[*rows.shape]}; they are float32[r,{width}] and int32[r]"
        )
    if len(rows) and not (rows[0] >= 0 and rows[-1] < count and (rows[1:] > rows[:-1]).all()):
        raise MalformedMessage(f"a message has rows of {type_} whose numbers do not rise within 0..{count - 1}")
    table = np.zeros(sizes, np.float32)
    table[rows] = values
    return table


def _packed(integers: np.ndarray, width: int) -> np.ndarray:
    """The lowest `width` bits of each integer, one integer after another, little-endian: uint8 [bytes]."""
    words, parts = integers.reshape(-1), [np.zeros(0, np.uint8)]
    for start in range(0, len(words) if width else 0, CHUNK):
        rows = words[start : start + CHUNK].astype("<u8").view(np.uint8).reshape(-1, 8)
        parts.append(np.packbits(np.unpackbits(rows, axis=1, count=width, bitorder="little"), bitorder="little"))
    return np.concatenate(parts)


def _unpacked(data: np.ndarray, type_: TensorType, range_: SecureRange) -> np.ndarray:
    """The inverse of `_packed`: an array of the type's shape and dtype.

    Chunks start at whole bytes, since `CHUNK` is a multiple of 8.

    Args:
        range_: its `bits` are the width of a packed integer.
    Raises:
        MalformedMessage: `data` has another dtype or size, or an integer is outside the range.
    """
    sizes, width = [size or 0 for size in type_.shape or ()], range_.bits(type_.dtype.numpy)
    words = np.zeros(math.prod(sizes), "<u8")
    if data.dtype != np.uint8 or data.shape != ((len(words) * width + 7) // 8,):
        raise MalformedMessage(f"a message has other bytes than those of {type_} with integers of {width} bits")
    for start in range(0, len(words) if width else 0, CHUNK):
        part = words[start : start + CHUNK]
        bits = np.unpackbits(data[start * width // 8 :], count=len(part) * width, bitorder="little").reshape(-1, width)
        columns = np.packbits(bits, axis=1, bitorder="little")
        part.view(np.uint8).reshape(-1, 8)[:, : columns.shape[1]] = columns
    if not range_.holds(words):
        raise MalformedMessage(f"a message has integers that are not in the range {range_} of the plan")
    return words.astype(type_.dtype.numpy).reshape(sizes)


def _used_bytes(codes: np.ndarray) -> np.ndarray:
    """The used bytes of codes, one code after another: uint8 [bytes].

    Args:
        codes: uint8 [..., n]: each row is the number of a code's bits (int32), and then room for the bits.
    """
    rows = codes.reshape(-1, codes.shape[-1])
    return np.concatenate([np.zeros(0, np.uint8), *(row[: _code_size(row[:4], len(row))] for row in rows)])


def _code_size(head: np.ndarray, room: int) -> int:
    """Number of used bytes of a code, those of its head included.

    Args:
        head: uint8 [4]: the number of bits.
        room: most bytes of the code; a head that says more is of a wrong code.
    """
    bits = int.from_bytes(head.tobytes(), "little", signed=True)
    return min(4 + (max(bits, 0) + 7) // 8, room)


def _codes(data: np.ndarray, type_: TensorType) -> np.ndarray:
    """The inverse of `_used_bytes`: uint8 [..., n], with zeros behind the end of each code.

    Raises:
        MalformedMessage: the bytes are no such codes.
    """
    sizes = [size or 0 for size in type_.shape or ()]  # a type of codes leaves no size open
    if data.dtype != np.uint8 or data.ndim != 1 or not sizes or sizes[-1] < 4:
        raise MalformedMessage(f"a message has an array of dtype {data.dtype}, but its type is {type_}")
    codes, start = np.zeros(sizes, np.uint8), 0
    for row in codes.reshape(-1, sizes[-1]):
        end = start + _code_size(data[start : start + 4], len(row))
        if end > len(data):
            raise MalformedMessage("a message has a code that is cut off")
        row[: end - start], start = data[start:end], end
    if start < len(data):
        raise MalformedMessage("a message has bytes behind its codes")
    return codes


def _texts(data: np.ndarray, ends: np.ndarray | None, shape: np.ndarray | None) -> np.ndarray:
    """Texts as an array of bytes objects.

    Args:
        data: uint8 [bytes]: the texts, one after another.
        ends: int64 [texts]: for each text the position in `data` behind it.
        shape: int64 [rank]: the shape of the array.
    Raises:
        MalformedMessage: these do not fit together.
    """
    is_valid = (
        ends is not None
        and shape is not None
        and data.dtype == np.uint8
        and ends.dtype == shape.dtype == np.int64
        and data.ndim == ends.ndim == shape.ndim == 1
        and len(shape) <= MAX_RANK
        and all(0 <= size <= MAX_INDEX for size in shape.tolist())
        and math.prod(shape.tolist()) == len(ends)
        and (np.diff(ends, prepend=0) >= 0).all()
        and (len(ends) == 0 or ends[-1] == len(data))
    )
    if not is_valid:
        raise MalformedMessage("a message has texts whose ends do not fit")
    assert ends is not None
    assert shape is not None
    all_bytes, bounds = data.tobytes(), [0, *ends.tolist()]
    texts = np.empty(len(ends), object)
    texts[:] = [all_bytes[start:end] for start, end in itertools.pairwise(bounds)]
    return texts.reshape(shape.tolist())


def _fits(shape: Sequence[int], wanted: Sequence[int | None] | None) -> bool:
    """Whether a shape is that of a type, which may leave sizes or the rank open."""
    return wanted is None or (
        len(shape) == len(wanted)
        and all(want is None or want == have for have, want in zip(shape, wanted, strict=True))
    )
