"""Attributes of nodes in text: which are printed, and how.

Attributes that are defaults, and those that the operands tell (`T`, `N`), are left out; parsing infers them again.

TensorFlow takes an attribute in several forms, such as `[4, None]` or a `TensorShape`. The *normal value* is the one in
which two are compared and printed; it depends on the *kind*, TensorFlow's name of the attribute's type.
"""

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.dataflow.graph import Node, Value
from fedcore.graphs.dataflow.op_signature import attribute_value, signature
from fedcore.ir.module import Blob, Constant, Symbol
from fedcore.ir.printer import print_constant, print_value, symbol
from fedcore.ir.value_notation import parse_constant
from fedcore.types.dtypes import as_dtype, find_dtype

MOST_PRINTED = 64
"""Entries of the largest constant whose entries are printed, unless all are equal."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "scan": {"parallel_iterations": 10, "kept_by_step": 0, "has_active": False},
    "while": {"parallel_iterations": 10},
    "if": {},
    "call": {"kind": "function"},
}
"""Attributes of the operations with regions. Those that parsing infers (`operands` of an `if`) are not among them."""


@attrs.frozen
class AttributeDefinition:
    """An attribute in an operation's definition.

    Args:
        kind: TensorFlow's name of its type, such as `int` or `list(shape)`.
        is_inferred: whether the operands tell it.
        default: a normal value, see `normal_value`; None if there is none.
    """

    kind: str
    is_inferred: bool
    default: Any


@functools.cache
def attribute_definitions(op: str) -> dict[str, AttributeDefinition]:
    """The attributes of a TensorFlow operation, in the order of its definition."""
    definition, inferred = private_api.op_definition(op), signature(op).inferred
    defaults = {a.name: attribute_value(a.default_value) for a in definition.attr if a.HasField("default_value")}
    return {
        a.name: AttributeDefinition(
            a.type, a.name in inferred, normal_value(defaults[a.name], a.type) if a.name in defaults else None
        )
        for a in definition.attr
    }


def normal_value(value: Any, kind: str) -> Any:
    """An attribute in the one notation in which two are compared and printed.

    It has integers, floats (rounded to float32, as TensorFlow holds them), bools, text or bytes, `tf.DType`, tuples for
    lists and shapes, None for an unknown rank or size, a symbol for a function, and an array for a tensor.

    Args:
        kind: as in `AttributeDefinition`.
    """
    if kind.startswith("list("):
        return tuple(normal_value(v, kind[5:-1]) for v in value)
    if kind == "type":
        return tf.as_dtype(value)
    if kind == "shape":
        shape = tf.TensorShape(value)
        return None if shape.rank is None else tuple(shape.as_list())
    if kind == "string":
        return _text(value)
    if kind == "func":
        return Symbol(value.name) if hasattr(value, "name") else value
    if kind == "tensor":
        return tf.make_ndarray(value) if hasattr(value, "tensor_shape") else np.asarray(value)
    return float(np.float32(value)) if kind == "float" else {"int": int, "bool": bool}[kind](value)


def _text(value: str | bytes) -> str | bytes:
    """A string attribute as text; bytes that are no UTF-8 stay bytes."""
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        return value


def print_attributes(node: Node) -> dict[str, str]:
    """Name -> text of each attribute that is printed: neither a default nor inferred from operands."""
    if node.op == "Const":
        return {"value": print_array(node["value"])}
    if node.op in DEFAULTS:
        defaults = DEFAULTS[node.op].items()
        return {k: print_value(node.get(k, default)) for k, default in defaults if node.get(k, default) != default}
    texts = {}
    for name, definition in attribute_definitions(node.op).items():
        if name in node.attributes and not definition.is_inferred:
            value = normal_value(node[name], definition.kind)
            if definition.default is None or value != definition.default:
                texts[name] = print_normal_value(value, definition.kind)
    return texts


def print_normal_value(value: Any, kind: str) -> str:
    """The text of a normal value of a kind, see `normal_value`."""
    if kind.startswith("list("):
        return f"[{', '.join(print_normal_value(v, kind[5:-1]) for v in value)}]"
    if kind == "type":
        return dtype_name(value)
    if kind == "shape":
        return "..." if value is None else f"[{', '.join('?' if n is None else str(n) for n in value)}]"
    if kind == "func":
        return symbol(value.name)
    return print_array(value) if kind == "tensor" else print_value(value)


def dtype_name(dtype: tf.DType) -> str:
    """The type language's name of a dtype; TensorFlow's for those that the language does not have."""
    return "str" if dtype == tf.string else dtype.name


def dtype_of(name: str) -> tf.DType:
    """The dtype of a name in the type language.

    Raises:
        TypeError: there is no dtype of that name.
    """
    return tf.string if name == "str" else tf.as_dtype(name)


# --- constants ---


def print_array(array: np.ndarray) -> str:
    """The text of a constant: its entries, row after row, or a single one if all are equal.

    The text of a large array, or of one whose dtype the type language does not have, is its digest: parsing then needs
    a table of arrays, see `read_array`.
    """
    array = np.asarray(array)
    constant = constant_of(array)
    if constant is not None and array.size > 1 and _is_filled(constant, array):
        constant = constant_of(array.reshape(-1)[:1].reshape(()))
    elif array.size > MOST_PRINTED:
        constant = None
    return str(Blob(digest_of_array(array))) if constant is None else print_constant(constant)


def constant_of(array: np.ndarray) -> Constant | None:
    """The array as the IR holds it; None if the type language does not have its dtype."""
    if array.dtype == object:
        return Constant("str", array.shape, tuple(_bytes(x) for x in array.reshape(-1)))
    if find_dtype(array.dtype) is None:
        return None
    return Constant(as_dtype(array.dtype).name, array.shape, array.tobytes())


def _bytes(content: str | bytes) -> bytes:
    """An entry of an array of texts as bytes."""
    return content.encode() if isinstance(content, str) else bytes(content)


def _is_filled(constant: Constant, array: np.ndarray) -> bool:
    """Whether all entries of a constant are equal, bit by bit."""
    if isinstance(constant.data, tuple):
        return len(set(constant.data)) == 1
    return constant.data == bytes(constant.data[: array.itemsize]) * array.size


def digest_of_array(array: np.ndarray) -> str:
    """The digest by which a text names an array that it does not hold."""
    data = repr([_bytes(x) for x in array.flat]).encode() if array.dtype == object else array.tobytes()
    return hashlib.sha256(f"{array.dtype.name}{array.shape}".encode() + data).hexdigest()[:16]


def read_array(value: Any, dtype: tf.DType, shape: tuple[int, ...], blobs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The array of a constant in text, the inverse of `print_array`.

    A single entry stands for all entries of an array that has axes. A complex number is a list of two parts in text, so
    a list is a single complex entry unless it is a list of such lists.

    Args:
        value: entries as the grammar gives them, a single one for all of them, or a `Blob`.
        blobs: arrays by their digests.
    Raises:
        ValueError, OverflowError, TypeError: the entries do not fit the dtype and the shape.
        KeyError: no array has the digest.
    """
    if isinstance(value, Blob):
        return blobs[value.digest]
    element = as_dtype(dtype_name(dtype))
    is_filled = bool(shape) and (
        not isinstance(value, tuple) or (element.is_complex and not _is_list_of_complex(value))
    )
    constant = parse_constant(value, element, () if is_filled else shape)
    if isinstance(constant.data, tuple):
        array = np.array(constant.data, object).reshape(constant.shape)
    else:
        array = np.frombuffer(constant.data, element.numpy).reshape(constant.shape)
    return np.full(shape, array[()], array.dtype) if is_filled else array


def _is_list_of_complex(value: tuple) -> bool:
    """Whether a value is a list of complex numbers, each a list of two parts, and not a single complex number."""
    return all(isinstance(part, tuple) for part in value)


def type_text(value: Value) -> str:
    """A value's dtype and shape in the type language."""
    name = dtype_name(value.dtype)
    if value.shape.rank is None:
        return f"{name}[...]"
    sizes = ",".join("?" if n is None else str(n) for n in value.shape)
    return f"{name}[{sizes}]" if sizes else name
