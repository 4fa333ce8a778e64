"""A site's part in secure sums: its identity, those of its peers, and the sessions in progress."""

import tomllib
from collections.abc import Mapping
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

from fedcore.deployment.site_inputs import RunRequest
from fedcore.errors import FedcoreError
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.network.messages import MalformedMessage
from fedcore.runtime.network.site_leaves import SiteLeaves
from fedcore.runtime.network.transcript import Transcript, seed_commitment
from fedcore.runtime.secure.masked_client import KEY_BYTES, MaskedClient
from fedcore.runtime.secure.masks import Vector, zeros
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
            private_key = load_pem_private_key(key.read_bytes(), None)
            public_keys = {name: bytes.fromhex(text) for name, text in tomllib.loads(peers.read_text()).items()}
        except OSError as error:
            fix = f"\n  fix: fedcore site key {key} makes a key" if error.filename == str(key) else ""
            raise FedcoreError(f"cannot read {error.filename}: {error.strerror}{fix}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise FedcoreError(f"{key} or {peers} has no keys: {error}") from None
        if not isinstance(private_key, Ed25519PrivateKey) or any(len(raw) != 32 for raw in public_keys.values()):
            raise FedcoreError(f"{key} and {peers} have Ed25519 keys, which `fedcore site key` makes")
        return cls(private_key, public_keys)


def write_key(file: Path) -> str:
    """Writes a new private key, which its owner alone can read, and its public key in PEM beside it.

    Returns:
        The public key in hexadecimal digits.
    """
    key = Ed25519PrivateKey.generate()
    file.touch(0o600)
    file.chmod(0o600)  # a file that was there
    write_whole(file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_whole(file.with_suffix(".pub"), public)
    return key.public_key().public_bytes_raw().hex()


@attrs.frozen
class SiteSum:
    """A site's side of one secure sum.

    Args:
        index: of the site among the clients.
        transcript: what the server has told, from which the masks are derived.
        peers: for each client its public key, by the site's list.
        leaves: the leaves of the partial that are masked, as integers of a vector.
        client: the client's side of the protocol.
    """

    index: int
    transcript: Transcript
    peers: tuple[bytes, ...]
    terms: Terms
    leaves: SiteLeaves
    client: MaskedClient

    @classmethod
    def join(
        cls,
        identity: Identity,
        site: str,
        index: int,
        transcript: Transcript,
        packed_terms: bytes,
        server_key: bytes,
        work: ClientWork,
    ) -> "SiteSum":
        """Joins a session, for the site `site` at place `index` of the session's clients.

        The layout of the vectors is computed from the plan here, and the keys of the other clients are those of the
        site's own list, so that the server decides neither.

        Raises:
            MalformedMessage: the terms are malformed, a name has no key here, two have one, or the site is not at its
                own place.
        """
        names = transcript.names
        if not 0 <= index < len(names) or names[index] != site or len({*names}) < len(names):
            raise MalformedMessage(f"the session does not name {site} once, at its place")
        unknown = [name for name in names if name not in identity.peers]
        if unknown:
            raise MalformedMessage(f"{site} knows no key of {', '.join(unknown)}")
        peers = tuple(identity.peers[name] for name in names)
        if len({*peers}) < len(peers):
            raise MalformedMessage(f"{site} knows one key of several sites of the session")
        # As `Terms` packs them: number of clients, degree, threshold (4 bytes each), then a nonce of 16 bytes.
        if len(packed_terms) < 28 or len(server_key) != KEY_BYTES:
            raise MalformedMessage("the terms of a session are too short")
        degree, threshold = np.frombuffer(packed_terms[4:12], "<u4").tolist()
        leaves = SiteLeaves(work, len(names))
        nonce, context = packed_terms[12:28], transcript.digest(peers)
        terms = Terms(len(names), degree, threshold, tuple(leaves.layout), nonce, context)
        keys = list(map(Ed25519PublicKey.from_public_bytes, peers))
        directory = Directory(terms.session, keys, Ed25519PublicKey.from_public_bytes(server_key))
        client = MaskedClient(index, terms, identity.key, directory)
        return cls(index, transcript, peers, terms, leaves, client)

    @property
    def least_clients(self) -> int:
        """The least number of clients with the kinds of sources of this client, in a sum that can be unmasked.

        The server can drop as many clients as the threshold allows, and it may choose the values of clients with other
        sources, so neither protects this client.
        """
        most_lost = max(0, self.terms.clients - self.terms.threshold)
        return self.transcript.alike(self.index) - most_lost

    def check_run(self, run: RunRequest) -> None:
        """Checks that a run is the one that the session was joined for.

        Raises:
            MalformedMessage: it is not.
        """
        agreed = self.transcript
        server_values = {name: agreed.server_values.get(name) for name in run.server_values}
        if (
            run.index != self.index
            or seed_commitment(agreed.run, run.seed) != agreed.seed
            or run.broadcasts != agreed.broadcasts
            or run.sources != agreed.sources[self.index]
            or run.server_values != server_values
        ):
            raise MalformedMessage("the run is not that of the transcript by which its masks were agreed on")

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

    def mask(self, vector: Vector | None) -> bytes:
        """The masked integers of a run; None for one that has failed: it makes the sum uniform. Both take as long."""
        if vector is None:
            return self.client.mask(zeros(self.leaves.layout), spoils=True)
        return self.client.mask(vector)
