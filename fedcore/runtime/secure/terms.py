"""The terms of one session, which all its parties know."""

import functools
import hashlib
import os
import struct

import attrs

from fedcore.runtime.secure import neighbours
from fedcore.runtime.secure.masks import Layout
from fedcore.runtime.secure.settings import Masked


@attrs.frozen
class Terms:
    """The terms of a session.

    Args:
        clients: number of clients that were invited; they have the indices from 0.
        degree: neighbours of a client in the graph.
        threshold: shares that determine a secret.
        layout: layout of the clients' vectors.
        nonce: random bytes, so that no two sessions have one identifier.
        context: digest of further facts of the sum, such as a `Transcript`, which each party computes itself. All keys
            of masks are derived from it.
    """

    clients: int
    degree: int
    threshold: int
    layout: Layout
    nonce: bytes = attrs.field(factory=lambda: os.urandom(16))
    context: bytes = b""

    @property
    def protects_secrets(self) -> bool:
        """Whether a lying server cannot learn both secrets of a client: its masking key and the seed of its own mask.

        Each holder of shares gives a share of one of the two secrets only. The holders are the client and at most
        `degree` neighbours, so the threshold must be more than half of them, and not more than there are. The graph
        must be complete, or sparse with half of a client's neighbours on either side of the ring.
        """
        sparse = 0 < self.degree < self.clients - 1 and self.degree % 2 == 0
        complete = 0 < self.degree == self.clients - 1
        return (sparse or complete) and (self.degree + 1) / 2 < self.threshold <= self.degree + 1

    @classmethod
    def of(cls, settings: Masked, clients: int, layout: Layout) -> "Terms":
        """The terms of a session by the user's settings."""
        degree, threshold = neighbours.degree_and_threshold(clients)
        if settings.degree is not None:
            degree = min(settings.degree, clients - 1)
            degree += degree % 2 if degree < clients - 1 else 0  # a ring has as many neighbours on both sides
            threshold = neighbours.complete_threshold(degree + 1) if degree == clients - 1 else (degree + 1) // 2 + 1
        if settings.threshold is not None:  # within the bounds of `protects_secrets`, though fewer clients have come
            threshold = min(max(settings.threshold, (degree + 1) // 2 + 1), degree + 1)
        return cls(clients, degree, threshold, tuple(layout))

    @functools.cached_property
    def packed(self) -> bytes:
        """The terms as the server sends them, without the context."""
        packed = struct.pack("<3I", self.clients, self.degree, self.threshold) + self.nonce
        for segment in self.layout:
            packed += struct.pack("<Q", segment.length) + segment.modulus.to_bytes(9, "little")
        return packed

    @functools.cached_property
    def session(self) -> bytes:
        """The identifier of the session: the digest of its terms and context.

        Parties with other terms or another context refuse its messages, and derive other keys. Decision 0300.
        """
        return hashlib.sha256(self.packed + self.context).digest()
