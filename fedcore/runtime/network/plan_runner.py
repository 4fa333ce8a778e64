"""Runs client stages of plans for one client, where its data are."""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from fedcore.ir import Module
from fedcore.runtime.client_work import ClientSlice, ClientWork, SliceResult
from fedcore.runtime.device_stage import DeviceSliceExecutor
from fedcore.runtime.plan_executor import client_work
from fedcore.runtime.report import Report
from fedcore.runtime.stopping import Stop


@attrs.frozen
class ClientStageOf:
    """A client stage of a plan, and the types of its operands.

    Args:
        work: the stage without values.
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
    def _parameters(self) -> list:
        stage = self.work.module.function(self.work.stage)
        return [p.type for p in stage.parameters[0 if self.work.zero is None else 1 :]]

    @property
    def partial_type(self) -> Any:
        """The type of the partial; None if the stage has no fold."""
        if self.work.zero is None:
            return None
        return self.work.module.function(self.work.stage).parameters[0].type

    @property
    def kept_type(self) -> Any:
        """The type of the value that the stage leaves for its client; None if it leaves none."""
        return self.work.client_stage.kept_type

    @property
    def broadcast_types(self) -> list:
        return self._parameters[: len(self._parameters) - len(self.work.numbers)]

    @property
    def value_types(self) -> list:
        """The types of the client's values."""
        return self._parameters[len(self._parameters) - len(self.work.numbers) :]


def run_client(
    executor: DeviceSliceExecutor,
    stage: ClientStageOf,
    broadcasts: Sequence[Any],
    values: Sequence[Any],
    *,
    seed: int,
    index: int,
    report: Report,
    stop: Stop,
) -> SliceResult:
    """The result of one client.

    Args:
        broadcasts: nested tuples of tensors.
        values: the client's values, as `prepare` gives them.
        seed: the call's.
        index: the client's, in its call.
    """
    tensors = tuple(broadcasts)
    work = attrs.evolve(stage.work, broadcasts=tensors, seed=seed)
    drawn = work.drawn(index, tuple(values))
    run = executor.prepare(work, report, stop)
    result = run(ClientSlice(index, work.block, (drawn,)))
    bits = {i: np.asarray(b, np.int64) for i, b in result.sent_bits.items()}
    return attrs.evolve(result, sent_bits=bits)
