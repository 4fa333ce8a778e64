"""A site: answers a server's requests, by its own policy, with its own data.

A request is data (see `fedcore.runtime.network.messages`), and so is a plan: it is checked as a file from elsewhere is,
imported in a process of its own first, and holds allow-listed operations only. No Python comes from outside.
"""

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import attrs
import numpy as np

from fedcore.compiler.client_outputs import ClientOutputs
from fedcore.deployment.policy import Policy, Refusal
from fedcore.deployment.policy_file import PolicyFile
from fedcore.deployment.site_data import SiteData
from fedcore.deployment.site_inputs import RunRequest, check_arrays, check_sources
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.site_plans import read_plan, stage_of
from fedcore.deployment.site_run import NotBegun, SiteRun
from fedcore.deployment.site_settings import RUN_TIMEOUT_S, SiteSettings
from fedcore.deployment.site_sums import Identity, SiteSum
from fedcore.deployment.site_values import SiteValues
from fedcore.deployment.wiped_memory import wipe_memory
from fedcore.errors import FedcoreError
from fedcore.ir import Module
from fedcore.lru_cache import LruEntries
from fedcore.runtime.clients.device_stage import DeviceSliceExecutor
from fedcore.runtime.cluster.environment import environment
from fedcore.runtime.cluster.shipping import array_digest
from fedcore.runtime.network.messages import MalformedMessage, Message, remark
from fedcore.runtime.network.plan_runner import ClientStageOf
from fedcore.runtime.network.transcript import HELD_OUT, KeptName, Sources, Transcript
from fedcore.runtime.stopping import Stop, Stopped

Result = TypeVar("Result")

MAX_PLANS = 64
MAX_PLAN_BYTES = 2**28
MAX_DATASETS = 16
MAX_SUMS = 4
MAX_WAITING = 16
"""Requests that wait while one is answered; a further one is told that the site is busy."""

CACHE_BYTES = 2**30
"""Size of the cache of arrays that servers have sent, and of the cache of replies."""

ENTRY_BYTES = 256
"""An entry of a cache counts as at least so many bytes."""

_SIGNATURE_BYTES, _KEY_BYTES = 64, 32


class Site:
    """Answers the requests of a server.

    Guarantees:
      - Only plans that the policy accepts run, and only client stages of them.
      - The reply is what the plan says that the client sends, or a refusal, or that the client failed. Why it failed
        stands in the log, under the number in the reply: the class of an error may depend on a value.
      - A run is in the log before it starts, and counts, whatever its end.
      - Where the policy has `aggregated`, the server does not learn that this site's run has failed, see `Policy`; or
        at its own deadline of the round.
      - Where the site draws seeds itself, a stage that is asked again draws anew, and keeps nothing.
      - Where it has `reply_s`, runs that take long and short, end and fail, are answered at one time, and no request is
        answered before.
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
        # Where memory is short, or was before, no other graph stands in: a server may have filled that of one site.
        self._executor = executor or DeviceSliceExecutor(shrinks=False)
        self._plans: LruEntries[str, Module] = LruEntries(MAX_PLANS)
        self._arrays: LruEntries[str, np.ndarray] = LruEntries(CACHE_BYTES)
        self._values = SiteValues(log.path.parent / "values")
        self._replies: LruEntries[bytes, bytes] = LruEntries(CACHE_BYTES)
        self._datasets: LruEntries[str, Any] = LruEntries(MAX_DATASETS)
        self._identity = identity
        self._sums: LruEntries[tuple[str, str, str], SiteSum] = LruEntries(MAX_SUMS)
        self._run_timeout_s = run_timeout_s
        self._stop = Stop()  # of the run in progress
        self._answers_at = 0.0  # the time, as of `time.monotonic`, before which no reply leaves
        self._runs = ThreadPoolExecutor(1, "fedcore-site-run")
        self._waiting = threading.Semaphore(1 + MAX_WAITING)
        self._lock = threading.Lock()

    def answer(self, payload: bytes) -> bytes:
        """The reply to a request."""
        arrived = time.monotonic()
        if not self._waiting.acquire(blocking=False):
            busy = f"the site is busy: {MAX_WAITING} requests wait"
            return Message({"kind": "failed", "number": 0, "error": busy}).to_bytes()
        try:
            reply, hold_s = self._answer(payload)
        finally:
            self._waiting.release()
        _sleep_until(arrived + min(hold_s, MAX_HOLD_S))
        return reply

    def stop(self) -> None:
        """Ends the run in progress, whose request fails."""
        self._stop.cancel()

    def _answer(self, payload: bytes) -> tuple[bytes, float]:
        """The reply, and the seconds from the request's arrival for which it is held back."""
        with self._lock:
            key = hashlib.sha256(payload).digest()
            reply = self._replies.find(key, None)
            if reply is not None:
                return reply, 0
            message, hold_s = self._reply(payload)
            reply = message.to_bytes()
            if message.facts["kind"] in ("result", "secure"):
                self._replies.put(key, reply, len(reply) + ENTRY_BYTES)
            _sleep_until(self._answers_at)  # further requests wait too
            return reply, hold_s

    def _reply(self, payload: bytes) -> tuple[Message, float]:
        """The reply, and the seconds from the request's arrival for which it is held back."""
        facts: dict[str, Any] = {}
        try:
            request = Message.from_bytes(payload)
            facts = {name: request.facts.get(name) for name in ("kind", "plan", "operation", "run")}
            self._read_policy()
            match request.facts["kind"]:
                case "plan":
                    return self._take_plan(request), 0
                case "run":
                    return self._run(request), 0
                case "secure":
                    return self._answer_phase(request), 0
                case kind:
                    raise MalformedMessage(f"a site does not answer requests of kind {kind!r}")
        except Refusal as refusal:
            self.log.write("refused", **facts, rule=refusal.rule, why=str(refusal))
            return Message({"kind": "refused", "rule": refusal.rule, "why": remark(str(refusal))}), 0
        except _ClientFailed as failure:
            error, hold_s = failure.error, failure.hold_s
            self._log_failure(facts, failure.number, error)
            if isinstance(error, Refusal) and not self._policy.aggregated:
                return Message({"kind": "refused", "rule": error.rule, "why": remark(str(error))}), 0
            # At the server's own deadline, a failed site looks like one that is late.
            is_held = self._policy.aggregated and self._policy.reply_s is None
            return Message({"kind": "failed", "number": failure.number}), hold_s if is_held else 0
        except Exception as error:
            number = new_number()
            self._log_failure(facts, number, error)
            # Only what is wrong with the request itself: other errors may tell of the data.
            message = {"error": remark(str(error))} if isinstance(error, MalformedMessage) else {}
            return Message({"kind": "failed", "number": number, **message}), 0

    def _log_failure(self, facts: Mapping[str, Any], number: int, error: Exception) -> None:
        """Writes why a request has failed.

        Args:
            facts: of the request.
            number: by which the owner finds the line.
        """
        if isinstance(error, Refusal):
            self.log.write("refused", **facts, number=number, rule=error.rule, why=str(error))
        else:
            self.log.write("failed", **facts, number=number, error=f"{type(error).__name__}: {error}")

    def _read_policy(self) -> None:
        """Puts a changed policy in force. Plans have to be accepted anew, since an earlier policy accepted them."""
        if self._policy_file is None:
            return
        in_force = self._policy_file.read()
        if in_force.digest != self.log.policy:
            self._policy, self.log.policy = in_force.policy, in_force.digest
            self._plans.clear()
            self._datasets.clear()  # have the columns that the earlier policy allowed
            self.log.write("policy")

    def _take_plan(self, request: Message) -> Message:
        """Checks a plan by the policy and keeps it; the reply tells the site's environment."""
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
        """The reply to a request of a run: what the stage sends, or that the server has to send the plan or arrays."""
        digest, operation, run_digest = request.digest("plan"), request.name("operation"), request.digest("run")
        plan = self._plans.find(digest, None)
        if plan is None:
            return Message({"kind": "missing", "plan": True})
        arrays = self._request_arrays(request)
        if arrays is None:
            return Message({"kind": "missing", "plan": False})
        masking = self._sums.find((digest, operation, run_digest), None)
        run = self._start(request, plan, stage_of(plan, operation), RunRequest.of(request, *arrays), masking)
        began, self._stop = time.monotonic(), run.stop
        try:
            with stopping(self._stop, min(self._run_timeout_s, self._policy.run_s)):
                result = self._in_time(run.compute)
            if self._stop.is_stopped:
                raise Stopped("the run took too long")
            reply, vector = run.reply(result, time.monotonic() - began)
        except Exception as error:
            if not self._policy.hides_failures or isinstance(error, NotBegun):
                cause = error.error if isinstance(error, NotBegun) else error
                raise _ClientFailed(run.number, run.inputs.reply_by_s, cause) from error
            reply, vector = run.reply_without_data(), None
            with contextlib.suppress(OSError):  # on a full disk the server would see a failure whose lines do not fit
                self._log_failure({"kind": "run", **run.inputs.log_facts}, run.number, error)
                if not isinstance(error, NotStopped):
                    self.log.write("ended", number=run.number)
        finally:
            self._answers_at = 0 if self._policy.reply_s is None else began + self._policy.reply_s
        if masking is None:
            return reply
        if self._policy.reply_s is not None:
            _sleep_until(began + self._policy.run_s)  # masking may take longer than what is left until the reply
        return Message(reply.facts, {**reply.arrays, "message": np.frombuffer(masking.mask(vector), np.uint8)})

    def _start(
        self, request: Message, plan: Module, stage: ClientStageOf, inputs: RunRequest, masking: SiteSum | None
    ) -> SiteRun:
        """Checks a request of a run, and writes to the log that the run has started.

        Args:
            masking: the session of the secure sum that the site has joined for this run.
        Raises:
            Refusal: a rule of the policy is against the run.
            MalformedMessage: the request does not fit the plan, or the session.
        """
        sources = check_sources(inputs, ClientOutputs.cached(plan).data)
        check_arrays(stage, inputs)
        self._check_held_out(inputs.sources)
        for source in inputs.kept_sources:
            self._values.check(inputs.plan, KeptName.parse(source.name))  # a wrong name is no failure of a run
        masked = masking is not None
        if masking is not None:
            masking.check_run(inputs)
            clients: int | None = masking.least_clients
        else:
            clients = None if request.facts.get("clients") is None else request.number("clients")
        self._policy.check_run(plan, stage, clients, self.log, masks=masked)
        if masking is not None:
            masking.client.take_shares(request.array("message"))  # what is wrong with it is told before the run starts
        number, own_seed = new_number(), self._policy.own_seed(plan, stage, masked=masked)
        planned_bits = self._policy.planned_bits(plan, stage, masked=masked)
        seed = {} if own_seed is None else {"seed": own_seed}  # nobody else is to know it
        self.log.write("started", number=number, **inputs.log_facts, planned_bits=planned_bits, **seed)
        return SiteRun(
            number,
            plan,
            stage,
            attrs.evolve(inputs, own_seed=own_seed),
            sources,
            masking,
            clients,
            self._policy,
            self._data,
            self._datasets,
            self._values,
            self.log,
            self._executor,
        )

    def _in_time(self, compute: Callable[[], Result]) -> Result:
        """The result of a run. With `reply_s`, a run that nothing can stop in time is not waited for.

        Raises:
            Stopped: it takes longer. A kernel of TensorFlow runs to its end, and what it gives goes nowhere; the next
                run waits for it, and so may be late too.
        """
        if self._policy.reply_s is None:
            return compute()
        run = self._runs.submit(compute)
        try:
            return run.result(self._policy.run_s)
        except TimeoutError:
            if run.cancel():
                raise Stopped("the run before it took too long") from None
            raise NotStopped("the run took too long, and a kernel of TensorFlow still runs") from None

    def _check_held_out(self, sources: Sources) -> None:
        """Refuses a request for rows that are held out, where none are."""
        if not self._data.holds_out and any(source.name == HELD_OUT for source in sources):
            raise MalformedMessage("no rows are held out here: site.toml has no data.held_out_every")

    def _answer_phase(self, request: Message) -> Message:
        """The site's message of a phase of a secure sum. In the first phase, `keys`, it joins the session."""
        digest, operation, run = request.digest("plan"), request.name("operation"), request.digest("run")
        phase = request.name("phase")
        reply: dict[str, np.ndarray] = {}
        if phase == "keys":
            plan = self._plans.find(digest, None)
            if plan is None:
                return Message({"kind": "missing", "plan": True})
            if self._identity is None:
                raise MalformedMessage(f"{self.name} has no key for secure sums: site.toml names none")
            request.names("names", len(self._identity.peers))
            stage, key = stage_of(plan, operation), (digest, operation, run)
            if not ClientOutputs.cached(plan).is_secure(operation):
                raise MalformedMessage("the stage has no secure sum")
            if self._sums.find(key, None) is not None:
                raise MalformedMessage(f"{self.name} has joined the secure sum of this run already")
            joined = SiteSum.join(
                self._identity,
                self.name,
                request.number("index"),
                Transcript.of(request),
                request.array("message"),
                request.array("server_key", _KEY_BYTES),
                stage.work,
            )
            self._check_held_out(joined.transcript.sources[joined.index])
            self._policy.check_run(plan, stage, joined.least_clients, self.log, masks=True)
            self._sums.put(key, joined)
            reply["peers"] = np.frombuffer(b"".join(joined.peers), np.uint8)
        session = self._sums.find((digest, operation, run), None)
        if session is None:
            raise MalformedMessage(f"{self.name} takes no part in the secure sum of this run")
        reply["message"] = np.frombuffer(session.answer(phase, request.array("message")), np.uint8)
        return Message({"kind": "secure"}, reply)

    def _request_arrays(self, request: Message) -> tuple[dict[str, np.ndarray], dict[str, str]] | None:
        """The arrays that a request has or names by digest, and the digest of each, both by the array's name.

        None if the site has no array of a digest, so that the server sends all of them.
        """
        arrays, digests = dict(request.arrays), dict[str, str]()
        for name, digest in request.fact("digests", dict).items():
            if not isinstance(digest, str):
                raise MalformedMessage("the digest of an array is no text")
            if name in arrays:
                if array_digest(arrays[name]) != digest:
                    raise MalformedMessage(f"the array {name} has other content than its digest says")
                self._arrays.put(digest, arrays[name], arrays[name].nbytes + ENTRY_BYTES)
            else:
                array = self._arrays.find(digest, None)
                if array is None:
                    return None
                arrays[name] = array
            digests[name] = digest
        return arrays, {**digests, **{name: array_digest(a) for name, a in arrays.items() if name not in digests}}


MAX_HOLD_S = 3600.0
"""Seconds for which a reply is held back at most, where the server says how long."""


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


class NotStopped(Stopped):
    """Nothing stops a run, so that a later one may fail for it, which the server sees: it counts as a failure seen."""


class _ClientFailed(Exception):
    """A run has started and has failed. Decision 0303.

    Args:
        number: of the run in the log.
        hold_s: seconds from the request's arrival until the server may know.
        error: why it failed, for the log.
    """

    def __init__(self, number: int, hold_s: float, error: Exception) -> None:
        super().__init__(number, hold_s, error)
        self.number, self.hold_s, self.error = number, hold_s, error


def new_number() -> int:
    """A number by which the site's owner finds a line of the log; it tells nothing."""
    return secrets.randbelow(10**9)


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


def open_site(name: str, settings: SiteSettings) -> Site:
    """The site of settings. The process wipes memory from now on.

    Args:
        name: of the site, as the network knows it.
    """
    wipe_memory()
    return Site(
        name,
        settings.data,
        settings.policy_file or settings.policy,
        SiteLog(settings.log),
        settings.identity,
        run_timeout_s=settings.run_timeout_s,
    )
