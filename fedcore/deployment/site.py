"""A site: answers a server's requests, by its own policy, with its own data.

A request is data (see `fedcore.runtime.network.messages`), and so is a plan: it is checked as a file from elsewhere is,
imported in a process of its own first, and holds allow-listed operations only. No Python comes from outside.
"""

import contextlib
import functools
import hashlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.compiler.reachable import named_by
from fedcore.data import columns_of
from fedcore.deployment.policy import Policy, Refusal
from fedcore.deployment.policy_file import PolicyFile
from fedcore.deployment.site_data import SiteData
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.site_settings import RUN_TIMEOUT_S, SiteSettings
from fedcore.deployment.site_sums import Identity, SiteSum
from fedcore.deployment.site_values import SiteValues
from fedcore.errors import FedcoreError, InvalidValue
from fedcore.graphs.graphdef.validation.allow_list import check_graphs
from fedcore.graphs.graphdef.validation.isolated_import import check_in_child
from fedcore.graphs.tensors.values import flatten
from fedcore.ir import Module, Symbol, verify
from fedcore.ir.bundle import from_bytes
from fedcore.lru_cache import LruEntries
from fedcore.runtime.arguments import prepare
from fedcore.runtime.client_work import SliceResult
from fedcore.runtime.clients.device_stage import DeviceSliceExecutor
from fedcore.runtime.cluster.environment import environment
from fedcore.runtime.cluster.shipping import array_digest
from fedcore.runtime.network.leaves import from_arrays, to_arrays
from fedcore.runtime.network.messages import MAX_INDEX, MAX_REMARKS, MalformedMessage, Message, is_digest, remark
from fedcore.runtime.network.plan_runner import ClientStageOf, run_client
from fedcore.runtime.reports.report import Report
from fedcore.runtime.stopping import Stop

MAX_PLANS = 64
MAX_PLAN_BYTES = 2**28
MAX_DATASETS = 16
MAX_SUMS = 4
MAX_WAITING = 16
"""Requests that wait while one is answered; a further one is told that the site is busy."""

CACHE_BYTES = 2**30
"""Of the arrays that were broadcast, and of replies."""

MAX_PATH = 64
"""Steps to an element of a value."""

ENTRY_BYTES = 256
"""An entry of a cache counts as at least so many bytes."""

_SEEDS = (-(2**63), 2**64 - 1)
_SIGNATURE_BYTES, _KEY_BYTES = 64, 32


class Site:
    """Answers the requests of a server.

    Guarantees:
      - Only plans that the policy accepts run, and only client stages of them.
      - The reply is the partial of this client, as the plan says, or a refusal, or the kind of an error: no message
        of an error leaves, since it may quote a value.
      - A request that comes again, after a reply was lost, is answered as before and computed once.
      - One client stage runs at a time.

    Args:
        name: of the site.
        data: opens the site's data.
        policy: what may run and leave; that of a file is read again at each request.
        log: gets a line for each plan and run.
        identity: for secure sums; None takes part in none.
        executor: runs the client stages. Default: a new one.
        run_timeout_s: seconds after which a run is stopped.
    """

    def __init__(
        self,
        name: str,
        data: SiteData,
        policy: Policy | PolicyFile,
        log: SiteLog,
        identity: Identity | None = None,
        executor: DeviceSliceExecutor | None = None,
        run_timeout_s: float = RUN_TIMEOUT_S,
    ) -> None:
        self.name = name
        self._data = data
        self._policy_file = policy if isinstance(policy, PolicyFile) else None
        self._policy = policy.newest.policy if isinstance(policy, PolicyFile) else policy
        self.log = log
        self.log.policy = policy.newest.digest if isinstance(policy, PolicyFile) else ""
        self._executor = executor or DeviceSliceExecutor()
        self._plans: LruEntries[str, Module] = LruEntries(MAX_PLANS)
        self._arrays: LruEntries[str, np.ndarray] = LruEntries(CACHE_BYTES)
        self._values = SiteValues(log.path.parent / "values")
        self._replies: LruEntries[bytes, bytes] = LruEntries(CACHE_BYTES)
        self._datasets: LruEntries[str, Any] = LruEntries(MAX_DATASETS)
        self._identity = identity
        self._sums: LruEntries[str, SiteSum] = LruEntries(MAX_SUMS)
        self._run_timeout_s = run_timeout_s
        self._stop = Stop()  # of the run in progress
        self._waiting = threading.Semaphore(1 + MAX_WAITING)
        self._lock = threading.Lock()

    def answer(self, payload: bytes) -> bytes:
        """The reply to a request."""
        if not self._waiting.acquire(blocking=False):
            busy = f"the site is busy: {MAX_WAITING} requests wait"
            return Message({"kind": "failed", "error": busy}).to_bytes()
        try:
            return self._answer(payload)
        finally:
            self._waiting.release()

    def stop(self) -> None:
        """Ends the run in progress, whose request fails."""
        self._stop.cancel()

    def _answer(self, payload: bytes) -> bytes:
        with self._lock:
            key = hashlib.sha256(payload).digest()
            reply = self._replies.find(key, None)
            if reply is None:
                message = self._reply(payload)
                reply = message.to_bytes()
                if message.facts["kind"] in ("result", "secure"):
                    self._replies.put(key, reply, len(reply) + ENTRY_BYTES)
            return reply

    def _reply(self, payload: bytes) -> Message:
        facts: dict[str, Any] = {}
        try:
            request = Message.from_bytes(payload)
            facts = {name: request.facts.get(name) for name in ("kind", "plan", "operation", "run")}
            self._read_policy()
            match request.facts["kind"]:
                case "plan":
                    return self._take_plan(request)
                case "run":
                    return self._run(request)
                case "secure":
                    return self._answer_phase(request)
                case kind:
                    raise MalformedMessage(f"a site does not answer requests of kind {kind!r}")
        except Refusal as refusal:
            self.log.write("refused", **facts, rule=refusal.rule, why=str(refusal))
            return Message({"kind": "refused", "rule": refusal.rule, "why": remark(str(refusal))})
        except Exception as error:
            self.log.write("failed", **facts, error=f"{type(error).__name__}: {error}")
            reason = remark(str(error)) if isinstance(error, MalformedMessage) else type(error).__name__
            return Message({"kind": "failed", "error": f"{reason}; the site's log says more"})

    def _read_policy(self) -> None:
        """Puts a changed policy in force. Plans have to be accepted anew, since an earlier policy accepted them."""
        if self._policy_file is None:
            return
        in_force = self._policy_file.read()
        if in_force.digest != self.log.policy:
            self._policy, self.log.policy = in_force.policy, in_force.digest
            self._plans.clear()
            self.log.write("policy")

    def _take_plan(self, request: Message) -> Message:
        digest = request.digest("plan")
        if digest not in self._plans:
            bundle = request.array("bundle", MAX_PLAN_BYTES)
            try:
                plan = read_plan(bundle)
            except FedcoreError as error:  # it is about the server's own plan, and tells nothing of the data
                raise Refusal("operations", str(error)) from None
            if plan.digest() != digest:
                raise MalformedMessage(f"a plan arrived with the digest {plan.digest()}, not {digest}")
            plan = attrs.evolve(plan, element_names=request.name_lists("element_names"))
            signature = request.array("signature", _SIGNATURE_BYTES) if "signature" in request.arrays else None
            self._policy.check_plan(plan, self._data, signature)
            self._plans.put(digest, plan)
            self.log.write("accepted", kind="plan", plan=digest)
        return Message({"kind": "plan", "environment": environment()})

    def _run(self, request: Message) -> Message:
        digest, operation, run = request.digest("plan"), request.name("operation"), request.digest("run")
        plan = self._plans.find(digest, None)
        if plan is None:
            return Message({"kind": "missing", "plan": True})
        arrays = self._request_arrays(request)
        if arrays is None:
            return Message({"kind": "missing", "plan": False})
        try:
            stage = ClientStageOf.of(plan, operation)
        except KeyError:
            raise MalformedMessage(f"the plan has no client stage {operation!r}") from None
        clients = request.number("clients") if request.facts.get("clients") is not None else None
        masking, index, seed = self._sums.find(run, None), request.number("index"), request.number("seed", *_SEEDS)
        sources = self._sources(request, len(stage.value_types))
        self._policy.check_run(plan, stage, clients, self.log, masks=masking is not None)
        began, report = time.perf_counter(), Report()
        broadcasts = [
            self._on_device(from_arrays(arrays, type_, f"b{number}."), type_)
            for number, type_ in enumerate(stage.broadcast_types)
        ]
        values = [
            self._value(source, type_, arrays, number, report)
            for number, (source, type_) in enumerate(zip(sources, stage.value_types, strict=True))
        ]
        stop = self._stop = Stop()

        def run_once() -> SliceResult:
            return run_client(
                self._executor,
                stage,
                broadcasts,
                values,
                masked=masking is not None,
                seed=self._policy.seed(seed),
                index=index,
                report=report,
                stop=stop,
            )

        with stopping(stop, self._run_timeout_s):
            result = run_once()
            again = None if self._policy.noise_std is None or stage.partial_type is None else numbers_of(run_once())
        if stage.partial_type is not None:
            self._policy.check_numbers(plan, stage, numbers_of(result), again, masked=masking is not None)
        reply: dict[str, np.ndarray] = {}
        partial = result.partial
        if masking is not None:
            masked, partial = masking.mask(request.array("message"), partial)
            reply["message"] = np.frombuffer(masked, np.uint8)
        sent_type = stage.sent_type if masking is None else stage.partial_type
        if sent_type is not None:
            reply |= to_arrays(partial, sent_type, "p")
        if masking is not None:
            for number in masking.leaves.zeros():
                del reply[f"p{number}"]
        if result.sent_bits:
            reply["bits"] = result.sent_bits[index]
        facts = {"kind": "result", "notes": [remark(note) for note in report.notes[:MAX_REMARKS]]}
        if result.kept:
            name = hashlib.blake2b(f"{run}/{index}".encode(), digest_size=16).hexdigest()
            self._values.store(name, result.kept[index], stage.kept_type)
            facts["value"] = name
        bits = self._policy.count_bits(plan, stage, result)
        self._policy.check_sent(plan, stage, result, bits, self.log)
        self.log.write(
            "ran",
            plan=digest,
            operation=operation,
            run=run,
            clients=clients,
            bits=bits,
            masked=masking is not None,
            seconds=round(time.perf_counter() - began, 3),
            sent=self._policy.sent_tensors(plan, stage),
        )
        return Message(facts, reply)

    def _answer_phase(self, request: Message) -> Message:
        """The site's message of a phase of a secure sum."""
        digest, operation, run = request.digest("plan"), request.name("operation"), request.digest("run")
        phase = request.name("phase")
        reply: dict[str, np.ndarray] = {}
        if phase == "keys":
            plan = self._plans.find(digest, None)
            if plan is None:
                return Message({"kind": "missing", "plan": True})
            if self._identity is None:
                raise MalformedMessage(f"{self.name} has no key for secure sums: site.toml names none")
            stage, names = ClientStageOf.of(plan, operation), request.names("names", len(self._identity.peers))
            self._policy.check_run(plan, stage, len({*names}), self.log, masks=True)
            joined = SiteSum.join(
                self._identity,
                self.name,
                names,
                request.number("index"),
                request.array("message"),
                request.array("server_key", _KEY_BYTES),
                stage.work,
            )
            self._sums.put(run, joined)
            reply["key"] = np.frombuffer(self._identity.key.public_key().public_bytes_raw(), np.uint8)
        session = self._sums.find(run, None)
        if session is None:
            raise MalformedMessage(f"{self.name} takes no part in the secure sum of this run")
        reply["message"] = np.frombuffer(session.answer(phase, request.array("message")), np.uint8)
        return Message({"kind": "secure"}, reply)

    def _request_arrays(self, request: Message) -> dict[str, np.ndarray] | None:
        """The arrays of a request, with those that an earlier request had; None if some are missing."""
        arrays = dict(request.arrays)
        for name, digest in request.fact("digests", dict).items():
            if not isinstance(digest, str):
                raise MalformedMessage("the digest of an array is no text")
            if name in arrays:
                if array_digest(arrays[name]) != digest:
                    raise MalformedMessage(f"the array {name} has other content than its digest says")
                self._arrays.put(digest, arrays[name], arrays[name].nbytes + ENTRY_BYTES)
                continue
            array = self._arrays.find(digest, None)
            if array is None:
                return None
            arrays[name] = array
        return arrays

    def _sources(self, request: Message, count: int) -> list[tuple[str, list[int]] | None]:
        """For each value of the client its source: `data`, or the name of a value, with the path of an element.

        Raises:
            MalformedMessage: they are none.
        """
        sources = request.fact("sources", list)
        if len(sources) != count:
            raise MalformedMessage(f"a run names {len(sources)} sources; the stage has {count}")
        for source in sources:
            match source:
                case None:
                    continue
                case [str(name), [*path]] if (name == "data" or is_digest(name)) and len(path) <= MAX_PATH:
                    if all(type(index) is int and 0 <= index <= MAX_INDEX for index in path):
                        continue
            raise MalformedMessage("a source of a run is none: it is `data` or 32 digits, with the path of an element")
        return sources

    def _on_device(self, value: Any, type_: Any) -> Any:
        from fedcore.graphs.tensors.values import unflatten

        return unflatten([tf.convert_to_tensor(leaf) for leaf in flatten(value)], type_)

    def _value(self, source: Any, type_: Any, arrays: dict[str, np.ndarray], number: int, report: Report) -> Any:
        """A client's value: the site's data, a value that an earlier stage has left here, or one of the request."""
        if source is None:
            return self._on_device(from_arrays(arrays, type_, f"v{number}."), type_)
        name, path = source
        if name == "data":
            key = f"{self._data.version}/{type_}"
            dataset = self._datasets.find(key, None)
            if dataset is None:
                dataset = self._data.dataset(type_)
                self._datasets.put(key, dataset)
            return prepare(dataset, type_, "data", functools.partial(columns_of, note=report.note))
        value = self._values.find(name)
        for index in path:
            value = value[index]
        return value


@contextlib.contextmanager
def stopping(stop: Stop, timeout_s: float) -> Iterator[None]:
    """Cancels the stop when the `with` block has not ended after some seconds."""
    timer = threading.Timer(timeout_s, stop.cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


_READING = threading.Lock()


def read_plan(data: bytes) -> Module:
    """The plan of a bundle from elsewhere: parsed and verified; a child process has imported what runs here.

    Raises:
        FedcoreError: it is no plan, or its graphs are refused.
    """
    with _READING:  # several sites of one process get equal plans at once
        return _read_plan(data)


@functools.lru_cache(maxsize=8)
def _read_plan(data: bytes) -> Module:
    plan = verify(from_bytes(data))
    if plan.stage != "planned":
        raise InvalidValue(f"a site runs plans; this module is {plan.stage}")
    stages = client_side(plan)
    if stages.graphs:
        check_in_child(stages, trusted=False)
        check_graphs(stages, trusted=False)
    return plan


def client_side(plan: Module) -> Module:
    """The functions and graphs of a plan's client stages, the only ones that a site runs."""
    stages = [op for op in plan.main.operations if op.kind in ("fold", "collect")]
    merges = [op for op in plan.main.operations if op.kind == "merge"]
    roots = {o.name for op in (*stages, *merges) for o in op.operands if isinstance(o, Symbol)}
    names = {name for root in roots for name in named_by(plan, root)}
    functions = tuple(f for f in plan.functions if f.name in names)
    return attrs.evolve(plan, functions=functions, graphs=tuple(g for g in plan.graphs if g.name in names))


def numbers_of(result: SliceResult) -> list[np.ndarray]:
    """The tensors that a client's result sends."""
    return [np.asarray(leaf) for leaf in flatten(result.partial)]


def open_site(name: str, settings: SiteSettings) -> Site:
    """The site of settings.

    Args:
        name: of the site, as the network knows it.
    """
    return Site(
        name,
        settings.data,
        settings.policy_file or settings.policy,
        SiteLog(settings.log),
        settings.identity,
        run_timeout_s=settings.run_timeout_s,
    )
