"""The set of clients whose integers arrived, and its digest, which clients acknowledge.

Decision 0220.
"""

import hashlib
from collections.abc import Collection

import numpy as np

from fedcore.runtime.secure.signed_messages import OVERHEAD_BYTES, MessageRefused

_DIGEST_BYTES = 32
ACKNOWLEDGEMENT_BYTES = OVERHEAD_BYTES + _DIGEST_BYTES


def to_bytes(survivors: Collection[int], clients: int) -> bytes:
    """A bit for each of the session's clients, which is set for survivors; the lowest bit of a byte comes first."""
    bits = np.zeros(clients, bool)
    bits[list(survivors)] = True
    return np.packbits(bits, bitorder="little").tobytes()


def from_bytes(data: memoryview, clients: int) -> frozenset[int]:
    """The clients whose bit is set.

    Raises:
        MessageRefused: the data have bits of more or fewer clients than the session.
    """
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if len(data) != -(-clients // 8) or bits[clients:].any():
        raise MessageRefused("a set of survivors is not of this session's clients")
    return frozenset(np.flatnonzero(bits).tolist())


def digest(session: bytes, data: bytes | memoryview, keys: bytes) -> bytes:
    """The digest that a client signs to acknowledge a set of survivors.

    Args:
        data: the set, as `to_bytes` gives it.
        keys: the client's public keys of phase `keys`, new in each session: a server may open two sessions of one
            identifier, and a signature of one of them is to mean nothing in the other.
    """
    return hashlib.sha256(b"fedcore survivors" + session + data + keys).digest()
