"""Signatures of TensorFlow's operations, read from their definitions once: reading protobuf makes objects each time.

A signature tells the operands and results of an operation, which may be lists of tensors, and the kinds and defaults of
its attributes. ConcatV2 has the operands `values`, a list whose length is the attribute N, and `axis`.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import attrs
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, op_def_pb2

from fedcore.graphs import private_api

T = TypeVar("T")


@attrs.frozen
class Argument:
    """An operand or a result in an operation's definition; it may be a list of tensors.

    Args:
        name: in the definition.
        dtype: of the tensor, if the definition fixes it; None where attributes say it.
        type_attr, number_attr, type_list_attr: names of the attributes with its dtype, with the length of the list,
            and with the dtypes of the list; empty where there is none.
    """

    name: str
    dtype: tf.DType | None
    type_attr: str
    number_attr: str
    type_list_attr: str

    @property
    def is_list(self) -> bool:
        """Whether it is a list of tensors."""
        return bool(self.number_attr or self.type_list_attr)

    def count(self, attributes: Mapping[str, Any]) -> int:
        """The length of the list, by the attributes of a node; only of a list."""
        return int(attributes[self.number_attr]) if self.number_attr else len(attributes[self.type_list_attr])

    def dtypes(self, attributes: Mapping[str, Any]) -> list[tf.DType]:
        """The dtypes of the tensors of the list, or of the one tensor, by the attributes of a node."""
        if self.type_list_attr:
            return [tf.as_dtype(dtype) for dtype in attributes[self.type_list_attr]]
        dtype = self.dtype or tf.as_dtype(attributes[self.type_attr])
        return [dtype] * (self.count(attributes) if self.number_attr else 1)


@attrs.frozen
class Signature:
    """An operation's definition.

    Args:
        operands, results: in order.
        kinds: attribute -> TensorFlow's name of its type, such as `list(shape)`.
        defaults: attribute -> its default as a serialized AttrValue, of those that have one.
        default_types: attribute -> its default, of those that are dtypes, lists of dtypes or integers. These decide the
            dtypes and the number of results.
        has_lists: whether an operand is a list.
    """

    operands: tuple[Argument, ...]
    results: tuple[Argument, ...]
    kinds: dict[str, str]
    defaults: dict[str, bytes]
    default_types: dict[str, Any]
    has_lists: bool

    @property
    def inferred(self) -> set[str]:
        """The attributes that the operands tell."""
        return {name for a in self.operands for name in (a.type_attr, a.number_attr, a.type_list_attr) if name}

    def by_operand(self, flat: Sequence[T], attributes: Mapping[str, Any]) -> list[T | list[T]]:
        """The flat operands of a node, grouped by the operands of the definition: a list where it takes a list.

        Args:
            flat: the operands, with those of lists one after the other.
            attributes: of the node; they give the lengths of lists.
        """
        if not self.has_lists:
            return list(flat)
        values = iter(flat)
        return [
            list(itertools.islice(values, operand.count(attributes))) if operand.is_list else next(values)
            for operand in self.operands
        ]


@functools.cache
def signature(op: str) -> Signature:
    """The signature of an operation, such as `BatchMatMulV2`, from its definition; each is read once.

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
        {a.name: attribute_value(a.default_value) for a in declared if a.type in ("type", "list(type)", "int")},
        any(a.is_list for a in operands),
    )


def operand_names(op: str, attributes: Mapping[str, Any]) -> list[str]:
    """A name for each of the flat operands: those of a list are `values[0]`, `values[1]`."""
    names = []
    for argument in signature(op).operands:
        if argument.is_list:
            names += [f"{argument.name}[{i}]" for i in range(argument.count(attributes))]
        else:
            names.append(argument.name)
    return names


def _argument(part: op_def_pb2.OpDef.ArgDef) -> Argument:
    """An operand or a result, from its protobuf."""
    dtype = tf.as_dtype(part.type) if part.type else None
    return Argument(part.name, dtype, part.type_attr, part.number_attr, part.type_list_attr)


def attribute_value(value: attr_value_pb2.AttrValue) -> Any:
    """An attribute as Python has it: dtypes and shapes are TensorFlow's, texts are bytes."""
    kind = value.WhichOneof("value")
    if kind == "list":
        return _list_elements(value.list)
    content = getattr(value, kind) if kind else None
    if kind == "type":
        return tf.as_dtype(content)
    return tf.TensorShape(content) if kind == "shape" else content


def _list_elements(values: attr_value_pb2.AttrValue.ListValue) -> list:
    """The elements of an attribute that is a list, converted as in `attribute_value`; [] for an empty list.

    Its protobuf has a field for each kind of element, of which one is filled.
    """
    for field, convert in (("type", tf.as_dtype), ("shape", tf.TensorShape)):
        if getattr(values, field):
            return [convert(v) for v in getattr(values, field)]
    for field in ("i", "f", "s", "b", "tensor", "func"):
        if getattr(values, field):
            return list(getattr(values, field))
    return []


def flat_operands(operands: Sequence) -> list:
    """The operands with those of lists one after the other; the inverse of `Signature.by_operand`."""
    return [v for operand in operands for v in (operand if isinstance(operand, list | tuple) else [operand])]
