"""The workers of a Ray cluster: how many there are, which have started, and which have ended."""

import functools
import itertools
import threading
import time
from collections.abc import Collection
from typing import Any

import attrs
import ray

from fedcore.errors import FedcoreError, brief
from fedcore.graphs.tensors.intra_op_threads import intra_op_threads
from fedcore.lru_cache import LruEntries
from fedcore.runtime.clients.faults import Drop
from fedcore.runtime.cluster.environment import differences, environment
from fedcore.runtime.cluster.worker import Worker
from fedcore.runtime.stopping import Stop, Stopped

START_S = 120.0
"""Seconds that a call waits for workers that start."""

SETTLE_S = 10.0
"""Seconds that the first call waits for further workers after one has started; others may lack room."""

LOOK_EVERY_S = 1.0
"""Seconds between two looks at the cluster's nodes."""

MAX_SENT = 65_536
"""Number of digests that the driver remembers for each worker."""

CONTROL = "control"
"""Concurrency group of calls that a worker takes while it computes. `ray.method` of a method is not heeded there."""


class ClusterLost(Stopped):
    """No worker of the cluster could go on with the call."""


@attrs.define(eq=False)
class Member:
    """A worker of the cluster.

    Args:
        number: the worker's number; a worker that takes the place of another has a new number.
        actor: handle of its actor.
        described: references to its `describe` and `node`, which are there when it has started.
        sent: digests of the arrays that it was sent.
        requests: number of requests that it has not answered.
        has_ended: it answers no more.
    """

    number: int
    actor: Any
    described: list
    name: str = ""
    notes: tuple[str, ...] = ()
    sent: LruEntries[str, bool] = attrs.field(factory=lambda: LruEntries(MAX_SENT), repr=False)
    lock: threading.Lock = attrs.field(factory=threading.Lock, repr=False)
    requests: int = 0
    has_ended: bool = False

    def note_joined(self, description: dict[str, str], node: str) -> None:
        self.name = f"worker {self.number} on node {node}"
        listed = "; ".join(differences(description, environment()))
        self.notes = (f"{self.name} differs from the driver, so bits may differ: {listed}",) if listed else ()


@attrs.frozen
class Settings:
    """How workers are made.

    Args:
        num_workers: their number; None for as many as the cluster has room for.
        policy, masked, timeout_s, memory_bytes, deterministic, cache_bytes: see `Worker`.
    """

    num_workers: int | None
    cpus_per_worker: float
    gpus_per_worker: float
    policy: Drop | None
    masked: bool
    timeout_s: float | None
    memory_bytes: int | None
    deterministic: bool
    cache_bytes: int


class Members:
    """The workers of a cluster.

    Guarantees:
      - A worker that ends is replaced, as far as the cluster has room. A node that joins gets workers, unless
        `num_workers` is given and reached.
      - Threads may ask at once.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._ready: list[Member] = []
        self._starting: list[Member] = []
        self._looked = float("-inf")
        self._closed = False

    @property
    def ready(self) -> list[Member]:
        """The workers that have started, by number."""
        with self._lock:
            return list(self._ready)

    def look(self, stop: Stop) -> list[Member]:
        """The workers for a stage: joins those that have started, and starts those for which there is room now.

        The first call waits until all have started, or none more does within `SETTLE_S`.

        Raises:
            FedcoreError: the workers are closed.
            ClusterLost: none has started within `START_S`.
        """
        with self._lock:
            if self._closed:
                raise FedcoreError("the runtime is closed")
            first = self._looked == float("-inf")
            if time.monotonic() - self._looked >= LOOK_EVERY_S:
                self._looked = time.monotonic()
                self._grow()
            self._join()
        began = joined = time.monotonic()
        number = 0
        while time.monotonic() < began + START_S:
            ready = self.ready
            if len(ready) > number:
                number, joined = len(ready), time.monotonic()
            if ready and not (first and self._starting and time.monotonic() < joined + SETTLE_S):
                break
            self._wait(stop)
        if not self.ready:
            raise ClusterLost(f"no worker has started within {START_S:g} s; {self._room()}")
        return self.ready

    def successor(self, excluded: Collection[Member]) -> Member | None:
        """A worker that has started and is none of those taken; None if there is none now."""
        with self._lock:
            self._join()
            return next((m for m in self._ready if m not in excluded), None)

    def least_busy(self, than: Member, stop: Stop) -> Member:
        """The worker with the fewest requests, in the place of one that has ended; waits until one is ready.

        Raises:
            ClusterLost: none has started within `START_S`.
        """
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            with self._lock:
                self._grow()
                self._join()
                if self._ready:
                    return min(self._ready, key=lambda m: (m.requests, m.number))
            self._wait(stop)
        raise ClusterLost(f"{than.name} has ended, and no other worker has started; {self._room()}")

    def note_ended(self, member: Member) -> None:
        """Notes that a worker has ended, and starts another where there is room."""
        with self._lock:
            member.has_ended = True
            if member in self._ready:
                self._ready.remove(member)
                ray.kill(member.actor)
                self._grow()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for member in [*self._ready, *self._starting]:
                ray.kill(member.actor)
            self._ready, self._starting = [], []

    def _room(self) -> str:
        have = {name: number for name, number in ray.cluster_resources().items() if name in ("CPU", "GPU")}
        wants = (
            f"cpus_per_worker={self._settings.cpus_per_worker:g}, gpus_per_worker={self._settings.gpus_per_worker:g}"
        )
        return f"the cluster has {brief(have)}, and a worker needs {wants}"

    def _target(self) -> int:
        if self._settings.num_workers is not None:
            return self._settings.num_workers
        return sum(self._fitting(node["Resources"]) for node in ray.nodes() if node["Alive"])

    def _fitting(self, resources: dict[str, float]) -> int:
        needs = {"CPU": self._settings.cpus_per_worker, "GPU": self._settings.gpus_per_worker}
        return min(int(resources.get(name, 0) // number) for name, number in needs.items() if number)

    def _grow(self) -> None:
        if self._closed:
            return
        target = self._target()
        while len(self._starting) > max(0, target - len(self._ready)):
            ray.kill(self._starting.pop().actor)
        while len(self._ready) + len(self._starting) < target:
            self._starting.append(self._start())

    def _start(self) -> Member:
        settings = self._settings
        actor = _actor_class().options(num_cpus=settings.cpus_per_worker, num_gpus=settings.gpus_per_worker).remote(
            ray.get, intra_op_threads(), settings.policy, settings.masked, settings.timeout_s, settings.memory_bytes,
            settings.cpus_per_worker, settings.deterministic, settings.cache_bytes, ray.cloudpickle.loads,
        )  # fmt: skip
        return Member(next(self._numbers), actor, [actor.describe.remote(), actor.node.remote()])

    def _wait(self, stop: Stop) -> None:
        """Waits a little for workers that start."""
        if stop.is_stopped:
            raise Stopped("the call was stopped")
        with self._lock:
            starting = [m.described[-1] for m in self._starting]
        if starting:
            ray.wait(starting, num_returns=len(starting), timeout=0.2)
        else:
            time.sleep(0.2)
        with self._lock:
            self._join()

    def _join(self) -> None:
        """Moves workers that have started, or failed to, out of `_starting`."""
        if not self._starting:
            return
        starting = [m.described[-1] for m in self._starting]
        ready, _ = ray.wait(starting, num_returns=len(starting), timeout=0)
        for member in [m for m in self._starting if m.described[-1] in ready]:
            self._starting.remove(member)
            try:
                member.note_joined(*ray.get(member.described))
            except ray.exceptions.RayActorError:
                continue
            self._ready.append(member)
        self._ready.sort(key=lambda m: m.number)


@functools.cache
def _actor_class() -> Any:
    """The actor of a `Worker`. Methods called in the group `CONTROL` do not wait for the slices that run."""

    class RayWorker(Worker):
        def node(self) -> str:
            return f"{ray.get_runtime_context().get_node_id()[:8]} ({ray.util.get_node_ip_address()})"

    make: Any = ray.remote
    return make(concurrency_groups={CONTROL: 1})(RayWorker)
