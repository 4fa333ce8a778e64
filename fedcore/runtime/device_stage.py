"""A client stage on one device: runs slices, makes the partial of no clients, and merges partials."""

import functools
import os
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.stages.realize import Products, Realized, realize_stage
from fedcore.graphs.tensors.values import flatten
from fedcore.runtime.batching_fallback import BatchingFallback
from fedcore.runtime.client_calls import (
    loop_call,
    looped_call,
    low_rank_steps,
    single_vectorised_call,
    vectorised_call,
)
from fedcore.runtime.client_work import ClientSlice, ClientWork, SliceResult
from fedcore.runtime.deadlines import deadline
from fedcore.runtime.device import DeviceExecutor, default_devices, device_name
from fedcore.runtime.failures import failures_of
from fedcore.runtime.finite_check import is_moderate
from fedcore.runtime.memory import DeviceMemory, FittingSlices, Run, in_halves
from fedcore.runtime.merge_tree import ABSENT, MergeTree
from fedcore.runtime.protocols import ProtocolBroken
from fedcore.runtime.report import Report
from fedcore.runtime.stopping import Stop


class DeviceStage:
    """Runs slices of one client stage on one device; the result of `DeviceSliceExecutor.prepare`.

    `stage(clients)` runs a slice, `stage.merge(left, right)` merges the partials of two slices (as `clients.joined`
    needs it), and `stage.zero()` is the partial of no clients. All three may be called in any thread.

    Policies wrap each other, outermost first: `BatchingFallback` (only if the stage is vectorised), `FittingSlices`,
    and for each graph call `DeviceMemory.run` and `deadline`.

    Guarantees:
      - Bits do not depend on whether memory allows a slice to run whole, in halves, or client by client.
      - The broadcasts are copied to the device once.

    Args:
        memory: the memory limits of the device.
        timeout_s: seconds that a client's graph may take; None is no deadline.
    """

    def __init__(
        self,
        work: ClientWork,
        device: DeviceExecutor,
        memory: DeviceMemory,
        report: Report,
        stop: Stop,
        timeout_s: float | None = None,
    ):
        self._work = work
        self._device = device
        self._memory = memory
        self._report = report
        self._stop = stop
        self._timeout_s = timeout_s
        self._broadcasts: list[tf.Tensor] | None = None
        self._putting = threading.Lock()
        if work.is_vectorised:
            fitting = self._fitting(self._vectorised, self._vectorised_one_by_one)
        elif work.low_rank:
            fitting = self._fitting(self._looped, self._looped_one_by_one)
        else:
            self._run: Run = self._fitting(self._loop, self._loop_one_by_one)
            return
        self._run = BatchingFallback(work, fitting, self._client_by_client, self.merge, report.note)

    def _fitting(self, whole: Run, one_by_one: Run) -> FittingSlices:
        name = self._device.device
        return FittingSlices(self._work, self._memory, whole, one_by_one, self.merge, name, self._report.note)

    def __call__(self, clients: ClientSlice) -> SliceResult:
        """The result of a slice with at least one present client.

        Raises:
            ProtocolBroken: the slice has no present client.
        """
        if not clients.present:
            raise ProtocolBroken(
                f"it ran a slice of @{self._work.stage} without clients; clients.parts(work.block, most) leaves out "
                "such slices; see fc.runtime.SliceExecutor"
            )
        return self._run(clients)

    def zero(self) -> object:
        """The partial of no clients."""
        return self._loop(ClientSlice(0, 0, ())).partial

    def merge(self, left: object, right: object) -> object:
        """The merge of two partials. The clients of `left` have lower indices than the clients of `right`."""
        work, device, join = self._work, self._device, self._work.join
        if join is None:
            raise FedcoreError(f"@{work.stage} keeps client values only: it has no partials to merge")
        layouts = tuple((None,) * len(flatten(side)) for side in (left, right))
        function = device.functions.get(("join", work.digest, join), lambda: realize_stage(work.module, join, layouts))
        self._report.count("merges")
        with self._report.span("merge", join, device=device.device), failures_of(work.module, join):
            tensors = device.put([np.int64(work.seed), *flatten(left), *flatten(right)])
            call = functools.partial(device.call, function, tensors, self._stop)
            return self._memory.run(call, self._stop, self._note_fewer)

    def _vectorised(self, clients: ClientSlice) -> SliceResult:
        """One graph call that computes the clients side by side.

        The graph may assume that clients' work is finite, and not look. If its partial shows that it is not, another
        graph looks, also in later calls of the stage.
        """
        assumes = self._work.key not in self._device.not_finite
        function, tensors = vectorised_call(self._work, self._device, self._report, clients, assumes=assumes)
        if function.products is not None:
            tensors[-1] = self._products(clients, function.products, tensors)
        result = self._result(clients, self._call(clients, function, [*self._on_device(), *tensors]))
        if function.assumes_finite:
            leaves = flatten(result.partial)
            if not all(is_moderate(leaves[i]) for i in function.assumes_finite):
                self._device.not_finite.add(self._work.key)
                return self._vectorised(clients)
        return result

    def _products(self, clients: ClientSlice, products: Products, tensors: list[tf.Tensor]) -> tf.Tensor:
        """What depends on the clients' data only. It is kept as long as the packed data are."""
        operands = [tensors[i] for i in products.operands]
        run = functools.partial(self._uncounted_call, clients, products.function, operands)
        return self._device.products.get((self._work.key, products), operands[:1], run)

    def _vectorised_one_by_one(self, clients: ClientSlice) -> SliceResult:
        """The result of `_vectorised` for one block, by a graph call for each client."""
        call = functools.partial(single_vectorised_call, self._work, self._device, self._report)
        return self._one_by_one(clients, call)

    def _looped(self, clients: ClientSlice) -> SliceResult:
        """One graph call that computes the clients of a block one by one, with low-rank kernels."""
        steps = low_rank_steps(self._work, clients)
        if steps is None:
            return self._loop(clients)
        function, tensors = looped_call(self._work, self._device, clients, steps)
        return self._result(clients, self._call(clients, function, [*self._on_device(), *tensors]))

    def _looped_one_by_one(self, clients: ClientSlice) -> SliceResult:
        """The result of `_looped`, by a graph call for each client."""
        steps = low_rank_steps(self._work, clients)
        if steps is None:
            return self._loop_one_by_one(clients)
        call = functools.partial(looped_call, self._work, self._device, steps=steps, alone=True)
        return self._one_by_one(clients, call)

    def _one_by_one(self, clients: ClientSlice, call: Callable[[ClientSlice], tuple[Realized, list]]) -> SliceResult:
        """The result of one block.

        Args:
            call: the executable that adds one client to a partial, and the tensors of a client.
        """
        partial, factors, sent = self.zero(), None, {}
        first, last = clients.present[0], clients.present[-1]
        for index in clients.present:
            alone = clients.with_only([index])
            function, tensors = call(alone)
            if factors is None:
                factors = self._device.put([np.zeros((0, s), "f") for s in function.joined_sizes])
            flags = self._device.put([np.bool_(index == first), np.bool_(index == last)])
            given = [*flags, *self._on_device(), *tensors, *flatten(partial), *factors]
            partial, factors, *bits = self._call(alone, function, given)
            if bits:
                sent[index] = bits[0].numpy()[0]
        return SliceResult(partial, {}, sent)

    def _result(self, clients: ClientSlice, out) -> SliceResult:
        """The result of a call for several clients."""
        partial, bits = (out[0], out[1].numpy()) if self._work.measured else (out, ())
        return SliceResult(partial, {}, {i: bits[i - clients.first] for i in clients.present if self._work.measured})

    def _loop(self, clients: ClientSlice, before: object = None) -> SliceResult:
        """One graph call that folds the clients one after another.

        Args:
            before: the partial that the fold starts from. Default: the zero.
        """
        work = self._work
        function, seeds, tensors = loop_call(work, self._device, clients, from_partial=before is not None)
        carried = [] if before is None else flatten(before)
        out = self._call(clients, function, [seeds, *self._on_device(), *tensors, *carried])
        sent = dict(zip(clients.present, out[-1].numpy(), strict=True)) if work.measured else {}
        if work.zero is None:
            return SliceResult(None, dict(zip(clients.present, out[0], strict=bool(out[0]))), sent)
        kept = dict(zip(clients.present, out[1], strict=bool(out[1]))) if work.keeps else {}
        return SliceResult(out[0], kept, sent)

    def _loop_one_by_one(self, clients: ClientSlice) -> SliceResult:
        """The result of `_loop` for one block, by a graph call for each client."""
        whole = SliceResult(None)
        for index in clients.present:
            one = self._loop(clients.with_only([index]), whole.partial)
            whole = SliceResult(one.partial, {**whole.kept, **one.kept}, {**whole.sent_bits, **one.sent_bits})
        return whole

    def _client_by_client(self, clients: ClientSlice) -> SliceResult:
        """A `_loop` for each client. Partials merge in a tree: first within each block, then across blocks."""
        if clients.places > self._work.block:
            return in_halves(clients, self._work.block, self._client_by_client, self.merge)
        tree, sent = MergeTree(self.merge), dict[int, np.ndarray]()
        for place, client in enumerate(clients.clients):
            if client is None:
                tree.add(place, ABSENT)
                continue
            one = self._loop(clients.with_only([clients.first + place]))
            tree.add(place, one.partial)
            sent.update(one.sent_bits)
        return SliceResult(tree.result(), {}, sent)

    def _call(self, clients: ClientSlice, function: Realized, tensors: list) -> tuple:
        """One graph call, within the sum of its clients' deadlines."""
        out = self._uncounted_call(clients, function, tensors)
        self._report.count("blocks")
        return out

    def _uncounted_call(self, clients: ClientSlice, function: Realized, tensors: list) -> tuple:
        self._device.get_ready(function, tensors)
        if self._timeout_s is None:
            call = functools.partial(self._device.call, function, tensors, self._stop)
        else:
            seconds = self._timeout_s * max(1, len(clients.present))
            call = functools.partial(self._call_until, seconds, function, tensors)
        return self._memory.run(call, self._stop, self._note_fewer)

    def _call_until(self, seconds: float, function: Realized, tensors: list) -> tuple:
        with deadline(self._stop, seconds) as stop:
            return self._device.call(function, tensors, stop)

    def _note_fewer(self, fewer: int) -> None:
        self._report.note(f"{self._device.device} ran out of memory: at most {fewer} of its calls run at once now")

    def _on_device(self) -> list[tf.Tensor]:
        """The broadcasts on the device."""
        with self._putting:
            if self._broadcasts is None:
                self._broadcasts = self._device.put(flatten(self._work.broadcasts))
            return self._broadcasts


class DeviceSliceExecutor:
    """An `fc.runtime.SliceExecutor`: runs slices on a device of this process.

    Args:
        device: name of the device, such as `CPU:0`, or a `DeviceExecutor`. Default: the first GPU, else the first CPU.
        memory: the memory limits, shared by executors of one device. Default: new limits.
        timeout_s: seconds that a client's graph may take; None is no deadline.
    """

    def __init__(
        self,
        device: DeviceExecutor | str | None = None,
        memory: DeviceMemory | None = None,
        timeout_s: float | None = None,
    ):
        if not isinstance(device, DeviceExecutor):
            device = DeviceExecutor(default_devices()[0] if device is None else device_name(device, "device"))
        self.device = device
        self.name = device.device
        self._memory = memory or DeviceMemory(os.cpu_count() or 1)
        self._timeout_s = timeout_s

    def prepare(self, work: ClientWork, report: Report, stop: Stop) -> DeviceStage:
        """A `DeviceStage`: the function that runs slices of a client stage, with `zero` and `merge` of partials.

        Args:
            report: gets counts of graph calls and notes; `fc.runtime.Report()` where there is none, such as in another
                process.
            stop: is cancelled when the call must end early; `fc.runtime.Stop()` where there is none.
        """
        return DeviceStage(work, self.device, self._memory, report, stop, self._timeout_s)

    def close(self) -> None:
        """Does nothing: the executor has no threads."""
