"""Payloads: facts (JSON) and arrays by name, as one file in the format of safetensors.

Reading one runs nothing: neither side unpickles or evaluates what arrives.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import safetensors
import safetensors.numpy

from fedcore.errors import FedcoreError

_FACTS = "facts"


class MalformedMessage(FedcoreError):
    """A payload is not what the protocol says."""


@attrs.frozen(eq=False)
class Message:
    """A request to a site, or its reply.

    Args:
        facts: JSON; `kind` says what it is.
        arrays: of the dtypes that safetensors has.
    """

    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = attrs.field(factory=dict)

    def to_bytes(self) -> bytes:
        facts = np.frombuffer(json.dumps(self.facts, separators=(",", ":")).encode(), np.uint8)
        arrays = {name: np.asarray(array, order="C") for name, array in self.arrays.items()}
        return safetensors.numpy.save({_FACTS: facts, **arrays})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Message":
        """The message of a payload.

        Raises:
            MalformedMessage: it is none.
        """
        try:
            arrays = safetensors.numpy.load(bytes(data))
            facts = json.loads(arrays.pop(_FACTS).tobytes())
        except (safetensors.SafetensorError, KeyError, ValueError, RecursionError) as error:
            raise MalformedMessage(f"a payload is no message: {type(error).__name__}: {error}") from None
        if not isinstance(facts, dict) or not isinstance(facts.get("kind"), str):
            raise MalformedMessage("a message does not say of what kind it is")
        return cls(facts, arrays)

    def array(self, name: str) -> bytes:
        """The bytes of an array.

        Raises:
            MalformedMessage: the message lacks it.
        """
        if name not in self.arrays:
            raise MalformedMessage(f"a message of kind {self.facts['kind']!r} has no {name}")
        return self.arrays[name].tobytes()

    def fact(self, name: str, kind: type) -> Any:
        """A fact of a type.

        Raises:
            MalformedMessage: the message lacks it.
        """
        value = self.facts.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise MalformedMessage(f"a message of kind {self.facts['kind']!r} has no {name} of type {kind.__name__}")
        return value
