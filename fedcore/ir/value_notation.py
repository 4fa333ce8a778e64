"""The notation of names, attributes and constants, which the texts of modules and of regions share."""

import builtins
import json
import math
import re
from typing import Any

import lark
import numpy as np

from fedcore.ir.limits import MAX_DIGITS, MAX_NAME
from fedcore.ir.module import Blob, Constant
from fedcore.types import DType
from fedcore.types.notation import Refused, TypeBuilder

VALUE_RULES = r"""
attributes: BRACE attribute ("," attribute)* "}"
attribute: NAME "=" value
?value: NUMBER -> number
      | NAME   -> word
      | STRING -> string
      | BYTES  -> bytes
      | BLOB   -> blob
      | "[" [value ("," value)*] "]" -> items
REF: /%([A-Za-z0-9_]+|"[^"\\]*+(\\.[^"\\]*+)*+")/
SYMBOL: /@([A-Za-z0-9_]+|"[^"\\]*+(\\.[^"\\]*+)*+")/
BLOB.2: /sha256:[0-9a-f]+/
BYTES.2: /b"[^"\\]*+(\\x[0-9a-f]{2}[^"\\]*+)*+"/
NUMBER.3: /-?([0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?|inf|nan(\(0x[0-9a-f]+\))?)(?![A-Za-z0-9_])/
%ignore /\/\/[^\n]*/
"""
"""A grammar that includes it includes `TYPE_RULES`."""

WORDS = {
    "REF": "a binding such as `%0`",
    "SYMBOL": "a symbol such as `@main`",
    "BLOB": "a digest such as `sha256:3f1c9a`",
    "BYTES": "bytes",
    "NUMBER": "a number",
}
"""The terminals of `VALUE_RULES`, for errors."""

_is_integer = re.compile(r"-?[0-9]+").fullmatch


class Number(str):
    """Text of a number; the type of its literal decides the dtype."""


@lark.v_args(inline=True)
class ValueBuilder(TypeBuilder):
    """Transforms types and attributes; numbers stay text."""

    def attributes(self, brace: lark.Token, *pairs: tuple[lark.Token, object]) -> dict[str, object]:
        values: dict = {}
        for key, value in pairs:
            if key in values:
                raise Refused(key, f"the attribute `{key}` stands twice")
            values[str(key)] = value
        return values

    def attribute(self, key: lark.Token, value: object) -> tuple[lark.Token, object]:
        return key, value

    def number(self, token: lark.Token) -> Number:
        if len(token) > MAX_DIGITS:
            raise Refused(token, f"this number has more than {MAX_DIGITS} digits")
        return Number(token)

    def word(self, token: lark.Token) -> bool | str:
        return {"true": True, "false": False}.get(token, str(token))

    def string(self, token: lark.Token) -> str:
        return unquote(token, token)

    def _text(self, token: lark.Token) -> str:
        return unquote(token, token) if token.type == "STRING" else super()._text(token)

    def bytes(self, token: lark.Token) -> builtins.bytes:
        raw = token[2:-1].encode()
        return re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), raw)

    def blob(self, token: lark.Token) -> Blob:
        return Blob(token.removeprefix("sha256:"))

    def items(self, *values: object) -> tuple:
        return values


def name_of(token: lark.Token) -> str:
    """The name that a `REF` or a `SYMBOL` holds."""
    return unquote(token, token[1:]) if token[1] == '"' else str(token[1:])


def unquote(token: lark.Token, text: str) -> str:
    """The content of a quoted text; `token` gives the position for errors."""
    if len(text) > MAX_NAME:
        raise Refused(token, f"a quoted name has more than {MAX_NAME} characters")
    try:
        content = json.loads(text, strict=False)
        content.encode()
    except UnicodeEncodeError:
        raise Refused(token, "this quoted name holds half of a surrogate pair") from None
    except ValueError:
        raise Refused(token, "this quoted name has an escape that JSON does not know") from None
    return content


def plain_values(token: lark.Token, attributes: dict) -> dict:
    """The values of attributes that no dtype decides."""
    return {key: plain_value(token, value) for key, value in attributes.items()}


def plain_value(token: lark.Token, value: object) -> Any:
    """The value of an attribute: a number is a float if it has a point or an exponent, else an int."""
    if isinstance(value, tuple):
        return tuple([plain_value(token, v) for v in value])
    if not isinstance(value, Number):
        return value
    if _is_integer(value):
        return int(value)
    if value.startswith("nan"):
        raise Refused(token, "an attribute is no NaN")
    return float(value)


def parse_constant(value: Any, dtype: DType, shape: tuple[int, ...]) -> Constant:
    """The constant of a scalar, or of a flat list of the entries of a tensor.

    Raises:
        ValueError, OverflowError, TypeError: the value is no such constant.
    """
    scalars = [value] if shape == () else list(value)
    if len(scalars) != math.prod(shape):
        raise ValueError(value)
    if dtype.name == "str":
        if not all(isinstance(s, bytes) for s in scalars):
            raise ValueError(value)
        return Constant("str", shape, tuple(scalars))
    array = np.zeros(len(scalars), dtype.numpy)
    with np.errstate(over="ignore"):  # 1e999 is inf
        for i, scalar in enumerate(scalars):
            array[i] = _scalar(scalar, dtype.numpy)
    return Constant(dtype.name, shape, array.tobytes())


def _scalar(text: object, dtype: np.dtype) -> np.generic | bool | int:
    """One entry of a constant of numbers or bools; a complex one is a pair of texts. Raises as `parse_constant`."""
    if dtype.kind == "c":
        real = np.dtype(f"f{dtype.itemsize // 2}")
        if not isinstance(text, tuple) or len(text) != 2:
            raise ValueError(text)
        return np.array([_scalar(part, real) for part in text], real).view(dtype)[0]
    if dtype.kind == "b":
        if not isinstance(text, bool):
            raise ValueError(text)
        return text
    if not isinstance(text, Number):
        raise ValueError(text)
    if dtype.kind in "iu":
        number = int(text)
        if not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
            raise ValueError(text)
        return number
    if text.startswith("nan("):
        return np.array([int(text[4:-1], 16)], f"u{dtype.itemsize}").view(dtype)[0]
    return np.array([float(text)]).astype(dtype)[0]
