"""Limits on the content of a `.fed` file, most of them checked before it is parsed: its source may be untrusted.

Decision 0089.
"""

import re

from fedcore.errors import FedcoreError, ParseError

MAX_TEXT_BYTES = 64 * 2**20
MAX_BLOB_BYTES = 2**31 - 1  # what protobuf can hold
MAX_BUNDLE_BYTES = 2**36
MAX_STREAM_BYTES = 2**28  # of a pipe or another file whose size is unknown before it is read
MAX_BLOBS = 100_000
MAX_NESTING = 150  # brackets in brackets: types nest 100 deep at most
MAX_NAMES = 2_000_000  # occurrences of names of bindings and symbols in one text
MAX_MARKS = 2_000_000  # of each kind (lines, commas, …), since a text is read word by word
MAX_NAME = 10_000  # characters of a quoted name
MAX_INLINED = 250_000  # operations of a program after inlining
MAX_DIGITS = 400  # of one number: more than the longest float64 written without an exponent
MAX_TYPE_WORK = 4_000_000  # parts of the types of all operands and results, which the verifier compares
MAX_PROBLEMS = 100  # in one `VerifyError`
MAX_PROBLEM = 20_000  # characters of one of these problems
MAX_CLIENTS_AT_ONCE = 65_536  # in a vectorised group, a block, or a call
MAX_BITS = 2**62  # of one crossing
MAX_RANK = 2**31  # of the factors of a kernel
MAX_WHY = 200  # characters of the reason why a stage is not vectorised

_MARKS = {"lines": "\n", "commas": ",", "equals signs": "=", "comments": "//"}
# Quoted names and comments, in which brackets do not count; arrows, whose `>` is no bracket; brackets.
_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|//[^\n]*|->|[\[({<]|[\])}>]', re.DOTALL)


def check_text(text: str) -> None:
    """Raises an error if the text is too long, names too much, or nests too deeply to be parsed."""
    if len(text) > MAX_TEXT_BYTES:
        raise FedcoreError(f"the text has {len(text)} bytes; at most {MAX_TEXT_BYTES} are read")
    names = text.count("%") + text.count("@")
    if names > MAX_NAMES:
        raise FedcoreError(f"the text has {names} names; at most {MAX_NAMES} are read")
    for plural, mark in _MARKS.items():
        if text.count(mark) > MAX_MARKS:
            raise FedcoreError(f"the text has {text.count(mark)} {plural}; at most {MAX_MARKS} are read")
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
