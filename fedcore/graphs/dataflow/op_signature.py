"""Signatures of operations, read once: protobuf makes an object whenever a part of a definition is read."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import attrs
import tensorflow as tf

from fedcore.graphs import private_api

T = TypeVar("T")


@attrs.frozen
class Argument:
    """An operand or a result, which may be a list.

    Args:
        dtype: that of every such operation; None where attributes say it.
        type_attr, number_attr, type_list_attr: attributes with its dtype, with the length of the list, with the dtypes
            of the list; empty where there is none.
    """

    name: str
    dtype: tf.DType | None
    type_attr: str
    number_attr: str
    type_list_attr: str

    @property
    def is_list(self) -> bool:
        return bool(self.number_attr or self.type_list_attr)

    def count(self, attributes: Mapping[str, Any]) -> int:
        """The length of the list."""
        return int(attributes[self.number_attr]) if self.number_attr else len(attributes[self.type_list_attr])

    def dtypes(self, attributes: Mapping[str, Any]) -> list[tf.DType]:
        """The dtypes of the list, or of the one."""
        if self.type_list_attr:
            return [tf.as_dtype(dtype) for dtype in attributes[self.type_list_attr]]
        dtype = self.dtype or tf.as_dtype(attributes[self.type_attr])
        return [dtype] * (self.count(attributes) if self.number_attr else 1)


@attrs.frozen
class Signature:
    """An operation's definition.

    Args:
        kinds: of each attribute, such as `list(shape)`.
        defaults: of the attributes that have one, as serialized AttrValues.
        default_types: of those that are dtypes, lists of them, or numbers.
    """

    operands: tuple[Argument, ...]
    results: tuple[Argument, ...]
    kinds: dict[str, str]
    defaults: dict[str, bytes]
    default_types: dict[str, Any]
    has_lists: bool

    def by_operand(self, flat: Sequence[T], attributes: Mapping[str, Any]) -> list[T | list[T]]:
        """Operands with those of a list in a list."""
        if not self.has_lists:
            return list(flat)
        rest, grouped = list(flat), list[T | list[T]]()
        for operand in self.operands:
            if operand.is_list:
                count = operand.count(attributes)
                grouped.append(rest[:count])
                rest = rest[count:]
            else:
                grouped.append(rest.pop(0))
        return grouped


@functools.cache
def signature(op: str) -> Signature:
    """The signature of an operation.

    Raises:
        ValueError: TensorFlow has no such operation.
    """
    definition = private_api.op_definition(op)
    if definition is None:
        raise ValueError(f"TensorFlow has no operation {op}")
    operands, results = (tuple(map(_argument, part)) for part in (definition.input_arg, definition.output_arg))
    declared = [a for a in definition.attr if a.HasField("default_value")]
    return Signature(
        operands,
        results,
        {a.name: a.type for a in definition.attr},
        {a.name: a.default_value.SerializeToString() for a in declared},
        {a.name: _content(a.default_value) for a in declared if a.type in ("type", "list(type)", "int")},
        any(a.is_list for a in operands),
    )


def _argument(part) -> Argument:
    dtype = tf.as_dtype(part.type) if part.type else None
    return Argument(part.name, dtype, part.type_attr, part.number_attr, part.type_list_attr)


def _content(default):
    kind = default.WhichOneof("value")
    return [*default.list.type] if kind == "list" else getattr(default, kind)


def flat_operands(operands: Sequence) -> list:
    """Operands with those of lists one after the other."""
    return [v for operand in operands for v in (operand if isinstance(operand, list | tuple) else [operand])]
