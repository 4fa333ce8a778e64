"""The errors of fedcore, and how a mismatch of types reads.

Decision 0075.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Sequence
from typing import Any, Self

import attrs

MAX_LINE = 360
"""Characters of a message's line, three lines of a screen."""

MAX_LINES = 60
"""Lines of a message."""

_BRIEF = 80  # characters of a string, or of an object without a shorter form, in a message
_CLIP = 100  # characters of a source line shown on each side of the caret


@attrs.frozen
class Location:
    """A line of the user's program.

    Args:
        file: the file's name as it is shown: what a text says, so not to be opened.
        path: the file itself, where this process traced the line; None for a location that was parsed.
        library: the line of fedcore's own algorithms that the user's line called; None if it called none. It is not
            compared: what a user's line does belongs together.
    """

    file: str
    line: int
    path: str | None = attrs.field(default=None, eq=False, repr=False)
    library: Location | None = attrs.field(default=None, eq=False, repr=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class FedcoreError(Exception):
    """The class of all errors of fedcore; what is raised is of a class below it.

    Guarantees:
      - A bad argument is a `ValueError` or a `TypeError` too: `FedcoreError(message)` makes an `InvalidValue`, and the
        classes below say what they are.
      - A message stays readable: of a long line its two ends are shown, of many lines the first and the last.
    """

    ag_pass_through = True  # AutoGraph hands errors with this attribute on, and wraps others

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        return Exception.__new__(InvalidValue if cls is FedcoreError else cls, *args)  # type: ignore[return-value]

    def __str__(self) -> str:
        return _clip(Exception.__str__(self))


class TypeMismatch(FedcoreError, TypeError):
    """Something of the wrong kind: a type that does not fit where it is used. The message shows both sides."""


class InvalidValue(FedcoreError, ValueError):
    """Something of the right kind that cannot be used: a number out of range, an unknown name, a damaged file."""


class NotFound(InvalidValue, KeyError):
    """A name or an identifier that nothing has."""


class VerifyError(FedcoreError, ValueError):
    """A module breaks a rule of its stage."""


class TracingError(FedcoreError, TypeError):
    """A Python function did something that cannot be traced."""


class ExecutionError(FedcoreError, RuntimeError):
    """A graph failed while it ran."""


class ClientError(ExecutionError):
    """The work of one client failed."""


class SecureSumError(ExecutionError):
    """A secure sum has no result: too few clients were left in a phase of its protocol, or their shares are wrong."""


class ParseError(FedcoreError, ValueError):
    """Text that is not in the expected notation.

    Args:
        problem: what is wrong, in a few words.
        text: the whole text that was parsed.
        line, column: where, both from 1; one past the end where the text stops too soon.
        expected: what could have stood there.
    """

    def __init__(self, problem: str, text: str, line: int, column: int, expected: Sequence[str] = ()) -> None:
        self.problem = problem
        self.text = text
        self.line = line
        self.column = column
        self.expected = tuple(expected)
        super().__init__(self._message())

    def __reduce__(self) -> tuple[type, tuple]:
        # Exceptions pickle as cls(*args), and args is the rendered message.
        return type(self), (self.problem, self.text, self.line, self.column, self.expected)

    def _message(self) -> str:
        """The problem with its position, the line of the text around it, a caret, and what was expected."""
        lines = self.text.split("\n")
        source = lines[self.line - 1] if 0 < self.line <= len(lines) else ""
        start = max(0, self.column - 1 - _CLIP)
        excerpt = source[start : self.column - 1 + _CLIP].expandtabs(1)
        caret = " " * (self.column - 1 - start) + "^"
        hint = f" expected {_either(self.expected)}" if self.expected else ""
        return f"line {self.line}, column {self.column}: {self.problem}\n  {excerpt}\n  {caret}{hint}"


class _Brief(reprlib.Repr):
    """`repr` of bounded length; tensors, arrays and tables by their class, dtype and shape."""

    def repr1(self, x: Any, level: int) -> str:
        shape = getattr(x, "shape", None)
        if shape is not None and not isinstance(x, type):
            return _brief_array(x, shape)
        return super().repr1(x, level)

    def repr_int(self, x: int, level: int) -> str:
        # Python writes no integer of more than 4,300 digits.
        return super().repr_int(x, level) if x.bit_length() < 4096 else f"an integer of {x.bit_length()} bits"

    def repr_instance(self, x: object, level: int) -> str:
        try:
            text = repr(x)
        except Exception:  # the repr of someone else's class
            text = object.__repr__(x)
        return shorten(" ".join(text.split()), self.maxother)


_brief = _Brief()
_brief.maxstring = _brief.maxother = _BRIEF


def brief(value: object) -> str:
    """A value as it stands in a message: `repr`, but never more than a line; arrays by dtype and shape."""
    return shorten(_brief.repr(value), 2 * _BRIEF)


def _brief_array(x: object, shape: Any) -> str:
    """A tensor or an array by class, dtype and shape, `<ndarray float32[2,3]>`; a scalar by its number."""
    name = type(x).__name__
    dtype = getattr(getattr(x, "dtype", None), "name", None)
    try:
        sizes = list(shape)
    except (TypeError, ValueError):  # a tensor of unknown rank
        return f"<{name} of unknown rank>"
    if not sizes and dtype is not None and hasattr(x, "item"):
        return f"{name}({x.item()!r})"
    return f"<{name} {dtype or ''}[{','.join('?' if n is None else str(n) for n in sizes)}]>"


def shorten(text: str, limit: int = MAX_LINE // 2) -> str:
    """The two ends of a text that is longer than the limit."""
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[: limit - 3 - half]} … {text[-half:]}"


def printable(text: str) -> str:
    """The text with control characters in JSON's escapes, so that a quoted name still parses to the name."""
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)


def _escape(char: str) -> str:
    return json.dumps(char)[1:-1] if ord(char) != 0x7F else "\\u007f"


def _clip(text: str) -> str:
    """A message with bounded lines, and boundedly many."""
    if len(text) <= MAX_LINE:
        return text
    lines = [shorten(line, MAX_LINE) for line in text.split("\n")]
    if len(lines) > MAX_LINES:
        half = MAX_LINES // 2
        lines = [*lines[:half], f"  … {len(lines) - 2 * half} lines more …", *lines[-half:]]
    return "\n".join(lines)


def render_mismatch(
    title: str,
    wants: str,
    has: str,
    spans: Sequence[tuple[int, int]] = (),
    *,
    want_label: str = "signature",
    have_label: str = "argument",
    notes: Sequence[str] = (),
    location: Location | None = None,
    function: str | None = None,
    fix: str | None = None,
) -> str:
    """The text of a mismatch: both sides aligned, carets under what differs, the user's line.

    Args:
        title: what was asked, in the user's names.
        wants, has: the two sides as text.
        spans: (start, end) offsets in `has`; each gets carets, an empty span one caret.
        notes: facts that the two sides do not show, a line each.
        function: the name of the user's function that holds `location`.
        fix: what to change; only where that is certain.
    """
    wants, has, spans = _windows(wants, has, spans)
    width = max(len(want_label), len(have_label))
    margin = f"  {have_label:<{width}}  has    "
    lines = [title, f"  {want_label:<{width}}  wants  {wants}", margin + has]
    carets = _carets(spans)
    if carets:
        lines.append(" " * len(margin) + carets)
    lines += [f"  {note}" for note in notes]
    if location is not None:
        lines.append(f"  at {location}, in {function}" if function else f"  at {location}")
    elif function:
        lines.append(f"  in {function}")
    if fix:
        lines.append(f"  fix: {fix}")
    return "\n".join(lines)


def add_location(text: str, location: Location | None) -> str:
    """The text of an error with the user's line, in front of a fix."""
    if location is None:
        return text
    text, fix, change = text.partition("\n  fix: ")
    return f"{text}\n  at {location}{fix}{change}"


WHOLE = 240
"""Characters of each side of a mismatch; of longer ones a part is shown."""


def _windows(wants: str, has: str, spans: Sequence[tuple[int, int]]) -> tuple[str, str, Sequence[tuple[int, int]]]:
    """Both sides and the spans in `has`; if a side is long, the part of each around the first difference."""
    if len(wants) <= WHOLE and len(has) <= WHOLE:
        return wants, has, spans
    first = min((start for start, _ in spans), default=0)
    while first > 0 and wants[:first] != has[:first]:  # names and containers may differ and fit
        first //= 2
    start = max(0, first - WHOLE // 4)
    shift = len("… ") - start if start else 0
    end = len("… ") + WHOLE
    visible_spans = [(a + shift, min(b + shift, end)) for a, b in spans if start <= a and a + shift < end]
    return _window(wants, start), _window(has, start), visible_spans


def _window(text: str, start: int) -> str:
    """The `WHOLE` characters of a text from `start`, with an ellipsis where it goes on."""
    excerpt = text[start : start + WHOLE]
    return ("… " if start else "") + excerpt + (" …" if start + WHOLE < len(text) else "")


def _carets(spans: Sequence[tuple[int, int]]) -> str:
    """A line with `^` at the offsets in the (start, end) spans, and at the start of an empty span; blanks between."""
    marked = {offset for start, end in spans for offset in range(start, max(end, start + 1))}
    return "".join("^" if offset in marked else " " for offset in range(max(marked, default=-1) + 1))


def _either(words: Sequence[str]) -> str:
    """`a, b or c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} or {words[-1]}"
