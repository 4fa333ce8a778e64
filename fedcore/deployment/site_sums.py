"""A site's part in secure sums: its identity, those of its peers, and the sessions in progress."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from fedcore.errors import FedcoreError
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.network.messages import MalformedMessage
from fedcore.runtime.secure.masked_client import MaskedClient
from fedcore.runtime.secure.secure_partials import SecureLeaves
from fedcore.runtime.secure.signed_messages import Directory
from fedcore.runtime.secure.terms import Terms
from fedcore.whole_files import write_whole


@attrs.frozen
class Identity:
    """The key with which a site signs in secure sums, and the public keys of all sites.

    The keys come to the sites beside the server, which could otherwise put itself in a peer's place.

    Args:
        peers: by site its public key, raw; this site's own too.
    """

    key: Ed25519PrivateKey
    peers: Mapping[str, bytes]

    @classmethod
    def read(cls, key: Path, peers: Path) -> "Identity":
        """The identity of a private key in PEM, and of a TOML file of names and public keys in hexadecimal digits.

        Raises:
            FedcoreError: a file cannot be read, or has no such keys.
        """
        try:
            private = load_pem_private_key(key.read_bytes(), None)
            public = {name: bytes.fromhex(text) for name, text in tomllib.loads(peers.read_text()).items()}
        except OSError as error:
            raise FedcoreError(f"cannot read {error.filename}: {error.strerror}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise FedcoreError(f"{key} or {peers} has no keys: {error}") from None
        if not isinstance(private, Ed25519PrivateKey) or any(len(raw) != 32 for raw in public.values()):
            raise FedcoreError(f"{key} and {peers} have Ed25519 keys, which `fedcore site key` makes")
        return cls(private, public)


def write_key(file: Path) -> str:
    """Writes a new private key, which its owner alone can read, and its public key in PEM beside it.

    Returns:
        The public key in hexadecimal digits.
    """
    key = Ed25519PrivateKey.generate()
    file.touch(0o600)
    write_whole(file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_whole(file.with_suffix(".pub"), public)
    return key.public_key().public_bytes_raw().hex()


@attrs.frozen
class SiteSum:
    """A site's side of one secure sum."""

    leaves: SecureLeaves
    client: MaskedClient

    @classmethod
    def join(
        cls,
        identity: Identity,
        site: str,
        names: Sequence[str],
        index: int,
        packed_terms: bytes,
        server_key: bytes,
        work: ClientWork,
    ) -> "SiteSum":
        """Joins a session.

        The layout of the vectors is computed from the plan here, and the keys of the other clients are those of the
        site's own list, so that the server decides neither.

        Raises:
            MalformedMessage: the terms are malformed, a name has no key here, or the site is not at its own place.
        """
        if not 0 <= index < len(names) or names[index] != site or len({*names}) < len(names):
            raise MalformedMessage(f"the session does not name {site} once, at its place")
        unknown = [name for name in names if name not in identity.peers]
        if unknown:
            raise MalformedMessage(f"{site} knows no key of {', '.join(unknown)}")
        if len(packed_terms) < 28:
            raise MalformedMessage("the terms of a session are too short")
        degree, threshold = np.frombuffer(packed_terms[4:12], "<u4").tolist()
        leaves = SecureLeaves(work, len(names))
        terms = Terms(len(names), degree, threshold, tuple(leaves.layout), packed_terms[12:28])
        keys = [Ed25519PublicKey.from_public_bytes(identity.peers[name]) for name in names]
        directory = Directory(terms.session, keys, Ed25519PublicKey.from_public_bytes(server_key))
        return cls(leaves, MaskedClient(index, terms, identity.key, directory))

    def answer(self, phase: str, message: bytes) -> bytes:
        """The client's message of a phase other than `masked`."""
        client = self.client
        phases: dict[str, Any] = {
            "keys": client.advertise,
            "shares": client.share,
            "survivors": client.acknowledge,
            "unmasking": client.unmask,
        }
        if phase not in phases:
            raise MalformedMessage(f"there is no phase {phase!r} to answer")
        return phases[phase](message)

    def mask(self, message: bytes, partial: Any) -> tuple[bytes, Any]:
        """The masked integers of a partial, and the partial without them."""
        return self.client.mask(message, self.leaves.vector(partial)), self.leaves.without(partial)
