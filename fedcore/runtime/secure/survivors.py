"""The set of clients whose integers arrived, and its digest, which clients acknowledge.

Decision 0220.
"""

import hashlib
from collections.abc import Collection

from fedcore.runtime.secure.signed_messages import OVERHEAD_BYTES, MessageRefused

_DIGEST_BYTES = 32
ACKNOWLEDGEMENT_BYTES = OVERHEAD_BYTES + _DIGEST_BYTES


def to_bytes(survivors: Collection[int], clients: int) -> bytes:
    """A bit for each of the session's clients."""
    return sum(1 << c for c in survivors).to_bytes(-(-clients // 8), "little")


def from_bytes(data: memoryview, clients: int) -> frozenset[int]:
    """The clients whose bit is set.

    Raises:
        MessageRefused: the data have bits of more or fewer clients than the session.
    """
    bits = int.from_bytes(data, "little")
    if len(data) != -(-clients // 8) or bits >> clients:
        raise MessageRefused("a set of survivors is not of this session's clients")
    return frozenset(c for c in range(clients) if bits >> c & 1)


def digest(session: bytes, data: bytes | memoryview, keys: bytes) -> bytes:
    """The digest that a client signs.

    Args:
        keys: the client's public keys of phase `keys`, new in each session: a server may open two sessions of one
            identifier, and what the client signs in one of them is to mean nothing in the other.
    """
    return hashlib.sha256(b"fedcore survivors" + session + data + keys).digest()
