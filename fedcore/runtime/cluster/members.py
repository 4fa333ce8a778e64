"""The workers of a Ray cluster: how many there are, which have started, and which have ended."""

import itertools
import threading
import time
from collections.abc import Collection

import attrs
import ray

from fedcore.errors import FedcoreError, brief
from fedcore.graphs.tensors.intra_op_threads import intra_op_threads
from fedcore.runtime.clients.faults import Drop
from fedcore.runtime.cluster.team_worker import actor_class
from fedcore.runtime.cluster.teams import Member
from fedcore.runtime.stopping import Stop, Stopped

START_S = 120.0
"""Seconds that a call waits for workers that start."""

SETTLE_S = 10.0
"""Seconds that the first call waits for further workers after one has started; others may lack room."""

LOOK_EVERY_S = 1.0
"""Seconds between two looks at the cluster's nodes."""


class ClusterLost(Stopped):
    """No worker of the cluster could go on with the call."""


@attrs.frozen
class Settings:
    """How workers are made.

    Args:
        num_workers: number of workers; None for as many as the cluster has room for.
        cpus_per_worker, gpus_per_worker: resources that Ray reserves for a worker.
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
        self._ready: list[Member] = []  # by number
        self._starting: list[Member] = []
        self._looked = float("-inf")  # time of the last look at the cluster's nodes
        self._closed = False

    @property
    def ready(self) -> list[Member]:
        """The workers that have started, by number."""
        with self._lock:
            return list(self._ready)

    def look(self, stop: Stop) -> list[Member]:
        """The workers for a stage, those that have started. Starts further ones for which there is room now.

        The first call waits until all have started, or none more does within `SETTLE_S`.

        Raises:
            FedcoreError: the workers are closed.
            ClusterLost: none has started within `START_S`.
            Stopped: the call was stopped.
        """
        with self._lock:
            if self._closed:
                raise FedcoreError("the runtime is closed")
            is_first_call = self._looked == float("-inf")
            if time.monotonic() - self._looked >= LOOK_EVERY_S:
                self._looked = time.monotonic()
                self._grow()
            self._join()
        began = last_joined = time.monotonic()
        joined = 0
        while time.monotonic() < began + START_S:
            ready = self.ready
            if len(ready) > joined:
                joined, last_joined = len(ready), time.monotonic()
            if ready and not (is_first_call and self._starting and time.monotonic() < last_joined + SETTLE_S):
                break
            self._wait(stop)
        if not self.ready:
            raise ClusterLost(f"no worker has started within {START_S:g} s; {self._room()}")
        return self.ready

    def successor(self, excluded: Collection[Member]) -> Member | None:
        """A worker that has started and is not excluded; None if there is none now."""
        with self._lock:
            self._join()
            return next((m for m in self._ready if m not in excluded), None)

    def least_busy(self, ended: Member, stop: Stop) -> Member:
        """The worker with the fewest requests, to replace the worker `ended`; waits until one is ready.

        Raises:
            ClusterLost: none has started within `START_S`.
            Stopped: the call was stopped.
        """
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            with self._lock:
                self._grow()
                self._join()
                if self._ready:
                    return min(self._ready, key=lambda m: (m.requests, m.number))
            self._wait(stop)
        raise ClusterLost(f"{ended.name} has ended, and no other worker has started; {self._room()}")

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
        """The resources of the cluster and of a worker, for messages."""
        have = {name: number for name, number in ray.cluster_resources().items() if name in ("CPU", "GPU")}
        wants = (
            f"cpus_per_worker={self._settings.cpus_per_worker:g}, gpus_per_worker={self._settings.gpus_per_worker:g}"
        )
        return f"the cluster has {brief(have)}, and a worker needs {wants}"

    def _target(self) -> int:
        """The number of workers wanted: `num_workers`, or as many as fit on the nodes that are alive."""
        if self._settings.num_workers is not None:
            return self._settings.num_workers
        return sum(self._fitting(node["Resources"]) for node in ray.nodes() if node["Alive"])

    def _fitting(self, resources: dict[str, float]) -> int:
        """Number of workers that fit on a node of these resources."""
        needs = {"CPU": self._settings.cpus_per_worker, "GPU": self._settings.gpus_per_worker}
        return min(int(resources.get(name, 0) // number) for name, number in needs.items() if number)

    def _grow(self) -> None:
        """Starts the workers that are missing, and ends starting ones beyond the target. The caller holds the lock."""
        if self._closed:
            return
        target = self._target()
        while len(self._starting) > max(0, target - len(self._ready)):
            ray.kill(self._starting.pop().actor)
        while len(self._ready) + len(self._starting) < target:
            self._starting.append(self._start())

    def _start(self) -> Member:
        """Asks Ray for a worker, which starts when a node has room for it."""
        settings = self._settings
        actor = actor_class().options(num_cpus=settings.cpus_per_worker, num_gpus=settings.gpus_per_worker).remote(
            ray.get, intra_op_threads(), settings.policy, settings.masked, settings.timeout_s, settings.memory_bytes,
            settings.cpus_per_worker, settings.deterministic, settings.cache_bytes, ray.cloudpickle.loads,
        )  # fmt: skip
        return Member(next(self._numbers), actor, [actor.describe.remote(), actor.node.remote()])

    def _wait(self, stop: Stop) -> None:
        """Waits at most 0.2 s for all workers that start, and takes in those that have started.

        Raises:
            Stopped: the call was stopped.
        """
        if stop.is_stopped:
            raise Stopped("the call was stopped")
        with self._lock:
            starting = [m.described[-1] for m in self._starting]  # the last answer, so that the others are there too
        if starting:
            ray.wait(starting, num_returns=len(starting), timeout=0.2)
        else:
            time.sleep(0.2)
        with self._lock:
            self._join()

    def _join(self) -> None:
        """Moves workers that have started to `_ready`, and drops those that failed to. The caller holds the lock."""
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
