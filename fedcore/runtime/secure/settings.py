"""The settings of secure sums. This module does not import the extra `secure`."""

import importlib.util
from collections.abc import Callable

import attrs

from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.scalars import whole_number

PHASES = ("keys", "shares", "masked", "survivors", "unmasking")
"""The phases of a secure sum, by number."""

Channel = Callable[[bytes, str, int, bool], bytes | None]
"""Carries a message: its bytes, the phase, the client, whether it goes to the server; None loses the message."""


def _as_sent(message: bytes, phase: str, client: int, to_server: bool) -> bytes:
    """The channel that neither loses nor alters messages."""
    return message


@attrs.frozen
class Masked:
    """The settings of `masked()`.

    Args:
        degree, threshold: the arguments of `masked`.
        channel: carries the messages; `fc.testing.faults.lossy` gives one that loses and alters messages.
    """

    degree: int | None = None
    threshold: int | None = None
    channel: Channel = attrs.field(default=_as_sent, repr=False)


def masked(neighbours: int | None = None, threshold: int | None = None) -> Masked:
    """Secure sums by pairwise masks, for `fc.runtime.local(secure_aggregation=...)`; `'masked'` is `masked()`.

    Args:
        neighbours: the number of clients with whom a client shares masks, 1 or more; the graph is complete where there
            are no more clients. Default: the least for which a random graph keeps the bounds of Bell et al. with 10 %
            corrupt clients and 30 % dropouts (96 for 200 clients); up to about 70 clients, all others.
        threshold: the number of shares that determine a secret, of those that a client and its neighbours hold. More
            than half of the holders. Default: that of the graph; of a complete graph, two thirds and one.
    Raises:
        FedcoreError: a number is too small, or the threshold is not more than half of the neighbours and the client.
    Source: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning", figure 4;
        Bell et al. 2020, "Secure single-server aggregation with (poly)logarithmic overhead", algorithm 2, with the
        signed acknowledgement of algorithm 4.
    Example:
        >>> fc.runtime.local(secure_aggregation=fc.runtime.masked(neighbours=20, threshold=11))
    """
    if neighbours is not None:
        neighbours = whole_number("neighbours", neighbours, at_least=1)
    if threshold is not None:
        threshold = whole_number("threshold", threshold, at_least=2)
    if neighbours is not None and threshold is not None and not (neighbours + 1) / 2 < threshold <= neighbours + 1:
        holders = neighbours + 1
        raise FedcoreError(f"threshold is from {holders // 2 + 1} to {holders}, for {neighbours} neighbours")
    return Masked(neighbours, threshold)


def settings_of(argument: object) -> Masked | None:
    """The settings that the argument `secure_aggregation` denotes.

    Raises:
        TypeMismatch: it is none of None, `'masked'` and the result of `masked()`.
        FedcoreError: the extra `secure` is not installed.
    """
    if argument is None:
        return None
    settings = Masked() if argument == "masked" else argument
    if not isinstance(settings, Masked):
        raise TypeMismatch(f"secure_aggregation is None, 'masked' or fc.runtime.masked(...), not {brief(argument)}")
    if importlib.util.find_spec("cryptography") is None:
        raise FedcoreError("secure_aggregation needs the package cryptography: pip install 'fedcore[secure]'")
    return settings
