"""Blocks of clients over the devices, with a fixed number of workers."""

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import ClientError, FedcoreError, TypeMismatch
from fedcore.graphs.columns import Columns
from fedcore.graphs.packing import pack_clients
from fedcore.graphs.realize import Realized, pack, realize_block, realize_stage
from fedcore.graphs.stacked import realize_stacked
from fedcore.graphs.values import flatten
from fedcore.graphs.vectorise import NoRule
from fedcore.ir import Module
from fedcore.runtime.arguments import ClientValues
from fedcore.runtime.device import DeviceExecutor
from fedcore.runtime.merge_tree import MergeTree
from fedcore.runtime.report import Report
from fedcore.runtime.stopping import Stop
from fedcore.runtime.workers import Workers, dispatch
from fedcore.seeds import fold_in_each


@attrs.frozen
class ClientWork:
    """One client stage of a plan with its arguments.

    Args:
        zero, join: stages that make and merge partials; None where the stage only keeps client values.
        broadcasts: nested tuples of tensors that every client gets.
        cohorts: the client values, one cohort for each further parameter.
        numbers: for each cohort the numbers of a value's leaves, among the leaves of the call's arguments.
        merge: the operation of the plan that takes the partials.
        measured: what crosses to the server in sizes that its types leave open, by its names in the stage.
        counted: where the stage takes no client value, one of the call's: it says how many clients there are.
        keeps: the stage returns a value per client beside the partial.
    """

    module: Module
    digest: str
    zero: str | None
    stage: str
    join: str | None
    broadcasts: tuple
    cohorts: tuple
    numbers: tuple[range, ...]
    keeps: bool
    seed: int
    merge: str | None = None
    measured: tuple[str, ...] = ()
    counted: ClientValues | None = None


@attrs.frozen
class _Call:
    """The clients of one graph call.

    Args:
        clients: one tuple a client, of its values as they were given.
    """

    index: int
    first: int
    clients: list[tuple]


class ClientsExecutor:
    """Runs the blocks of a client stage.

    Guarantees:
      - Threads: `workers_per_device` for each device, made when first needed and never more, whatever the cohort.
      - Memory: as many calls in flight as there are workers; clients are drawn in the calling thread, when one is free.
      - Bits: a block folds its clients in order and partials merge in the tree of block indices, so neither the
        number of workers, nor that of the devices, nor the order of completion shows in the result.
      - Devices: call i goes to device i modulo their number, or if that is busy to the next one that is free; where the
        size of the cohort is known, calls are small enough that every device gets one.
      - A failure stops the drawing of clients and the calls in flight, and the first failure is raised.
    """

    def __init__(self, devices: Sequence[DeviceExecutor], workers_per_device: int):
        self.devices = list(devices)
        self._workers = Workers(len(self.devices), workers_per_device)

    def run(self, work: ClientWork, report: Report, stop: Stop) -> tuple:
        """The merged partial (None without a fold) and the kept values by client (empty without any)."""
        return _Run(self.devices, work, report, stop).result(self._workers)

    def close(self) -> None:
        self._workers.close()


class _Run:
    """One client stage in progress."""

    def __init__(self, devices: Sequence[DeviceExecutor], work: ClientWork, report: Report, stop: Stop):
        self.devices = devices
        self.work = work
        self.report = report
        self.stop = stop
        self.tree = MergeTree(self._merge)
        self.kept: dict[int, object] = {}
        self.drawn = 0
        plan = work.module.function(work.stage).attributes
        self.stacked = plan.get("strategy") == "vectorised"
        self.block = int(plan.get("block", 1))
        self.width = int(plan.get("width", 1))
        self.size = self._call_size(int(plan.get("call", self.block)))
        self.shared: dict[str, list[tf.Tensor]] = {}
        self.sharing = threading.Lock()

    def _call_size(self, planned: int) -> int:
        """The clients of a call: at most as planned, and few enough that every device gets a call."""
        clients = next((s for c in (*self.work.cohorts, self.work.counted) if c and (s := c.size) is not None), None)
        if len(self.devices) == 1 or clients is None:
            return planned
        blocks = -(-clients // self.block)
        share = -(-blocks // len(self.devices))
        return min(planned, self.block << max(0, share - 1).bit_length())

    def result(self, workers: Workers) -> tuple:
        dispatch(self._calls(), lambda lane, call: self._perform(self.devices[lane], call), workers, self.stop)
        self.report.clients = max(self.report.clients, self.drawn)
        partial = None
        if self.work.zero is not None:
            partial = workers.call(self._partial, self.stop)
        self.report.kept += len(self.kept)
        return partial, [self.kept[i] for i in range(len(self.kept))]

    def _partial(self) -> tuple:
        return self.tree.result() if self.drawn else self._call(self.devices[0], _Call(0, 0, []))[0]

    def _calls(self) -> Iterator[_Call]:
        """The clients of one graph call after the other; the client values of all arguments are drawn side by side."""
        work = self.work
        clients = _side_by_side(work.cohorts) if work.cohorts else (() for _ in _counted(work.counted))
        for index in itertools.count():
            call = _Call(index, index * self.size, list(itertools.islice(clients, self.size)))
            if not call.clients:
                return
            self.drawn += len(call.clients)
            yield call

    def _perform(self, device: DeviceExecutor, call: _Call) -> None:
        last = call.first + len(call.clients) - 1
        where = {"device": device.device, "block": call.index, "clients": [call.first, last]}
        with self.report.span("block", self.work.stage, **where):
            partial, kept = self._call(device, attrs.evolve(call, clients=self._converted(call)))
        if self.work.zero is not None:
            self.tree.add(call.index, partial)
        self.kept.update((call.first + i, v) for i, v in enumerate(kept))
        self.report.ran(self.work.stage, device.device, call.first, last)

    def _converted(self, call: _Call) -> list[tuple]:
        return [
            tuple(c.converted(call.first + i, v) for c, v in zip(self.work.cohorts, client, strict=True))
            for i, client in enumerate(call.clients)
        ]

    def _call(self, device: DeviceExecutor, call: _Call) -> tuple:
        """The partial of a call's clients and what is kept of each: one graph call, where they can be stacked.

        Clients that a plan stacks but whose data has no rule for it (layouts that differ, a graph whose rules ask for
        more than is known before) go one by one, and their partials merge as a tree.
        """
        if not self.stacked or not call.clients:
            return self._clients(device, call)
        if self.width and _alike(call.clients):
            try:
                return self._stacked_clients(device, call)
            except NoRule as error:
                self.width = 0
                self.report.notes.append(f"@{self.work.stage} runs client by client: {error}")
        tree = MergeTree(self._merge)
        for i, client in enumerate(call.clients):
            tree.add(i, self._clients(device, _Call(call.index, call.first + i, [client]))[0])
        return tree.result(), ()

    def _clients(self, device: DeviceExecutor, call: _Call) -> tuple:
        """One graph call in which clients follow one another."""
        work = self.work
        seeds = fold_in_each(work.seed, call.first, len(call.clients))
        function, tensors = self._looped(device, call, seeds)
        out = self._run(device, call, function, [tf.constant(seeds), *self._shared(device), *tensors])
        if work.measured and work.merge is not None:
            self.report.measure(work.merge, out[-1].numpy())
        return _split(out, folds=work.zero is not None, keeps=work.keeps)

    def _stacked_clients(self, device: DeviceExecutor, call: _Call) -> tuple:
        """One graph call in which clients stand side by side."""
        seeds = fold_in_each(self.work.seed, call.first, len(call.clients))
        function, tensors = self._stacked(device, call, seeds)
        return self._run(device, call, function, [*self._shared(device), *tensors]), ()

    def _run(self, device: DeviceExecutor, call: _Call, function: Realized, tensors: list) -> tuple:
        try:
            out = device.call(function, tensors, self.stop)
        except tf.errors.OpError as error:
            last = call.first + len(call.clients) - 1
            who = f"client {last}" if last == call.first else f"one of the clients {call.first} to {last}"
            raise ClientError(f"{who} failed: {error.message}") from None
        self.report.count("blocks")
        return out

    def _looped(self, device: DeviceExecutor, call: _Call, seeds: np.ndarray) -> tuple[Realized, list]:
        work = self.work
        packed = [
            [pack(value, int(seed), n.start) for n, value in zip(work.numbers, client, strict=True)]
            for client, seed in zip(call.clients, seeds, strict=True)
        ]
        layouts = tuple(tuple(given for given, _ in client) for client in packed)
        function = device.functions.get(
            ("loop", work.digest, work.stage, layouts),
            lambda: realize_block(
                work.module,
                work.zero,
                work.stage,
                len(work.broadcasts),
                layouts,
                keeps=work.keeps,
                measured=work.measured,
            ),
        )
        return function, [tf.convert_to_tensor(t) for client in packed for _, ts in client for t in ts]

    def _stacked(self, device: DeviceExecutor, call: _Call, seeds: np.ndarray) -> tuple[Realized, list]:
        work, zero, join = self.work, self.work.zero, self.work.join
        if zero is None or join is None:
            raise FedcoreError(f"@{work.stage} keeps client values only: it cannot be vectorised")
        numbers = [n for of_value in work.numbers for n in of_value]
        shape, tensors = pack_clients(
            call.clients, seeds, numbers, width=self.width, places=self.size, kept=device.packed
        )
        function = device.functions.get(
            ("stacked", work.digest, work.stage, shape, self.size),
            lambda: realize_stacked(
                work.module,
                zero,
                work.stage,
                join,
                len(work.broadcasts),
                shape,
                width=self.width,
                block=self.block,
                blocks=self.size // self.block,
            ),
        )
        return function, [tf.convert_to_tensor(t) for t in tensors]

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
        with self.report.span("merge", join, device=device.device):
            return device.call(function, [tf.constant(work.seed, tf.int64), *flatten(left), *flatten(right)], self.stop)


def _alike(clients: list[tuple]) -> bool:
    """Whether the sequences of all clients are laid out as those of the first, and no batch of theirs is empty.

    A stacked step takes a batch without rows for the end of its client.
    """
    sequences = [[leaf for leaf in flatten(c) if isinstance(leaf, Columns)] for c in clients]
    layouts = [[s.layout for s in of_client] for of_client in sequences]
    return all(given == layouts[0] for given in layouts) and not any(s.has_empty_batch for c in sequences for s in c)


def _split(out: tuple, *, folds: bool, keeps: bool) -> tuple:
    if not folds:
        return None, out[0]
    return out[0], out[1] if keeps else ()


def _counted(values: ClientValues | None) -> Iterable:
    """As many things as there are clients."""
    if values is None:
        return ()
    return values.given if values.size is None else range(values.size)


def _side_by_side(cohorts: Sequence[ClientValues]) -> Iterator[tuple]:
    """One tuple a client; the cohorts of one call have equally many clients."""
    if not cohorts:
        return
    missing = object()
    for index, values in enumerate(itertools.zip_longest(*(c.given for c in cohorts), fillvalue=missing)):
        if any(v is missing for v in values):
            raise TypeMismatch(
                f"the client values of one call are of equally many clients; client {index} is missing in some of them"
            )
        yield values
