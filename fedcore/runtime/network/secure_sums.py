"""Secure sums over a network: the server's side of the masked protocol, whose clients are at their sites.

The protocol is that of `fedcore.runtime.secure`. Its messages are requests to the sites: phases `keys` and `shares`
before the stage, `masked` with each client's run, `survivors` and `unmasking` after it. No process of the server has a
client's integers, unmasked.
"""

import collections
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedcore.errors import FedcoreError, SecureSumError
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.network.messages import Message
from fedcore.runtime.network.site_leaves import SiteLeaves
from fedcore.runtime.network.transcript import Transcript
from fedcore.runtime.reports.report import Report
from fedcore.runtime.secure.masked_client import KEY_BYTES
from fedcore.runtime.secure.masking_server import MaskingServer
from fedcore.runtime.secure.secure_partials import check_number, traffic
from fedcore.runtime.secure.settings import PHASES, Masked
from fedcore.runtime.secure.signed_messages import KEYS, MASKED, SHARES, SURVIVORS, UNMASKING, Directory
from fedcore.runtime.secure.terms import Terms
from fedcore.runtime.stopping import Stopped

SHOWN = 3
"""Number of reasons that the error of a session with too few sites lists."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})

Ask = Callable[[int, Message], Message]
"""(client, request) -> reply of the client's site, which gets the plan first if it lacks it."""


class NetworkSums:
    """The secure sums of one stage.

    Guarantees:
      - A site whose message is lost or refused takes no part in later phases; `why_lost` has the reason.
      - `take` may be called in several threads.

    Args:
        transcript: the facts that all sites are told.
        ask: asks the site of a client.
        pool: the threads in which sites are asked.
    """

    def __init__(
        self,
        settings: Masked,
        work: ClientWork,
        transcript: Transcript,
        ask: Ask,
        pool: ThreadPoolExecutor,
        report: Report,
    ) -> None:
        """Runs the phases `keys` and `shares` with the sites, so it returns when each has replied or is lost.

        Raises:
            FedcoreError: the cohort names a site twice.
            SecureSumError: the cohort has one site only, or too few sites have joined.
            Stopped: the call was stopped.
        """
        names = transcript.names
        check_number(len(names))
        if len({*names}) < len(names):
            raise FedcoreError("a secure sum over a network has each site once; the cohort names one twice")
        self._names = names
        self._facts = {"plan": transcript.plan, "operation": transcript.operation, "run": transcript.run}
        self._ask = ask
        self._pool = pool
        self._report = report
        self._leaves = SiteLeaves(work, len(names))
        self._lost: dict[int, str] = {}  # client -> the reason for which it is not in the sum
        self._joined: set[int] = set()  # clients whose masked integers were taken
        self._sent_bytes, self._received_bytes = dict.fromkeys(PHASES, 0), dict.fromkeys(PHASES, 0)
        self._lock = threading.Lock()
        self._server = self._run_keys(Terms.of(settings, len(names), tuple(self._leaves.layout)), transcript)
        self._inbox = self._run_shares()  # client -> the server's message to it in phase `masked`

    def _run_keys(self, terms: Terms, transcript: Transcript) -> MaskingServer:
        """Runs phase `keys`; returns the server of the protocol, which has the clients' keys.

        Args:
            terms: terms of the session without their context, which the sites' public keys decide.
        """
        key, clients = Ed25519PrivateKey.generate(), range(len(self._names))
        extra = {"server_key": np.frombuffer(key.public_key().public_bytes_raw(), np.uint8)}
        replies = self._phase(KEYS, dict.fromkeys(clients, terms.packed), extra, transcript.facts)
        keys = self._public_keys(replies)
        terms = attrs.evolve(terms, context=transcript.digest(keys))
        public = list(map(Ed25519PublicKey.from_public_bytes, keys))
        server = MaskingServer(terms, key, Directory(terms.session, public, key.public_key()))
        self._take(KEYS, replies, server.take_keys)
        return server

    def _run_shares(self) -> Mapping[int, bytes]:
        """Runs phase `shares`; returns the server's message to each client that is left."""
        try:
            replies = self._phase(SHARES, self._server.end_keys())
            self._take(SHARES, replies, self._server.take_shares)
            return self._server.end_shares()
        except SecureSumError as error:
            raise SecureSumError(f"{error}{self._reasons()}") from None

    def _public_keys(self, replies: dict[int, Message]) -> list[bytes]:
        """For each client the public key by which its site signs, as the lists of most sites have it.

        Messages of sites with other lists are refused, since their transcripts differ.

        Args:
            replies: client -> reply in phase `keys`. Replies without a list are removed; their sites are lost.
        Raises:
            SecureSumError: no site has sent its list.
        """
        size, votes = KEY_BYTES * len(self._names), collections.Counter[bytes]()
        for client in sorted(replies):
            peers = replies[client].arrays.get("peers")
            if peers is None or peers.nbytes != size:
                del replies[client]
                self._lose(client, KEYS, "it sends no list of the sites' public keys")
            else:
                votes[peers.tobytes()] += 1
        if not votes:
            raise SecureSumError(f"secure sum: no site has joined it{self._reasons()}")
        ((keys, _),) = votes.most_common(1)
        return [keys[i : i + KEY_BYTES] for i in range(0, size, KEY_BYTES)]

    def _reasons(self) -> str:
        """The end of an error: the first lost sites and why they are lost, a line each."""
        return "".join(f"\n  {self._names[client]} {why}" for client, why in sorted(self._lost.items())[:SHOWN])

    def _phase(
        self,
        phase: int,
        messages: Mapping[int, bytes],
        extra: Mapping[str, np.ndarray] | None = None,
        transcript: Mapping[str, Any] = _NOTHING,
    ) -> dict[int, Message]:
        """The sites' replies in a phase, by client; sites are asked in parallel, and those that do not reply are lost.

        Args:
            messages: client -> the server's message of the protocol.
            extra: further arrays that every site gets.
            transcript: further facts that every site gets.
        Raises:
            Stopped: the call was stopped.
        """

        def ask(client: int, message: bytes) -> Message | None:
            arrays = {"message": np.frombuffer(message, np.uint8), **(extra or {})}
            facts = {**transcript, **self._facts, "kind": "secure", "phase": PHASES[phase], "index": client}
            try:
                return self._ask(client, Message(facts, arrays))
            except Stopped:
                raise
            except FedcoreError as error:
                self._lose(client, phase, str(error))
                return None

        futures = {client: self._pool.submit(ask, client, message) for client, message in messages.items()}
        replies = {client: future.result() for client, future in futures.items()}
        with self._lock:
            self._received_bytes[PHASES[phase]] += sum(map(len, messages.values()))
        return {client: reply for client, reply in replies.items() if reply is not None}

    def _take(self, phase: int, replies: Mapping[int, Message], take: Callable[[int, bytes], None]) -> None:
        """Gives the messages in the sites' replies to the masking server; a site whose message it refuses is lost.

        Args:
            take: the server's method that takes a client's message of this phase.
        """
        for client, reply in sorted(replies.items()):
            message = reply.arrays["message"].tobytes() if "message" in reply.arrays else b""
            with self._lock:
                self._sent_bytes[PHASES[phase]] += len(message)
            try:
                take(client, message)
            except SecureSumError as error:
                self._lose(client, phase, str(error))

    def _lose(self, client: int, phase: int, why: str) -> None:
        """Notes why a client is not in the sum; from phase `survivors` on it is, though its site fails."""
        if phase < SURVIVORS:
            self._lost[client] = f"dropped out of the secure sum in phase {PHASES[phase]}: {why}"

    def message(self, client: int) -> np.ndarray | None:
        """The server's message to a client that is to mask its integers; None if the client is lost."""
        message = self._inbox.get(client)
        return None if message is None else np.frombuffer(message, np.uint8)

    def take(self, client: int, reply: Message) -> None:
        """Adds the masked integers of a client's reply; does nothing if a repeated run brings them again."""
        with self._lock:
            if client in self._joined:
                return
            self._received_bytes[PHASES[MASKED]] += len(self._inbox[client])
        self._take(MASKED, {client: reply}, self._server.take_masked)
        with self._lock:
            if client not in self._lost:
                self._joined.add(client)

    @property
    def zeros(self) -> Mapping[int, np.ndarray]:
        """The zeros in the place of the integers, which do not cross: number of the leaf -> array."""
        return self._leaves.zeros()

    def why_lost(self, client: int) -> str | None:
        """The reason for which a client's integers are not in the sum; None if they are, or may be."""
        return self._lost.get(client)

    def mask(self, client: int, partial: Any) -> Any:
        """The partial as it is: the client's site has masked its integers."""
        return partial

    def total(self, partial: Any) -> Any:
        """The merged partial with the secure sums in place of the zeros.

        Raises:
            SecureSumError: too few clients are left, their shares are wrong, or a site has failed.
            Stopped: the call was stopped.
        """
        server = self._server
        self._take(SURVIVORS, self._phase(SURVIVORS, server.end_masked()), server.take_acknowledgement)
        self._take(UNMASKING, self._phase(UNMASKING, server.end_survivors()), server.take_unmasking)
        whole = self._leaves.with_sums(partial, server.result())
        self._report.secure_sums.append(
            traffic(
                self._leaves,
                len(self._names),
                len(self._joined),
                self._sent_bytes,
                self._received_bytes,
            )
        )
        return whole
