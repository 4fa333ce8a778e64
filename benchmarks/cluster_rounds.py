"""A round of an MLP on a cluster of this machine, clients by id: requests, bytes, and pieces of the driver's CPU time.

python -m benchmarks.cluster_rounds --clients 100000 --workers 4
"""

import argparse
import collections
import contextlib
import functools
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil

from benchmarks.fedcore_rounds import Rounds
from benchmarks.workloads import WORKLOADS

EXAMPLES = 4
"""Examples of a client: few, since this measures the driver."""


class ThreadTimes:
    """CPU seconds of threads in functions, and numbers of calls.

    Guarantees:
      - A function that is timed within another one counts for itself only.
    """

    def __init__(self) -> None:
        self.seconds: collections.Counter[str] = collections.Counter()
        self.calls: collections.Counter[str] = collections.Counter()
        self._inner = threading.local()

    @contextlib.contextmanager
    def timing(self, owner: object, name: str, piece: str) -> Iterator[None]:
        """Times a function of a module or class in the `with` block."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*given, **named):
            outer, self._inner.seconds = getattr(self._inner, "seconds", 0.0), 0.0
            began = time.thread_time()
            try:
                return function(*given, **named)
            finally:
                spent = time.thread_time() - began
                self.seconds[piece] += spent - self._inner.seconds
                self.calls[piece] += 1
                self._inner.seconds = outer + spent

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, function)


def native_seconds() -> float:
    """CPU seconds of this process's threads that are not Python's."""
    own = {thread.native_id for thread in threading.enumerate()}
    return sum(thread.user_time + thread.system_time for thread in psutil.Process().threads() if thread.id not in own)


def opened(number: int, images: np.ndarray, labels: np.ndarray):
    import fedcore as fc

    rows = slice(number % 10, number % 10 + EXAMPLES)
    return fc.data.ClientDataset.from_columns((images[rows], labels[rows])).batch(20)


def cohort_and_rounds() -> tuple[Callable, Rounds]:
    """A function from a number of clients to a cohort by id, and the rounds of the MLP."""
    import fedcore as fc

    rng = np.random.default_rng(0)
    images = rng.normal(size=(20, 28, 28, 1)).astype(np.float32)
    labels = rng.integers(0, 10, 20).astype(np.int32)
    open_client = functools.partial(opened, images=images, labels=labels)
    rounds = Rounds(WORKLOADS["mlp"], open_client(0).element_spec)
    return lambda clients: fc.data.OpenedElsewhere(range(clients), open_client), rounds


def measure(clients: int, workers: int, rounds: int, *, in_runs: bool = True) -> dict:
    """Medians of a round: requests, MB that come in, seconds, CPU seconds of the driver and of its pieces.

    Args:
        in_runs: requests have runs of slices; False for one slice each.
    """
    import fedcore as fc
    from fedcore.runtime.clients.client_source import ClientSource
    from fedcore.runtime.clients.merge_tree import MergeTree
    from fedcore.runtime.clients.run_lengths import RunLengths
    from fedcore.runtime.clients.slice_reader import SliceReader
    from fedcore.runtime.cluster import executor, teams
    from fedcore.runtime.cluster.broadcasts import Broadcasts
    from fedcore.runtime.plan_executor import PlanExecutor

    runtime = fc.runtime.ray(num_workers=workers, cpus_per_worker=0.5)
    sizes: list[int] = []
    results: list[dict] = []
    ask, lengths = teams._ask, executor._Runs.lengths

    def asked(*given):
        answer = ask(*given)
        sizes.append(len(answer.result.data) + sum(buffer.nbytes for buffer in answer.result.buffers))
        return answer

    teams._ask = asked
    if not in_runs:
        executor._Runs.lengths = lambda runs, work, slices, longest: RunLengths(None, 1)
    pieces = [
        (ClientSource, "__next__", "cutting runs"),
        (SliceReader, "read", "clients of runs"),
        (executor.RayClientsExecutor, "parcel", "packing"),
        (teams, "_ask", "asking"),
        (teams, "unpack", "unpacking partials"),
        (MergeTree, "add", "merging"),
        (MergeTree, "result", "merging"),
        (Broadcasts, "bundles", "broadcasts"),
        (PlanExecutor, "_run", "server stage"),
    ]
    try:
        with fc.use(runtime):
            cohort, work = cohort_and_rounds()
            for _ in range(2):
                work.round(cohort(64 * 16 * workers))
            for _ in range(rounds):
                sizes.clear()
                times, given = ThreadTimes(), cohort(clients)
                with contextlib.ExitStack() as stack:
                    for owner, name, piece in pieces:
                        stack.enter_context(times.timing(owner, name, piece))
                    cpu, wall, native = time.process_time(), time.perf_counter(), native_seconds()
                    work.round(given)
                    cpu, wall, native = time.process_time() - cpu, time.perf_counter() - wall, native_seconds() - native
                other = cpu - native - sum(times.seconds.values())
                spent = {**times.seconds, "threads of Ray and TensorFlow": native, "other code": other}
                figures = {"requests": len(sizes), "MB in": sum(sizes) / 1e6, "wall s": wall, "driver CPU s": cpu}
                results.append({**figures, **{f"{piece}, s": seconds for piece, seconds in spent.items()}})
    finally:
        runtime.close()
        teams._ask, executor._Runs.lengths = ask, lengths
    return {name: round(statistics.median(r[name] for r in results), 4) for name in results[0]}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=100_000)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--slices", action="store_true", help="one slice a request")
    given = options.parse_args()
    print(json.dumps(measure(given.clients, given.workers, given.rounds, in_runs=not given.slices), indent=2))


if __name__ == "__main__":
    main()
