"""Text to module: the inverse of `printer.py`. Checks the words; what they mean is `verify`'s to check."""

import contextvars
import functools
import json
import math
import re

import lark
import numpy as np

from fedcore.errors import Location
from fedcore.ir.module import (
    STAGES,
    TEXT_VERSION,
    Blob,
    Constant,
    Function,
    Graph,
    Module,
    Operation,
    Parameter,
    Ref,
    Symbol,
)
from fedcore.types import DType, FunctionType, TensorType, Type, is_static, placement, placement_names
from fedcore.types.notation import TYPE_RULES, Refused, TypeBuilder, parse_with

_RULES = r"""
module: "fedcore" SIZE NAME type_name* (graph | definition)*
type_name: "type" NAME "=" type
graph: "graph" SYMBOL ":" type BLOB [attributes]
definition: "fn" SYMBOL "(" [parameter ("," parameter)*] ")" _ARROW type [attributes] body
          | "stage" SYMBOL "(" [parameter ("," parameter)*] ")" _ARROW type "at" NAME [attributes] body -> stage
parameter: REF ":" type
body: BRACE [location] operation* "return" (REF | SYMBOL) "}"
operation: REF "=" NAME operands ":" type [attributes] [location]
operands: OPEN [(REF | SYMBOL) ("," (REF | SYMBOL))*] ")"
attributes: BRACE attribute ("," attribute)* "}"
attribute: NAME "=" value
?value: NUMBER -> number
      | NAME   -> word
      | STRING -> string
      | BYTES  -> bytes
      | BLOB   -> blob
      | "[" [value ("," value)*] "]" -> items
location: "loc" OPEN STRING ":" SIZE ")"
REF: /%([A-Za-z0-9_]+|"(\\.|[^"\\])*")/
SYMBOL: /@([A-Za-z0-9_]+|"(\\.|[^"\\])*")/
BLOB.2: /sha256:[0-9a-f]+/
BYTES.2: /b"(\\x[0-9a-f]{2}|[^"\\])*"/
NUMBER.3: /-?([0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?|inf|nan(\(0x[0-9a-f]+\))?)(?![A-Za-z0-9_])/
%ignore /\/\/[^\n]*/
"""

_WORDS = {
    "FEDCORE": "`fedcore`",
    "GRAPH": "`graph`",
    "TYPE": "`type`",
    "FN": "`fn`",
    "STAGE": "`stage`",
    "RETURN": "`return`",
    "LOC": "`loc`",
    "REF": "a binding such as `%0`",
    "SYMBOL": "a symbol such as `@main`",
    "BLOB": "a digest such as `sha256:3f1c9a`",
    "BYTES": "bytes",
    "NUMBER": "a number",
}


# The names that the text being parsed has given to types so far.
_type_names: contextvars.ContextVar[dict[str, Type]] = contextvars.ContextVar("fedcore_type_names")


class _Number(str):
    """A number as written; what it is depends on the type of the literal."""


@lark.v_args(inline=True)
class _ModuleBuilder(TypeBuilder):
    def module(self, version, stage, *nodes):
        if int(version) != TEXT_VERSION:
            raise Refused(version, f"this text has version {version}", (f"version {TEXT_VERSION}",))
        if stage not in STAGES:
            raise Refused(stage, f"`{stage}` is no stage of compilation", STAGES)
        graphs = tuple(n for n in nodes if isinstance(n, Graph))
        return Module(str(stage), graphs, tuple(n for n in nodes if isinstance(n, Function)))

    def type_name(self, name, type_):
        if not name[0].isupper():
            raise Refused(name, "the name of a type starts with a capital letter")
        _type_names.get()[str(name)] = type_

    def named(self, name):
        known = _type_names.get()
        return known[name] if name in known else super().named(name)

    def graph(self, name, type_, digest, attributes=None):
        if not isinstance(type_, FunctionType):
            raise Refused(name, f"a graph has the type of a function, not {type_}")
        return Graph(self._name(name), type_, digest.removeprefix("sha256:"), _plain_values(attributes or {}))

    def definition(self, name, *rest):
        return self._function(name, None, rest)

    def stage(self, name, *rest):
        *parameters, result, where = [r for r in rest if not isinstance(r, dict | tuple)]
        if where not in placement_names():
            raise Refused(where, f"`{where}` is no placement", tuple(placement_names()))
        others = [r for r in rest if isinstance(r, dict | tuple)]
        return self._function(name, placement(str(where)), (*parameters, result, *others))

    def _function(self, name, where, rest):
        parameters = tuple(r for r in rest if isinstance(r, Parameter))
        result_type, *others = rest[len(parameters) :]
        attributes = _plain_values(others[0]) if len(others) == 2 else {}
        location, operations, result = others[-1]
        return Function(self._name(name), parameters, operations, result, result_type, where, attributes, location)

    def parameter(self, name, type_):
        return Parameter(self._name(name), type_)

    def body(self, brace, *parts):
        location = parts[0] if isinstance(parts[0], Location) else None
        operations = tuple(p for p in parts[:-1] if isinstance(p, Operation))
        return location, operations, self._operand(parts[-1])

    def operation(self, name, kind, operands, type_, *rest):
        attributes = next((r for r in rest if isinstance(r, dict)), {})
        location = next((r for r in rest if isinstance(r, Location)), None)
        if kind == "literal" and "value" in attributes:
            attributes = {**attributes, "value": self._constant(name, attributes["value"], type_)}
        attributes = _plain_values(attributes)
        return Operation(self._name(name), str(kind), operands, type_, attributes, location)

    def operands(self, opening, *operands):
        return tuple(map(self._operand, operands))

    def _operand(self, token):
        return (Ref if token.type == "REF" else Symbol)(self._name(token))

    def attributes(self, brace, *pairs):
        return dict(pairs)

    def attribute(self, key, value):
        return str(key), value

    def number(self, token):
        return _Number(token)

    def word(self, token):
        return {"true": True, "false": False}.get(token, str(token))

    def string(self, token):
        return self._text(token)

    def bytes(self, token):
        raw = token[2:-1].encode()
        return re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), raw)

    def blob(self, token):
        return Blob(token.removeprefix("sha256:"))

    def items(self, *values):
        return values

    def location(self, opening, file, line):
        return Location(self._text(file), int(line))

    def _name(self, token):
        return json.loads(token[1:]) if token[1] == '"' else str(token[1:])

    def _constant(self, token, value, type_):
        if isinstance(value, Blob):
            return value
        if not isinstance(type_, TensorType) or not is_static(type_.shape):
            raise Refused(token, f"a literal has a tensor type with known sizes, not {type_}")
        try:
            return _constant(value, type_.dtype, type_.shape)
        except (ValueError, OverflowError, TypeError):
            raise Refused(token, f"this literal is no {type_}") from None


def _plain_values(attributes: dict) -> dict:
    return {key: _plain(value) for key, value in attributes.items()}


def _plain(value):
    """Numbers outside literals are ints, or floats where they are written so."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, _Number):
        return int(value) if re.fullmatch(r"-?[0-9]+", value) else float(value)
    return value


def _constant(value, dtype: DType, shape: tuple[int, ...]) -> Constant:
    scalars = [value] if shape == () else list(value)
    if len(scalars) != math.prod(shape):
        raise ValueError(value)
    if dtype.name == "str":
        if not all(isinstance(s, bytes) for s in scalars):
            raise ValueError(value)
        return Constant("str", shape, tuple(scalars))
    array = np.zeros(len(scalars), dtype.numpy)
    for i, scalar in enumerate(scalars):
        array[i] = _scalar(scalar, dtype.numpy)
    return Constant(dtype.name, shape, array.tobytes())


def _scalar(text, dtype: np.dtype):
    if dtype.kind == "c":
        real = np.dtype(f"f{dtype.itemsize // 2}")
        parts = np.array([_scalar(part, real) for part in text], real)
        return parts.view(dtype)[0]
    if dtype.kind == "b":
        if not isinstance(text, bool):
            raise ValueError(text)
        return text
    if not isinstance(text, _Number):
        raise ValueError(text)
    if dtype.kind in "iu":
        number = int(text)
        if not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
            raise ValueError(text)
        return number
    if text.startswith("nan("):
        return np.array([int(text[4:-1], 16)], f"u{dtype.itemsize}").view(dtype)[0]
    return np.array([float(text)]).astype(dtype)[0]


@functools.cache
def _parser() -> lark.Lark:
    return lark.Lark(
        TYPE_RULES + _RULES,
        start="module",
        parser="lalr",
        maybe_placeholders=False,
        transformer=_ModuleBuilder(),
    )


def parse_module(text: str) -> Module:
    """The module that the text writes. Its graphs are named by digest; their bytes are not in the text.

    Raises:
        ParseError: with the line, the column, a caret and what was expected.
    """
    token = _type_names.set({})
    try:
        return parse_with(_parser(), text, words=_WORDS)
    finally:
        _type_names.reset(token)
