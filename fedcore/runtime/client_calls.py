"""The operands of a client stage's graph calls: the executable for a slice, and the slice's tensors on a device."""

from collections.abc import Sequence

import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.batched.batched_stage import realize_batched, realize_next_client
from fedcore.graphs.batched.low_rank_loop import LowRankLoop, LowRankSteps
from fedcore.graphs.batched.packing import PackedLayout, pack_clients, pack_for_loop, steps_of_rank
from fedcore.graphs.graphdef.parsed_graph import has_loops
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.stages.loop_in_graph import is_loopable, realize_loop
from fedcore.graphs.stages.realize import Layouts, Realized, pack, realize_block
from fedcore.runtime.client_work import ClientSlice, ClientWork
from fedcore.runtime.device import DeviceExecutor

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
    low_rank: tuple[LowRankSteps | None, ...] = ()
    if work.low_rank:
        pairs = zip(clients.leaves.each, packed, strict=True)
        low_rank = tuple(_low_rank_steps(work.low_rank, leaves, client) for leaves, client in pairs)
    function = device.functions.get(
        ("loop from partial" if from_partial else "loop", *work.key, layouts, low_rank),
        lambda: realize_block(
            work.built,
            work.zero,
            work.stage,
            len(work.broadcasts),
            layouts,
            has_client_values=work.keeps,
            from_partial=from_partial,
            measured=work.measured,
            loops=[None if steps is None else LowRankLoop(work.built, steps) for steps in low_rank],
        ),
    )
    given, *tensors = device.put([seeds, *(t for client in packed for _, ts in client for t in ts)])
    return function, given, tensors


def _low_rank_steps(rank: int, leaves: Sequence, packed: Sequence[tuple[Layouts, list]]) -> LowRankSteps | None:
    """How a client's training keeps kernels low-rank; None if its data is not one sequence of batches."""
    columns = [leaf for leaf in leaves if isinstance(leaf, Columns)]
    limit = steps_of_rank(columns, rank) if len(columns) == 1 else 0
    if limit < 2:  # each step would make the kernel
        return None
    tensors = next(tensors[i:] for layouts, tensors in packed for i, given in enumerate(layouts) if given is not None)
    rows = tensors[len(columns[0].arrays)]
    return LowRankSteps(rank, limit, exceeds=len(rows) > limit)


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
    work: ClientWork, device: DeviceExecutor, clients: ClientSlice, *, assumes: bool = False
) -> tuple[Realized, list]:
    """The executable that computes the clients of a slice side by side, and the clients' tensors.

    Args:
        assumes: the executable may assume that clients' work is finite, see `Realized.assumes_finite`.
    """
    zero, join = _fold_stages(work)
    shape, tensors = _packed(work, device, clients, work.width)
    function = device.functions.get(
        ("vectorised", *work.key, shape, clients.places, work.width, assumes),
        lambda: realize_batched(
            work.built,
            zero,
            work.stage,
            join,
            len(work.broadcasts),
            shape,
            width=work.width,
            block=work.block,
            blocks=clients.places // work.block,
            measured=work.measured,
            assumes=assumes,
        ),
    )
    return function, tensors


def single_vectorised_call(work: ClientWork, device: DeviceExecutor, client: ClientSlice) -> tuple[Realized, list]:
    """The executable that adds one client of a vectorised stage to a partial, and the client's tensors."""
    zero, _ = _fold_stages(work)
    shape, tensors = _packed(work, device, client, LEAST_WIDTH)
    function = device.functions.get(
        ("single vectorised", *work.key, shape),
        lambda: realize_next_client(
            work.built, zero, work.stage, len(work.broadcasts), shape, width=LEAST_WIDTH, measured=work.measured
        ),
    )
    return function, tensors


def _fold_stages(work: ClientWork) -> tuple[str, str]:
    if work.zero is None or work.join is None:
        raise FedcoreError(f"@{work.stage} keeps client values only: it cannot be vectorised")
    return work.zero, work.join


def _packed(work: ClientWork, device: DeviceExecutor, clients: ClientSlice, width: int) -> tuple[PackedLayout, list]:
    numbers = [n for of_value in work.numbers for n in of_value]
    seeds = clients.seeds(work.seed)
    with tf.device(device.device):  # packed tensors that the device caches stay there
        shape, tensors = pack_clients(
            clients.leaves,
            clients.positions,
            seeds,
            numbers,
            width=width,
            capacity=clients.places,
            cache=device.packed,
            low_rank=work.low_rank,
            products_of_each=work.products_of_each,
            halves=has_loops(work.module),
        )
    return shape, device.put(tensors)
