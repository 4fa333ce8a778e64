"""Signed messages between clients and the server, parsed strictly.

A message is a fixed word, a phase, 16 bytes of the session, the sender, the body, and an Ed25519 signature of the
SHA-256 digest of all that and of the whole identifier of the session. Each byte is covered by the signature, so an
altered message is refused by whoever gets it.
"""

import hashlib
import struct
from collections.abc import Sequence

import attrs
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedcore.errors import SecureSumError
from fedcore.runtime.secure.settings import PHASES

KEYS, SHARES, MASKED, SURVIVORS, UNMASKING = range(5)
"""The numbers of the phases, in the order of `PHASES`."""

SERVER = 2**32 - 1
"""The sender of the server's messages; clients send as their index."""

_MAGIC = b"fcs2"
_HEAD = struct.Struct("<4sB16sI")  # fixed word, phase, first bytes of the session, sender
_SESSION_BYTES = 16
_SIGNATURE_BYTES = 64
OVERHEAD_BYTES = _HEAD.size + _SIGNATURE_BYTES
"""Bytes of a message beside its body."""


class MessageRefused(SecureSumError):
    """A message is not what its phase asks for: altered, from someone else, or against the protocol."""


@attrs.frozen
class Signer:
    """A party that signs its messages.

    Args:
        sender: index of the client, or SERVER.
        session: identifier of the session, see `Terms.session`.
    """

    sender: int
    session: bytes
    key: Ed25519PrivateKey

    def message(self, phase: int, *parts: bytes) -> bytes:
        """A signed message of a phase."""
        text = b"".join([_HEAD.pack(_MAGIC, phase, self.session[:_SESSION_BYTES], self.sender), *parts])
        return text + self.key.sign(_signed(text, self.session))


@attrs.frozen
class Directory:
    """The public keys by which all parties of a session check signatures.

    Args:
        session: identifier of the session.
        clients: for each client its key.
        server: the server's key.
    """

    session: bytes
    clients: Sequence[Ed25519PublicKey]
    server: Ed25519PublicKey

    def body(self, message: bytes, phase: int, sender: int) -> memoryview:
        """The body of a message of this sender in this phase.

        Raises:
            MessageRefused: it is no such message.
        """
        if sender != SERVER and not 0 <= sender < len(self.clients):
            raise MessageRefused(f"a message of phase {PHASES[phase]} is of nobody in this session")
        if len(message) < OVERHEAD_BYTES:
            raise MessageRefused(f"a message of phase {PHASES[phase]} is too short")
        view = memoryview(message)
        text, signature = view[:-_SIGNATURE_BYTES], bytes(view[-_SIGNATURE_BYTES:])
        if _HEAD.unpack_from(text) != (_MAGIC, phase, self.session[:_SESSION_BYTES], sender):
            raise MessageRefused(f"a message is not of phase {PHASES[phase]} of this session, or not of its sender")
        key = self.server if sender == SERVER else self.clients[sender]
        try:
            key.verify(signature, _signed(text, self.session))
        except InvalidSignature:
            raise MessageRefused(f"a message of phase {PHASES[phase]} has a wrong signature") from None
        return text[_HEAD.size :]


def _signed(text: bytes | memoryview, session: bytes) -> bytes:
    """The digest that is signed: of a message without its signature, and the whole identifier of the session."""
    digest = hashlib.sha256(text)
    digest.update(session)
    return digest.digest()


def sender_of(message: bytes) -> int:
    """The sender that the head of a message names; the signature is not checked.

    Raises:
        MessageRefused: the message is too short to have a head and a signature.
    """
    if len(message) < OVERHEAD_BYTES:
        raise MessageRefused("a message is too short")
    return _HEAD.unpack_from(message)[3]


def entries(body: memoryview, size: int, what: str) -> list[memoryview]:
    """The entries of a body, which has their number in 4 bytes, and then the entries of one size.

    Args:
        size: bytes of an entry.
        what: the plural name of the entries, for errors.
    Raises:
        MessageRefused: the body is shorter or longer.
    """
    count = int.from_bytes(body[:4], "little") if len(body) >= 4 else -1
    if len(body) != 4 + count * size:
        raise MessageRefused(f"a list of {what} has a wrong length")
    return [body[4 + i * size : 4 + (i + 1) * size] for i in range(count)]


def join_entries(parts: Sequence[bytes]) -> bytes:
    """The body that `entries` parses."""
    return len(parts).to_bytes(4, "little") + b"".join(parts)
