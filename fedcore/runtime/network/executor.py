"""The clients executor over a network of sites."""

import functools
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from fedcore.errors import FedcoreError, SecureSumError, TypeMismatch, brief
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.ir.bundle import to_bytes
from fedcore.lru_cache import LruEntries
from fedcore.runtime.arguments import ClientValues
from fedcore.runtime.client_slice import ClientSlice, SliceResult
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.faults import Drop, QuotesNoValue
from fedcore.runtime.clients.merge_tree import MergeTree
from fedcore.runtime.clients.sliced_executor import SlicedClientsExecutor
from fedcore.runtime.cluster.environment import differences, environment
from fedcore.runtime.cluster.shipping import SMALL_BYTES, array_digest
from fedcore.runtime.network.exchange import Exchange
from fedcore.runtime.network.leaves import from_arrays, to_arrays
from fedcore.runtime.network.messages import MAX_FACTS_BYTES, MAX_MESSAGE_BYTES, MalformedMessage, Message, remark
from fedcore.runtime.network.plan_runner import ClientStageOf, ClientSums
from fedcore.runtime.network.transcript import SERVER_VALUE, KeptName, Sources, Transcript, ValueSource, seed_commitment
from fedcore.runtime.reports.report import Report
from fedcore.runtime.secure.settings import PHASES, Masked
from fedcore.runtime.stopping import Stop
from fedcore.site_value import SiteValue
from fedcore.types import Type, leaves

if TYPE_CHECKING:
    from fedcore.runtime.network.secure_sums import NetworkSums

MAX_REQUESTS = 64
"""The most sites that are asked at once."""

MAX_REPLY_BYTES = 2**24
"""The most bytes of a reply, not counting the tensors that a client sends."""

_POLL_S = 0.1
"""Seconds between two looks whether a site is online."""

MAX_SENT = 4096
"""Number of digests, of plans and arrays, that are remembered for each site."""

MAX_RUNS = 256
"""Number of calls whose identifiers are remembered."""

REPLY_BY = 0.95
"""Fraction of the deadline at which a site tells that a client failed; the time of the failure may tell of its data."""


class SiteRefused(QuotesNoValue):
    """A site declined a request: its policy has a rule against it."""


class SiteFailed(QuotesNoValue):
    """A client's work failed at its site, whose log says why."""


class NetworkClientsExecutor(SlicedClientsExecutor):
    """An `fc.runtime.ClientsExecutor` whose clients are the sites of an `Exchange`.

    Guarantees:
      - A plan goes to a site once, and so does an array that is broadcast, by digest.
      - What sites send is added in the plan's blocks and tree over the clients' indices, so that the order in which
        they reply decides nothing.
      - Values that a stage keeps for its clients stay at the sites; this process has their names.
      - Threads: one for each site, at most `MAX_REQUESTS`.

    Args:
        timeout_s: seconds until a site must have replied.
        signatures: digest of a plan -> its signature.
        retry_wait_s: seconds to wait for a site that is offline, and between two tries of a client.
    """

    def __init__(
        self,
        exchange: Exchange,
        on_client_failure: Drop | None,
        timeout_s: float,
        secure: Masked | None = None,
        signatures: Mapping[str, bytes] = MappingProxyType({}),
        retry_wait_s: float = 0.0,
    ) -> None:
        self.exchange = exchange
        self._sites = _Sites(exchange, timeout_s, signatures, retry_wait_s)
        self._threads = max(1, min(MAX_REQUESTS, len(exchange.sites)))
        super().__init__([self._sites], self._threads, on_client_failure=on_client_failure, secure=secure)

    def slice_size(self, work: ClientWork) -> int:
        """Always 1 client, since each has a site of its own."""
        if self.secure is not None and work.secure and work.block != 1:
            raise FedcoreError(
                f"the plan of @{work.stage} folds {work.block} clients at a time, but masks hide the partial of each: "
                "compile it for fc.runtime.network(secure_aggregation=...)"
            )
        return 1

    def tree(
        self, work: ClientWork, merge: Callable, report: Report, stop: Stop, *, masked: bool
    ) -> MergeTree | ClientSums:
        if masked or work.zero is None:  # sites send their partials, or nothing
            return super().tree(work, merge, report, stop, masked=masked)
        accumulation = ClientStageOf(work).accumulation
        return ClientSums(self.merging.prepare(accumulation, report, stop), work.block, merge)

    def run(self, work: ClientWork, report: Report, stop: Stop) -> tuple[object, list]:
        if not work.cohorts:  # the counted cohort then says at which sites the stage runs
            counted = work.counted
            if counted is None or not _is_at_sites(counted):
                raise FedcoreError(
                    "fc.runtime.network needs a cohort of sites: give fc.deployment.sites(...).cohort(ids)"
                )
            work = attrs.evolve(work, cohorts=(counted,), numbers=())
        try:
            return super().run(work, report, stop)
        finally:
            self._sites.stages.pop(id(work), None)

    @functools.cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """The threads that ask the sites for messages of secure sums."""
        return ThreadPoolExecutor(self._threads, "fedcore-secure")

    def secure_partials(self, work: ClientWork, report: Report, stop: Stop) -> Any:
        from fedcore.runtime.network.secure_sums import NetworkSums  # imports the extra `secure`

        assert self.secure is not None
        stage = self._sites.stages[id(work)]
        transcript = stage.transcript()
        if not transcript.names:
            return None

        def ask(client: int, message: Message) -> Message:
            if message.facts.get("phase") == PHASES[0]:
                self._sites.wait_online(transcript.names[client], stop)
            return stage.ask(transcript.names[client], message)

        try:
            stage.sums = NetworkSums(self.secure, work, transcript, ask, self._pool, report)
        except BaseException:  # such as Ctrl-C, while the threads of the pool wait for sites
            stop.cancel()
            raise
        return stage.sums

    def close(self) -> None:
        super().close()
        if "_pool" in vars(self):
            self._pool.shutdown()
        self.exchange.close()


def _is_at_sites(values: ClientValues) -> bool:
    return all(isinstance(value, SiteValue) for value in values.given)


class _Sites:
    """An `fc.runtime.SliceExecutor` whose slices have one client each, which its site computes.

    Attributes:
        stages: id of a `ClientWork` in progress -> its stage.
        runs: report of a call -> the identifier of the call, which sites see and all stages of the call share.
    """

    name = "network"

    def __init__(
        self, exchange: Exchange, timeout_s: float, signatures: Mapping[str, bytes], retry_wait_s: float
    ) -> None:
        self.exchange = exchange
        self.timeout_s = timeout_s
        self.retry_wait_s = retry_wait_s
        self.signatures = dict(signatures)
        self.stages: dict[int, _Stage] = {}
        self.runs: IdentityCache[str] = IdentityCache(MAX_RUNS)
        self._environment = environment()
        self._sent: LruEntries[tuple[str, str], bool] = LruEntries(MAX_SENT * max(1, len(exchange.sites)))

    def prepare(self, work: ClientWork, report: Report, stop: Stop) -> Callable[[ClientSlice], SliceResult]:
        stage = self.stages[id(work)] = _Stage(self, work, report, stop)
        return stage.run

    def close(self) -> None:
        """Does nothing: the clients executor closes the exchange."""

    def ask(self, site: str, message: Message, stop: Stop, max_bytes: int = MAX_REPLY_BYTES) -> Message:
        """The site's reply.

        Args:
            max_bytes: the most bytes that the reply may have.
        Raises:
            NoReply: the site does not reply.
            SiteRefused: the site's policy has a rule against the request.
            SiteFailed: the client's work failed.
            MalformedMessage: the reply is no message.
        """
        payload = self.exchange.ask(site, message.to_bytes(), self.timeout_s, stop)
        try:
            return self._read(site, Message.from_bytes(payload, max_bytes))
        except MalformedMessage as error:
            raise MalformedMessage(f"{site}: {error}") from None

    def _read(self, site: str, reply: Message) -> Message:
        """The reply, if the site has not refused and its work has not failed."""
        if reply.facts["kind"] == "refused":
            raise SiteRefused(f"{site} declined: rule {reply.name('rule')}: {reply.remark('why')}")
        if reply.facts["kind"] == "failed":
            if "error" in reply.facts:  # an error of the request quotes nothing of the client's data
                raise SiteFailed(f"{site}: {reply.remark('error')}")
            raise SiteFailed(f"{site} failed: its log says why, under number {reply.number('number')}")
        return reply

    def wait_online(self, site: str, stop: Stop, least_s: float = 0.0) -> None:
        """Waits for a site that is offline, at most `retry_wait_s`.

        Args:
            least_s: seconds to wait for a site that is online, such as one that has just failed.
        """
        began = time.monotonic()
        limit_s = least_s if self.exchange.is_online(site) else self.retry_wait_s
        while time.monotonic() - began < limit_s and not stop.is_stopped:
            time.sleep(min(_POLL_S, limit_s))
            if limit_s > least_s and self.exchange.is_online(site):
                return

    def has(self, site: str, digest: str) -> bool:
        """Whether the site was sent a plan or an array, as far as this process remembers."""
        return bool(self._sent.find((site, digest), False))

    def note_sent(self, site: str, digest: str) -> None:
        self._sent.put((site, digest), True)

    def differences(self, site: str, reply: Message) -> str | None:
        """A note on the properties of a site's process that may change bits; None if it has those of this process.

        Args:
            reply: reply to a plan, which tells the properties.
        """
        properties, own = reply.fact("environment", dict), self._environment
        differing = differences({name: remark(str(properties.get(name))) for name in own}, own)
        return f"{site} differs: {'; '.join(differing)}" if differing else None


class _Stage:
    """One client stage in progress at the sites.

    Attributes:
        facts: the facts of every request: digest of the plan, name of the operation, identifier of the call.
        sums: the secure sums of the stage; None if sites send their values unmasked.
    """

    def __init__(self, sites: _Sites, work: ClientWork, report: Report, stop: Stop) -> None:
        self._sites = sites
        self._work = work
        self._report = report
        self._stop = stop
        run = sites.runs.get("run", [report], lambda: uuid.uuid4().hex)
        self.facts = {"plan": work.digest, "operation": work.operation, "run": run}
        self.sums: NetworkSums | None = None
        self._stage = ClientStageOf(work)
        self._tried: set[int] = set()  # clients whose site was asked before
        self._broadcasts: dict[str, np.ndarray] = {}
        for number, (value, type_) in enumerate(zip(work.broadcasts, self._stage.broadcast_types, strict=True)):
            self._broadcasts |= to_arrays(value, type_, f"b{number}.")

    @functools.cached_property
    def _digests(self) -> dict[str, str]:
        """Name -> digest, of the broadcast arrays that sites keep, since a later round may send them again."""
        return {name: array_digest(a) for name, a in self._broadcasts.items() if a.nbytes >= SMALL_BYTES}

    def run(self, clients: ClientSlice) -> SliceResult:
        """The result of the only client of a slice, from its site."""
        (index,) = clients.present
        (client,) = clients.values
        site, client_arrays = self.site_of(client), self._client_arrays(client)
        self._sites.wait_online(site, self._stop, self._sites.retry_wait_s if index in self._tried else 0.0)
        self._tried.add(index)
        if self.sums is not None:
            message = self.sums.message(index)
            if message is None:
                raise SecureSumError(self.sums.why_lost(index) or f"{site} takes no part in the secure sum")
            client_arrays["message"] = message
        sources = [source.fact for source in self._sources(client)]
        began = time.perf_counter()
        reply = self._answer(site, index, sources, client_arrays)
        self._report.count("blocks")
        if self._report.recording is not None:
            self._report.recording.add("worker", self._work.stage, time.perf_counter() - began, site)
        for note in reply.remarks("notes"):
            self._report.note(f"{site}: {note}")
        keeps = self._work.keeps or self._work.zero is None
        kept_values = {index: SiteValue(site, self._kept_name(index, reply))} if keeps else {}
        bits = {index: self._bits(reply)} if self._work.measured else {}
        sent_value = self._sent_value(reply)
        if self.sums is not None:
            self.sums.take(index, reply)
        return SliceResult(sent_value, kept_values, bits, place=site)

    def _bits(self, reply: Message) -> np.ndarray:
        """The sizes in bits of the values of `ClientWork.measured`, int64 [measured]; zeros under masks."""
        count = self._work.client_stage.measured_count
        if self.sums is not None:
            return np.zeros(count, np.int64)
        bits = reply.arrays.get("bits")
        if bits is None or bits.dtype != np.int64 or bits.shape != (count,) or bits.min() < 0:
            raise MalformedMessage("a reply lacks the sizes of what was sent")
        return bits

    @property
    def _sent_type(self) -> Type | None:
        """The type of the value that a client sends: its partial where masks hide it; None if the stage has no fold."""
        return self._stage.sent_type if self.sums is None else self._stage.partial_type

    def _sent_value(self, reply: Message) -> Any:
        """The value of `_sent_type` in a reply. Under masks it has zeros in the place of the masked integers."""
        type_ = self._sent_type
        if type_ is None:
            return None
        if self.sums is None:
            return from_arrays(reply.arrays, type_, "p", self._stage.sent_ranges, self._work.table_rows)
        zeros = {f"p{number}": array for number, array in self.sums.zeros.items()}
        return from_arrays({**reply.arrays, **zeros}, type_, "p")

    def site_of(self, client: tuple) -> str:
        """The site at which a client's values are; other values of the client may be in this process.

        Raises:
            TypeMismatch: the values are at no site, or at several.
        """
        sites = {value.site for value in client if isinstance(value, SiteValue)}
        if len(sites) != 1:
            raise TypeMismatch(
                f"a client of fc.runtime.network is at one site; its values are {brief(client)}: "
                "give fc.deployment.sites(...).cohort(ids)"
            )
        return sites.pop()

    def transcript(self) -> Transcript:
        """The facts that the sites of a masked run are told.

        Raises:
            FedcoreError: values that this process gives clients differ from client to client.
        """
        clients = list(zip(*self._work.cohorts, strict=True))
        server_values: dict[str, str] = {}
        for client in clients:
            for name, array in self._client_arrays(client).items():
                digest = array_digest(array)
                if server_values.setdefault(name, digest) != digest:
                    raise FedcoreError(
                        "clients of a masked sum get equal values from the server, since it could choose those of all "
                        f"but one so that the sum shows that one: give all clients of @{self._work.stage} equal values"
                    )
        return Transcript(
            **self.facts,
            round=self._report.round,
            names=tuple(self.site_of(client) for client in clients),
            seed=seed_commitment(self.facts["run"], int(self._work.seed)),
            broadcasts={**{name: array_digest(a) for name, a in self._broadcasts.items()}, **self._digests},
            server_values=server_values,
            sources=tuple(map(self._sources, clients)),
        )

    def _sources(self, client: tuple) -> Sources:
        """Where the values come from that the stage takes of a client."""
        return tuple(
            ValueSource(v.source, v.path) if isinstance(v, SiteValue) else ValueSource(SERVER_VALUE)
            for v in self._values(client)
        )

    def _values(self, client: tuple) -> tuple:
        """The values that the stage takes of a client; none if clients are only counted."""
        return client[: len(self._work.numbers)]

    def _kept_name(self, index: int, reply: Message) -> str:
        """The name of the value that the stage leaves at the client's site."""
        digest = reply.digest("provenance")
        return str(KeptName.parse(f"{self._work.operation}/{self.facts['run']}/{index}/{digest}"))

    def _client_arrays(self, client: tuple) -> dict[str, np.ndarray]:
        """The arrays of the client's values that this process has, such as a first state; they travel in requests."""
        arrays: dict[str, np.ndarray] = {}
        for number, (value, type_) in enumerate(zip(self._values(client), self._stage.value_types, strict=True)):
            if value is not None and not isinstance(value, SiteValue):  # None: the client was dropped
                arrays |= to_arrays(value, type_, f"v{number}.")
        return arrays

    def _answer(self, site: str, index: int, sources: list, client_arrays: dict[str, np.ndarray]) -> Message:
        """The site's result of a client. Broadcast arrays that the site lacks travel with the request.

        Args:
            sources: for each value of the client the fact of its source.
        """
        missing = {name for name, digest in self._digests.items() if not self._sites.has(site, digest)}
        reply = self._ask(site, index, sources, client_arrays, missing)
        if reply.facts["kind"] == "missing":
            reply = self._ask(site, index, sources, client_arrays, {*self._digests})
        if reply.facts["kind"] != "result":
            raise MalformedMessage(f"{site} replies with {remark(reply.facts['kind'])!r}, not with a result")
        for digest in self._digests.values():
            self._sites.note_sent(site, digest)
        return reply

    def _ask(
        self, site: str, index: int, sources: list, client_arrays: dict[str, np.ndarray], missing: set[str]
    ) -> Message:
        """The site's reply to a run.

        Args:
            missing: names of the arrays in `_digests` that the site lacks. Arrays without a digest always travel.
        """
        work, digests = self._work, self._digests
        arrays = {name: a for name, a in self._broadcasts.items() if name in missing or name not in digests}
        facts = {
            **self.facts,
            "kind": "run",
            "seed": int(work.seed),
            "index": index,
            "clients": work.clients,
            "sources": sources,
            "digests": digests,
            "reply_by_s": REPLY_BY * self._sites.timeout_s,
        }
        return self.ask(site, Message(facts, {**arrays, **client_arrays}), self._max_reply_bytes)

    @functools.cached_property
    def _max_reply_bytes(self) -> int:
        """Size of the largest reply to a run.

        Three times the bytes of the values have room: masked integers may take more bytes than they have in the plan.
        """
        tensors = [] if self._sent_type is None else [leaf for _, leaf in leaves(self._sent_type)]
        bits = [getattr(leaf, "size_bits", None) for leaf in tensors]
        if None in bits:
            return MAX_MESSAGE_BYTES
        return MAX_REPLY_BYTES + 3 * sum(size for size in bits if size is not None) // 8

    def ask(self, site: str, message: Message, max_bytes: int = MAX_REPLY_BYTES) -> Message:
        """The reply of a site, which gets the plan before its first request.

        A site that has restarted, or whose policy has changed, lacks the plan, and gets it again.

        Args, Raises: as for `_Sites.ask`.
        """
        if not self._sites.has(site, self._work.digest):
            self._send_plan(site)
        reply = self._sites.ask(site, message, self._stop, max_bytes)
        if reply.facts["kind"] == "missing" and reply.fact("plan", bool):
            self._send_plan(site)
            reply = self._sites.ask(site, message, self._stop, max_bytes)
        return reply

    def _send_plan(self, site: str) -> None:
        """Sends a site the plan with its signature; the report gets a note if the site's process may differ in bits."""
        arrays = {"bundle": np.frombuffer(to_bytes(self._work.module, has_sources=False), np.uint8)}
        signature = self._sites.signatures.get(self._work.digest)
        if signature is not None:
            arrays["signature"] = np.frombuffer(signature, np.uint8)
        names = {key: list(names) for key, names in self._work.module.element_names.items()}
        is_short = len(str(names)) < MAX_FACTS_BYTES // 4  # names are for people, so a site does without long ones
        facts = {"kind": "plan", "plan": self._work.digest, "element_names": names if is_short else {}}
        reply = self._sites.ask(site, Message(facts, arrays), self._stop)
        self._sites.note_sent(site, self._work.digest)
        note = self._sites.differences(site, reply)
        if note is not None:
            self._report.note(note)
