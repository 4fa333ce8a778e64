"""Blocks of clients over the devices, with a fixed number of workers."""

import functools
import itertools
import math
import threading
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError
from fedcore.graphs.batched.batched_value import NoBatchingRule
from fedcore.graphs.stages.realize import Realized, realize_stage
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.graphs.tensors.values import flatten
from fedcore.runtime.blocked import blocked_threads
from fedcore.runtime.client_calls import ClientSlice, ClientWork, looped, one_more, stacked
from fedcore.runtime.client_source import ClientSource, Drawn, converted, is_read_once, may_block
from fedcore.runtime.device import DeviceExecutor
from fedcore.runtime.failures import failures_of
from fedcore.runtime.faults import Drop, FaultPolicy, NotFinite, deadline
from fedcore.runtime.memory import DeviceMemory
from fedcore.runtime.merge_tree import ABSENT, MergeTree
from fedcore.runtime.reader import Reader
from fedcore.runtime.report import Report
from fedcore.runtime.stopping import Stop, Stopped, stopped_by
from fedcore.runtime.workers import Workers, dispatch, users_code

MAX_CALLS = 1024
"""Calls of datasets that are kept as they were read, for cohorts that come again."""

Outcome = tuple[object, Mapping[int, object]]
"""The partial of a call's clients (None without a fold), and what is kept of each by its index."""


class ClientsExecutor:
    """Runs the blocks of a client stage.

    Guarantees:
      - Threads: `workers_per_device` for each device, made when first needed and never more, whatever the cohort. With
        a deadline, beside them two for each call that runs, and one that draws clients. Where all workers of a device
        read clients' data with code of the user's, one more for each further call that runs, such as those that this
        code makes: reading never waits for a worker that it holds.
      - Code of the user's that blocks is left behind with its thread when its call is stopped or its deadline passes,
        and another thread takes its place; the report names it. After `MAX_BLOCKED` no more such code is run.
      - Memory: as many calls in flight as there are workers; clients are drawn in the calling thread, when one is free
        (those of a list one call ahead: they are there already).
      - Bits: a block folds its clients in order and partials merge in the tree of block indices, so neither the
        number of workers, nor that of the devices, nor the order of completion shows in the result. Nor does what
        failed before it went well, nor in which parts a call had to run to fit into a device's memory.
      - Devices: call i goes to device i modulo their number, or if that is busy to the next one that is free; where the
        size of the cohort is known, calls are small enough that every device gets one.
      - A failure that is raised stops the drawing of clients and the calls in flight; it is the first one.
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
        self.memory = {name: DeviceMemory(workers_per_device * names.count(name)) for name in names}
        self.workers = Workers(len(self.devices), workers_per_device)
        self.timeout_s = timeout_s
        self.calls: IdentityCache[ClientSlice] = IdentityCache(MAX_CALLS, _entries, remembered=MAX_CALLS)
        self._policy = policy

    def run(self, work: ClientWork, report: Report, stop: Stop) -> tuple:
        """The merged partial (None without a fold) and the kept values by client (empty without any)."""
        return _Run(self, work, FaultPolicy(self._policy, report), report, stop).result()

    def close(self) -> None:
        self.workers.close()


def _entries(call: ClientSlice) -> float:
    """What a call counts among those that are kept; one that lacks a client would not tell why again."""
    return math.inf if None in call.clients else 1


class _Run:
    """One client stage in progress."""

    def __init__(self, stack: ClientsExecutor, work: ClientWork, tolerance: FaultPolicy, report: Report, stop: Stop):
        self.devices = stack.devices
        self.workers = stack.workers
        self.memory = stack.memory
        self.timeout_s = stack.timeout_s
        self.calls = stack.calls
        self.work = work
        self.tolerance = tolerance
        self.report = report
        self.stop = stop
        self.tree = MergeTree(self._merge)
        self.kept: dict[int, object] = {}
        self.sizes: dict[int, np.ndarray] = {}  # bits that clients of calls in flight send
        plan = work.module.function(work.stage).attributes
        self.stacked = plan.get("strategy") == "vectorised"
        self.block = int(plan.get("block", 1))
        self.width = int(plan.get("width", 1))
        self.size = self._call_size(int(plan.get("call", self.block)))
        self.without_rule: set[tuple] = set()  # layouts of clients that cannot be stacked
        self.shared: dict[str, list[tf.Tensor]] = {}
        self.sharing = threading.Lock()
        self.drawing = ClientSource(work, self.size, drops=tolerance.drops, timeout_s=self.timeout_s, stop=stop)

    def _call_size(self, planned: int) -> int:
        """The clients of a call: at most as planned, and few enough that every device gets a call."""
        clients = next((s for c in (*self.work.cohorts, self.work.counted) if c and (s := c.size) is not None), None)
        if len(self.devices) == 1 or clients is None:
            return planned
        blocks = -(-clients // self.block)
        share = -(-blocks // len(self.devices))
        return min(planned, self.block << max(0, share - 1).bit_length())

    def result(self) -> tuple:
        ahead = int(self.drawing.is_at_hand and len(self.devices) == 1)  # of several the first free one takes the next
        with self.drawing as calls:
            dispatch(
                calls,
                lambda lane, drawn: self._perform(self.devices[lane], drawn),
                self.workers,
                self.stop,
                ahead=ahead,
            )
        clients = self.drawing.clients
        self.report.clients = max(self.report.clients, clients)
        self.tolerance.check_quorum(clients)
        partial = None
        if self.work.zero is not None:
            partial = self.workers.call(self._partial, self.stop)
        self.report.kept += len(self.kept)
        keeps = self.work.keeps or self.work.zero is None
        return partial, [self.kept.get(i) for i in range(clients)] if keeps else []

    def _partial(self) -> object:
        partial = self.tree.result() if self.drawing.clients else ABSENT
        return self._zero(self.devices[0]) if partial is ABSENT else partial

    def _zero(self, device: DeviceExecutor) -> object:
        """The partial of no clients."""
        return self._clients(device, ClientSlice(0, 0, ()))[0]

    def _perform(self, device: DeviceExecutor, drawn: Drawn) -> None:
        last = drawn.first + len(drawn.clients) - 1
        where = {"device": device.device, "block": drawn.index, "clients": [drawn.first, last]}
        with self.report.span("block", self.work.stage, **where):
            call = self._call(drawn)
            partial, kept = self.tolerance.outcome(lambda some: self._checked(device, some), call) or (ABSENT, {})
        if self.work.zero is not None:
            self.tree.add(drawn.index, partial)
        self.kept.update(kept)
        if self.work.merge is not None and self.work.measured:
            sent = {i: self.sizes.pop(i, None) for i in range(drawn.first, last + 1)}
            for index, bits in sent.items():
                if bits is not None and index not in self.report.dropped:
                    self.report.measure(self.work.merge, bits.tolist())
        self.report.ran(self.work.stage, device.device, drawn.first, last)

    def _call(self, drawn: Drawn) -> ClientSlice:
        """A call of datasets, which do not change, is kept; others are read anew. What cannot be read is a fault."""

        def read() -> ClientSlice:
            with Reader(f"fedcore-data-{drawn.first}") as reader:
                clients = [self._converted(i, c, reader) for i, c in enumerate(drawn.clients, drawn.first)]
            return ClientSlice(drawn.first, self.size, tuple(clients))

        def read_with_users_code() -> ClientSlice:
            blocked_threads.check()
            with stopped_by(self.stop), users_code():
                return read()

        given = list(itertools.chain.from_iterable(drawn.clients))
        if may_block(given):
            return read_with_users_code()
        if self.report.dropped or not given or set(map(type, given)) != {ClientDataset}:
            return read()
        if any([dataset.columns.has_fixed_order for dataset in given]):
            return read()  # those have seeds of the call
        return self.calls.get((*self.work.key, drawn.first, self.size), given, read)

    def _converted(self, index: int, client: tuple, reader: Reader) -> tuple | None:
        """A client's values as the runtime takes them; None where it is left out."""
        if index in self.report.dropped:
            return None
        for reads in itertools.count(1):
            try:
                if self.timeout_s is None:
                    return self._convert(index, client)
                return reader.call(functools.partial(self._convert, index, client), self.timeout_s, self.stop, client)
            except Stopped:
                raise
            except Exception as error:
                if self.tolerance.unreadable(index, error, reads=reads, once=is_read_once(client)):
                    break
        return None

    def _convert(self, index: int, client: tuple) -> tuple:
        return tuple(map(converted, self.work.cohorts, itertools.repeat(index), client))

    def _checked(self, device: DeviceExecutor, call: ClientSlice) -> Outcome:
        """As `_fitting`; where clients may be dropped, the floats of the outcome are finite."""
        partial, kept = self._fitting(device, call)
        if self.tolerance.drops and not _is_finite([*flatten(partial), *flatten(tuple(kept.values()))]):
            raise NotFinite((partial, kept))
        return partial, kept

    def _fitting(self, device: DeviceExecutor, call: ClientSlice) -> Outcome:
        """The outcome of a call's clients, in parts that fit into the device's memory: halves down to one block, then
        the clients of a block one by one, which pass the partial on.

        Clients that a plan stacks but whose data has no rule for it (layouts that differ, a graph whose rules ask for
        more than is known before) go one by one, and their partials merge as a tree.
        """
        layouts = call.common_layouts if self.stacked else ()
        if layouts is None or layouts in self.without_rule:
            return self._unlike(device, call)
        memory = self.memory[device.device]
        if memory.clients(self.work.key, call.places) == call.places:
            try:
                return self._stacked(device, call) if self.stacked else self._clients(device, call)
            except NoBatchingRule as error:
                self.without_rule.add(layouts)
                self.report.note(f"@{self.work.stage} runs client by client: {error}")
                return self._unlike(device, call)
            except tf.errors.ResourceExhaustedError:
                if not self.stacked and len(call.present) == 1:
                    raise
                fits = call.places // 2 if call.places > self.block else 0
                memory.holds(self.work.key, fits)
                self.report.note(
                    f"{device.device} ran out of memory: @{self.work.stage} runs there in calls of {fits or 1} "
                    f"client{'s' * (fits > 1)}"
                )
        if call.places == self.block:
            return self._one_by_one(device, call)
        halves = [self._fitting(device, half)[0] for half in call.halves() if half.present]
        return halves[0] if len(halves) == 1 else self._merge(*halves), {}

    def _unlike(self, device: DeviceExecutor, call: ClientSlice) -> Outcome:
        tree = MergeTree(self._merge)
        for i, client in enumerate(call.clients):
            alone = call.with_only([call.first + i])
            tree.add(i, ABSENT if client is None else self._clients(device, alone)[0])
        return tree.result(), {}

    def _one_by_one(self, device: DeviceExecutor, call: ClientSlice) -> Outcome:
        """One block, as `_stacked` or `_clients` would run it."""
        partial = self._zero(device) if self.stacked else None
        kept: dict[int, object] = {}
        first, last = call.present[0], call.present[-1]
        for index in call.present:
            one = call.with_only([index])
            if self.stacked:
                function, tensors = one_more(self.work, device, one)
                flags = device.put([np.bool_(index == first), np.bool_(index == last)])
                tensors = [*flags, *self._shared(device), *tensors, *flatten(partial)]
                partial = self._run(device, one, function, tensors)
            else:
                partial, of_client = self._clients(device, one, partial)
                kept.update(of_client)
        return partial, kept

    def _clients(self, device: DeviceExecutor, call: ClientSlice, before: object = None) -> Outcome:
        """One graph call in which clients follow one another, after those of a partial where it is given."""
        work = self.work
        function, seeds, tensors = looped(work, device, call, continues=before is not None)
        carried = [] if before is None else flatten(before)
        out = self._run(device, call, function, [seeds, *self._shared(device), *tensors, *carried])
        if work.measured:
            self.sizes.update(zip(call.present, out[-1].numpy(), strict=True))
        kept = out[0] if work.zero is None else out[1] if work.keeps else ()
        return None if work.zero is None else out[0], dict(zip(call.present, kept, strict=bool(kept)))

    def _stacked(self, device: DeviceExecutor, call: ClientSlice) -> Outcome:
        """One graph call in which clients stand side by side."""
        function, tensors = stacked(self.work, device, call, self.width, self.block)
        return self._run(device, call, function, [*self._shared(device), *tensors]), {}

    def _run(self, device: DeviceExecutor, call: ClientSlice, function: Realized, tensors: list) -> tuple:
        seconds = None if self.timeout_s is None else self.timeout_s * max(1, len(call.present))
        if seconds is not None:
            device.get_ready(function, tensors)
        out = self._with_memory(device, function, tensors, seconds)
        self.report.count("blocks")
        return out

    def _with_memory(self, device: DeviceExecutor, function: Realized, tensors: list, seconds: float | None) -> tuple:
        """One graph call, and again with fewer others beside it when memory runs out.

        Raises:
            tf.errors.ResourceExhaustedError: no other ran beside it.
        """
        memory = self.memory[device.device]
        while True:
            allowed = memory.begin(self.stop)
            try:
                if seconds is None:
                    return device.call(function, tensors, self.stop)
                with deadline(self.stop, seconds) as stop:
                    return device.call(function, tensors, stop)
            except tf.errors.ResourceExhaustedError:
                fewer = memory.halve(allowed)
                if not fewer:
                    raise
            finally:
                memory.end()
            self.report.note(f"{device.device} ran out of memory: calls there at once: {fewer}")

    def _shared(self, device: DeviceExecutor) -> list[tf.Tensor]:
        """The broadcasts on a device: put there once a stage."""
        with self.sharing:
            if device.device not in self.shared:
                self.shared[device.device] = device.put(flatten(self.work.broadcasts))
            return self.shared[device.device]

    def _merge(self, left, right):
        work, device, join = self.work, self.devices[0], self.work.join
        if join is None:
            raise FedcoreError(f"@{work.stage} keeps client values only: it has no partials to merge")
        layouts = tuple((None,) * len(flatten(side)) for side in (left, right))
        function = device.functions.get(("join", work.digest, join), lambda: realize_stage(work.module, join, layouts))
        self.report.count("merges")
        with self.report.span("merge", join, device=device.device), failures_of(work.module, join):
            tensors = device.put([np.int64(work.seed), *flatten(left), *flatten(right)])
            return self._with_memory(device, function, tensors, None)


def _is_finite(tensors: Iterable) -> bool:
    return all(_has_finite(t) for t in tensors if isinstance(t, tf.Tensor) and t.dtype.is_floating)


def _has_finite(floats: tf.Tensor) -> bool:
    try:
        array = np.asarray(memoryview(floats))  # two calls of TensorFlow take ten times as long
    except (TypeError, ValueError, tf.errors.OpError):  # bfloat16 has no buffer format; a GPU's memory is not ours
        return bool(tf.reduce_all(tf.math.is_finite(floats)))
    return bool(np.isfinite(array).all())
