"""One run of a client stage at a site: reads its operands, computes, checks what would leave, and makes the reply."""

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.compiler.client_data import Source
from fedcore.data import columns_of
from fedcore.deployment.policy import Policy
from fedcore.deployment.record_privacy import mechanisms_of, noisy_passes
from fedcore.deployment.site_data import SiteData
from fedcore.deployment.site_inputs import RunRequest, element_of
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.site_sums import SiteSum
from fedcore.deployment.site_values import FAILED, KeptValue, SiteValues
from fedcore.errors import ExecutionError
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir import Module
from fedcore.lru_cache import LruEntries
from fedcore.runtime.arguments import prepare
from fedcore.runtime.client_slice import SliceResult
from fedcore.runtime.clients.device_stage import DeviceSliceExecutor
from fedcore.runtime.network.leaves import from_arrays, to_arrays
from fedcore.runtime.network.messages import MAX_REMARKS, Message, remark
from fedcore.runtime.network.plan_runner import ClientStageOf, run_client
from fedcore.runtime.network.transcript import HELD_OUT, NAMED_SOURCES, SERVER_VALUE, KeptName
from fedcore.runtime.reports.report import Report
from fedcore.runtime.secure.masks import Vector
from fedcore.runtime.stopping import Stop
from fedcore.types import Type


class NotBegun(Exception):
    """A run has not begun to compute, since the site's data are not of the types that the plan asks for, or for what
    the server has sent: the server may know.

    Args:
        error: the reason.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


@attrs.frozen(eq=False)
class SiteRun:
    """A run of a client stage that the policy has accepted and that the log has as started.

    Errors of `compute` and `reply`, and the time that they take, may depend on the data; `NotBegun` does not.

    Args:
        number: of the run in the log.
        sources: where the client's values come from, by the plan.
        masking: the session of the secure sum that masks what leaves; None if nothing is masked.
        clients: number of clients in the sum, as the policy has checked it; None if the server tells none.
        datasets: cache of the site's data as stages read them, by `SiteRun._dataset`'s key.
        values: what earlier stages have left at the site.
        report: gets notes for the server.
        stop: ends the computation.
    """

    number: int
    plan: Module
    stage: ClientStageOf
    inputs: RunRequest
    sources: tuple[Source, ...]
    masking: SiteSum | None
    clients: int | None
    policy: Policy
    data: SiteData
    datasets: LruEntries[str, Any]
    values: SiteValues
    log: SiteLog
    executor: DeviceSliceExecutor
    report: Report = attrs.field(factory=Report)
    stop: Stop = attrs.field(factory=Stop)

    @property
    def is_masked(self) -> bool:
        return self.masking is not None

    def compute(self) -> SliceResult:
        """The result of the stage.

        Counts the epsilon of the run before it computes, checks the numbers that would leave by the policy, and stores
        the value that later stages of the plan read.

        Raises:
            NotBegun: nothing was computed, since the site's data or the request do not fit the plan, or since a rule
                is against the run.
        """
        stage, inputs, policy = self.stage, self.inputs, self.policy
        broadcasts, values = self._operands()
        options: dict[str, Any] = {
            "masked": self.is_masked,
            "index": inputs.index,
            "report": self.report,
            "stop": self.stop,
        }
        run_with = functools.partial(run_client, self.executor, stage, broadcasts, values, **options)
        result = run_with(seed=inputs.seed if inputs.own_seed is None else inputs.own_seed)
        if stage.partial_type is not None:
            other_numbers = None
            if policy.noise_std is not None:  # a run with another seed shows the standard deviation of the noise
                other_seed = policy.own_seed(self.plan, stage, masked=self.is_masked)
                assert other_seed is not None
                other_numbers = _sent_numbers(run_with(seed=other_seed))
            policy.check_numbers(self.plan, stage, _sent_numbers(result), other_numbers, masked=self.is_masked)
        if result.kept:
            value = KeptValue.of(result.kept[inputs.index], stage.kept_type)
            self.values.store(inputs.plan, inputs.kept_name, value, stage.kept_type, inputs.kept_kind)
        return result

    def _operands(self) -> tuple[list, list]:
        """The broadcasts and the client's values. The epsilon of the run is counted.

        Raises:
            NotBegun: as for `compute`.
        """
        # Where failures are hidden, values of earlier stages are read after the `try`: the server is told of a
        # `NotBegun`, and that must not depend on whether an earlier stage has failed.
        earlier_values = None if self.policy.hides_failures else self._earlier_values()
        try:
            broadcasts = [
                _on_device(from_arrays(self.inputs.arrays, type_, f"b{position}."), type_)
                for position, type_ in enumerate(self.stage.broadcast_types)
            ]
            mechanisms = mechanisms_of(self.plan, self.stage.work.stage)
            values = [
                self._value(position, type_, source, earlier_values or {}, whole_passes=bool(mechanisms))
                for position, (type_, source) in enumerate(zip(self.stage.value_types, self.sources, strict=True))
            ]
            passes = noisy_passes(mechanisms, tuple(value for value in values if value is not None))
            self.policy.count_epsilon(passes, self.log, self.inputs.log_facts)
        except Exception as error:
            raise NotBegun(error) from error
        if earlier_values is None:
            earlier_values = self._earlier_values()
            values = [
                element_of(earlier_values[source.name], source.path) if value is None else value
                for value, source in zip(values, self.inputs.sources, strict=True)
            ]
        return broadcasts, values

    def _earlier_values(self) -> dict[str, Any]:
        """The values that earlier stages have left for this one, by their names.

        Raises:
            ExecutionError: such a stage has failed.
        """
        names = [source.name for source in self.inputs.kept_sources]
        values = {name: self.values.find(self.inputs.plan, KeptName.parse(name)) for name in names}
        if any(value is FAILED for value in values.values()):
            raise ExecutionError("the stage that leaves a value for this one has failed")
        return values

    def _value(
        self, position: int, type_: Type, source: Source, earlier_values: Mapping[str, Any], *, whole_passes: bool
    ) -> Any:
        """A client's value: the site's data, those held out, a value that an earlier stage has left here, or one of the
        request. None for a value of an earlier stage that `earlier_values` lacks.

        Args:
            position: among the client's values.
            whole_passes: as for `Batches.of`.
        """
        name, path = self.inputs.sources[position].name, self.inputs.sources[position].path
        if name == SERVER_VALUE:
            return _on_device(from_arrays(self.inputs.arrays, type_, f"v{position}."), type_)
        if name in NAMED_SOURCES:
            dataset = self._dataset(source.type, whole_passes=whole_passes, held_out=name == HELD_OUT)
            note_to_report = functools.partial(columns_of, note=self.report.note)
            return element_of(prepare(dataset, source.type, "data", note_to_report), path)
        return element_of(earlier_values[name], path) if name in earlier_values else None

    def _dataset(self, type_: Type, *, whole_passes: bool, held_out: bool) -> Any:
        """The site's data in a type, read again when the file has changed; arguments as for `TableData.dataset`."""
        key = f"{self.data.version}/{type_}/{whole_passes}/{held_out}"
        dataset = self.datasets.find(key, None)
        if dataset is None:
            readable = self.policy.columns
            data = self.data if readable is None else self.data.only(readable)
            dataset = data.dataset(type_, whole_passes=whole_passes, held_out=held_out)
            self.datasets.put(key, dataset)
        return dataset

    def reply(self, result: SliceResult, seconds: float) -> tuple[Message, Vector | None]:
        """The reply to the run, and the integers that are to be masked; None if nothing is masked.

        The log has the end of the run, and what leaves with it.

        Args:
            seconds: that the run took.
        """
        stage, policy, partial, vector = self.stage, self.policy, result.partial, None
        if self.masking is not None:
            vector, partial = self.masking.leaves.vector(partial), self.masking.leaves.without(partial)
        reply: dict[str, np.ndarray] = {}
        sent_type = stage.partial_type if self.is_masked else stage.sent_type
        if sent_type is not None:
            ranges, table_rows = ((), 0) if self.is_masked else (stage.sent_ranges, stage.work.table_rows)
            arrays = to_arrays(partial, sent_type, "p", ranges, table_rows)
            from_arrays(arrays, sent_type, "p", ranges, table_rows)  # a graph may give other shapes than its type says
            reply |= arrays
        if self.masking is not None:
            for leaf in self.masking.leaves.zeros():
                del reply[f"p{leaf}"]
        if result.sent_bits and not self.is_masked:  # under masks nothing of a size that the data give leaves
            reply["bits"] = result.sent_bits[self.inputs.index]
        # Notes may tell of the data, such as of batches of several sizes.
        notes = [remark(note) for note in self.report.notes[:MAX_REMARKS]]
        bits = policy.count_bits(self.plan, stage, result, masked=self.is_masked)
        policy.check_sent(bits, self.log, policy.planned_bits(self.plan, stage, masked=self.is_masked))
        self.log.write(
            "ran",
            number=self.number,
            **self.inputs.log_facts,
            clients=self.clients,
            bits=bits,
            masked=self.is_masked,
            seconds=round(seconds, 3),
            sent=policy.sent_tensors(self.plan, stage, masked=self.is_masked),
            notes=notes,
        )
        return Message(self._reply_facts([] if policy.aggregated else notes), reply), vector

    def reply_without_data(self) -> Message:
        """The reply, without masked integers, to a run whose failure the server is not to learn.

        A value that the stage would keep is stored as failed, so that later stages of the call fail. Decision 0317.
        """
        inputs, kept_type = self.inputs, self.stage.kept_type
        if kept_type is not None:
            with contextlib.suppress(OSError):
                self.values.store_failure(inputs.plan, inputs.kept_name, kept_type, inputs.kept_kind)
        return Message(self._reply_facts([]), {})

    def _reply_facts(self, notes: list[str]) -> dict[str, Any]:
        facts: dict[str, Any] = {"kind": "result", "notes": notes}
        return facts if self.stage.kept_type is None else {**facts, "provenance": self.inputs.provenance}


def _on_device(value: Any, type_: Type) -> Any:
    """A value of numpy arrays as one of tensors."""
    return unflatten([tf.convert_to_tensor(leaf) for leaf in flatten(value)], type_)


def _sent_numbers(result: SliceResult) -> list[np.ndarray]:
    """The tensors that a client's result sends, in the order of the message."""
    return [np.asarray(leaf) for leaf in flatten(result.partial)]
