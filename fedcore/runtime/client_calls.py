"""The graph calls of a client stage: which clients one takes, its function and its tensors."""

import functools
from collections.abc import Iterable

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.batched.batched_stage import realize_batched, realize_next_client
from fedcore.graphs.batched.packing import ClientLeaves, PackedLayout, pack_clients
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.stages.realize import Realized, pack, realize_block
from fedcore.graphs.tensors.values import flatten
from fedcore.ir import Module
from fedcore.runtime.arguments import ClientValues
from fedcore.runtime.client_count import ClientCount
from fedcore.runtime.device import DeviceExecutor
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
        count: of the call's clients, as far as it is known.
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
    count: ClientCount = attrs.field(factory=ClientCount, eq=False)

    @property
    def key(self) -> tuple[str, str]:
        """What of a stage decides its functions."""
        return self.digest, self.stage


@attrs.frozen
class ClientSlice:
    """The clients of one graph call.

    Args:
        first: the index of its first client.
        places: how many clients it could have: whole blocks.
        clients: the values of each; None for one that is left out.
    """

    first: int
    places: int
    clients: tuple[tuple | None, ...]

    @functools.cached_property
    def present(self) -> list[int]:
        """The indices of the clients that are not left out."""
        return [self.first + i for i, client in enumerate(self.clients) if client is not None]

    @functools.cached_property
    def values(self) -> list[tuple]:
        """Of those clients."""
        return [client for client in self.clients if client is not None]

    @functools.cached_property
    def leaves(self) -> ClientLeaves:
        """Of those clients' values."""
        return ClientLeaves([flatten(c) if any(isinstance(part, tuple) for part in c) else c for c in self.values])

    @functools.cached_property
    def common_layouts(self) -> tuple[Layout, ...] | None:
        """How the sequences of all those clients are laid out; None where they differ, or a batch of theirs is empty.

        A stacked step takes a batch without rows for the end of its client.
        """
        sequences = [[leaf for leaf in leaves if isinstance(leaf, Columns)] for leaves in self.leaves.each]
        first = tuple([s.layout for s in sequences[0]]) if sequences else ()
        for of_client in sequences:
            if any(s.has_empty_batch for s in of_client) or tuple([s.layout for s in of_client]) != first:
                return None
        return first

    def with_only(self, indices: Iterable[int]) -> "ClientSlice":
        """The same call; the other clients are left out."""
        kept = {i - self.first for i in indices}
        return attrs.evolve(self, clients=tuple(c if i in kept else None for i, c in enumerate(self.clients)))

    def without(self, indices: Iterable[int]) -> "ClientSlice":
        return self.with_only(set(self.present).difference(indices))

    def halves(self) -> tuple["ClientSlice", "ClientSlice"]:
        """Its blocks, half by half."""
        half = self.places // 2
        left = attrs.evolve(self, places=half, clients=self.clients[:half])
        return left, attrs.evolve(self, first=self.first + half, places=half, clients=self.clients[half:])

    def seeds(self, seed: int) -> np.ndarray:
        """Of the clients that are present."""
        every = fold_in_each(seed, self.first, len(self.clients))
        return every if len(self.present) == len(every) else every[[i - self.first for i in self.present]]


def looped(
    work: ClientWork, device: DeviceExecutor, call: ClientSlice, *, continues: bool = False
) -> tuple[Realized, tf.Tensor, list]:
    """The function in which a call's clients follow one another, the clients' seeds, and their tensors."""
    seeds = call.seeds(work.seed)
    packed = [
        [pack(value, int(seed), n.start) for n, value in zip(work.numbers, client, strict=True)]
        for client, seed in zip(call.values, seeds, strict=True)
    ]
    layouts = tuple(tuple(given for given, _ in client) for client in packed)
    function = device.functions.get(
        ("continued loop" if continues else "loop", *work.key, layouts),
        lambda: realize_block(
            work.module,
            work.zero,
            work.stage,
            len(work.broadcasts),
            layouts,
            keeps=work.keeps,
            continues=continues,
            measured=work.measured,
        ),
    )
    given, *tensors = device.put([seeds, *(t for client in packed for _, ts in client for t in ts)])
    return function, given, tensors


def stacked(
    work: ClientWork, device: DeviceExecutor, call: ClientSlice, width: int, block: int
) -> tuple[Realized, list]:
    """The function in which a call's clients stand side by side, and the clients' tensors."""
    zero, join = _folded(work)
    shape, tensors = _packed(work, device, call, width)
    function = device.functions.get(
        ("stacked", *work.key, shape, call.places, width),
        lambda: realize_batched(
            work.module,
            zero,
            work.stage,
            join,
            len(work.broadcasts),
            shape,
            width=width,
            block=block,
            blocks=call.places // block,
        ),
    )
    return function, tensors


LEAST_WIDTH = 2
"""Clients stand at least two side by side, else other kernels run and give other bits."""


def one_more(work: ClientWork, device: DeviceExecutor, call: ClientSlice) -> tuple[Realized, list]:
    """The function that adds one stacked client to a partial, and the client's tensors."""
    zero, _ = _folded(work)
    shape, tensors = _packed(work, device, call, LEAST_WIDTH)
    function = device.functions.get(
        ("one more", *work.key, shape),
        lambda: realize_next_client(work.module, zero, work.stage, len(work.broadcasts), shape, width=LEAST_WIDTH),
    )
    return function, tensors


def _folded(work: ClientWork) -> tuple[str, str]:
    if work.zero is None or work.join is None:
        raise FedcoreError(f"@{work.stage} keeps client values only: it cannot be vectorised")
    return work.zero, work.join


def _packed(work: ClientWork, device: DeviceExecutor, call: ClientSlice, width: int) -> tuple[PackedLayout, list]:
    positions = [i - call.first for i in call.present]
    numbers = [n for of_value in work.numbers for n in of_value]
    seeds = call.seeds(work.seed)
    with tf.device(device.device):  # what is kept packed stays there
        shape, tensors = pack_clients(
            call.leaves, positions, seeds, numbers, width=width, places=call.places, kept=device.packed
        )
    return shape, device.put(tensors)
