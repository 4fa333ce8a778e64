"""The operands of a client stage's graph calls: the executable for a slice, and the slice's tensors on a device.

A stage that is vectorised computes its clients in groups, a loop that keeps kernels low-rank in groups of one client.
Any other loop has its partial as a variable. A client that no graph computes together with others, such as one whose
graph has effects, has an executable of its own layouts.
"""

from collections.abc import Callable, Iterator

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_stage import BatchedFold, realize_batched
from fedcore.graphs.batched.lane_interpreter import LowRankSteps
from fedcore.graphs.batched.looped_stage import LoopedFold
from fedcore.graphs.batched.packing import pack_clients, pack_for_loop
from fedcore.graphs.batched.row_layouts import ABSENT
from fedcore.graphs.batched.schedule import LEAST_WIDTH, PackedLayout, ScheduleRules
from fedcore.graphs.dataflow.region_log import final_regions, logged_regions
from fedcore.graphs.dataflow.text import print_region
from fedcore.graphs.sequences.layout import NotStreamed
from fedcore.graphs.stages.client_loop import is_loopable, realize_loop
from fedcore.graphs.stages.realize import Realized, pack, realize_client
from fedcore.runtime.client_work import ClientSlice, ClientWork
from fedcore.runtime.devices.device import DeviceExecutor
from fedcore.runtime.reports.report import Report

Call = tuple[Realized, list]
"""An executable, and the clients' tensors: its operands behind the broadcasts."""


def slice_call(
    work: ClientWork,
    device: DeviceExecutor,
    report: Report,
    clients: ClientSlice,
    *,
    assumes: bool = False,
    most_lanes: int | None = None,
) -> Call | None:
    """The call that computes the clients of a slice; None if no graph computes them together.

    Args:
        report: gets the schedule, if the call is recorded.
        assumes: the executable may assume that clients' work is finite, see `Realized.assumes_finite`.
        most_lanes: clients of a group, or of a loop at once, where they are fewer than the plan's.
    """
    if work.is_vectorised:
        return _vectorised_call(work, device, report, clients, assumes=assumes, most_lanes=most_lanes)
    parallel = min(work.parallel, most_lanes or work.parallel)
    steps = _low_rank_steps(work, clients)
    if steps is not None:
        return _looped_call(work, device, report, clients, steps, parallel=parallel)
    if work.block == 1:
        return client_call(work, device, clients)
    if clients.common_layouts is None or not is_loopable(work.client_stage):
        return None
    return _loop_call(work, device, clients, parallel)


def calls_by_client(
    work: ClientWork, device: DeviceExecutor, report: Report, clients: ClientSlice
) -> Iterator[tuple[ClientSlice, Realized, list]]:
    """For each client of a block the slice that holds it alone, and the call that adds it to a partial.

    All executables have the operands and results of `StageFold.next_client`.
    """
    steps = None if work.is_vectorised else _low_rank_steps(work, clients)
    for index in clients.present:
        alone = clients.with_only([index])
        if work.is_vectorised:
            yield alone, *_next_vectorised_call(work, device, report, alone)
        elif steps is not None:
            yield alone, *_looped_call(work, device, report, alone, steps, parallel=1, alone=True)
        else:
            yield alone, *client_call(work, device, alone, from_partial=True)


def client_call(work: ClientWork, device: DeviceExecutor, clients: ClientSlice, *, from_partial: bool = False) -> Call:
    """The call of the only client of a slice, by an executable for its own layouts.

    Large sequences are streams, unless XLA compiles the stage, or it reads one in another way than once from its first
    element on.

    Args:
        from_partial: the client is added to a partial, not to that of no clients.
    """
    if work.stage not in work.without_streams and not work.client_stage.is_compiled:
        try:
            return _client_call(work, device, clients, from_partial=from_partial, streams=True)
        except NotStreamed:
            work.without_streams.add(work.stage)
    return _client_call(work, device, clients, from_partial=from_partial, streams=False)


def _client_call(
    work: ClientWork, device: DeviceExecutor, clients: ClientSlice, *, from_partial: bool, streams: bool
) -> Call:
    (client,), seeds = clients.values, clients.seeds(work.seed)
    values = zip(work.numbers, client, strict=True)
    packed = [pack(value, int(seeds[0]), n.start, streams=streams) for n, value in values]
    layouts = tuple(layout for layout, _ in packed)
    function = device.functions.get(
        ("next client" if from_partial else "client", *work.key, layouts),
        lambda: realize_client(work.client_stage, layouts, from_partial=from_partial),
    )
    return function, device.put([seeds, *(t for _, tensors in packed for t in tensors)])


def _loop_call(work: ClientWork, device: DeviceExecutor, clients: ClientSlice, parallel: int) -> Call:
    """The call of a graph that loops over the clients, whose partial is a variable of the loop."""
    layouts, tensors = _stack(work, device, clients)
    function = device.functions.get(
        ("loop", *work.key, layouts, parallel),
        lambda: realize_loop(work.client_stage, layouts, parallel=parallel),
    )
    return function, device.put([clients.seeds(work.seed), *tensors])


def _low_rank_steps(work: ClientWork, clients: ClientSlice) -> LowRankSteps | None:
    """How the training of a block's clients keeps kernels low-rank; None if it does not."""
    if not work.low_rank:
        return None
    numbers = [n for leaf_numbers in work.numbers for n in leaf_numbers]
    return LowRankSteps.from_leaves(clients.leaves, clients.seeds(work.seed), numbers, work.low_rank)


def _looped_call(
    work: ClientWork,
    device: DeviceExecutor,
    report: Report,
    clients: ClientSlice,
    steps: LowRankSteps,
    *,
    parallel: int,
    alone: bool = False,
) -> Call:
    """The call that computes the clients of a block in groups of one client, with low-rank kernels.

    Args:
        steps: of all clients of the block.
        parallel: clients that are computed at once.
        alone: the executable adds one client to a partial.
    """
    layouts, tensors = _stack(work, device, clients)
    lane_of = np.full(clients.places, ABSENT, np.int64)
    lane_of[list(clients.positions)] = np.arange(len(clients.positions))

    def realize() -> Realized:
        fold = LoopedFold(work.client_stage, layouts, steps, parallel=parallel)
        return fold.next_client() if alone else fold.whole_call(work.block, clients.places // work.block)

    kind = "single looped" if alone else "looped"
    key = (kind, *work.key, layouts, steps, clients.places, parallel)
    function = device.functions.get(key, lambda: _record_build(work, report, realize))
    return function, device.put([clients.seeds(work.seed), lane_of, *tensors])


def _stack(work: ClientWork, device: DeviceExecutor, clients: ClientSlice) -> tuple[tuple, list]:
    """The layouts and tensors of `pack_for_loop`."""
    numbers = [n for leaf_numbers in work.numbers for n in leaf_numbers]
    with tf.device(device.device):  # packed tensors that the device caches stay there
        return pack_for_loop(clients.leaves, clients.seeds(work.seed), numbers, cache=device.packed)


def _vectorised_call(
    work: ClientWork,
    device: DeviceExecutor,
    report: Report,
    clients: ClientSlice,
    *,
    assumes: bool,
    most_lanes: int | None,
) -> Call:
    """The call that computes the clients of a slice side by side.

    If the call is recorded, the report gets the schedule.
    """
    rules = work.schedule_rules
    if most_lanes is not None:
        wide = min(rules.one_step_width, most_lanes)
        rules = attrs.evolve(rules, width=min(rules.width, most_lanes), one_step_width=wide)
    layout, tensors = _pack(work, device, report, clients, rules)
    blocks = clients.places // work.block

    def realize() -> Realized:
        return realize_batched(work.client_stage, layout, block=work.block, blocks=blocks, assumes=assumes)

    key = ("vectorised", *work.key, layout, clients.places, assumes)
    return device.functions.get(key, lambda: _record_build(work, report, realize)), tensors


def _next_vectorised_call(work: ClientWork, device: DeviceExecutor, report: Report, client: ClientSlice) -> Call:
    """The call that adds one client of a vectorised stage to a partial."""
    rules = attrs.evolve(work.schedule_rules, width=LEAST_WIDTH, one_step_width=0, gives_products=False)
    layout, tensors = _pack(work, device, report, client, rules)
    function = device.functions.get(
        ("single vectorised", *work.key, layout),
        lambda: _record_build(work, report, BatchedFold(work.client_stage, layout).next_client),
    )
    return function, tensors


def _record_build(work: ClientWork, report: Report, realize: Callable[[], Realized]) -> Realized:
    """The executable that a function builds; if the call is recorded, the report gets its region."""
    with report.span("build", work.stage) as facts, logged_regions() as log:
        realized = realize()
        if facts is not None:
            facts["region"] = "\n".join(
                print_region(r, name=name, shows_sources=True) for name, r in final_regions(log).items()
            )
        return realized


def _pack(
    work: ClientWork, device: DeviceExecutor, report: Report, clients: ClientSlice, rules: ScheduleRules
) -> tuple[PackedLayout, list]:
    """The packed clients on the device. A recording gets the schedule's text with the span of the packing."""
    ends = [clients.present[0], clients.present[-1]]
    with report.span("pack", work.stage, device=device.device, clients=ends) as facts:
        numbers, seeds = [n for leaf_numbers in work.numbers for n in leaf_numbers], clients.seeds(work.seed)
        with tf.device(device.device):  # packed tensors that the device caches stay there
            schedule, tensors = pack_clients(
                clients.leaves, clients.positions, seeds, numbers, rules, capacity=clients.places, cache=device.packed
            )
        nothing = [np.zeros(0, np.float32)] if schedule.layout.is_given_products else []
        tensors = device.put([*tensors, *nothing])
        if facts is not None:
            facts["schedule"] = schedule.text(clients.first)
    return schedule.layout, tensors
