"""Partials of single clients whose secure leaves go through a session of secure sums.

Decision 0140.
"""

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from fedcore.errors import FedcoreError, SecureSumError
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.intrinsics.secure_ranges import OPEN, SecureRange
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.reports.report import Report, SecureTraffic
from fedcore.runtime.secure.masks import Segment, Vector
from fedcore.runtime.secure.session import Session
from fedcore.runtime.secure.settings import Masked
from fedcore.types import TensorType, Type, member_of, tensor_leaves


@attrs.frozen
class _Leaf:
    """A secure leaf of a partial: how its integers become elements modulo a number, and back.

    Args:
        range: range of one client's integers.
        modulus: number modulo which the sum over clients is computed.
    """

    type: TensorType
    range: SecureRange
    modulus: int

    @classmethod
    def of(cls, type_: TensorType, range_: SecureRange, clients: int) -> "_Leaf":
        """The leaf with the modulus of its range; if the range has none, the smallest power of 256 above all sums.

        A sum wraps as the dtype does: the modulus is 2**bits of it at most, and for a range without a largest integer.
        """
        modulus = 1 << 8 * type_.dtype.numpy.itemsize
        if range_.modulus is not None:
            modulus = range_.modulus
        elif range_.largest is not None:
            sum_bytes = -(-(clients * range_.largest).bit_length() // 8)
            modulus = min(modulus, 1 << 8 * max(1, sum_bytes))
        return cls(type_, range_, modulus)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(d or 0 for d in self.type.shape or ())

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def unsigned(self) -> np.dtype:
        """The unsigned dtype of the leaf's size, in which two's complement makes negative integers elements."""
        return np.dtype(f"<u{self.type.dtype.numpy.itemsize}")

    def encode(self, value: np.ndarray) -> np.ndarray:
        """A client's integers as a flat array of elements.

        Raises:
            SecureSumError: an integer is not in the range, or the array is not of the type: surplus integers would
                have no masks.
        """
        if value.shape != self.shape or value.dtype != self.type.dtype.numpy:
            raise SecureSumError(f"secure sum: a client's integers are not of the type {self.type} of the plan")
        flat = np.ascontiguousarray(value).reshape(-1)
        if not self.range.holds(flat):
            raise SecureSumError(f"secure sum: a client's integers are not in the range {self.range} of the plan")
        return flat.view(self.unsigned)

    def decode(self, elements: np.ndarray) -> np.ndarray:
        """The integers in the dtype and shape of the leaf, from their elements."""
        return elements.astype(self.unsigned).view(self.type.dtype.numpy).reshape(self.shape)


class SecureLeaves:
    """The secure leaves of a stage's partial as one vector, in which successive leaves of one modulus are a segment.

    Args:
        work: a stage whose partials are merged, with secure leaves.
        clients: number of clients of the sum.

    Attributes:
        merge: name of the plan's operation that merges the partials.
        type: of a partial.
    """

    def __init__(self, work: ClientWork, clients: int) -> None:
        assert work.merge is not None  # `work.secure` is an attribute of this operation
        self.merge = work.merge
        self.type: Type = member_of(work.module.main.types()[self.merge])
        types = tensor_leaves(self.type)
        # By the number among the leaves of the partial. `work.secure` has a text for each leaf: the range of a client's
        # integers, or OPEN for a leaf that is not secure.
        self._leaves = {
            i: _Leaf.of(types[i], SecureRange.parse(text), clients)
            for i, text in enumerate(work.secure)
            if text != OPEN
        }
        self.layout: list[Segment] = []
        self._groups: list[list[int]] = []  # for each segment the numbers of its leaves
        for i, leaf in self._leaves.items():
            size = leaf.size
            if self.layout and self.layout[-1].modulus == leaf.modulus:
                size += self.layout.pop().length
                self._groups[-1].append(i)
            else:
                self._groups.append([i])
            self.layout.append(Segment(size, leaf.modulus))

    @property
    def plain_bits(self) -> int:
        """The bits that a client's integers have without the protocol."""
        return sum(leaf.size * leaf.range.bits(leaf.type.dtype.numpy) for leaf in self._leaves.values())

    def vector(self, partial: Any) -> Vector:
        """The secure leaves of a client's partial: for each segment of `layout` the elements of its leaves.

        Raises:
            SecureSumError: an integer is not in the range of the plan.
        """
        leaves = flatten(partial)
        vector: Vector = []
        for segment, group in zip(self.layout, self._groups, strict=False):  # `SiteLeaves` has a further segment
            parts = [self._leaves[i].encode(np.asarray(leaves[i])) for i in group]
            vector.append(np.concatenate(parts, dtype=segment.dtype, casting="unsafe"))
        return vector

    def zeros(self) -> dict[int, np.ndarray]:
        """The zeros that stand in the place of the integers: number of the leaf -> array of its type."""
        return {i: np.zeros(leaf.shape, leaf.type.dtype.numpy) for i, leaf in self._leaves.items()}

    def without(self, partial: Any) -> Any:
        """The partial with zeros in the place of the integers."""
        leaves = flatten(partial)
        for i, zeros in self.zeros().items():
            leaves[i] = zeros
        return unflatten(leaves, self.type)

    def with_sums(self, partial: Any, sums: Vector) -> Any:
        """The merged partial with the sums in the place of the zeros."""
        leaves = flatten(partial)
        for group, elements in zip(self._groups, sums, strict=False):
            start = 0
            for i in group:
                leaf = self._leaves[i]
                leaves[i] = leaf.decode(elements[start : start + leaf.size])
                start += leaf.size
        return unflatten(leaves, self.type)


class SecurePartials:
    """The secure sums of one fold: takes the secure leaves out of each client's partial, and puts their sums back.

    Guarantees:
      - `mask` may be called in several threads.
      - Keeps no client's integers: they are masked, and added to the session's sum.

    Args:
        clients: number of clients of the stage.
    """

    def __init__(self, settings: Masked, work: ClientWork, clients: int, report: Report) -> None:
        check_number(clients)
        self._report = report
        self._leaves = SecureLeaves(work, clients)
        self._session = Session(settings, clients, self._leaves.layout)
        self._session.start()

    @classmethod
    def of(cls, settings: Masked, work: ClientWork, report: Report) -> "SecurePartials | None":
        """The secure sums of a client stage that has some; None if the stage has no clients.

        Raises:
            FedcoreError: the number of clients is not known beforehand, or the plan is for plain sums.
            SecureSumError: there is one client only, or too few are left after the keys and shares.
        """
        if work.is_vectorised or work.block != 1:
            raise FedcoreError(
                f"the plan of @{work.stage} is for plain sums: secure sums need the option secure=masked"
            )
        sized = (c.size for c in (*work.cohorts, work.counted) if c is not None)
        clients = next((s for s in sized if s is not None), work.count.number)
        if clients is None:
            raise FedcoreError("secure sums need the number of clients beforehand: give a list or an fc.Cohort")
        return cls(settings, work, clients, report) if clients else None

    def why_lost(self, client: int) -> str | None:
        """The reason for which a client's integers are not in the sum; None if they are, or may be."""
        return self._session.lost.get(client)

    def mask(self, client: int, partial: Any) -> Any:
        """Contributes the secure leaves of a client's partial; returns the partial with zeros in their place.

        If a message is lost or refused, the client has a reason in `why_lost`.
        """
        self._session.contribute(client, self._leaves.vector(partial))
        return self._leaves.without(partial)

    def total(self, partial: Any) -> Any:
        """The merged partial with the secure sums in place of the zeros.

        Raises:
            SecureSumError: too few clients are left, or their shares are wrong.
        """
        session = self._session
        whole = self._leaves.with_sums(partial, session.finish())
        joined = session.terms.clients - len(session.lost)
        self._report.secure_sums.append(
            traffic(self._leaves, session.terms.clients, joined, session.sent_bytes, session.received_bytes)
        )
        return whole


def check_number(clients: int) -> None:
    """Raises SecureSumError for a sum of one client, which would show the client's value."""
    if clients < 2:
        raise SecureSumError("a secure sum of one client is its value: secure aggregation needs 2 clients or more")


def traffic(
    leaves: SecureLeaves,
    clients: int,
    joined: int,
    sent_bytes: Mapping[str, int],
    received_bytes: Mapping[str, int],
) -> SecureTraffic:
    """The report of a sum.

    Args:
        clients, joined: number of the clients that were invited, and of those whose integers are in the sum.
        sent_bytes, received_bytes: phase -> bytes that all clients sent, or got from the server.
    """
    sent, received = ({p: 8 * size for p, size in sizes.items()} for sizes in (sent_bytes, received_bytes))
    return SecureTraffic(leaves.merge, clients, joined, leaves.plain_bits * joined, sent, received)
