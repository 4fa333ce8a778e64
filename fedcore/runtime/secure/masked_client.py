"""A client of a session."""

import hashlib
import os
import struct
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedcore.runtime.secure import masks, shamir, survivors
from fedcore.runtime.secure.masks import Vector
from fedcore.runtime.secure.signed_messages import (
    KEYS,
    MASKED,
    OVERHEAD_BYTES,
    SERVER,
    SHARES,
    SURVIVORS,
    UNMASKING,
    Directory,
    MessageRefused,
    Signer,
    entries,
    join_entries,
    sender_of,
)
from fedcore.runtime.secure.survivors import ACKNOWLEDGEMENT_BYTES
from fedcore.runtime.secure.terms import Terms

KEY_BYTES = 32
KEYS_MESSAGE_BYTES = OVERHEAD_BYTES + 2 * KEY_BYTES
_SHARES = struct.Struct(f"<II{shamir.SHARE_BYTES}s{shamir.SHARE_BYTES}s")
"""The text that is sealed: sender, receiver, share of the sender's private key, share of its seed."""
_TAG_BYTES = 16  # that ChaCha20Poly1305 adds
SEALED_BYTES = 4 + _SHARES.size + _TAG_BYTES
"""Bytes of an entry of phase `shares`: index of the other client, sealed text."""
GIVEN = struct.Struct(f"<IB{shamir.SHARE_BYTES}s")
"""An entry of phase `unmasking`: index of the owner of the secret, DROPPED or ARRIVED, share."""
DROPPED, ARRIVED = 0, 1
"""Of a neighbour whose integers did not arrive, a share of its private key is given, else a share of its seed."""
_CURVE_PRIME = 2**255 - 19


class MaskedClient:
    """A client: each method answers a message of the server by the client's message of the next phase.

    Guarantees:
      - Gives away a share of only one of a neighbour's two secrets, once, and only after `threshold` holders of its own
        secrets, itself among them, have signed the set of survivors by which it chooses.
      - Shares masks with so many neighbours that its seed cannot be recovered without one of them.
      - Refuses each message that is altered or has the wrong phase, session or sender; it then answers nothing more.
    """

    def __init__(self, index: int, terms: Terms, key: Ed25519PrivateKey, directory: Directory) -> None:
        """Makes the client's keys for sealing and masks, and its seed.

        Args:
            index: index of the client in the session.
            key: signs the client's messages.
        """
        self._index = index
        self._terms = terms
        self._directory = directory
        self._signer = Signer(index, terms.session, key)
        self._next: int | None = KEYS  # the phase that the client may enter; None after a failure
        self._sealing, self._masking = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = os.urandom(shamir.SECRET_BYTES)
        self._keys: dict[int, tuple[bytes, bytes]] = {}  # neighbour -> its public keys for sealing and for masking
        self._own_share = b""  # the share of its own seed that the client holds
        self._held: dict[int, tuple[bytes, bytes]] = {}  # neighbour -> shares of its private key and of its seed
        self._shares = b""  # the message that had the shares in `_held`
        self._survivors: frozenset[int] = frozenset()  # among the neighbours in `_held`; all would be O(clients) each
        self._told = b""  # the set of all survivors, as it arrived

    def _enter(self, phase: int) -> None:
        """Enters a phase. Its method sets `_next` again at its end, so a client that fails in it goes no further."""
        if self._next != phase:
            raise MessageRefused(f"client {self._index} is not in this phase")
        self._next = None

    def advertise(self, message: bytes) -> bytes:
        """Phase `keys`: the public keys.

        Args:
            message: the terms of the session.
        Raises:
            MessageRefused: the client has other terms, or half of the holders of its shares could learn both secrets.
        """
        self._enter(KEYS)
        terms = self._terms
        if message != terms.packed:
            raise MessageRefused(f"client {self._index} is invited by other terms")
        if not terms.protects_secrets:
            raise MessageRefused(
                f"client {self._index} is invited by a threshold of {terms.threshold}, with {terms.degree} neighbours "
                f"of {terms.clients} clients"
            )
        self._next = SHARES
        return self._signer.message(KEYS, *self._public_keys)

    @property
    def _public_keys(self) -> tuple[bytes, bytes]:
        return _public(self._sealing), _public(self._masking)

    def share(self, message: bytes) -> bytes:
        """Phase `shares`: shares of the private key for masks and of the seed, sealed for each neighbour.

        Raises:
            MessageRefused: the message is not a list of keys of enough neighbours, and of no more than the terms say.
        """
        self._enter(SHARES)
        for entry in entries(self._directory.body(message, KEYS, SERVER), KEYS_MESSAGE_BYTES, "keys"):
            self._add_neighbour(bytes(entry))
        if len(self._keys) + 1 < self._terms.threshold:
            raise MessageRefused(f"client {self._index} has too few neighbours")
        count, degree = len(self._keys), self._terms.degree
        if count > degree:
            raise MessageRefused(f"client {self._index} gets keys of {count} neighbours, but the terms say {degree}")
        self._check_keys_differ()
        points = [i + 1 for i in (self._index, *self._keys)]  # client i holds the share at the point i + 1
        key_shares, seed_shares = (
            shamir.split(secret, self._terms.threshold, points)
            for secret in (self._masking.private_bytes_raw(), self._seed)
        )
        self._own_share = seed_shares[self._index + 1]
        sealed = [
            neighbour.to_bytes(4, "little")
            + self._seal(neighbour, key_shares[neighbour + 1], seed_shares[neighbour + 1])
            for neighbour in self._keys
        ]
        self._next = MASKED
        return self._signer.message(
            SHARES, commitment(self._terms.session, self._index, self._seed), join_entries(sealed)
        )

    def _add_neighbour(self, message: bytes) -> None:
        """Notes the public keys of a neighbour, from its signed message of phase `keys`."""
        neighbour = sender_of(message)
        if neighbour == self._index or neighbour in self._keys or neighbour >= self._terms.clients:
            raise MessageRefused(f"client {self._index} gets keys of a client that is no neighbour")
        body = bytes(self._directory.body(message, KEYS, neighbour))
        self._keys[neighbour] = body[:KEY_BYTES], body[KEY_BYTES:]

    def _check_keys_differ(self) -> None:
        """Refuses a neighbour that sends the key of another client as its own."""
        owners: dict[int, int] = {}
        for client, keys in {self._index: self._public_keys, **self._keys}.items():
            for key in keys:
                point = curve_point(key)
                if point in owners:
                    raise MessageRefused(f"client {self._index} gets one key from clients {owners[point]} and {client}")
                owners[point] = client

    def _cipher(self, sender: int, receiver: int) -> ChaCha20Poly1305:
        """The cipher of what one neighbour seals for another; it encrypts one message."""
        other = receiver if sender == self._index else sender
        purpose = b"seal" + struct.pack("<II", sender, receiver)
        return ChaCha20Poly1305(agree_key(self._sealing, self._keys[other][0], self._terms.session, purpose))

    def _seal(self, neighbour: int, key_share: bytes, seed_share: bytes) -> bytes:
        text = _SHARES.pack(self._index, neighbour, key_share, seed_share)
        return self._cipher(self._index, neighbour).encrypt(bytes(12), text, self._terms.session)

    def take_shares(self, message: bytes) -> None:
        """Phase `masked`, before the integers are known: takes the shares of neighbours.

        The same message may be given again before `mask`, as when a run is repeated.

        Args:
            message: the shares that neighbours sealed for this client. A neighbour without shares has dropped out.
        Raises:
            MessageRefused: the message is altered, is another one than before, or too few neighbours are left.
        """
        self._enter(MASKED)
        if self._held and message != self._shares:
            raise MessageRefused(f"client {self._index} gets other shares than before")
        if not self._held:
            self._open_shares(message)
        self._shares, self._next = message, MASKED

    def _open_shares(self, message: bytes) -> None:
        """Fills `_held`; refuses shares of too few neighbours."""
        for entry in entries(self._directory.body(message, SHARES, SERVER), SEALED_BYTES, "sealed shares"):
            neighbour = int.from_bytes(entry[:4], "little")
            if neighbour not in self._keys or neighbour in self._held:
                raise MessageRefused(f"client {self._index} gets shares of a client that is no neighbour")
            self._held[neighbour] = self._open(neighbour, bytes(entry[4:]))
        # threshold - 1 of the other holders of the client's seed could recover it together with the client: these must
        # include a neighbour with whom it shares a mask.
        holders, threshold = len(self._keys) + 1, self._terms.threshold
        if len(self._held) < max(threshold - 1, holders - threshold + 1):
            raise MessageRefused(f"client {self._index} has too few neighbours left")

    def mask(self, vector: Vector, *, spoils: bool = False) -> bytes:
        """Phase `masked`: the integers plus the client's own mask and the masks shared with its neighbours.

        Args:
            vector: the integers, by the layout of the terms; it is changed.
            spoils: makes the sum uniform, by an own mask that nobody can remove. It takes as long as another mask.
        Raises:
            MessageRefused: the client has no shares.
        """
        self._enter(MASKED)
        if not self._held:
            raise MessageRefused(f"client {self._index} has no shares of its neighbours")
        layout = self._terms.layout
        own_key = own_mask_key(self._terms.session, self._seed)
        masks.add_mask(vector, os.urandom(KEY_BYTES) if spoils else own_key, layout)
        for neighbour in self._held:
            pair = self._index, neighbour
            key = shared_mask_key(self._terms.session, self._masking, self._keys[neighbour][1], pair)
            masks.add_mask(vector, key, layout, negative=self._index > neighbour)
        self._next = SURVIVORS
        return self._signer.message(MASKED, masks.to_bytes(vector, layout))

    def _open(self, neighbour: int, sealed: bytes) -> tuple[bytes, bytes]:
        """The shares that a neighbour sealed for this client."""
        try:
            text = self._cipher(neighbour, self._index).decrypt(bytes(12), sealed, self._terms.session)
        except InvalidTag:
            raise MessageRefused(f"client {self._index} cannot open the shares of client {neighbour}") from None
        sender, receiver, key_share, seed_share = _SHARES.unpack(text)
        if (sender, receiver) != (neighbour, self._index) or not (
            shamir.is_share(key_share) and shamir.is_share(seed_share)
        ):
            raise MessageRefused(f"client {self._index} gets wrong shares from client {neighbour}")
        return key_share, seed_share

    def acknowledge(self, message: bytes) -> bytes:
        """Phase `survivors`: the signed digest of the set of clients whose integers arrived.

        Args:
            message: that set, with a bit for each client.
        Raises:
            MessageRefused: the client or too many of its neighbours are not in it.
        """
        self._enter(SURVIVORS)
        body = self._directory.body(message, MASKED, SERVER)
        all_survivors = survivors.from_bytes(body, self._terms.clients)
        if self._index not in all_survivors:
            raise MessageRefused(f"client {self._index} is told that its integers did not arrive")
        self._survivors = all_survivors & self._held.keys()
        if len(self._survivors) + 1 < self._terms.threshold:
            raise MessageRefused(f"client {self._index} has too few neighbours left")
        self._told = bytes(body)
        self._next = UNMASKING
        return self._signer.message(SURVIVORS, self._digest_of(self._public_keys))

    def _digest_of(self, keys: tuple[bytes, bytes]) -> bytes:
        """The digest that the client of these public keys signs if it is told of the survivors in `_told`."""
        return survivors.digest(self._terms.session, self._told, b"".join(keys))

    def unmask(self, message: bytes) -> bytes:
        """Phase `unmasking`: of each neighbour a share of its seed, or of its private key if it dropped out.

        Args:
            message: the messages by which neighbours acknowledged the set of survivors.
        Raises:
            MessageRefused: a neighbour acknowledged another set, or too few acknowledged this one.
        """
        self._enter(UNMASKING)
        agreeing: set[int] = set()  # neighbours that acknowledged this client's set of survivors
        for entry in entries(self._directory.body(message, SURVIVORS, SERVER), ACKNOWLEDGEMENT_BYTES, "clients"):
            neighbour = sender_of(bytes(entry))
            if neighbour in agreeing or neighbour not in self._survivors:
                raise MessageRefused(f"client {self._index} gets an acknowledgement of client {neighbour}")
            if self._directory.body(bytes(entry), SURVIVORS, neighbour) != self._digest_of(self._keys[neighbour]):
                raise MessageRefused(f"client {self._index} and client {neighbour} are told of different survivors")
            agreeing.add(neighbour)
        if len(agreeing) + 1 < self._terms.threshold:
            raise MessageRefused(f"too few neighbours of client {self._index} are told of its survivors")
        # `shares` is (of the private key, of the seed), so that DROPPED and ARRIVED are indices of it.
        parts = [GIVEN.pack(n, arrived := n in self._survivors, shares[arrived]) for n, shares in self._held.items()]
        parts.append(GIVEN.pack(self._index, ARRIVED, self._own_share))
        return self._signer.message(UNMASKING, join_entries(parts))


def _public(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def curve_point(key: bytes | memoryview) -> int:
    """The point of a public key: X25519 ignores the highest bit and reduces, so that several encodings are one key."""
    return int.from_bytes(key, "little") % 2**255 % _CURVE_PRIME


def _derive(secret: bytes, session: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=session, info=b"fedcore secure sum " + purpose).derive(
        secret
    )


def agree_key(own: X25519PrivateKey, other: bytes, session: bytes, purpose: bytes) -> bytes:
    """The key that two clients agree on.

    Raises:
        MessageRefused: the other's public key is a point of small order.
    """
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise MessageRefused("a client's public key is of small order") from None
    return _derive(secret, session, purpose)


def shared_mask_key(session: bytes, own: X25519PrivateKey, other: bytes, pair: tuple[int, int]) -> bytes:
    """The key of the mask that two clients share.

    It depends on the clients and their public keys, so that masks with a client's copy of another's key do not cancel.

    Args:
        own: private key for masks of one of the two.
        other: public key for masks of the other.
        pair: indices of the two, in any order.
    """
    keys = sorted([_public(own), other])
    return agree_key(own, other, session, b"mask" + struct.pack("<II", *sorted(pair)) + b"".join(keys))


def own_mask_key(session: bytes, seed: bytes) -> bytes:
    """The key of a client's own mask."""
    return _derive(seed, session, b"own mask")


def commitment(session: bytes, index: int, seed: bytes) -> bytes:
    """Commitment of a client to its seed, sent before its shares are joined, so that the server finds wrong shares."""
    return hashlib.sha256(b"fedcore seed" + session + struct.pack("<I", index) + seed).digest()


def private_key(secret: bytes, public: bytes) -> X25519PrivateKey | None:
    """The private key that 32 bytes are; None if it does not belong to the public key."""
    key = X25519PrivateKey.from_private_bytes(secret)
    return key if _public(key) == public else None


Messages = Mapping[int, bytes]
"""Messages by the index of the client."""
