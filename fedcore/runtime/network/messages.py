"""Payloads: facts (JSON) and arrays by name, as one file in the format of safetensors.

Reading one runs nothing: neither side unpickles or evaluates what arrives. The sizes of a payload are checked before it
is parsed, and each fact is read by a method that has its bound; docs/deployment.md lists the bounds of whole messages.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import safetensors
import safetensors.numpy

from fedcore.errors import FedcoreError, printable, shorten

MAX_MESSAGE_BYTES = 2**31 - 1
MAX_HEADER_BYTES = 2**22
"""The most bytes of the names, dtypes and shapes of a message's arrays."""

MAX_FACTS_BYTES = 2**20
MAX_ARRAYS = 2**15
MAX_NAME = 200
"""The most characters of the name of an operation, a site, a rule or a kind."""

MAX_REMARK = 1000
"""Characters of a text for people, such as the reason of a refusal, that are read."""

MAX_REMARKS = 64
"""Number of remarks of a reply that are read."""

MAX_INDEX = 2**31 - 1
_FACTS = "facts"  # name of the array that has the JSON of the facts
_HEX = re.compile(r"(?:[0-9a-f]{32}){1,2}")


class MalformedMessage(FedcoreError):
    """A payload is not what the protocol says."""


@attrs.frozen(eq=False)
class Message:
    """A request to a site, or its reply.

    Args:
        facts: values that JSON can write, by name; the fact `kind` names the kind of the message.
        arrays: arrays of dtypes that safetensors has, by name.
    """

    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = attrs.field(factory=dict)

    def to_bytes(self) -> bytes:
        """The payload, whose facts are an array of their own."""
        facts = np.frombuffer(json.dumps(self.facts, separators=(",", ":")).encode(), np.uint8)
        arrays = {name: np.asarray(array, order="C") for name, array in self.arrays.items()}
        return safetensors.numpy.save({_FACTS: facts, **arrays})

    @classmethod
    def from_bytes(cls, data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> "Message":
        """The message of a payload.

        Raises:
            MalformedMessage: it is none, or is larger than a bound.
        """
        _check_size("a payload", len(data), min(max_bytes, MAX_MESSAGE_BYTES))
        # A file of safetensors begins with the size of its header.
        _check_size("the header of a payload", int.from_bytes(data[:8], "little"), MAX_HEADER_BYTES)
        try:
            arrays = safetensors.numpy.load(bytes(data))
            facts_array = arrays.pop(_FACTS)
            _check_size("the facts of a message", facts_array.nbytes, MAX_FACTS_BYTES)
            facts = json.loads(facts_array.tobytes())
        except (safetensors.SafetensorError, LookupError, ValueError, TypeError, RecursionError) as error:
            raise MalformedMessage(f"a payload is no message: {type(error).__name__}: {error}") from None
        if len(arrays) > MAX_ARRAYS:
            raise MalformedMessage(f"a message has {len(arrays)} arrays; at most {MAX_ARRAYS} are read")
        if not isinstance(facts, dict) or not isinstance(facts.get("kind"), str) or len(facts["kind"]) > MAX_NAME:
            raise MalformedMessage("a message does not say of what kind it is")
        return cls(facts, arrays)

    def array(self, name: str, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
        """The bytes of an array.

        Raises:
            MalformedMessage: the message lacks it, or it has more bytes.
        """
        if name not in self.arrays:
            raise self._lacks(name, "array")
        _check_size(f"the array {name} of a message", self.arrays[name].nbytes, max_bytes)
        return self.arrays[name].tobytes()

    def fact(self, name: str, kind: type) -> Any:
        """A fact, whose value has the type `kind`.

        Raises:
            MalformedMessage: the message lacks it.
        """
        value = self.facts.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self._lacks(name, kind.__name__)
        return value

    def name(self, name: str) -> str:
        """A fact that is a name of `MAX_NAME` printable characters at most.

        Raises:
            MalformedMessage: the message has no such name.
        """
        value = self.fact(name, str)
        if not _is_name(value):
            raise self._lacks(name, f"text of {MAX_NAME} printable characters at most")
        return value

    def names(self, name: str, most: int) -> list[str]:
        """A fact that is a list of names.

        Args:
            most: the largest number of names.
        Raises:
            MalformedMessage: the message has no such list.
        """
        values = self.fact(name, list)
        if len(values) > most or not all(map(_is_name, values)):
            raise self._lacks(name, f"list of {most} names at most")
        return values

    def name_lists(self, name: str) -> dict[str, tuple[str, ...]]:
        """A fact that maps names to lists of names; empty if the message lacks it.

        Raises:
            MalformedMessage: it is no such fact.
        """
        lists = self.facts.get(name, {})
        if not isinstance(lists, dict) or not all(
            _is_name(key) and isinstance(names, list) and all(map(_is_name, names)) for key, names in lists.items()
        ):
            raise self._lacks(name, "lists of names")
        return {key: tuple(names) for key, names in lists.items()}

    def number(self, name: str, least: int = 0, most: int = MAX_INDEX) -> int:
        """A fact that is a whole number in a range.

        Raises:
            MalformedMessage: the message has no such number.
        """
        value = self.fact(name, int)
        if not least <= value <= most:
            raise self._lacks(name, f"number from {least} to {most}")
        return value

    def digest(self, name: str) -> str:
        """A fact of 32 or 64 hexadecimal digits.

        Raises:
            MalformedMessage: the message has none.
        """
        value = self.fact(name, str)
        if not is_digest(value):
            raise self._lacks(name, "32 or 64 hexadecimal digits")
        return value

    def remark(self, name: str) -> str:
        """A text for people: cut at `MAX_REMARK`, with control characters escaped.

        Raises:
            MalformedMessage: the message has no such text.
        """
        return remark(self.fact(name, str))

    def remarks(self, name: str) -> list[str]:
        """A list of texts for people, of which the first `MAX_REMARKS` are read.

        Raises:
            MalformedMessage: the message has no such list.
        """
        values = self.fact(name, list)[:MAX_REMARKS]
        if not all(isinstance(value, str) for value in values):
            raise self._lacks(name, "list of texts")
        return [remark(value) for value in values]

    def _lacks(self, name: str, what: str) -> MalformedMessage:
        """The error of a fact or array that is missing or not as it should be, `what` in words."""
        return MalformedMessage(f"a message of kind {remark(self.facts['kind'])!r} has no {name} of type {what}")


def remark(text: str) -> str:
    """A text from the other side as people read it: cut at `MAX_REMARK`, control characters escaped, lines indented."""
    return printable(shorten(text, MAX_REMARK)).replace("\n", "\n    ")


def is_digest(value: object) -> bool:
    """Whether a value has 32 or 64 hexadecimal digits."""
    return isinstance(value, str) and _HEX.fullmatch(value) is not None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable()


def _check_size(part: str, size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise MalformedMessage(f"{part} has {size_bytes} bytes; at most {max_bytes} are read")
