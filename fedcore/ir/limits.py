"""How much a `.fed` file may hold. A file from elsewhere is data: these are checked before it is parsed."""

import re

from fedcore.errors import FedcoreError, ParseError

MAX_TEXT_BYTES = 64 * 2**20
MAX_BLOB_BYTES = 2**31 - 1  # what protobuf can hold
MAX_BUNDLE_BYTES = 2**36
MAX_STREAM_BYTES = 2**28  # of what is no regular file, such as a pipe, which tells no size before it is read
MAX_BLOBS = 100_000
MAX_NESTING = 250  # brackets in brackets: types nest 200 deep at most
MAX_NAMES = 2_000_000  # bindings and symbols of one text, wherever they are named
MAX_MARKS = 2_000_000  # lines, commas and the like, each kind: a text is read word by word
MAX_NAME = 10_000  # characters of a quoted name
MAX_INLINED = 250_000  # operations of a program, with every call of a function replaced by what it calls
MAX_DIGITS = 400  # of one number: more than the longest float64 written without an exponent
MAX_TYPE_WORK = 4_000_000  # parts of types that are compared: those of every operand and result
MAX_PROBLEMS = 100  # that `verify` lists
MAX_PROBLEM = 20_000  # characters of one that it shows
MAX_CLIENTS_AT_ONCE = 65_536  # in a vectorised group, a block, or a call
MAX_BITS = 2**62  # that cross in one step

_MARKS = {"lines": "\n", "commas": ",", "equals signs": "=", "comments": "//"}
_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|//[^\n]*|->|[\[({<]|[\])}>]', re.DOTALL)


def check_text(text: str) -> None:
    """Raises an error if the text is too long, names too much, or nests too deeply to be parsed."""
    if len(text) > MAX_TEXT_BYTES:
        raise FedcoreError(f"the text has {len(text)} bytes; at most {MAX_TEXT_BYTES} are read")
    names = text.count("%") + text.count("@")
    if names > MAX_NAMES:
        raise FedcoreError(f"the text has {names} names; at most {MAX_NAMES} are read")
    for what, mark in _MARKS.items():
        if text.count(mark) > MAX_MARKS:
            raise FedcoreError(f"the text has {text.count(mark)} {what}; at most {MAX_MARKS} are read")
    if text.count("[") + text.count("(") + text.count("{") + text.count("<") <= MAX_NESTING:
        return
    depth = 0
    for match in _BRACKETS.finditer(text):
        first = match[0][0]
        if first in "[({<":
            depth += 1
            if depth > MAX_NESTING:
                raise _too_deep(text, match.start())
        elif first in "])}>":
            depth -= 1


def _too_deep(text: str, offset: int) -> ParseError:
    line = text.count("\n", 0, offset) + 1
    column = offset - text.rfind("\n", 0, offset)
    return ParseError(f"brackets nest more than {MAX_NESTING} deep", text, line, column)
