"""A site: answers a server's requests, by its own policy, with its own data.

A request is data (see `fedcore.runtime.network.messages`), and so is a plan: it is checked as a file from elsewhere is,
imported in a process of its own first, and holds allow-listed operations only. No Python comes from outside.
"""

import functools
import hashlib
import threading
import time
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.compiler.reachable import named_by
from fedcore.data import columns_of
from fedcore.deployment.policy import Policy, Refusal
from fedcore.deployment.record_privacy import mechanisms_of, noisy_passes
from fedcore.deployment.site_data import SiteData
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.site_settings import SiteSettings
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
from fedcore.runtime.network.messages import MalformedMessage, Message
from fedcore.runtime.network.plan_runner import ClientStageOf, run_client
from fedcore.runtime.reports.report import Report
from fedcore.runtime.stopping import Stop

MAX_PLANS = 64
MAX_DATASETS = 16
MAX_REPLIES = 32
MAX_SUMS = 4
CACHE_BYTES = 2**30


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
        policy: what may run and leave.
        log: gets a line for each plan and run.
        identity: for secure sums; None takes part in none.
        executor: runs the client stages. Default: a new one.
    """

    def __init__(
        self,
        name: str,
        data: SiteData,
        policy: Policy,
        log: SiteLog,
        identity: Identity | None = None,
        executor: DeviceSliceExecutor | None = None,
    ) -> None:
        self.name = name
        self._data = data
        self._policy = policy
        self.log = log
        self._executor = executor or DeviceSliceExecutor()
        self._plans: LruEntries[str, Module] = LruEntries(MAX_PLANS)
        self._arrays: LruEntries[str, np.ndarray] = LruEntries(CACHE_BYTES)
        self._values = SiteValues(log.path.parent / "values")
        self._replies: LruEntries[bytes, bytes] = LruEntries(MAX_REPLIES)
        self._datasets: LruEntries[str, Any] = LruEntries(MAX_DATASETS)
        self._identity = identity
        self._sums: LruEntries[str, SiteSum] = LruEntries(MAX_SUMS)
        self._lock = threading.Lock()

    def answer(self, payload: bytes) -> bytes:
        """The reply to a request."""
        with self._lock:
            key = hashlib.sha256(payload).digest()
            reply = self._replies.find(key, None)
            if reply is None:
                message = self._reply(payload)
                reply = message.to_bytes()
                if message.facts["kind"] in ("result", "secure"):
                    self._replies.put(key, reply)
            return reply

    def _reply(self, payload: bytes) -> Message:
        facts: dict[str, Any] = {}
        try:
            request = Message.from_bytes(payload)
            facts = {
                name: request.facts[name] for name in ("kind", "plan", "operation", "run") if name in request.facts
            }
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
            return Message({"kind": "refused", "rule": refusal.rule, "why": str(refusal)})
        except Exception as error:
            self.log.write("failed", **facts, error=f"{type(error).__name__}: {error}")
            reason = str(error) if isinstance(error, MalformedMessage) else type(error).__name__
            return Message({"kind": "failed", "error": f"{reason}; the site's log says more"})

    def _take_plan(self, request: Message) -> Message:
        digest = request.fact("plan", str)
        if digest not in self._plans:
            try:
                plan = read_plan(request.array("bundle"))
            except FedcoreError as error:  # it is about the server's own plan, and tells nothing of the data
                raise Refusal("operations", str(error)) from None
            if plan.digest() != digest:
                raise MalformedMessage(f"a plan arrived with the digest {plan.digest()}, not {digest}")
            signature = request.arrays.get("signature")
            self._policy.check_plan(plan, self._data, None if signature is None else signature.tobytes())
            self._plans.put(digest, plan)
            self.log.write("accepted", kind="plan", plan=digest)
        return Message({"kind": "plan", "environment": environment()})

    def _run(self, request: Message) -> Message:
        digest, operation, run = (request.fact(name, str) for name in ("plan", "operation", "run"))
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
        clients, masking = request.facts.get("clients"), self._sums.find(run, None)
        self._policy.check_run(
            plan, stage, clients if isinstance(clients, int) else None, self.log, masks=masking is not None
        )
        began, report = time.perf_counter(), Report()
        broadcasts = [
            self._on_device(from_arrays(arrays, type_, f"b{number}."), type_)
            for number, type_ in enumerate(stage.broadcast_types)
        ]
        mechanisms = mechanisms_of(plan, stage.work.stage)
        values = [
            self._value(source, type_, arrays, number, report, whole_passes=bool(mechanisms))
            for number, (source, type_) in enumerate(
                zip(request.fact("sources", list), stage.value_types, strict=False)
            )
        ]
        index = request.fact("index", int)
        run_facts = {"plan": digest, "operation": operation, "run": run}
        self._policy.count_epsilon(noisy_passes(mechanisms, tuple(values)), self.log, run_facts)

        def run_once() -> SliceResult:
            return run_client(
                self._executor,
                stage,
                broadcasts,
                values,
                masked=masking is not None,
                seed=self._policy.seed(request.fact("seed", int), is_private=bool(mechanisms)),
                index=index,
                report=report,
                stop=Stop(),
            )

        result = run_once()
        if stage.partial_type is not None:
            again = None if self._policy.noise_std is None else numbers_of(run_once())
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
        facts = {"kind": "result", "notes": list(report.notes)}
        if result.kept:
            name = hashlib.blake2b(f"{run}/{index}".encode(), digest_size=16).hexdigest()
            self._values.store(name, result.kept[index], stage.kept_type)
            facts["value"] = name
        bits = self._policy.count_bits(plan, stage, result)
        self._policy.check_sent(plan, stage, result, bits, self.log)
        self.log.write(
            "ran",
            **run_facts,
            clients=clients,
            bits=bits,
            masked=masking is not None,
            seconds=round(time.perf_counter() - began, 3),
            sent=self._policy.sent_tensors(plan, stage),
        )
        return Message(facts, reply)

    def _answer_phase(self, request: Message) -> Message:
        """The site's message of a phase of a secure sum."""
        digest, operation, run, phase = (request.fact(name, str) for name in ("plan", "operation", "run", "phase"))
        reply: dict[str, np.ndarray] = {}
        if phase == "keys":
            plan = self._plans.find(digest, None)
            if plan is None:
                return Message({"kind": "missing", "plan": True})
            if self._identity is None:
                raise MalformedMessage(f"{self.name} has no key for secure sums: site.toml names none")
            stage, names = ClientStageOf.of(plan, operation), request.fact("names", list)
            self._policy.check_run(plan, stage, len({*names}), self.log, masks=True)
            joined = SiteSum.join(
                self._identity,
                self.name,
                names,
                request.fact("index", int),
                request.array("message"),
                request.array("server_key"),
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
            if name in arrays:
                if array_digest(arrays[name]) != digest:
                    raise MalformedMessage(f"the array {name} has other content than its digest says")
                self._arrays.put(digest, arrays[name], arrays[name].nbytes)
                continue
            array = self._arrays.find(digest, None)
            if array is None:
                return None
            arrays[name] = array
        return arrays

    def _on_device(self, value: Any, type_: Any) -> Any:
        from fedcore.graphs.tensors.values import unflatten

        return unflatten([tf.convert_to_tensor(leaf) for leaf in flatten(value)], type_)

    def _value(
        self,
        source: Any,
        type_: Any,
        arrays: dict[str, np.ndarray],
        number: int,
        report: Report,
        *,
        whole_passes: bool,
    ) -> Any:
        """A client's value: the site's data, a value that an earlier stage has left here, or one of the request.

        Args:
            whole_passes: as for `Batches.of`.
        """
        if source is None:
            return self._on_device(from_arrays(arrays, type_, f"v{number}."), type_)
        name, path = source
        if name == "data":
            key = f"{self._data.version}/{type_}/{whole_passes}"
            dataset = self._datasets.find(key, None)
            if dataset is None:
                dataset = self._data.dataset(type_, whole_passes=whole_passes)
                self._datasets.put(key, dataset)
            return prepare(dataset, type_, "data", functools.partial(columns_of, note=report.note))
        value = self._values.find(name)
        for index in path:
            value = value[index]
        return value


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
    return Site(name, settings.data, settings.policy, SiteLog(settings.log), settings.identity)
