"""The operands of a client stage's graph calls: the executable for a slice, and the slice's tensors on a device."""

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.batched.batched_stage import BatchedFold, realize_batched
from fedcore.graphs.batched.looped_stage import LoopedFold
from fedcore.graphs.batched.low_rank_loop import LowRankSteps
from fedcore.graphs.batched.packing import pack_clients, pack_for_loop
from fedcore.graphs.batched.row_layouts import ABSENT
from fedcore.graphs.batched.schedule import PackedLayout, ScheduleRules, steps_of_rank
from fedcore.graphs.graphdef.parsed_graph import has_loops
from fedcore.graphs.stages.loop_in_graph import is_loopable, realize_loop
from fedcore.graphs.stages.realize import Realized, pack, realize_block
from fedcore.runtime.client_work import ClientSlice, ClientWork
from fedcore.runtime.device import DeviceExecutor
from fedcore.runtime.report import Report

LEAST_WIDTH = 2
"""Smallest width of a vectorised stage. At width 1 TensorFlow selects other kernels, which give other bits."""


def loop_call(
    work: ClientWork, device: DeviceExecutor, clients: ClientSlice, *, from_partial: bool = False
) -> tuple[Realized, tf.Tensor, list]:
    """The executable that folds clients one after another, the clients' seeds, and the clients' tensors.

    Args:
        from_partial: the executable takes a partial and adds the clients to it.
    """
    if work.parallel > 1 and not from_partial and _fits_in_graph_loop(work, clients):
        return _call_of_graph_loop(work, device, clients)
    seeds = clients.seeds(work.seed)
    packed = [
        [pack(value, int(seed), n.start) for n, value in zip(work.numbers, client, strict=True)]
        for client, seed in zip(clients.values, seeds, strict=True)
    ]
    layouts = tuple(tuple(given for given, _ in client) for client in packed)
    function = device.functions.get(
        ("loop from partial" if from_partial else "loop", *work.key, layouts),
        lambda: realize_block(
            work.built,
            work.zero,
            work.stage,
            len(work.broadcasts),
            layouts,
            has_client_values=work.keeps,
            from_partial=from_partial,
            measured=work.measured,
        ),
    )
    given, *tensors = device.put([seeds, *(t for client in packed for _, ts in client for t in ts)])
    return function, given, tensors


def low_rank_steps(work: ClientWork, clients: ClientSlice) -> LowRankSteps | None:
    """How the training of a block's clients keeps kernels low-rank; None if their data is not one sequence of batches,
    or if each step would make the kernels.
    """
    if len(clients.leaves.sequences) != 1:
        return None
    ((position, columns),) = clients.leaves.sequences.items()
    limit = steps_of_rank(columns, work.low_rank)
    if limit < 2:
        return None
    number = [n for of_value in work.numbers for n in of_value][position]
    taken = [len(c.read(int(s), number)) for c, s in zip(columns, clients.seeds(work.seed), strict=True)]
    return LowRankSteps(work.low_rank, limit, exceeds=max(taken) > limit)


def looped_call(
    work: ClientWork, device: DeviceExecutor, clients: ClientSlice, steps: LowRankSteps, *, alone: bool = False
) -> tuple[Realized, list]:
    """The executable that computes the clients of a block one by one, with low-rank kernels, and the clients' tensors.

    Args:
        steps: of all clients of the block.
        alone: the executable adds one client to a partial.
    """
    zero, join = _fold_stages(work)
    numbers = [n for of_value in work.numbers for n in of_value]
    seeds = clients.seeds(work.seed)
    with tf.device(device.device):  # packed tensors that the device caches stay there
        layouts, tensors = pack_for_loop(clients.leaves, seeds, numbers, cache=device.packed)
    lane_of = np.full(clients.places, ABSENT, np.int64)
    lane_of[list(clients.positions)] = np.arange(len(clients.positions))

    def realize() -> Realized:
        given = (work.built, zero, work.stage, join, len(work.broadcasts), layouts, steps, work.measured)
        fold = LoopedFold(*given, parallel=work.parallel)
        return fold.next_client() if alone else fold.whole_call(work.block, clients.places // work.block)

    kind = "single looped" if alone else "looped"
    function = device.functions.get((kind, *work.key, layouts, steps, clients.places), realize)
    return function, device.put([seeds, lane_of, *tensors])


def _fits_in_graph_loop(work: ClientWork, clients: ClientSlice) -> bool:
    """Whether a graph can loop over the clients: several clients of one layout, of which only a partial stays.

    Other slices have a graph that holds the clients one after another; its bits are the same.
    """
    several = len(clients.present) > 1 and work.zero is not None and not work.keeps and not work.measured
    return several and is_loopable(work.module, work.stage, len(work.broadcasts)) and clients.common_layouts is not None


def _call_of_graph_loop(
    work: ClientWork, device: DeviceExecutor, clients: ClientSlice
) -> tuple[Realized, tf.Tensor, list]:
    zero, parallel, seeds = work.zero, work.parallel, clients.seeds(work.seed)
    if zero is None:
        raise FedcoreError(f"@{work.stage} has no partial: a graph cannot loop over its clients")
    numbers = [n for of_value in work.numbers for n in of_value]
    with tf.device(device.device):  # packed tensors that the device caches stay there
        layouts, tensors = pack_for_loop(clients.leaves, seeds, numbers, cache=device.packed)
    function = device.functions.get(
        ("loop in graph", *work.key, layouts, parallel),
        lambda: realize_loop(work.built, zero, work.stage, len(work.broadcasts), layouts, parallel=parallel),
    )
    given, *rest = device.put([seeds, *tensors])
    return function, given, rest


def vectorised_call(
    work: ClientWork, device: DeviceExecutor, report: Report, clients: ClientSlice, *, assumes: bool = False
) -> tuple[Realized, list]:
    """The executable that computes the clients of a slice side by side, and the clients' tensors.

    Args:
        report: gets the schedule, if the call is recorded.
        assumes: the executable may assume that clients' work is finite, see `Realized.assumes_finite`.
    """
    zero, join = _fold_stages(work)
    rules = attrs.evolve(_rules(work), one_step_width=work.one_step_width, gives_products=True)
    layout, tensors = _pack(work, device, report, clients, rules)
    function = device.functions.get(
        ("vectorised", *work.key, layout, clients.places, assumes),
        lambda: realize_batched(
            work.built,
            zero,
            work.stage,
            join,
            len(work.broadcasts),
            layout,
            block=work.block,
            blocks=clients.places // work.block,
            measured=work.measured,
            assumes=assumes,
        ),
    )
    return function, tensors


def single_vectorised_call(
    work: ClientWork, device: DeviceExecutor, report: Report, client: ClientSlice
) -> tuple[Realized, list]:
    """The executable that adds one client of a vectorised stage to a partial, and the client's tensors."""
    zero, join = _fold_stages(work)
    layout, tensors = _pack(work, device, report, client, attrs.evolve(_rules(work), width=LEAST_WIDTH))
    function = device.functions.get(
        ("single vectorised", *work.key, layout),
        lambda: BatchedFold(
            work.built, zero, work.stage, join, len(work.broadcasts), layout, work.measured
        ).next_client(),
    )
    return function, tensors


def _fold_stages(work: ClientWork) -> tuple[str, str]:
    if work.zero is None or work.join is None:
        raise FedcoreError(f"@{work.stage} keeps client values only: it cannot be vectorised")
    return work.zero, work.join


def _rules(work: ClientWork) -> ScheduleRules:
    return ScheduleRules(
        work.width, low_rank=work.low_rank, products=work.products, half_steps=has_loops(work.module), block=work.block
    )


def _pack(
    work: ClientWork, device: DeviceExecutor, report: Report, clients: ClientSlice, rules: ScheduleRules
) -> tuple[PackedLayout, list]:
    """The packed clients on the device. A recording gets the schedule's text with the span of the packing."""
    numbers, seeds = [n for of_value in work.numbers for n in of_value], clients.seeds(work.seed)
    ends = [clients.present[0], clients.present[-1]]
    with report.span("pack", work.stage, device=device.device, clients=ends) as facts:
        with tf.device(device.device):  # packed tensors that the device caches stay there
            schedule, tensors = pack_clients(
                clients.leaves, clients.positions, seeds, numbers, rules, capacity=clients.places, cache=device.packed
            )
        nothing = [np.zeros(0, np.float32)] if schedule.layout.is_given_products else []
        tensors = device.put([*tensors, *nothing])
        if facts is not None:
            facts["schedule"] = schedule.text(clients.first)
    return schedule.layout, tensors
