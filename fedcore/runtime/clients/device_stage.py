"""A client stage on one device: runs slices, makes the partial of no clients, and merges partials.

Decisions 0189 and 0233.
"""

import functools
import os
import threading
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.graphs.stages.realize import Products, Realized, realize_stage
from fedcore.graphs.tensors.mapped_arrays import unstacked_rows
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.runtime.client_slice import ClientSlice, SliceResult
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.client_calls import StageCalls
from fedcore.runtime.clients.deadlines import deadline
from fedcore.runtime.clients.failures import failures_of
from fedcore.runtime.clients.finite_check import is_moderate
from fedcore.runtime.clients.fitting_slices import FittingSlices
from fedcore.runtime.clients.memory import DeviceMemory
from fedcore.runtime.clients.memory_budget import CallSize, StageSizes, memory_budget
from fedcore.runtime.clients.protocols import ProtocolBroken
from fedcore.runtime.devices.device import DeviceExecutor, default_devices, device_name
from fedcore.runtime.reports.report import Report
from fedcore.runtime.stopping import Stop
from fedcore.site_value import SiteValue


class DeviceStage:
    """Runs slices of one client stage on one device; the result of `DeviceSliceExecutor.prepare`.

    `stage(clients)` runs a slice, `stage.merge(left, right)` merges the partials of two slices (as `clients.joined`
    needs it), and `stage.zero()` is the partial of no clients. All three may be called in any thread.

    There are two ways to run: together, by one graph call of a slice; and one by one, by a call for each client of a
    block, which adds the client to the partial of those before. Clients run one by one where memory or their graphs
    allow no more, or where a batching rule or a common layout is missing.

    Policies wrap each other, outermost first: `FittingSlices`, and for each graph call `DeviceMemory.run` and
    `deadline`.

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
    ) -> None:
        self._work = work
        self._device = device
        self._memory = memory
        self._report = report
        self._calls = StageCalls(work, device, report)
        self._stop = stop
        self._timeout_s = timeout_s
        self._broadcasts: list[tf.Tensor] | None = None  # on the device, from the first call on
        self._putting = threading.Lock()  # held while they are copied there
        self._sizes = None if memory.budget is None else StageSizes(work, memory.budget, memory.most)
        self._run = FittingSlices(
            work, memory, self._together, self._one_by_one, self.merge, device.device, report, self._fitting_places
        )

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
        if any(isinstance(value, SiteValue) for value in clients.values[0]):
            raise TypeMismatch(
                f"the data of client {clients.present[0]} are at a site: use fc.runtime.network(exchange)"
            )
        return self._run(clients)

    def zero(self) -> object:
        """The partial of no clients, which counts as a call; None if the stage has no partial."""
        self._report.count("blocks")
        return self._zero

    @functools.cached_property
    def _zero(self) -> object:
        """The partial of no clients, computed once."""
        work = self._work
        return None if work.zero is None else self._server_call("zero", work.zero, *work.broadcasts)

    def merge(self, left: object, right: object) -> object:
        """The merge of two partials. The clients of `left` have lower indices than the clients of `right`."""
        work = self._work
        if work.join is None:
            raise FedcoreError(f"@{work.stage} keeps client values only: it has no partials to merge")
        self._report.count("merges")
        with self._report.span("merge", work.join, device=self._device.device), failures_of(work.module, work.join):
            return self._server_call("join", work.join, left, right)

    def _server_call(self, kind: str, name: str, *arguments: object) -> object:
        """The result of a function of the plan that makes or merges partials.

        Args:
            kind: `zero` or `join`, a part of the key of the executable.
            name: name of the function.
            arguments: nested tuples of tensors.
        """
        work, device = self._work, self._device
        layouts = tuple((None,) * len(flatten(argument)) for argument in arguments)
        function = device.functions.get((kind, work.digest, name), lambda: realize_stage(work.module, name, layouts))
        tensors = device.put([np.int64(work.seed), *(t for argument in arguments for t in flatten(argument))])
        call = functools.partial(device.call, function, tensors, self._stop)
        return self._memory.run(call, self._stop, self._note_fewer)

    def _fitting_places(self, clients: ClientSlice) -> int:
        """The number of places that a call of the slice's clients may have; 0 if the budget has no room for a block."""
        if self._sizes is None:
            return clients.places
        size = self._sizes.call_size(clients)
        return 0 if size is None else size.places

    def _size(self, clients: ClientSlice, *, alone: bool = False) -> CallSize | None:
        """The size of a slice's call, which the report gets too; None without a budget.

        Args:
            alone: each call has one client.
        """
        if self._sizes is None:
            return None
        size = (None if alone else self._sizes.call_size(clients)) or self._sizes.lone_call_size(clients)
        self._report.needs(self._work.stage, self._sizes.stage_memory(clients, size))
        return size

    def _together(self, clients: ClientSlice) -> SliceResult:
        """The result of a slice by one graph call, or if there is no such graph, by a call for each client.

        The graph may assume that clients' work is finite, without a check. If its partial shows that the work is not,
        the clients run again by a graph that checks, as do later calls of the stage.
        """
        assumes = self._work.key not in self._device.not_finite
        size = self._size(clients)
        most_lanes = size.lanes if size is not None and size.is_narrow else None
        call = self._calls.together(clients, assumes=assumes, most_lanes=most_lanes)
        if call is None:
            return self._one_by_one(clients, batched=True)
        function, tensors = call.function, call.tensors
        if function.products is not None:
            tensors[-1] = self._products(clients, function.products, tensors)
        outputs = self._call(clients, function, [*self._on_device(), *tensors], size)
        result = self._result(clients, function, outputs)
        if function.assumes_finite:
            leaves = flatten(result.partial)
            if not all(is_moderate(leaves[i]) for i in function.assumes_finite):
                self._device.not_finite.add(self._work.key)
                return self._together(clients)
        return result

    def _products(self, clients: ClientSlice, products: Products, tensors: list[tf.Tensor]) -> tf.Tensor:
        """Products of the clients' data alone, cached as long as the packed data are.

        Args:
            tensors: the operands of the call that takes the products.
        """
        operands = [tensors[i] for i in products.operands]
        run = functools.partial(self._uncounted_call, clients, products.function, operands)
        return self._device.products.get((self._work.key, products), operands[:1], run)

    def _one_by_one(self, clients: ClientSlice, *, batched: bool) -> SliceResult:
        """The result of one block, by a graph call for each client, in order.

        Each call adds its client to the partial of the calls before; in blocks of one client, the call makes the whole
        partial. Where the factors of the block's low-rank kernels are multiplied at the end, each call appends the
        factors of its client to those of the calls before, and the last call multiplies them.

        Args:
            batched: with the bits of `_together`, see `StageCalls.by_client`.
        """
        partial, factors = None, None
        kept_values: dict[int, object] = {}
        sent_bits: dict[int, np.ndarray] = {}
        first, last = clients.present[0], clients.present[-1]
        call_size = self._size(clients, alone=True)
        for alone, call in self._calls.by_client(clients, batched=batched):
            (index,), function = alone.present, call.function
            operands = [*self._on_device(), *call.tensors]
            if function.from_partial and self._work.zero is not None:
                operands += flatten(self._zero if index == first else partial)
            if function.joined_sizes is not None:
                factors = factors or [np.zeros((0, size), "f") for size in function.joined_sizes]
                operands += self._device.put([*factors, np.bool_(index == first), np.bool_(index == last)])
            outputs = self._call(alone, function, operands, call_size)
            result = self._result(alone, function, outputs)
            partial, (*_, factors) = result.partial, outputs
            kept_values.update(result.kept)
            sent_bits.update(result.sent_bits)
        return SliceResult(partial, kept_values, sent_bits)

    def _result(self, clients: ClientSlice, function: Realized, outputs: Sequence) -> SliceResult:
        """The result of a call of a client executable, from its outputs, see `ClientStage.result_type`."""
        partial, kept_values, bits, _ = outputs
        if function.stacks_kept:
            kept_values = self._unstack(kept_values, len(clients.present))
        kept = dict(zip(clients.present, kept_values, strict=bool(kept_values)))  # none if the stage keeps nothing
        sent_bits = (
            dict(zip(clients.present, bits.numpy(), strict=True)) if self._work.client_stage.measured_count else {}
        )
        return SliceResult(None if self._work.zero is None else partial, kept, sent_bits)

    def _unstack(self, stacked: Sequence[tf.Tensor], clients: int) -> list:
        """The kept value of each client.

        Args:
            stacked: for each leaf of a kept value a tensor [clients, …].
        """
        kept_type = self._work.client_stage.kept_type
        if kept_type is None:
            return []
        with tf.device(self._device.device):
            leaves = [unstacked_rows(tensor, clients) for tensor in stacked]
        return [unflatten([leaf[i] for leaf in leaves], kept_type) for i in range(clients)]

    def _call(self, clients: ClientSlice, function: Realized, tensors: list, size: CallSize | None) -> tuple:
        """The outputs of a graph call, which the report counts."""
        with self._report.span("call", self._work.stage, clients=[clients.present[0], clients.present[-1]]):
            outputs = self._uncounted_call(clients, function, tensors, size)
        self._report.count("blocks")
        return outputs

    def _uncounted_call(
        self, clients: ClientSlice, function: Realized, tensors: list, size: CallSize | None = None
    ) -> tuple:
        """The outputs of a graph call, within the sum of its clients' deadlines and the limits of memory."""
        self._device.get_ready(function, tensors)
        if self._timeout_s is None:
            call = functools.partial(self._device.call, function, tensors, self._stop)
        else:
            seconds = self._timeout_s * max(1, len(clients.present))
            call = functools.partial(self._call_until, seconds, function, tensors)
        return self._memory.run(call, self._stop, self._note_fewer, 0 if size is None else size.size_bytes)

    def _call_until(self, seconds: float, function: Realized, tensors: list) -> tuple:
        """The outputs of a graph call that is cancelled after some seconds; raises TooLate then."""
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
        memory: the memory limits, shared by executors of one device. Default: three quarters of this machine's memory.
        timeout_s: seconds that a client's graph may take; None is no deadline.
        shrinks: as for `DeviceMemory`, if `memory` is the default.
    """

    def __init__(
        self,
        device: DeviceExecutor | str | None = None,
        memory: DeviceMemory | None = None,
        timeout_s: float | None = None,
        *,
        shrinks: bool = True,
    ) -> None:
        if not isinstance(device, DeviceExecutor):
            device = DeviceExecutor(default_devices()[0] if device is None else device_name(device, "device"))
        self.device = device
        self.name = device.device
        self._memory = memory or DeviceMemory(os.cpu_count() or 1, memory_budget(None, [self.name]), shrinks=shrinks)
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
