"""Runs a client stage: a `ClientWork` goes in; the merged partial and the clients' kept values come out.

The cohort is cut into slices of whole blocks. For each slice a worker thread reads the clients' values and has a
`SliceExecutor` compute a partial; a binary tree over the slices' indices merges the partials.

Example: a sum over 20 clients in slices of 8 on two devices. Device 0 computes the partials of the clients 0 to 7 and
16 to 19, device 1 that of 8 to 15. The tree merges the first two, then the result with the third, which gives
`(partial, [])`. A stage that returns a value per client gives those as the list, with None for a client that failed.

Each policy is a class of its own, and each wraps a function from a `ClientSlice` to a `SliceResult`:

| policy | class | in |
|---|---|---|
| faults: run again, raise or drop | `FaultPolicy` | faults.py |
| floats that are not finite | `checked_finite` | finite_check.py |
| no batching rule: client by client | `BatchingFallback` | batching_fallback.py |
| memory: smaller slices, fewer calls at once | `FittingSlices`, `DeviceMemory` | memory.py |
| deadline of a graph call | `deadline` | deadlines.py |

The first two are here, for every kind of executor; `DeviceStage` has the others.
"""

import functools
from collections.abc import Callable, Sequence

from fedcore.errors import FedcoreError
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.runtime.client_source import ClientSource, UnreadSlice
from fedcore.runtime.client_work import ClientSlice, ClientWork, SliceResult
from fedcore.runtime.device import DeviceExecutor
from fedcore.runtime.device_stage import DeviceSliceExecutor
from fedcore.runtime.faults import Drop, FaultPolicy
from fedcore.runtime.finite_check import checked_finite
from fedcore.runtime.memory import DeviceMemory
from fedcore.runtime.merge_tree import ABSENT, MergeTree
from fedcore.runtime.protocols import SliceExecutor, check_slice_executor
from fedcore.runtime.report import Report
from fedcore.runtime.slice_reader import SliceReader, slice_cache
from fedcore.runtime.stopping import Stop
from fedcore.runtime.workers import Workers, dispatch

RunSlice = Callable[[ClientSlice], SliceResult]


class SlicedClientsExecutor:
    """An `fc.runtime.ClientsExecutor` over a pool of slice executors: devices, processes, other machines.

    Guarantees:
      - Threads: `threads_each` for each slice executor, made when first needed and never more, whatever the cohort.
        With a deadline, beside them two for each slice that runs, and one that reads the cohort. Where all threads of
        an executor read clients' data with code of the user's, one more for each further call that runs, such as those
        that this code makes: reading never waits for a worker that it holds.
      - Code of the user's that blocks is left behind with its thread when its call is stopped or its deadline passes,
        and another thread takes its place; the report names it. After `MAX_BLOCKED` no more such code is run.
      - Memory: as many slices in flight as there are threads. Clients are taken in the calling thread, when a thread is
        free; clients of a list one slice ahead, since they are in memory anyway.
      - Bits: a block folds its clients in order and partials merge in a tree over indices. So the result does not
        depend on the number of executors and threads, on the order of completion, or on earlier failures.
      - Slice i goes to executor i modulo their number, or if that is busy to the next one that is free. Where the size
        of the cohort is known, slices are small enough that every executor gets one.
      - A failure that is raised stops the reading of clients and the slices in flight; it is the first failure.

    Args:
        executors: run the slices.
        threads_each: slices in flight on each executor.
        merging: the device of this process that makes zeros and merges partials. Default: the first GPU, else the
            first CPU.
        on_client_failure: None raises; else what `fc.runtime.drop()` gives.
        client_timeout_s: seconds that a client may take to give its data; None is no deadline. The executors keep the
            deadline of the graphs.
    """

    def __init__(
        self,
        executors: Sequence[SliceExecutor],
        threads_each: int = 1,
        *,
        merging: DeviceSliceExecutor | None = None,
        on_client_failure: Drop | None = None,
        client_timeout_s: float | None = None,
    ):
        if not executors:
            raise FedcoreError("fc.runtime.SlicedClientsExecutor takes one slice executor or more")
        for executor in executors:
            check_slice_executor(executor)
        self.executors = list(executors)
        self.workers = Workers(len(self.executors), threads_each)
        self.policy = on_client_failure
        self.timeout_s = client_timeout_s
        self.slices: IdentityCache[ClientSlice] = slice_cache()
        self._merging = merging

    def run(self, work: ClientWork, report: Report, stop: Stop) -> tuple[object, list]:
        """The merged partial (None without a fold) and the kept values by client (empty without any)."""
        return _Run(self, work, report, stop).result()

    @functools.cached_property
    def merging(self) -> DeviceSliceExecutor:
        """Makes zeros and merges partials."""
        return self._merging or DeviceSliceExecutor()

    def close(self) -> None:
        self.workers.close()
        for executor in self.executors:
            executor.close()


class LocalClientsExecutor(SlicedClientsExecutor):
    """The devices of this process. The first one makes zeros and merges partials, too.

    Guarantees:
      - Bits do not depend on the parts in which slices had to run to fit into a device's memory.
    """

    def __init__(
        self,
        devices: Sequence[DeviceExecutor],
        workers_per_device: int,
        policy: Drop | None = None,
        timeout_s: float | None = None,
    ):
        self.devices = list(devices)
        names = [device.device for device in self.devices]
        memory = {name: DeviceMemory(workers_per_device * names.count(name)) for name in names}
        executors = [DeviceSliceExecutor(device, memory[device.device], timeout_s) for device in self.devices]
        super().__init__(
            executors,
            workers_per_device,
            merging=executors[0],
            on_client_failure=policy,
            client_timeout_s=timeout_s,
        )


class _Run:
    """One client stage in progress."""

    def __init__(self, stack: SlicedClientsExecutor, work: ClientWork, report: Report, stop: Stop):
        self.work = work
        self.report = report
        self.stop = stop
        self.workers = stack.workers
        self.executors = stack.executors
        self.runs: list[RunSlice] = [executor.prepare(work, report, stop) for executor in stack.executors]
        self.partials = stack.merging.prepare(work, report, stop)
        self.tree = MergeTree(self.partials.merge)
        self.kept: dict[int, object] = {}
        self.faults = FaultPolicy(stack.policy, report)
        if self.faults.drops:
            self.runs = list(map(checked_finite, self.runs))
        size = work.slice_size(len(stack.executors))
        timeout_s = stack.timeout_s
        self.source = ClientSource(work, size, drops=self.faults.drops, timeout_s=timeout_s, stop=stop)
        self.reader = SliceReader(work, size, self.faults, stack.slices, report, stop, timeout_s)

    def result(self) -> tuple[object, list]:
        # Of several executors the first free one takes the next slice, so none is taken ahead.
        ahead = int(self.source.is_in_memory and len(self.executors) == 1)
        with self.source as slices:
            dispatch(slices, self._run_slice, self.workers, self.stop, ahead=ahead)
        clients = self.source.clients
        self.report.clients = max(self.report.clients, clients)
        self.faults.check_quorum(clients)
        partial = None
        if self.work.zero is not None:
            partial = self.workers.call(self._partial, self.stop)
        self.report.kept += len(self.kept)
        keeps = self.work.keeps or self.work.zero is None
        return partial, [self.kept.get(i) for i in range(clients)] if keeps else []

    def _partial(self) -> object:
        partial = self.tree.result() if self.source.clients else ABSENT
        return self.partials.zero() if partial is ABSENT else partial

    def _run_slice(self, number: int, unread: UnreadSlice) -> None:
        """Runs a slice on the executor of that number."""
        name = self.executors[number].name
        last = unread.first + len(unread.clients) - 1
        with self.report.span("block", self.work.stage, device=name, block=unread.index, clients=[unread.first, last]):
            result = self.faults.survivors(self.runs[number], self.reader.read(unread))
        if self.work.zero is not None:
            self.tree.add(unread.index, ABSENT if result is None else result.partial)
        if result is not None:
            self.kept.update(result.kept)
            self._measure(result)
        self.report.ran(self.work.stage, name, unread.first, last)

    def _measure(self, result: SliceResult) -> None:
        """Tells the report what clients sent, where the plan's types leave its size open."""
        if self.work.merge is not None and self.work.measured:
            for bits in result.sent_bits.values():
                self.report.measure(self.work.merge, bits.tolist())
