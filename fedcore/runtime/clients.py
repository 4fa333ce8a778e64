"""Runs a client stage.

In:  a `ClientWork`.
Out: the merged partial, and the list of the clients' kept values.

The cohort is cut into slices of whole blocks. For each slice a worker thread reads the clients' values, and a
`SliceExecutor` computes a partial. A binary tree over the slices' indices merges the partials.

Example: a sum over 20 clients in slices of 8 on two devices. Device 0 computes the partials of clients 0 to 7 and of
clients 16 to 19, device 1 the partial of clients 8 to 15. The tree merges the partials of slices 0 and 1, and then
their result with the partial of slice 2. The result is `(partial, [])`. If the stage returns a value per client, the
list has these values, and None for each client that failed.

Each policy is a separate class or function. It wraps a function from a `ClientSlice` to a `SliceResult`:

| policy | class | in |
|---|---|---|
| faults: run again, raise or drop | `FaultPolicy` | faults.py |
| floats that are not finite | `checked_finite` | finite_check.py |
| no batching rule: client by client | `BatchingFallback` | batching_fallback.py |
| memory: smaller slices, fewer calls at once | `FittingSlices`, `DeviceMemory` | memory.py |
| deadline of a graph call | `deadline` | deadlines.py |

This module applies the first two, for every kind of executor; `DeviceStage` applies the other policies.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from fedcore.errors import FedcoreError, SecureSumError
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.runtime.client_source import ClientSource, UnreadSlice, longest_first
from fedcore.runtime.client_work import ClientSlice, ClientWork, SliceResult
from fedcore.runtime.device import DeviceExecutor
from fedcore.runtime.device_stage import DeviceSliceExecutor
from fedcore.runtime.failures import end_of_stage
from fedcore.runtime.faults import Drop, FaultPolicy
from fedcore.runtime.finite_check import checked_finite
from fedcore.runtime.memory import DeviceMemory
from fedcore.runtime.merge_tree import ABSENT, MergeTree
from fedcore.runtime.protocols import SliceExecutor, check_slice_executor, prepared
from fedcore.runtime.report import Report
from fedcore.runtime.secure.settings import Masked
from fedcore.runtime.slice_reader import SliceReader, slice_cache
from fedcore.runtime.stopping import Stop
from fedcore.runtime.workers import Workers, dispatch

if TYPE_CHECKING:
    from fedcore.runtime.secure.secure_partials import SecurePartials

RunSlice = Callable[[ClientSlice], SliceResult]


class SlicedClientsExecutor:
    """An `fc.runtime.ClientsExecutor` over a pool of slice executors: devices, processes, other machines.

    Guarantees:
      - Threads: at most `threads_each` for each slice executor, made when first needed, whatever the size of the
        cohort. A deadline needs two more threads for each slice in flight, and one that reads the cohort. If user code
        that reads clients' data occupies all threads of an executor, every further call, such as a call that this
        code makes, gets one more thread. So user code never waits for the thread that it occupies.
      - User code that blocks is abandoned with its thread when its call is stopped or its deadline passes. A new thread
        takes its place, and the report names the abandoned thread. After `MAX_BLOCKED` such threads, calls refuse to
        run user code that may block.
      - Memory: as many slices in flight as there are threads. The calling thread reads the clients of a slice when a
        worker thread is free. Clients of a list are read one slice ahead, since they are in memory anyway.
      - Bits: a block folds its clients in order, and partials merge in a tree over indices. So the result does not
        depend on the number of executors and threads, on the order of completion, or on earlier failures.
      - Slice i goes to executor i modulo the number of executors; if this executor is busy, to the next free executor.
        If the size of the cohort is known, slices are small enough that every executor gets a slice.
      - The first failure that is raised stops the reading of clients and the slices in flight.

    Args:
        executors: the slice executors.
        threads_each: slices in flight on each executor.
        merging: the device of this process that makes zeros and merges partials. Default: the first GPU, else the
            first CPU.
        on_client_failure: the result of `fc.runtime.drop()`; None raises ClientError.
        client_timeout_s: seconds that reading a client's data may take; None is no deadline. The deadline of graph
            calls is the executors' concern.
        secure: the protocol of secure sums, the result of `fc.runtime.masked()`; None adds as other sums do.
    """

    def __init__(
        self,
        executors: Sequence[SliceExecutor],
        threads_each: int = 1,
        *,
        merging: DeviceSliceExecutor | None = None,
        on_client_failure: Drop | None = None,
        client_timeout_s: float | None = None,
        secure: Masked | None = None,
    ):
        if not executors:
            raise FedcoreError("fc.runtime.SlicedClientsExecutor takes one slice executor or more")
        for executor in executors:
            check_slice_executor(executor)
        self.executors = list(executors)
        self.workers = Workers(len(self.executors), threads_each)
        self.policy = on_client_failure
        self.secure = secure
        self.timeout_s = client_timeout_s
        self.slices: IdentityCache[ClientSlice] = slice_cache()
        self._merging = merging

    def run(self, work: ClientWork, report: Report, stop: Stop) -> tuple[object, list]:
        """The merged partial (None without a fold), and the list of kept values, one for each client (else empty)."""
        return _Run(self, work, report, stop).result()

    @functools.cached_property
    def merging(self) -> DeviceSliceExecutor:
        """The executor that makes zeros and merges partials."""
        return self._merging or DeviceSliceExecutor()

    def close(self) -> None:
        self.workers.close()
        for executor in self.executors:
            executor.close()


class LocalClientsExecutor(SlicedClientsExecutor):
    """A clients executor over devices of this process. The first device also makes zeros and merges partials.

    Guarantees:
      - Bits do not depend on the parts into which slices are divided to fit into a device's memory.
    """

    def __init__(
        self,
        devices: Sequence[DeviceExecutor],
        workers_per_device: int,
        policy: Drop | None = None,
        timeout_s: float | None = None,
        secure: Masked | None = None,
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
            secure=secure,
        )


class _Run:
    """One client stage in progress."""

    def __init__(self, stack: SlicedClientsExecutor, work: ClientWork, report: Report, stop: Stop):
        self.work = work
        self.report = report
        self.stop = stop
        self.workers = stack.workers
        self.executors = stack.executors
        self.runs: list[RunSlice] = [prepared(executor, work, report, stop) for executor in stack.executors]
        self.partials = stack.merging.prepare(work, report, stop)
        self.tree = MergeTree(self.partials.merge)
        self.kept: dict[int, object] = {}
        where = f"in the stage @{work.stage} of {work.module.main.name}{end_of_stage(work.module, work.stage)}"
        self.faults = FaultPolicy(stack.policy, report, where, masked=stack.secure is not None)
        self.secure: SecurePartials | None = None
        if stack.secure is not None and work.secure:
            from fedcore.runtime.secure import secure_partials  # imports the extra `secure`

            self.secure = secure_partials.SecurePartials.of(stack.secure, work, report)
        if self.faults.drops:
            self.runs = list(map(checked_finite, self.runs))
        size = work.slice_size(len(stack.executors))
        timeout_s = stack.timeout_s
        self.source = ClientSource(work, size, drops=self.faults.drops, timeout_s=timeout_s, stop=stop)
        self.reader = SliceReader(work, size, self.faults, stack.slices, report, stop, timeout_s)

    def result(self) -> tuple[object, list]:
        # Several executors compete for the next slice, so a slice is not assigned to an executor ahead of time.
        ahead = int(self.source.is_in_memory and len(self.executors) == 1)
        with self.source as slices:
            if ahead and self.work.low_rank and not self.work.is_vectorised:
                slices = longest_first(slices)
            dispatch(slices, self._run_slice, self.workers, self.stop, ahead=ahead)
        clients = self.source.clients
        self.report.clients = max(self.report.clients, clients)
        self.faults.check_quorum(clients)
        partial = None
        if self.work.zero is not None:
            is_ready = self.tree.is_merged and self.secure is None
            partial = self.tree.result() if is_ready else ABSENT
            if partial is ABSENT:
                partial = self.workers.call(self._partial, self.stop)
        self.report.kept += len(self.kept)
        keeps = self.work.keeps or self.work.zero is None
        return partial, [self.kept.get(i) for i in range(clients)] if keeps else []

    def _partial(self) -> object:
        partial = self.tree.result() if self.source.clients else ABSENT
        if partial is ABSENT:
            partial = self.partials.zero()
        return partial if self.secure is None else self.secure.total(partial)

    def _run_slice(self, number: int, unread: UnreadSlice) -> None:
        """Runs a slice on executor `number`."""
        name = self.executors[number].name
        last = unread.first + len(unread.clients) - 1
        with self.report.span("block", self.work.stage, device=name, block=unread.index, clients=[unread.first, last]):
            result = self._result_of(number, unread)
        if self.work.zero is not None:
            self.tree.add(unread.index, ABSENT if result is None else result.partial)
        if result is not None:
            self.kept.update(result.kept)
            self._measure(result)
        self.report.ran(self.work.stage, name, unread.first, last)

    def _result_of(self, number: int, unread: UnreadSlice) -> SliceResult | None:
        """The result of the clients of a slice that do not fail; None if all fail."""
        if self.secure is None:
            return self.faults.survivors(self.runs[number], self.reader.read(unread))
        client, result = unread.first, None  # a plan with secure sums has one client in a slice
        if self.secure.why_lost(client) is None:
            result = self.faults.survivors(self.runs[number], self.reader.read(unread))
            if result is not None:
                result = attrs.evolve(result, partial=self.secure.masked(client, result.partial))
        why = self.secure.why_lost(client)
        if why is None:
            return result
        self.faults.failed(client, SecureSumError(why))
        return None

    def _measure(self, result: SliceResult) -> None:
        """Adds to the report the bits of sent values whose types leave the size open."""
        if self.work.merge is not None and self.work.measured:
            for bits in result.sent_bits.values():
                self.report.measure(self.work.merge, bits.tolist())
