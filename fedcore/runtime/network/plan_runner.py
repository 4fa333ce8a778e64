"""Runs client stages of plans for one client, where its data are, and adds at the server what clients send."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from fedcore.intrinsics.stage_cut import StageCut, cut_stage
from fedcore.ir import Module
from fedcore.runtime.client_slice import ClientSlice, SliceResult
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.device_stage import DeviceSliceExecutor
from fedcore.runtime.clients.merge_tree import ABSENT, MergeTree
from fedcore.runtime.plan_executor import client_work
from fedcore.runtime.reports.report import Report
from fedcore.runtime.stopping import Stop
from fedcore.types import StructType, Type


@attrs.frozen
class ClientStageOf:
    """A client stage of a plan, divided into the part of a client and that of the server.

    A client sends the values that cross by the plan, and the server adds them (`ClientSums`). Where a secure sum masks
    the client's partial, the client sends that partial.

    Args:
        work: the stage, with or without values.
    """

    work: ClientWork

    @classmethod
    def of(cls, plan: Module, operation: str) -> "ClientStageOf":
        """The stage that an operation of the plan runs.

        Raises:
            KeyError: the plan has no such client stage.
        """
        return cls(client_work(plan, operation))

    @property
    def _parameters(self) -> list[Type]:
        """The types of the stage's parameters behind the partial: the broadcasts, then the client's values."""
        stage = self.work.module.function(self.work.stage)
        return [p.type for p in stage.parameters[0 if self.work.zero is None else 1 :]]

    @property
    def partial_type(self) -> Type | None:
        """The type of the partial; None if the stage has no fold."""
        if self.work.zero is None:
            return None
        return self.work.module.function(self.work.stage).parameters[0].type

    @property
    def sent_type(self) -> StructType | None:
        """The type of the values that a client sends where nothing is masked; None if the stage has no fold."""
        return None if self.work.zero is None else self.cut.sent

    @property
    def sent_ranges(self) -> tuple[str, ...]:
        """For each leaf of `sent_type` the range of its integers, see `to_arrays`."""
        return () if self.work.zero is None else self.cut.ranges

    @property
    def kept_type(self) -> Any:
        """The type of the value that the stage leaves at its client; None if it leaves none."""
        return self.work.client_stage.kept_type

    @property
    def broadcast_types(self) -> list[Type]:
        return self._parameters[: len(self._parameters) - len(self.work.numbers)]

    @property
    def value_types(self) -> list[Type]:
        """The types of the client's values, one for each cohort."""
        return self._parameters[len(self._parameters) - len(self.work.numbers) :]

    @property
    def cut(self) -> StageCut:
        """The two parts of a stage with a fold, as functions of a module."""
        module, operation = self.work.module, self.work.operation
        return module.fact(f"cut of {operation}", lambda plan: cut_stage(plan, operation))

    @property
    def sending(self) -> ClientWork:
        """The client's part: a stage that returns (sent value, or sent value and kept value) for its client."""
        cut, work = self.cut, self.work
        return attrs.evolve(
            work,
            module=cut.module,
            digest=cut.module.digest(),
            zero=cut.client_zero,
            stage=cut.client,
            join=cut.client_join,
            keeps=True,
            secure=(),
        )

    @property
    def accumulation(self) -> ClientWork:
        """The server's part: a fold whose client values are the elements of `sent_type`."""
        cut, work = self.cut, self.work
        return attrs.evolve(
            work,
            module=cut.module,
            digest=cut.module.digest(),
            stage=cut.accumulation,
            keeps=False,
            # Numbers of leaves decide the draws of sequences only, and clients send none.
            numbers=tuple(range(i, i + 1) for i in range(len(cut.sent))),
            secure=(),
            measured=(),
        )


def run_client(
    executor: DeviceSliceExecutor,
    stage: ClientStageOf,
    broadcasts: Sequence[Any],
    values: Sequence[Any],
    *,
    masked: bool,
    seed: int,
    index: int,
    report: Report,
    stop: Stop,
) -> SliceResult:
    """The result of one client. Its `partial` is the value of `sent_type` that the client sends.

    Args:
        broadcasts: nested tuples of tensors.
        values: the client's values, as `prepare` gives them.
        masked: the client sends its partial, so that the result's `partial` is that of the stage.
        seed: seed of the call.
        index: index of the client in the call.
    """
    runs_sending = stage.work.zero is not None and not masked
    work = attrs.evolve(stage.sending if runs_sending else stage.work, broadcasts=tuple(broadcasts), seed=seed)
    client = work.drawn(index, tuple(values))
    run = executor.prepare(work, report, stop)
    result = run(ClientSlice(index, work.block, (client,)))
    bits = {i: np.asarray(b, np.int64) for i, b in result.sent_bits.items()}
    if not runs_sending:
        return attrs.evolve(result, sent_bits=bits)
    sent_and_kept: Any = result.kept[index]  # see `ClientStageOf.sending`
    sent, *kept = sent_and_kept
    return SliceResult(sent, {index: kept[0]} if kept else {}, bits)


class ClientSums:
    """Adds what clients send, in the blocks and the merge tree of the plan.

    Guarantees:
      - Clients of a block are folded in the order of their indices when all have been added, and blocks merge as in
        `MergeTree`, whatever the order in which clients are added.
      - Memory: what clients send is held until their block is folded.

    Args:
        fold: the stage of `ClientStageOf.accumulation`, such as a `DeviceStage`.
        block: number of clients of a block.
        merge: merges two partials.
    """

    def __init__(
        self, fold: Callable[[ClientSlice], SliceResult], block: int, merge: Callable[[object, object], object]
    ) -> None:
        self._fold = fold
        self._block = block
        self._tree = MergeTree(merge)
        self._blocks: dict[int, dict[int, Any]] = {}  # blocks that lack clients: block -> client's index -> sent value
        self._lock = threading.Lock()

    def add(self, index: int, sent: Any, height: int = 0) -> None:
        """Adds the value that a client sends.

        Args:
            index: index of the client.
            sent: ABSENT if the client is left out.
            height: always 0, as a client is a leaf; the parameter is that of `MergeTree.add`.
        """
        number = index // self._block
        with self._lock:
            clients = self._blocks.setdefault(number, {})
            clients[index] = sent
            if len(clients) < self._block:
                return
            del self._blocks[number]
        self._tree.add(number, self._partial(number, clients))

    is_merged = False
    """`MergeTree.is_merged`. Never True, since `result` may have to fold the last block."""

    def result(self) -> Any:
        """The partial of all clients. The last block may have fewer clients than the others."""
        for number, clients in sorted(self._blocks.items()):
            self._tree.add(number, self._partial(number, clients))
        self._blocks.clear()
        return self._tree.result()

    def _partial(self, number: int, clients: dict[int, Any]) -> Any:
        """The partial of a block; ABSENT if all its clients are left out.

        Args:
            number: number of the block.
            clients: client's index -> the value that it sent, or ABSENT.
        """
        if all(sent is ABSENT for sent in clients.values()):
            return ABSENT
        first = number * self._block
        values = [clients.get(first + i, ABSENT) for i in range(self._block)]
        block = ClientSlice(first, self._block, tuple([None if v is ABSENT else tuple(v) for v in values]))
        return self._fold(block).partial
