"""Parser: text to module, the inverse of `printer.py`. Checks the syntax; `verify` checks the semantics.

`_RULES` is the grammar. `_LINES` adds a token that matches a whole operation as the printer writes it. This makes
parsing five times as fast as a token for each word. If the type in such a line is malformed, the text is parsed again
by `_RULES` alone, which give the position of the error.
"""

import contextvars
import functools
import re
from typing import Any

import attrs
import lark

from fedcore.context_values import set_inside
from fedcore.errors import Location, ParseError
from fedcore.ir.limits import check_text
from fedcore.ir.module import (
    STAGES,
    TEXT_VERSION,
    Blob,
    Constant,
    Function,
    Graph,
    Module,
    Operand,
    Operation,
    Parameter,
    Ref,
    Symbol,
)
from fedcore.ir.value_notation import VALUE_RULES, WORDS, ValueBuilder, name_of, parse_constant, plain_values, unquote
from fedcore.types import FunctionType, Placement, TensorType, Type, is_static, placement, placement_names
from fedcore.types.notation import TYPE_RULES, Refused, parse_with

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
location: "loc" OPEN STRING ":" SIZE ["in" STRING ":" SIZE] ")"
"""

_NAME = r'[%@](?:[A-Za-z0-9_]+|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+")'
_LINE = rf"(%{_NAME[4:]}) = ([A-Za-z_][A-Za-z0-9_]*)\(((?:{_NAME}(?:, {_NAME})*)?)\) : ((?:[^\s\"\/]| -> )++)"
_LINE_END = r"(?=\n| \{[A-Za-z_]+=|   loc\()"
_FILE_LINE = r"\"([^\"\\\n]*)\":([0-9]{1,9})"
_PLACE = rf"loc\({_FILE_LINE}(?: in {_FILE_LINE})?\)"
_LINES = rf"""
%extend operation: LINE [attributes] [location] -> line
%extend location: PLACE -> place
LINE.5: /{_LINE}{_LINE_END}/
PLACE.4: /{_PLACE}/
"""

_WORDS = {
    **WORDS,
    "FEDCORE": "`fedcore`",
    "GRAPH": "`graph`",
    "TYPE": "`type`",
    "FN": "`fn`",
    "STAGE": "`stage`",
    "RETURN": "`return`",
    "LOC": "`loc`",
    "LINE": "a binding such as `%0`",
    "PLACE": "`loc`",
}

_line = re.compile(_LINE)
_place = re.compile(_PLACE)
_names = re.compile(_NAME).findall


@attrs.define
class _ParseState:
    """State of one parse: the named types, and caches that make equal pieces of text one object.

    Args:
        type_names: the types that the text has named so far, by name.
        types, operands, names, locations: the object of each text of a type, a list of operands, an operand, a `loc`.
    """

    type_names: dict[str, Type] = attrs.field(factory=dict)
    types: dict[str, Type] = attrs.field(factory=dict)
    operands: dict[str, tuple[Operand, ...]] = attrs.field(factory=dict)
    names: dict[str, Operand] = attrs.field(factory=dict)
    locations: dict[str, Location] = attrs.field(factory=dict)


_state: contextvars.ContextVar[_ParseState] = contextvars.ContextVar("fedcore_parse_state")


@lark.v_args(inline=True)
class _ModuleBuilder(ValueBuilder):
    """Transforms the parse tree to a module, bottom-up: lark calls the method with the name of each rule or alias."""

    def module(self, version: lark.Token, stage: lark.Token, *nodes: Graph | Function | None) -> Module:
        if version != str(TEXT_VERSION):
            raise Refused(version, f"this text has version {version[:20]}", (f"version {TEXT_VERSION}",))
        if stage not in STAGES:
            raise Refused(stage, f"`{stage}` is no stage of compilation", STAGES)
        graphs = tuple(n for n in nodes if isinstance(n, Graph))
        return Module(str(stage), graphs, tuple(n for n in nodes if isinstance(n, Function)))

    def type_name(self, name: lark.Token, type_: Type) -> None:
        if not name[0].isupper():
            raise Refused(name, "the name of a type starts with a capital letter")
        _state.get().type_names[str(name)] = type_

    def named_type(self, name: lark.Token) -> Type:
        type_names = _state.get().type_names
        return type_names[name] if name in type_names else super().named_type(name)

    def graph(
        self, name: lark.Token, type_: Type, digest: lark.Token, attributes: dict[str, object] | None = None
    ) -> Graph:
        if not isinstance(type_, FunctionType):
            raise Refused(name, f"a graph has the type of a function, not {type_}")
        return Graph(name_of(name), type_, digest.removeprefix("sha256:"), plain_values(name, attributes or {}))

    def definition(self, name: lark.Token, *parts: Any) -> Function:
        """A function without a placement, from the `parts` of `_function`."""
        return self._function(name, None, parts)

    def stage(self, name: lark.Token, *parts: Any) -> Function:
        """A function with a placement, whose name stands behind the result type in `parts`."""
        *parameters, result, where = [r for r in parts if not isinstance(r, dict | tuple)]
        if where not in placement_names():
            raise Refused(where, f"`{where}` is no placement", tuple(placement_names()))
        others = [r for r in parts if isinstance(r, dict | tuple)]
        return self._function(name, placement(str(where)), (*parameters, result, *others))

    def _function(self, name: lark.Token, where: Placement | None, parts: tuple) -> Function:
        """A function from its parameters, its result type, a dict of attributes if there are any, and its `body`."""
        parameters = tuple(r for r in parts if isinstance(r, Parameter))
        result_type, *others = parts[len(parameters) :]
        attributes = plain_values(name, others[0]) if len(others) == 2 else {}
        location, operations, result = others[-1]
        return Function(name_of(name), parameters, operations, result, result_type, where, attributes, location)

    def parameter(self, name: lark.Token, type_: Type) -> Parameter:
        return Parameter(name_of(name), type_)

    def body(self, brace: lark.Token, *parts: Any) -> tuple[Location | None, tuple[Operation, ...], Operand]:
        location = parts[0] if isinstance(parts[0], Location) else None
        return location, parts[0 if location is None else 1 : -1], _operand(parts[-1])

    def operation(
        self,
        name: lark.Token,
        kind: str,
        operands: tuple[Operand, ...],
        type_: Type,
        *details: dict[str, object] | Location,
    ) -> Operation:
        attributes, location = {}, None
        for part in details:
            if isinstance(part, dict):
                attributes = part
            else:
                location = part
        if attributes:
            if kind == "literal" and "value" in attributes:
                attributes = {**attributes, "value": _literal(name, attributes["value"], type_)}
            attributes = plain_values(name, attributes)
        return Operation(name_of(name), str(kind), operands, type_, attributes, location)

    def line(self, token: lark.Token, *details: dict[str, object] | Location) -> Operation:
        """The operation of a `LINE` token, split by its pattern; equal texts of types and operands are parsed once."""
        name, kind, operands, type_ = _match_groups(_line, token)
        state = _state.get()
        if type_ not in state.types:
            state.types[type_] = _type_in_line(type_)
        if operands not in state.operands:
            state.operands[operands] = tuple([_operand_of(token, n) for n in _names(operands)])
        # Errors are reported at `first`. A plain name without details causes none, so it needs no position.
        first: Any = lark.Token.new_borrow_pos("REF", name, token) if details or name[1] == '"' else name
        return self.operation(first, kind, state.operands[operands], state.types[type_], *details)

    def operands(self, opening: lark.Token, *operands: lark.Token) -> tuple[Operand, ...]:
        return tuple(map(_operand, operands))

    def location(self, opening: lark.Token, file: lark.Token, line: lark.Token, *library: lark.Token) -> Location:
        if len(line) > 9:
            raise Refused(line, "this line is further down than any file goes")
        return Location(unquote(file, file), int(line), library=self.location(opening, *library) if library else None)

    def place(self, token: lark.Token) -> Location:
        """The location of a `PLACE` token; equal texts give one object."""
        locations = _state.get().locations
        if token not in locations:
            file, line, library, library_line = _match_groups(_place, token)
            locations[token] = Location(
                file, int(line), library=None if library is None else Location(library, int(library_line))
            )
        return locations[token]


def _match_groups(pattern: re.Pattern, token: str) -> tuple[Any, ...]:
    """The groups of the pattern in a token; None for a group that is absent."""
    match = pattern.match(token)
    assert match is not None  # the lexer made the token by this pattern
    return match.groups()


def _operand(token: lark.Token) -> Operand:
    return _operand_of(token, str(token))


def _operand_of(token: lark.Token, text: str) -> Operand:
    """Parses an operand; `token` gives the position for errors."""
    operands = _state.get().names
    if text not in operands:
        name = unquote(token, text[1:]) if text[1] == '"' else text[1:]
        operands[text] = Ref(name) if text[0] == "%" else Symbol(name)
    return operands[text]


def _literal(token: lark.Token, value: object, type_: Type) -> Blob | Constant:
    """The attribute `value` of a literal, from its numbers as text; `token` gives the position for errors."""
    if isinstance(value, Blob):
        return value
    if not isinstance(type_, TensorType) or not is_static(type_.shape):
        raise Refused(token, f"a literal has a tensor type with known sizes, not {type_}")
    try:
        return parse_constant(value, type_.dtype, type_.shape)
    except (ValueError, OverflowError, TypeError):
        raise Refused(token, f"this literal is no {type_}") from None


@functools.cache
def _parser(*, lines: bool) -> lark.Lark:
    """The parser of modules; with `lines`, its tokens match whole operations and locations (`_LINES`)."""
    return lark.Lark(
        TYPE_RULES + VALUE_RULES + _RULES + (_LINES if lines else ""),
        start=["module", "type"],
        parser="lalr",
        maybe_placeholders=False,
        transformer=_ModuleBuilder(),
    )


def parse_module(text: str) -> Module:
    """Parses a module. The text names graphs by digest; the module lacks their bytes.

    Raises:
        ParseError: with the line, the column, a caret and what was expected.
        FedcoreError: the text is larger than `limits` allows.
    """
    check_text(text)
    try:
        return _read(text, lines=True)
    except _WrongLine:
        return _read(text, lines=False)
    except ParseError as error:
        raise _without_second_module(text, error) from None


def _without_second_module(text: str, error: ParseError) -> ParseError:
    """The error, or a plainer one if it is at the head of a second module, as in a dump of all stages."""
    head = text.split("\n")[error.line - 1]
    if error.line == 1 or not re.match(r"fedcore \d+ \w+", head):
        return error
    advice = "a file has one; `fedcore dump --stage` writes one stage"
    return ParseError(f"a second module begins here: {advice}", text, error.line, 1)


class _WrongLine(Exception):
    """The type in a `LINE` is malformed: `parse_module` parses the text again, by `_RULES` alone."""


def _type_in_line(text: str) -> Any:
    """The type that a `LINE` holds; raises `_WrongLine` if it is malformed, since its position is not known here."""
    try:
        return _parser(lines=True).parse(text, start="type")
    except (Refused, lark.UnexpectedInput):
        raise _WrongLine from None


def _read(text: str, *, lines: bool) -> Any:
    """The module of a text, parsed by `_parser(lines=lines)` in a `_ParseState` of its own."""
    with set_inside(_state, _ParseState()):
        return parse_with(_parser(lines=lines), text, start="module", words=_WORDS)
