"""Parses the text of regions, the inverse of `text`. Shapes and attributes that the text leaves out are inferred.

Text -> syntax (`_Body`, `_ParsedNode`: names and types as they are written) -> regions, by `_RegionBuilder`. An error
is a `Refused` with the token at which it is shown. In messages, a *blob* is a large constant of which the text has a
digest.
"""

import contextvars
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import lark
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from fedcore.context_values import set_inside
from fedcore.graphs import private_api
from fedcore.graphs.dataflow.graph import REGIONS, Block, Region, StaticShape, Value, ValueType, active_block, building
from fedcore.graphs.dataflow.op_signature import flat_operands
from fedcore.graphs.dataflow.shape_inference import infer
from fedcore.graphs.dataflow.text import print_region
from fedcore.graphs.dataflow.text_attributes import (
    DEFAULTS,
    attribute_definitions,
    dtype_of,
    read_array,
)
from fedcore.ir.limits import check_text
from fedcore.ir.module import Symbol
from fedcore.ir.value_notation import VALUE_RULES, WORDS, ValueBuilder, name_of, plain_value
from fedcore.types.notation import TYPE_RULES, Refused, parse_with

_RULES = r"""
regions: region+
region: "region" [SYMBOL] body
body: OPEN [argument ("," argument)*] ")" BRACE node* "return" [REF ("," REF)*] "}"
argument: REF ":" value_type
node: [REF ("," REF)* "="] NAME OPEN [operand ("," operand)*] ")" [types] [behind] [attributes] body*
?operand: REF | "[" [REF ("," REF)*] "]" -> operands
types: ":" value_type ("," value_type)*
behind: "after" REF ("," REF)*
value_type: NAME -> named_type
          | NAME "[" dims "]" -> tensor
          | NAME "[" ELLIPSIS "]" -> tensor_of_unknown_rank
%extend value: UNKNOWN -> unknown
             | ELLIPSIS -> unknown_rank
             | SYMBOL -> symbol
"""

_WORDS = {**WORDS, "REGION": "`region`", "RETURN": "`return`", "AFTER": "`after`"}

UNKNOWN_RANK = object()
"""The shape attribute `...`."""

_PLAIN_TYPES = {"int": (int,), "bool": (bool,), "string": (str, bytes)}
"""Kind of an attribute -> the types that its value in text may have."""

_blobs: contextvars.ContextVar[Mapping[str, np.ndarray]] = contextvars.ContextVar("fedcore_region_blobs")
"""The argument `blobs` of `parse_regions`, for the builder that the cached parser holds."""


@attrs.frozen
class ParsedRegion:
    """A region of a text.

    Args:
        name: None if it has none.
        arguments: names of its arguments.
    """

    name: str | None
    region: Region
    arguments: tuple[str, ...]

    def print(self, region: Region) -> str:
        """The text of a region that passes have made of this one, with the names of its arguments.

        Arguments that are numbered in the text have no names, and are numbered anew.
        """
        names = () if any(name.isdigit() for name in self.arguments) else self.arguments
        return print_region(region, name=self.name, arguments=names)


@attrs.frozen
class _Types:
    """The types of a node's results, as a part of its syntax."""

    types: tuple[ValueType, ...]


@attrs.frozen
class _Behind:
    """The names of the values before which a node may not run, as a part of its syntax."""

    names: tuple[lark.Token, ...]


@attrs.frozen
class _Body:
    """A region in text.

    Args:
        arguments: pairs of a name and a type.
        nodes: in order.
        results: names.
    """

    arguments: tuple[tuple[lark.Token, ValueType], ...]
    nodes: tuple["_ParsedNode", ...]
    results: tuple[lark.Token, ...]


@attrs.frozen
class _ParsedNode:
    """An operation in text.

    Args:
        results: names of its results.
        op: its token, which gives the position for errors.
        operands: names, or lists of them.
        types: of the results.
        after: names of values before which it may not run.
        attributes: as the grammar gives them.
        bodies: the regions that it runs.
    """

    results: tuple[lark.Token, ...]
    op: lark.Token
    operands: tuple[lark.Token | list[lark.Token], ...]
    types: tuple[ValueType, ...] = ()
    after: tuple[lark.Token, ...] = ()
    attributes: Mapping[str, Any] = attrs.field(factory=dict)
    bodies: tuple[_Body, ...] = ()


@lark.v_args(inline=True)
class _SyntaxBuilder(ValueBuilder):
    """Builds the syntax of regions from text, and at the end the regions.

    Each method is named like a rule of the grammar. lark calls it with the parts that the rule has matched.
    """

    def regions(self, *regions: tuple[str | None, _Body]) -> list[ParsedRegion]:
        """The regions of the text, in order."""
        builder = _RegionBuilder(_blobs.get())
        return [
            ParsedRegion(name, builder.region(body, {}), tuple(name_of(token) for token, _ in body.arguments))
            for name, body in regions
        ]

    def region(self, *parts: Any) -> tuple[str | None, _Body]:
        """The name of a region, None if the text has none, and its syntax."""
        return (name_of(parts[0]) if len(parts) == 2 else None), parts[-1]

    def body(self, opening: lark.Token, *parts: Any) -> _Body:
        """The syntax of a region, whose parts the grammar passes in the order of the text."""
        arguments = tuple(p for p in parts if isinstance(p, tuple))
        nodes = tuple(p for p in parts if isinstance(p, _ParsedNode))
        results = parts[1 + len(arguments) + len(nodes) :]  # behind the brace
        return _Body(arguments, nodes, results)

    def argument(self, name: lark.Token, type_: ValueType) -> tuple[lark.Token, ValueType]:
        return name, type_

    def node(self, *parts: Any) -> _ParsedNode:
        """The syntax of a node, whose parts the grammar passes in the order of the text; most may be missing."""
        op_index = next(i for i, p in enumerate(parts) if isinstance(p, lark.Token) and p.type == "NAME")
        fields: dict[str, Any] = {
            "operands": tuple(p for p in parts[op_index + 2 :] if isinstance(p, lark.Token | list))
        }
        for part in parts[op_index + 1 :]:
            if isinstance(part, _Types):
                fields["types"] = part.types
            elif isinstance(part, _Behind):
                fields["after"] = part.names
            elif isinstance(part, dict):
                fields["attributes"] = part
        bodies = tuple(p for p in parts if isinstance(p, _Body))
        return _ParsedNode(parts[:op_index], parts[op_index], bodies=bodies, **fields)

    def operands(self, *names: lark.Token) -> list[lark.Token]:
        return list(names)

    def types(self, *types: ValueType) -> _Types:
        return _Types(types)

    def behind(self, *names: lark.Token) -> _Behind:
        return _Behind(names)

    def named_type(self, name: lark.Token) -> ValueType:  # type: ignore[override]
        return self._type(name, ())

    def tensor(self, name: lark.Token, dims: StaticShape) -> ValueType:  # type: ignore[override]
        return self._type(name, dims)

    def tensor_of_unknown_rank(self, name: lark.Token, _: lark.Token) -> ValueType:  # type: ignore[override]
        return self._type(name, None)

    def _type(self, name: lark.Token, shape: StaticShape) -> ValueType:
        """The dtype of a name, and the static shape.

        Args:
            shape: sizes, with None for an unknown size; None for an unknown rank.
        Raises:
            Refused: there is no such dtype.
        """
        try:
            return dtype_of(str(name)), tf.TensorShape(shape)
        except TypeError:
            raise Refused(name, f"`{name}` is no dtype") from None

    def unknown(self, _: lark.Token) -> None:
        return None

    def unknown_rank(self, _: lark.Token) -> object:
        return UNKNOWN_RANK

    def symbol(self, token: lark.Token) -> Symbol:
        return Symbol(name_of(token))


class _RegionBuilder:
    """Builds a region from its syntax.

    Args:
        blobs: arrays by their digests.
    """

    def __init__(self, blobs: Mapping[str, np.ndarray]) -> None:
        self._blobs = blobs

    def region(self, body: _Body, scope: Mapping[str, Value]) -> Region:
        """Builds a region.

        Args:
            scope: name -> value, of the values of the regions around it.
        Raises:
            Refused: a name is not computed before it is read, or a node does not fit TensorFlow's definition.
        """
        block = Block(active_block())
        names = dict(scope)
        for token, (dtype, shape) in body.arguments:
            names[name_of(token)] = block.argument(dtype, shape)
        with building(block):
            for node in body.nodes:
                block.ordered_behind = tuple(self._value(names, t) for t in node.after)
                names.update(zip(map(name_of, node.results), self._add_node(block, node, names), strict=True))
        return block.region([self._value(names, t) for t in body.results])

    def _value(self, names: Mapping[str, Value], token: lark.Token) -> Value:
        """The value of a name, if `names` has it.

        Raises:
            Refused: it has not.
        """
        if name_of(token) not in names:
            raise Refused(token, f"`{token}` is not computed before this line")
        return names[name_of(token)]

    def _add_node(self, block: Block, node: _ParsedNode, names: Mapping[str, Value]) -> Sequence[Value]:
        """Adds a node to the block, and returns its results. TensorFlow infers the attributes that the text leaves out,
        and checks the types of the results.
        """
        if len(node.results) != len(node.types):
            raise Refused(node.op, f"{len(node.results)} results have {len(node.types)} types")
        op = str(node.op)
        operands = [self._operand(names, o) for o in node.operands]
        flat = flat_operands(operands)
        if op in REGIONS:
            regions = [self.region(body, names) for body in node.bodies]
            return block.add(op, flat, self._region_attributes(node, regions), node.types, regions)
        if node.bodies:
            raise Refused(node.op, f"{op} has no regions")
        attributes = self._constant(node) if op == "Const" else self._attributes(node, operands)
        return block.add(op, flat, attributes, node.types)

    def _operand(self, names: Mapping[str, Value], operand: lark.Token | list[lark.Token]) -> Value | list[Value]:
        """The value of a name, or the values of a list of names."""
        if isinstance(operand, list):
            return [self._value(names, t) for t in operand]
        return self._value(names, operand)

    def _constant(self, node: _ParsedNode) -> dict[str, Any]:
        """The attributes of a constant: its array and its dtype."""
        if node.operands or len(node.types) != 1 or node.attributes.keys() != {"value"}:
            raise Refused(node.op, "Const has no operands, one result, and the attribute value only")
        (dtype, shape), value = node.types[0], node.attributes["value"]
        try:
            return {"value": read_array(value, dtype, tuple(shape.as_list()), self._blobs), "dtype": dtype}
        except KeyError:
            problem = f"the text names a large constant by its digest {value}, and no array of that digest is given"
            raise Refused(node.op, problem) from None
        except (ValueError, OverflowError, TypeError):
            raise Refused(node.op, "the constant is none of its type") from None

    def _region_attributes(self, node: _ParsedNode, regions: Sequence[Region]) -> dict[str, Any]:
        """The attributes of a node that runs regions, with defaults and those that follow from its regions.

        An `if` with a single region is a `computed_if`: its attribute `operands` tells how many of the node's operands
        are arguments of that region.

        Raises:
            Refused: another number of regions than the operation has, or an attribute that it does not have.
        """
        op = str(node.op)
        allowed = (1, 2) if op == "if" else (REGIONS[op],)
        if len(regions) not in allowed:
            raise Refused(node.op, f"{op} has {' or '.join(map(str, allowed))} regions, not {len(regions)}")
        for key in node.attributes:
            if key not in DEFAULTS[op]:
                raise Refused(node.op, f"{op} has no attribute {key}")
        attributes = {**DEFAULTS[op], **{k: plain_value(node.op, v) for k, v in node.attributes.items()}}
        if op == "if" and len(regions) == 1:
            attributes["operands"] = len(regions[0].arguments)
        return attributes

    def _attributes(self, node: _ParsedNode, operands: Sequence[Value | list[Value]]) -> Mapping[str, Any]:
        """The attributes of a TensorFlow operation, with those that its operands tell.

        Raises:
            Refused: operands, attributes or the types of the results do not fit TensorFlow's definition.
        """
        op = str(node.op)
        definition = private_api.op_definition(op)
        if definition is None:
            raise Refused(node.op, f"TensorFlow has no operation {op}")
        if len(operands) != len(definition.input_arg):
            raise Refused(node.op, f"{op} has {len(definition.input_arg)} operands, not {len(operands)}")
        definitions, attributes = attribute_definitions(op), {}
        for key, value in node.attributes.items():
            if key not in definitions:
                raise Refused(node.op, f"{op} has no attribute {key}")
            attributes[key] = self._convert_attribute(node.op, key, value, definitions[key].kind)
        try:
            inference = infer(op, operands, attributes)
        except KeyError as error:  # a dtype that neither operands nor a default tell
            raise Refused(node.op, f"{op} needs the attribute {error.args[0]}") from None
        except ValueError as error:
            raise Refused(node.op, f"{error}") from None
        self._check_types(node, inference.types)
        return inference.attributes

    def _check_types(self, node: _ParsedNode, types: Sequence[ValueType]) -> None:
        """Checks that the types in the text are those that TensorFlow infers (`types`), as far as these are known."""
        if len(types) != len(node.types):
            raise Refused(node.op, f"{node.op} has {len(types)} results, not {len(node.types)}")
        for (dtype, shape), (written_dtype, written_shape) in zip(types, node.types, strict=True):
            if dtype != written_dtype or not shape.is_compatible_with(written_shape):
                text_type, inferred_type = f"{written_dtype.name}{written_shape}", f"{dtype.name}{shape}"
                raise Refused(node.op, f"a result is written as {text_type}, but its operands give {inferred_type}")

    def _convert_attribute(self, token: lark.Token, key: str, value: Any, kind: str) -> Any:
        """An attribute, as TensorFlow takes it, from its value in text.

        Args:
            token: the operation, at which errors are shown.
            key: name of the attribute.
            kind: as in `AttributeDefinition`.
        Raises:
            Refused: the value is not of the kind.
        """
        try:
            return self._convert(token, value, kind)
        except (TypeError, ValueError, AttributeError):
            raise Refused(token, f"the attribute {key} of {token} is of the kind {kind}") from None

    def _convert(self, token: lark.Token, value: Any, kind: str) -> Any:
        """The attribute, as in `_convert_attribute`.

        Raises:
            TypeError, ValueError, AttributeError: the value is not of the kind.
        """
        if kind.startswith("list("):
            return [self._convert(token, v, kind[5:-1]) for v in value]
        if kind == "type":
            return dtype_of(value)
        if kind == "shape":
            sizes = None if value is UNKNOWN_RANK else [None if n is None else int(n) for n in value]
            return tf.TensorShape(sizes)
        if kind == "func":
            return attr_value_pb2.NameAttrList(name=value.name)
        plain = plain_value(token, value)
        if kind == "float":
            return float(plain)
        if type(plain) not in _PLAIN_TYPES.get(kind, ()):
            raise TypeError(f"{plain!r} is no {kind}")
        return plain


@functools.cache
def _parser() -> lark.Lark:
    """The parser of regions, which is built when it is first used."""
    return lark.Lark(
        TYPE_RULES + VALUE_RULES + _RULES,
        start="regions",
        parser="lalr",
        maybe_placeholders=False,
        transformer=_SyntaxBuilder(),
    )


def parse_regions(text: str, blobs: Mapping[str, np.ndarray] | None = None) -> list[ParsedRegion]:
    """The regions of a text, in order.

    Args:
        blobs: arrays by their digests, `text_attributes.digest_of_array`, for large constants.
    Raises:
        ParseError: with the line, the column, a caret and what was expected.
        FedcoreError: the text is larger than `limits` allows.
    """
    check_text(text)
    with set_inside(_blobs, blobs or {}):
        return parse_with(_parser(), text, words=_WORDS)


def parse_region(text: str, blobs: Mapping[str, np.ndarray] | None = None) -> Region:
    """The only region of a text; see `parse_regions`."""
    (parsed,) = parse_regions(text, blobs)
    return parsed.region
