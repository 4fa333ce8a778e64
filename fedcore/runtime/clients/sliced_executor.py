"""Runs a client stage.

In:  a `ClientWork`.
Out: the merged partial, and the list of the clients' kept values.

The cohort is cut into slices of whole blocks. For each slice a worker thread reads the clients' values, and a
`SliceExecutor` computes a partial. A binary tree over the slices' indices merges the partials. Executors of other
machines may take runs of 2^k slices, a subtree of that tree, which they merge; see `SlicedClientsExecutor`.

Example: a sum over 20 clients in slices of 8 on two devices. Device 0 computes the partials of clients 0 to 7 and of
clients 16 to 19, device 1 the partial of clients 8 to 15. The tree merges the partials of slices 0 and 1, and then
their result with the partial of slice 2. The result is `(partial, [])`. If the stage returns a value per client, the
list has these values, and None for each client that failed.

Each policy is a separate class or function. It wraps a function from a `ClientSlice` to a `SliceResult`:

| policy | class | in |
|---|---|---|
| faults: run again, raise or drop | `FaultPolicy` | faults.py |
| floats that are not finite | `checked_finite` | finite_check.py |
| no batching rule, no memory, errors: smaller calls, or client by client | `FittingSlices` | fitting_slices.py |
| memory: fewer calls at once | `DeviceMemory` | memory.py |
| deadline of a graph call | `deadline` | deadlines.py |

This module applies the first two, for every kind of executor; `DeviceStage` applies the other policies.

A small cohort gets slices of the size of a large one, so that no round is traced for the size of its cohort.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from fedcore.errors import ExecutionError, FedcoreError, SecureSumError, brief
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.runtime.client_slice import ClientSlice, SliceResult
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.client_source import MAX_RUN_BYTES, ClientSource, UnreadRun
from fedcore.runtime.clients.client_watch import WatchedStage
from fedcore.runtime.clients.clients_being_read import ClientsBeingRead
from fedcore.runtime.clients.device_stage import DeviceSliceExecutor
from fedcore.runtime.clients.failures import where_clients_run
from fedcore.runtime.clients.faults import Drop, FaultPolicy, Run
from fedcore.runtime.clients.finite_check import checked_finite
from fedcore.runtime.clients.memory import DeviceMemory
from fedcore.runtime.clients.memory_budget import MemoryBudget
from fedcore.runtime.clients.merge_tree import ABSENT, MergeTree
from fedcore.runtime.clients.protocols import SliceExecutor, WorkerEnded, check_slice_executor, prepare_checked
from fedcore.runtime.clients.run_lengths import RunLengths
from fedcore.runtime.clients.slice_reader import SliceReader, slice_cache
from fedcore.runtime.clients.workers import Workers, dispatch
from fedcore.runtime.devices.device import DeviceExecutor
from fedcore.runtime.reports.report import Report
from fedcore.runtime.secure.settings import Masked
from fedcore.runtime.stopping import Stop
from fedcore.scalars import whole_number

if TYPE_CHECKING:
    from fedcore.runtime.network.plan_runner import ClientSums
    from fedcore.runtime.secure.secure_partials import SecurePartials

MAX_LOSSES = 3
"""How often other workers compute a run whose worker ended, before its clients are suspected of ending workers."""


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
    Raises:
        TypeMismatch: one of `executors` is no slice executor.
        FedcoreError: there are no `executors`, or a setting is out of its range.
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
    ) -> None:
        if not executors:
            raise FedcoreError("fc.runtime.SlicedClientsExecutor takes one slice executor or more")
        for executor in executors:
            check_slice_executor(executor)
        if on_client_failure is not None and not isinstance(on_client_failure, Drop):
            raise FedcoreError(f"on_client_failure is None or fc.runtime.drop(), not {brief(on_client_failure)}")
        self.executors = list(executors)
        self.workers = Workers(len(self.executors), whole_number("threads_each", threads_each, at_least=1))
        self.policy = on_client_failure
        self.secure = secure
        self.timeout_s = client_timeout_s
        self.slices: IdentityCache[ClientSlice] = slice_cache()
        self._merging = merging

    def run(self, work: ClientWork, report: Report, stop: Stop) -> tuple[object, list]:
        """The merged partial (None without a fold), and the list of kept values, one for each client (else empty)."""
        return _Run(self, work, report, stop).result()

    def prepare(self, work: ClientWork, faults: FaultPolicy, report: Report, stop: Stop) -> list[Run]:
        """For each executor the function that computes a slice without the clients that fail.

        The function returns None if all clients fail, and raises `WorkerEnded` if another executor is to compute them.
        """
        functions = [prepare_checked(executor, work, report, stop) for executor in self.executors]
        if faults.drops:
            functions = list(map(checked_finite, functions))
        return [functools.partial(faults.survivors, function) for function in functions]

    def slice_size(self, work: ClientWork) -> int:
        """Number of clients of a slice."""
        return work.slice_size(len(self.executors))

    def lengths(self, work: ClientWork, slices: int | None, longest: float) -> RunLengths:
        """Chooses how many slices a run has; always one here. An executor of workers that merge takes more.

        Args:
            slices, longest: as of `RunLengths`.
        """
        return RunLengths(None, len(self.executors))

    def is_open(self, number: int) -> bool:
        """Whether the executor of this number takes runs now; always here. One over a cluster may have ended."""
        return True

    def secure_partials(self, work: ClientWork, report: Report, stop: Stop) -> "SecurePartials | None":
        """The masked protocol for a stage with secure sums; None if it has no clients. Needs `self.secure`."""
        from fedcore.runtime.secure import secure_partials  # imports the extra `secure`

        assert self.secure is not None
        return secure_partials.SecurePartials.of(self.secure, work, report)

    def tree(
        self, work: ClientWork, merge: Callable, report: Report, stop: Stop, *, masked: bool
    ) -> "MergeTree | ClientSums":
        """Makes the object that takes and merges the partials of slices, for one run of a stage.

        Subclasses may return `ClientSums`, which takes the values that single clients send instead.

        Args:
            merge: (partial, partial) -> partial.
            masked: whether secure sums mask the partials.
        """
        return MergeTree(merge)

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
      - Bits do not depend on the parts into which slices are divided to fit into a device's memory, nor on the budget.
      - Calls in flight hold at most the budget, as far as shapes tell.

    Args:
        budget: memory of each device; None for no limit. Devices of one name share it.
    """

    def __init__(
        self,
        devices: Sequence[DeviceExecutor],
        workers_per_device: int,
        policy: Drop | None = None,
        timeout_s: float | None = None,
        secure: Masked | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.devices = list(devices)
        names = [device.device for device in self.devices]  # the user may list a device several times
        memory = {name: DeviceMemory(workers_per_device * names.count(name), budget) for name in names}
        executors = [DeviceSliceExecutor(device, memory[device.device], timeout_s) for device in self.devices]
        super().__init__(
            executors,
            workers_per_device,
            merging=executors[0],
            on_client_failure=policy,
            client_timeout_s=timeout_s,
            secure=secure,
        )


class SliceResults:
    """Gathers the results of a stage's slices: merges partials, and collects kept values and measured bits.

    Any thread may add.

    Attributes:
        tree: merges the partials.
        kept: client index -> the value that the stage returns for the client.
    """

    def __init__(self, work: ClientWork, tree: "MergeTree | ClientSums", report: Report) -> None:
        self.tree = tree
        self.kept: dict[int, object] = {}
        self._work = work
        self._report = report

    def add(self, result: SliceResult | None, index: int, height: int = 0) -> None:
        """Adds the result of a node of the merge tree: one slice, or 2^height slices.

        Args:
            result: None if all clients of the node fail.
            index, height: as for `MergeTree.add`.
        """
        if self._work.zero is not None:
            self.tree.add(index, ABSENT if result is None else result.partial, height)
        if result is not None:
            self.kept.update(result.kept)
            if self._work.merge is not None and self._work.measured:  # values whose types leave the size open
                for bits in result.sent_bits.values():
                    self._report.measure(self._work.merge, bits.tolist())


class _Run:
    """One client stage in progress: reads its clients, has the executors compute them, and merges the results."""

    def __init__(self, clients_executor: SlicedClientsExecutor, work: ClientWork, report: Report, stop: Stop) -> None:
        self.clients_executor = clients_executor
        self.work = work
        self.report = report
        self.stop = stop
        masks = clients_executor.secure is not None
        self.watched = WatchedStage(work, report.watch, report.round, report.span)
        if self.watched.is_needed and masks:
            raise FedcoreError("fc.debug shows values of single clients, which the masks of this runtime hide")
        where = where_clients_run(work.module, work.stage)
        self.faults = FaultPolicy(
            clients_executor.policy, report, where, client_ids=work.client_ids, masked=masks, module=work.module
        )
        self.functions = clients_executor.prepare(work, self.faults, report, stop)
        self.partials = clients_executor.merging.prepare(work, report, stop)
        self.secure: SecurePartials | None = None
        if masks and work.secure:
            self.secure = clients_executor.secure_partials(work, report, stop)
        tree = clients_executor.tree(work, self.partials.merge, report, stop, masked=self.secure is not None)
        self.results = SliceResults(work, tree, report)
        self._open_cohorts()

    def _open_cohorts(self) -> None:
        """Makes the source, which cuts the cohorts into runs, and the reader, which converts the clients of a run."""
        work, clients_executor = self.work, self.clients_executor
        size = clients_executor.slice_size(work)
        # Masks take the partial of each client, so that runs have one slice, as for an unknown number of slices.
        slices = None if work.clients is None or self.secure is not None else -(-work.clients // size)
        longest = MAX_RUN_BYTES / (size * work.kept_bytes) if work.kept_bytes else math.inf
        timeout_s = clients_executor.timeout_s
        # Several executors compete for the next slice, so a slice is not assigned to an executor ahead of time.
        is_alone = len(clients_executor.executors) == 1
        self.being_read = ClientsBeingRead(work, self.report)
        self.source = ClientSource(
            work,
            size,
            clients_executor.lengths(work, slices, longest),
            drops=self.faults.drops,
            timeout_s=timeout_s,
            stop=self.stop,
            being_read=self.being_read,
            longest_first=is_alone and bool(work.low_rank) and not work.is_vectorised,
        )
        self.ahead = int(is_alone and self.source.is_in_memory)
        self.reader = SliceReader(
            work, size, self.faults, clients_executor.slices, self.report, self.stop, timeout_s, self.being_read
        )

    def result(self) -> tuple[object, list]:
        """Computes the stage; returns the result of `ClientsExecutor.run`."""
        workers, is_open = self.clients_executor.workers, self.clients_executor.is_open
        with self.source as runs:
            try:
                dispatch(runs, self._compute, workers, self.stop, ahead=self.ahead, is_open=is_open)
            except KeyboardInterrupt as interrupt:
                self.being_read.name_slow_in(interrupt)
                raise
        clients, kept_values = self.source.clients, self.results.kept
        self.report.clients = max(self.report.clients, clients)
        self.faults.check_quorum(clients)
        partial = None
        if self.work.zero is not None:
            needs_no_call = self.results.tree.is_merged and self.secure is None
            partial = self.results.tree.result() if needs_no_call else ABSENT
            if partial is ABSENT:
                partial = workers.call(self._partial, self.stop)
        self.report.kept += len(kept_values)
        keeps = self.work.keeps or self.work.zero is None
        return partial, [kept_values.get(i) for i in range(clients)] if keeps else []

    def _partial(self) -> object:
        """The partial of all clients, zeros if there are none, with the secure sums if masks hid them."""
        partial = self.results.tree.result() if self.source.clients else ABSENT
        if partial is ABSENT:
            partial = self.partials.zero()
        return partial if self.secure is None else self.secure.total(partial)

    def _compute(self, number: int, unread: UnreadRun) -> None:
        """Has executor `number` compute a run, and adds the result; puts the run back if the executor's worker ends."""
        stage, ends = self.work.stage, [unread.first, unread.last]
        name: str | None = self.clients_executor.executors[number].name
        with self.report.span("block", stage, device=name, block=unread.index, clients=ends) as facts:
            try:
                result = self._result_of(number, unread)
            except WorkerEnded:
                losses = unread.losses + 1
                self.source.put_back(attrs.evolve(unread, losses=losses), singly=losses > MAX_LOSSES)
                return
            if result is not None and result.place != "":
                name = result.place
            if facts is not None:
                facts["device"] = name
        height = (unread.slices - 1).bit_length()
        self.results.add(result, unread.index >> height, height)
        if name is not None:
            self.report.ran(stage, name, *ends)

    def _read(self, unread: UnreadRun) -> ClientSlice:
        with self.report.span("read", self.work.stage, clients=[unread.first, unread.last]):
            return self.reader.read(unread)

    def _result_of(self, number: int, unread: UnreadRun) -> SliceResult | None:
        """Has executor `number` compute a run: the result of the clients that do not fail; None if all fail."""
        compute = self.functions[number]
        if (
            unread.losses > MAX_LOSSES
        ):  # one of its clients may end workers: then find this client and drop it, or raise
            compute = functools.partial(self.faults.survivors, functools.partial(_insist, compute))
        if self.secure is not None:
            return self._masked_result(compute, unread, self.secure)
        clients = self._read(unread)
        if self.watched.is_needed:
            self.watched.show(clients)
        return compute(clients)

    def _masked_result(self, compute: Run, unread: UnreadRun, secure: "SecurePartials") -> SliceResult | None:
        """The result of a run, whose integers `secure` takes; None if its client fails or is lost to the protocol."""
        client, result = unread.first, None  # a plan with secure sums has one client in a slice
        if secure.why_lost(client) is None:
            result = compute(self._read(unread))
            if result is not None and result.partial is not ABSENT:
                result = attrs.evolve(result, partial=secure.mask(client, result.partial))
        why = secure.why_lost(client)
        if why is None:
            return result
        self.faults.drop_or_raise(client, SecureSumError(why))
        return None


def _insist(run: Run, clients: ClientSlice) -> SliceResult | None:
    """Runs a slice whose worker has ended again, each time on another worker, until one returns.

    Raises:
        ExecutionError: `MAX_LOSSES` + 1 further workers ended. To a `FaultPolicy` this is a failure of the clients.
    """
    for _ in range(MAX_LOSSES):
        with contextlib.suppress(WorkerEnded):
            return run(clients)
    try:
        return run(clients)
    except WorkerEnded as error:
        raise ExecutionError(f"{error}, as {MAX_LOSSES} workers before it") from None
