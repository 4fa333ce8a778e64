"""The protocol between fedcore and a network that others keep."""

from collections.abc import Sequence
from typing import Protocol

from fedcore.runtime.clients.faults import QuotesNoValue
from fedcore.runtime.stopping import Stop


class Exchange(Protocol):
    """Asks sites over a network, for `fc.runtime.network`.

    Guarantees that an implementation gives:
      - `ask` may be called in several threads, also several times for a site.
      - A site is who it says: the network has authenticated it, and encrypts.
      - The payload and the reply arrive as they were sent, or not at all.
    """

    @property
    def sites(self) -> Sequence[str]:
        """The ids of all sites of the federation, sorted, also of those that are offline."""

    def is_online(self, site: str) -> bool:
        """Whether the site is connected now."""

    def ask(self, site: str, payload: bytes, timeout_s: float, stop: Stop) -> bytes:
        """The site's reply.

        Args:
            timeout_s: seconds within which the reply must have arrived.
            stop: is cancelled when the call must end early.
        Raises:
            NoReply: there is no reply; the error says why.
            Stopped: `stop` was cancelled.
        """

    def close(self) -> None:
        """Disconnects; ends threads and closes ports."""


class NoReply(QuotesNoValue):
    """A site did not reply. The reason is the network's, so it quotes no value of the site's data.

    Args:
        site: id of the site.
        why: `offline`, `ended` while it was asked, `late`, or the network's reason.
    """

    def __init__(self, site: str, why: str) -> None:
        super().__init__(f"{site}: {why}")
        self.site = site
        self.why = why

    def __reduce__(self) -> tuple[type["NoReply"], tuple[str, str]]:
        return NoReply, (self.site, self.why)
