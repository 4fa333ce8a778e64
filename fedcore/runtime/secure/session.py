"""A session of the protocol between client objects and a server object in this process."""

import threading
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.errors import SecureSumError
from fedcore.runtime.secure.masked_client import MaskedClient, Messages
from fedcore.runtime.secure.masking_server import MaskingServer
from fedcore.runtime.secure.masks import Layout, Vector
from fedcore.runtime.secure.settings import PHASES, Masked
from fedcore.runtime.secure.signed_messages import (
    KEYS,
    MASKED,
    SHARES,
    SURVIVORS,
    UNMASKING,
    Directory,
    MessageRefused,
)
from fedcore.runtime.secure.terms import Terms


class Session:
    """One secure sum: first `start`, then `contribute` for each client, then `finish` gives the sum.

    Guarantees:
      - A message passes between the parties as bytes only.
      - A client whose message is lost or refused takes no part in later phases. `lost` has the reason for each such
        client whose integers are not in the sum.
      - `contribute` may be called in several threads.

    Args:
        clients: number of clients, which have the indices from 0.
    """

    def __init__(self, settings: Masked, clients: int, layout: Layout) -> None:
        self.terms = Terms.of(settings, clients, layout)
        self.lost: dict[int, str] = {}
        self.sent_bytes = dict.fromkeys(PHASES, 0)
        """Bytes that all clients sent, by phase."""
        self.received_bytes = dict.fromkeys(PHASES, 0)
        """Bytes that the server sent to all clients, by the phase in which clients answer."""
        self._channel = settings.channel
        self._lock = threading.Lock()
        keys = [Ed25519PrivateKey.generate() for _ in range(clients)]
        server_key = Ed25519PrivateKey.generate()
        directory = Directory(self.terms.session, [k.public_key() for k in keys], server_key.public_key())
        self._clients = {i: MaskedClient(i, self.terms, key, directory) for i, key in enumerate(keys)}
        self._server = MaskingServer(self.terms, server_key, directory)
        self._inbox: Messages = dict.fromkeys(self._clients, self.terms.packed)  # client -> the server's next message
        self._waiting: set[int] = set()  # the clients whose integers may still come

    def start(self) -> None:
        """Phases `keys` and `shares`.

        Raises:
            SecureSumError: too few clients are left.
        """
        for i in list(self._clients):
            self._exchange(KEYS, i, self._clients[i].advertise, self._server.take_keys)
        self._inbox = self._server.end_keys()
        for i in list(self._clients):
            self._exchange(SHARES, i, self._clients[i].share, self._server.take_shares)
        self._inbox = self._server.end_shares()
        self._waiting = set(self._clients)

    def contribute(self, client: int, vector: Vector) -> None:
        """Phase `masked` of one client. If a message is lost or refused, the client is `lost`.

        Args:
            vector: the integers by the layout, below the moduli; it is changed.
        Raises:
            SecureSumError: the client is lost or unknown, or has contributed.
        """
        with self._lock:
            if client not in self._waiting:
                raise SecureSumError(f"secure sum: client {client} is not one whose integers are waited for")
            self._waiting.remove(client)

        def mask(message: bytes) -> bytes:
            self._clients[client].take_shares(message)
            return self._clients[client].mask(vector)

        self._exchange(MASKED, client, mask, self._server.take_masked)

    def finish(self) -> Vector:
        """Phases `survivors` and `unmasking`, and the sum of the integers of all clients that are not `lost`.

        Raises:
            SecureSumError: too few clients are left, or their shares are wrong.
        """
        self._inbox = self._server.end_masked()
        for i in sorted(self._inbox):
            self._exchange(SURVIVORS, i, self._clients[i].acknowledge, self._server.take_acknowledgement)
        self._inbox = self._server.end_survivors()
        for i in sorted(self._inbox):
            self._exchange(UNMASKING, i, self._clients[i].unmask, self._server.take_unmasking)
        return self._server.result()

    def _exchange(
        self, phase: int, client: int, answer: Callable[[bytes], bytes], take: Callable[[int, bytes], None]
    ) -> None:
        """Gives a client the server's message, and the server the client's answer.

        If either is lost or refused, the client takes part in no later phase. It is `lost`, unless its integers are in
        the sum already.

        Args:
            answer: the client's method of the phase, from the server's message to the client's.
            take: the server's method that takes the client's message.
        """
        try:
            request = self._carry(phase, client, self._inbox[client], False)
            if request is None:
                raise MessageRefused("the server's message was lost")
            reply = self._carry(phase, client, answer(request), True)
            if reply is None:
                raise MessageRefused("its message was lost")
            take(client, reply)
        except MessageRefused as error:
            if phase < SURVIVORS:  # from this phase on, the client's integers are in the sum
                self.lost[client] = f"dropped out of the secure sum in phase {PHASES[phase]}: {error}"
                self._clients.pop(client, None)

    def _carry(self, phase: int, client: int, message: bytes, to_server: bool) -> bytes | None:
        """Counts the bytes of a message, and sends it over the channel; None if the channel loses it."""
        phase_bytes = self.sent_bytes if to_server else self.received_bytes
        with self._lock:
            phase_bytes[PHASES[phase]] += len(message)
        return self._channel(message, PHASES[phase], client, to_server)
