"""Parser for the notation of types and signatures.

`parse_type(str(t)) == t` for every type, and `parse_signature(str(s)) == s` for every signature.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Set
from typing import Any

import lark

from fedcore.errors import ParseError
from fedcore.types.dtypes import DTYPES, find_dtype
from fedcore.types.kinds import KINDS
from fedcore.types.placements import Placement, PlacementVariable, is_variable_name, placement, placement_names
from fedcore.types.signatures import Alternative, Parameter, Signature
from fedcore.types.types import (
    AbstractType,
    FederatedType,
    FunctionType,
    PlacementType,
    SequenceType,
    StructType,
    StructWithPythonType,
    TensorType,
    Type,
)

TYPE_RULES = r"""
?type: NAME                                           -> named_type
     | NAME "[" dims "]"                              -> tensor
     | NAME "[" ELLIPSIS "]"                          -> tensor_of_unknown_rank
     | LESS [element ("," element)*] ">"              -> struct
     | (NAME | DOTTED | STRING) struct_after_name     -> container
     | BRACE type "}" "@" NAME                        -> federated
     | type AT NAME                                   -> all_equal
     | type STAR                                      -> sequence
     | OPEN type _ARROW type ")"                        -> function
     | OPEN _ARROW type ")"                             -> function_without_parameter
struct_after_name: LESS [element ("," element)*] ">"  -> struct
element: NAME "=" type   -> element
       | STRING "=" type -> element
       | type            -> unnamed_element
dims: dim ("," dim)*
dim: SIZE | UNKNOWN
ELLIPSIS: "..."
UNKNOWN: "?"
LESS: "<"
BRACE: "{"
OPEN: "("
AT: "@"
STAR: "*"
_ARROW: "->"
SIZE: /[0-9]+/
NAME: /[A-Za-z_][A-Za-z0-9_]*/
DOTTED.2: /[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)+/
STRING: /"[^"\\]*+(\\.[^"\\]*+)*+"/s
%ignore /[ \t\r\n]+/
"""

_SIGNATURE_RULES = r"""
signature: alternative ("|" alternative)* [WHERE kind ("," kind)*]
alternative: OPEN [parameter ("," parameter)*] _ARROW type ")"
parameter: NAME ":" type         -> named_parameter
         | NAME UNKNOWN ":" type -> optional_parameter
         | type                  -> unnamed_parameter
kind: NAME ":" NAME
WHERE: "where"
"""

_WORDS = {
    "NAME": "a name",
    "DOTTED": "a container",
    "STRING": "a quoted name",
    "SIZE": "a size",
    "ELLIPSIS": "`...`",
    "UNKNOWN": "`?`",
    "LESS": "`<`",
    "MORETHAN": "`>`",
    "EQUAL": "`=`",
    "BRACE": "`{`",
    "RBRACE": "`}`",
    "OPEN": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "AT": "`@`",
    "STAR": "`*`",
    "COMMA": "`,`",
    "COLON": "`:`",
    "VBAR": "`|`",
    "WHERE": "`where`",
    "_ARROW": "`->`",
    "$END": "the end",
}


def parse_type(text: str) -> Type:
    """Parses a type.

    Raises:
        ParseError: the text is not a type, or the type nests too deeply.
    """
    return _parse(text, "type")


def parse_signature(text: str) -> Signature:
    """Parses a signature; a `where` at its end applies to all alternatives.

    Raises:
        ParseError: the text is not a signature.
    """
    return _parse(text, "signature")


class Refused(Exception):
    """The text at a token is syntactically correct, but not a type."""

    def __init__(self, token: lark.Token, problem: str, expected: tuple[str, ...] = ()) -> None:
        super().__init__(problem)
        self.token = token
        self.problem = problem
        self.expected = expected


def _make(token: lark.Token, cls: Callable, *args: Any) -> Any:
    """The result of a class or function; a ValueError that it raises becomes a `Refused` at the token."""
    try:
        return cls(*args)
    except ValueError as error:
        raise Refused(token, str(error)) from None


@lark.v_args(inline=True)
class TypeBuilder(lark.Transformer):
    """Transforms the parse tree to types, bottom-up."""

    def type(self, type_: Type) -> Type:
        return type_

    def named_type(self, name: lark.Token) -> Type:
        """The type of a name alone: a scalar of a dtype, `placement`, or a type variable, which has a capital."""
        if find_dtype(str(name)) is not None:
            return TensorType(str(name))
        if name == "placement":
            return PlacementType()
        if name[0].isupper():
            return AbstractType(str(name))
        raise Refused(name, f"`{name}` is no type", ("a dtype such as float32", "a type variable such as T"))

    def tensor(self, name: lark.Token, dims: tuple[int | None, ...]) -> Type:
        return _make(name, TensorType, self._dtype(name), dims)

    def tensor_of_unknown_rank(self, name: lark.Token, _: lark.Token) -> Type:
        return TensorType(self._dtype(name), None)

    def _dtype(self, name: lark.Token) -> str:
        """The name of a dtype; refuses a token that names none."""
        if find_dtype(str(name)) is None:
            raise Refused(name, f"`{name}` is no dtype", tuple(DTYPES))
        return str(name)

    def dims(self, *sizes: int | None) -> tuple[int | None, ...]:
        return sizes

    def dim(self, token: lark.Token) -> int | None:
        if token.type == "UNKNOWN":
            return None
        if len(token) > 19:
            raise Refused(token, "this size is larger than any tensor")
        return int(token)

    def struct(self, less: lark.Token, *elements: tuple[str | None, Type]) -> Type:
        return _make(less, StructType, elements)

    def container(self, name: lark.Token, struct: StructType) -> Type:
        return _make(name, StructWithPythonType, struct.elements, self._text(name))

    def element(self, name: lark.Token, type_: Type) -> tuple[str, Type]:
        return self._text(name), type_

    def unnamed_element(self, type_: Type) -> tuple[None, Type]:
        return None, type_

    def federated(self, brace: lark.Token, member: Type, name: lark.Token) -> Type:
        return _make(brace, FederatedType, member, self._placement(name), False)

    def all_equal(self, member: Type, at: lark.Token, name: lark.Token) -> Type:
        where = self._placement(name)
        # At a placement variable P, `T@P` has the default of the placement that P is bound to.
        return _make(at, FederatedType, member, where, None if isinstance(where, PlacementVariable) else True)

    def sequence(self, element: Type, star: lark.Token) -> Type:
        return _make(star, SequenceType, element)

    def function(self, opening: lark.Token, parameter: Type, result: Type) -> Type:
        return _make(opening, FunctionType, parameter, result)

    def function_without_parameter(self, opening: lark.Token, result: Type) -> Type:
        return _make(opening, FunctionType, None, result)

    def _placement(self, name: lark.Token) -> Placement | PlacementVariable:
        if name in placement_names():
            return placement(str(name))
        if is_variable_name(name):
            return PlacementVariable(str(name))
        raise Refused(name, f"`{name}` is no placement", (*placement_names(), "a variable such as P"))

    def _text(self, token: lark.Token) -> str:
        """The name that a token holds, without quotes."""
        if token.type != "STRING":
            return str(token)
        try:
            name = json.loads(token, strict=False)
            name.encode()
        except UnicodeEncodeError:
            raise Refused(token, "this quoted name holds half of a surrogate pair") from None
        except ValueError:
            raise Refused(token, "this quoted name has an escape that JSON does not know") from None
        return name

    def named_parameter(self, name: lark.Token, type_: Type) -> Parameter:
        return Parameter(str(name), type_)

    def optional_parameter(self, name: lark.Token, _: lark.Token, type_: Type) -> Parameter:
        return Parameter(str(name), type_, optional=True)

    def unnamed_parameter(self, type_: Type) -> Parameter:
        return Parameter(None, type_)

    def alternative(self, opening: lark.Token, *parts: Any) -> Alternative:
        return _make(opening, Alternative, parts[:-1], parts[-1])

    def kind(self, name: lark.Token, kind: lark.Token) -> tuple[lark.Token, str]:
        if kind not in KINDS:
            raise Refused(kind, f"`{kind}` is no kind", tuple(KINDS))
        return name, str(kind)

    def signature(self, *parts: Alternative | tuple[lark.Token, str]) -> Signature:
        alternatives = [part for part in parts if isinstance(part, Alternative)]
        kinds = [part for part in parts if isinstance(part, tuple)]
        for i, (name, _) in enumerate(kinds):
            if not any(name in alternative.variables for alternative in alternatives):
                raise Refused(name, f"`{name}` is no variable of this signature")
            if name in [earlier for earlier, _ in kinds[:i]]:
                raise Refused(name, f"`{name}` has a kind already")
        kind_by_variable = {str(name): kind for name, kind in kinds}
        return Signature([alternative.with_kinds(kind_by_variable) for alternative in alternatives])


@functools.cache
def _parser() -> lark.Lark:
    return lark.Lark(
        TYPE_RULES + _SIGNATURE_RULES,
        start=["type", "signature"],
        parser="lalr",
        maybe_placeholders=False,
        transformer=TypeBuilder(),
    )


def _parse(text: str, start: str) -> Any:
    return parse_with(_parser(), text, start=start)


def parse_with(
    parser: lark.Lark, text: str, *, start: str | None = None, words: Mapping[str, str] | None = None
) -> Any:
    """The result of a parser whose grammar includes `TYPE_RULES`.

    Args:
        words: names of its other terminals for errors.
    Raises:
        ParseError: with line, column, a caret and what was expected.
    """
    words = {**_WORDS, **(words or {})}
    try:
        return parser.parse(text, start=start)
    except Refused as error:
        token = error.token
        # Tokens of the parser have a position; `or 1` satisfies their type.
        raise ParseError(error.problem, text, token.line or 1, token.column or 1, error.expected) from None
    except lark.UnexpectedToken as error:
        expected = _expected_words(error.accepts or error.expected, words)
        if error.token.type == "$END":
            line = text.count("\n") + 1
            column = len(text) - (text.rfind("\n") + 1) + 1
            raise ParseError("the text stops too soon", text, line, column, expected) from None
        raise ParseError(f"unexpected `{error.token}`", text, error.line, error.column, expected) from None
    except lark.UnexpectedCharacters as error:
        raise ParseError(f"unexpected `{error.char}`", text, error.line, error.column) from None


def _expected_words(terminals: Set[str], words: Mapping[str, str]) -> list[str]:
    """The words for the terminals that could follow; those that begin a type are together `a type`."""
    if {"NAME", "BRACE"} <= set(terminals):  # the first tokens of a type
        others = terminals - {"NAME", "DOTTED", "STRING", "LESS", "BRACE", "OPEN"}
        return ["a type", *_expected_words(others, words)]
    return sorted({words.get(terminal, terminal) for terminal in terminals})
