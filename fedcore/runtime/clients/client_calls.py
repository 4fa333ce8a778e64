"""Makes the graph calls of a client stage: the executable for a slice, and the slice's tensors on a device.

| a stage | its call of a slice |
|---|---|
| is vectorised | computes clients in groups, side by side |
| loops, and keeps kernels low-rank | computes clients in groups of one client |
| loops otherwise | computes clients in a loop, whose partial is a variable |
| has a graph that computes no clients together, such as one with effects | is one of each client, by its own layouts |
"""

import functools
from collections.abc import Callable, Iterator

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.client_lane import LowRankSteps
from fedcore.graphs.batched.packing import pack_clients, pack_for_loop
from fedcore.graphs.batched.row_layouts import ABSENT
from fedcore.graphs.batched.schedule import LEAST_WIDTH, PackedLayout, Schedule, ScheduleRules
from fedcore.graphs.batched.stage_fold import StageFold, realize_batched
from fedcore.graphs.dataflow.region_log import final_regions, logged_regions
from fedcore.graphs.dataflow.text import print_region
from fedcore.graphs.sequences.layout import NotStreamed
from fedcore.graphs.stages.client_loop import is_loopable, realize_loop
from fedcore.graphs.stages.realize import Realized, pack, realize_client
from fedcore.graphs.tensors.shared_memory import SHARED_BYTES
from fedcore.runtime.client_slice import ClientSlice
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.devices.device import DeviceExecutor
from fedcore.runtime.reports.report import Report


@attrs.frozen
class Call:
    """A graph call of a slice's clients.

    Args:
        function: the executable.
        tensors: the operands behind the broadcasts: seeds, positions and data of the clients.
        schedule: how the clients are computed in groups; None if they are not.
    """

    function: Realized
    tensors: list
    schedule: Schedule | LowRankSteps | None = None


@attrs.frozen
class StageCalls:
    """Makes the graph calls of a client stage on a device.

    Args:
        report: gets the schedules of calls, and the regions of executables that are built, if the call is recorded.
    """

    work: ClientWork
    device: DeviceExecutor
    report: Report

    def together(self, clients: ClientSlice, *, assumes: bool = False, most_lanes: int | None = None) -> Call | None:
        """The call that computes the clients of a slice; None if no graph computes them together.

        Args:
            assumes: the executable may assume that clients' work is finite, see `Realized.assumes_finite`.
            most_lanes: the most clients of a group, or of a loop at once, if they are fewer than the plan's.
        """
        work = self.work
        if work.is_vectorised:
            return self._vectorised(clients, assumes=assumes, most_lanes=most_lanes)
        parallel = min(work.parallel, most_lanes or work.parallel)
        steps = self._low_rank_steps(clients)
        if steps is not None:
            return self._low_rank(clients, steps, parallel=parallel)
        if work.block == 1:
            return self._alone(clients)
        if clients.common_layouts is None or not is_loopable(work.client_stage):
            return None
        if parallel == 1 and clients.leaves.tensor_bytes >= SHARED_BYTES:
            return None  # copying the clients' tensors into one takes longer than a call for each
        layouts, tensors = self._stack(clients)
        realize = functools.partial(realize_loop, work.client_stage, layouts, parallel=parallel)
        function = self._executable(("loop", layouts, parallel), realize)
        return Call(function, self.device.put([clients.seeds(work.seed), *tensors]))

    def by_client(self, clients: ClientSlice, *, batched: bool) -> Iterator[tuple[ClientSlice, Call]]:
        """(slice with one client only, call that adds it to a partial) for each client of a block.

        Args:
            batched: calls have the bits of `together`, by the stage's batching rules if it has them. Otherwise clients
                run by executables of their own layouts.
        """
        is_vectorised = batched and self.work.is_vectorised
        steps = self._low_rank_steps(clients) if batched and not is_vectorised else None
        for index in clients.present:
            alone = clients.with_only([index])
            if is_vectorised:
                yield alone, self._vectorised(alone, alone=True)
            elif steps is not None:
                yield alone, self._low_rank(alone, steps, parallel=1, alone=True)
            else:
                yield alone, self._alone(alone)

    def _alone(self, clients: ClientSlice) -> Call:
        """The call of the only client of a slice, by an executable for its own layouts.

        Large sequences are streams, unless XLA compiles the stage, or it reads one in another way than once from its
        first element on.
        """
        work = self.work
        if work.stage not in work.without_streams and not work.client_stage.is_compiled:
            try:
                return self._packed_alone(clients, streams=True)
            except NotStreamed:
                work.without_streams.add(work.stage)
        return self._packed_alone(clients, streams=False)

    def _packed_alone(self, clients: ClientSlice, *, streams: bool) -> Call:
        """The call of `_alone`. Raises NotStreamed if `streams`, and the stage cannot read its sequences as streams."""
        work = self.work
        (client,), seeds = clients.values, clients.seeds(work.seed)
        values = zip(work.numbers, client, strict=True)
        packed = [pack(value, int(seeds[0]), n.start, streams=streams) for n, value in values]
        layouts = tuple(layout for layout, _ in packed)
        realize = functools.partial(realize_client, work.client_stage, layouts, from_partial=work.block > 1)
        function = self._executable(("client", layouts), realize)
        return Call(function, self.device.put([seeds, *(t for _, tensors in packed for t in tensors)]))

    def _low_rank_steps(self, clients: ClientSlice) -> LowRankSteps | None:
        """How the training of a block's clients keeps kernels low-rank; None if it does not."""
        work = self.work
        if work.table_rows:
            return LowRankSteps(0, 0, exceeds=False, table_rows=work.table_rows)
        if not work.low_rank:
            return None
        return LowRankSteps.from_leaves(clients.leaves, clients.seeds(work.seed), self._leaf_numbers, work.low_rank)

    def _low_rank(self, clients: ClientSlice, steps: LowRankSteps, *, parallel: int, alone: bool = False) -> Call:
        """The call that computes the clients of a block in groups of one client, with low-rank kernels.

        Args:
            steps: steps of all clients of the block, also if `clients` has only one of them.
            parallel: clients that are computed at once.
            alone: the executable adds the only client to a partial.
        """
        layouts, tensors = self._stack(clients)
        lane_of = np.full(clients.places, ABSENT, np.int64)
        lane_of[list(clients.positions)] = np.arange(len(clients.positions))
        function = self._grouped(clients, steps.layout(layouts), parallel=parallel, alone=alone)
        return Call(function, self.device.put([clients.seeds(self.work.seed), lane_of, *tensors]), steps)

    def _stack(self, clients: ClientSlice) -> tuple[tuple, list]:
        """(layouts, tensors) of the clients' values, see `pack_for_loop`."""
        seeds, cache = clients.seeds(self.work.seed), self.device.packed
        with tf.device(self.device.device):  # packed tensors that the device caches stay there
            return pack_for_loop(clients.leaves, seeds, self._leaf_numbers, cache=cache)

    @property
    def _leaf_numbers(self) -> list[int]:
        """For each leaf of a client's values its number among the leaves of the call's arguments."""
        return [number for cohort_numbers in self.work.numbers for number in cohort_numbers]

    def _vectorised(
        self, clients: ClientSlice, *, assumes: bool = False, most_lanes: int | None = None, alone: bool = False
    ) -> Call:
        """The call that computes the clients of a slice side by side.

        Args:
            assumes, most_lanes: as for `together`.
            alone: the executable adds the only client to a partial.
        """
        rules = self.work.schedule_rules
        if alone:
            rules = attrs.evolve(rules, width=LEAST_WIDTH, one_step_width=0, takes_products=False)
        elif most_lanes is not None:
            one_step_width = min(rules.one_step_width, most_lanes)
            rules = attrs.evolve(rules, width=min(rules.width, most_lanes), one_step_width=one_step_width)
        schedule, tensors = self._pack(clients, rules)
        return Call(self._grouped(clients, schedule.layout, assumes=assumes, alone=alone), tensors, schedule)

    def _grouped(
        self,
        clients: ClientSlice,
        layout: PackedLayout,
        *,
        assumes: bool = False,
        parallel: int | None = None,
        alone: bool = False,
    ) -> Realized:
        """The executable that computes the clients of a slice in groups.

        Args:
            layout: layout of the packed clients.
            assumes, alone: as for `_vectorised`.
            parallel: groups that are computed at once. Default: see `ClientGroups`.
        """
        stage, block = self.work.client_stage, self.work.block

        def realize() -> Realized:
            if alone:
                return StageFold(stage, layout, parallel=parallel).next_client()
            blocks = clients.places // block
            return realize_batched(stage, layout, block=block, blocks=blocks, assumes=assumes, parallel=parallel)

        return self._executable(("groups", layout, clients.places, assumes, parallel, alone), realize)

    def _executable(self, form: tuple, realize: Callable[[], Realized]) -> Realized:
        """The executable of the stage, from the cache, or built by `realize`; its regions are recorded then.

        Args:
            form: all that the executable depends on beside the stage.
        """

        def build() -> Realized:
            with self.report.span("build", self.work.stage) as facts:
                if facts is None:
                    return realize()
                with logged_regions() as log:
                    realized = realize()
                if log:
                    regions = final_regions(log).items()
                    facts["region"] = "\n".join(print_region(r, name=name, shows_sources=True) for name, r in regions)
                return realized

        return self.device.functions.get((*self.work.key, *form), build)

    def _pack(self, clients: ClientSlice, rules: ScheduleRules) -> tuple[Schedule, list]:
        """The packed clients on the device. A recording gets the schedule's text with the span of the packing."""
        device, ends = self.device, [clients.present[0], clients.present[-1]]
        with self.report.span("pack", self.work.stage, device=device.device, clients=ends) as facts:
            with tf.device(device.device):  # packed tensors that the device caches stay there
                schedule, tensors = pack_clients(
                    clients.leaves,
                    clients.positions,
                    clients.seeds(self.work.seed),
                    self._leaf_numbers,
                    rules,
                    capacity=clients.places,
                    cache=device.packed,
                )
            # The place of the products of the clients' data, which `DeviceStage` fills in.
            products = [np.zeros(0, np.float32)] if schedule.layout.takes_products else []
            tensors = device.put([*tensors, *products])
            if facts is not None:
                facts["schedule"] = schedule.text(clients.first)
        return schedule, tensors
