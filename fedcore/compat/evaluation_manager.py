"""TFF's evaluations that run beside a training, each for a time, and go on after an interrupt."""

import asyncio
import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedcore import context
from fedcore.computation import Computation, invoke_async
from fedcore.errors import InvalidValue, NotFound
from fedcore.learning.process import LearningProcess, LearningProcessOutput
from fedcore.program import (
    FederatedContext,
    FederatedDataSource,
    FileProgramStateManager,
    ReleaseManager,
    materialize_value,
)

MODEL_METRICS_PREFIX = "model_metrics"
MANAGER_NAME = "eval_manager"
_EVALUATION_NAME = "evaluation_of_train_round_{round_num:05d}"

ProcessAndManager = tuple[LearningProcess, ReleaseManager | None]
"""The process of an evaluation, and the manager that gets the metrics of each of its rounds."""


class EvaluationManager:
    """Evaluates checkpoints of a training for a time each, in tasks beside it.

    Types: the processes are those of `build_fed_eval`; their metrics are released under `model_metrics/…`.

    Guarantees:
      - After an interrupt `resume_from_previous_state` goes on with each evaluation that has not ended.
      - Round e of the evaluation of training round t is released under the key t + e, e = 0, 1, ….

    Args:
        data_source: the clients to evaluate with; each evaluation has an iterator of its own.
        aggregated_metrics_manager: gets the metrics over all rounds of an evaluation, under the training round. None:
            they are not released.
        create_state_manager_fn: name -> a `FileProgramStateManager`, with other files for another name.
        create_process_fn: name -> (evaluation process, the manager that gets the metrics of each round, or None).
        cohort_size: clients of an evaluation round.
        duration: for how long each checkpoint is evaluated; at least one round. Default: a day.
    Raises:
        InvalidValue: `record_evaluations_finished` is told of an evaluation that is not running.
    Example:
        >>> import asyncio, datetime, tempfile
        >>> folder, memory = tempfile.mkdtemp(), fc.program.MemoryReleaseManager()
        >>> manager = fc.learning.programs.EvaluationManager(
        ...     fc.program.DatasetDataSource([client_a, client_b], seed=0), memory,
        ...     lambda name: fc.program.FileProgramStateManager(folder + '/' + name),
        ...     lambda name: (fc.learning.algorithms.build_fed_eval(model_fn), None), cohort_size=2,
        ...     duration=datetime.timedelta(0))
        >>> async def evaluate():
        ...     await manager.start_evaluation(3, 0, process.get_model_weights(state))
        ...     await manager.wait_for_evaluations_to_finish()
        >>> asyncio.run(evaluate())
        >>> list(memory.values()), list(memory.values()[3])
        ([3], ['distributor', 'client_work', 'aggregator', 'finalizer', 'model_metrics'])
    """

    def __init__(
        self,
        data_source: FederatedDataSource,
        aggregated_metrics_manager: ReleaseManager | None,
        create_state_manager_fn: Callable[[str], FileProgramStateManager],
        create_process_fn: Callable[[str], ProcessAndManager],
        cohort_size: int,
        duration: datetime.timedelta = datetime.timedelta(hours=24),
    ) -> None:
        self.data_source = data_source
        self.aggregated_metrics_manager = aggregated_metrics_manager
        self.create_state_manager_fn = create_state_manager_fn
        self.create_process_fn = create_process_fn
        self.cohort_size = cohort_size
        self.duration = duration
        self._states = create_state_manager_fn(MANAGER_NAME)  # which evaluations run, see `_save`
        self._running: dict[int, int] = {}  # training round -> when its evaluation began, in seconds since 1970
        self._tasks: set[asyncio.Task] = set()
        self._saving = asyncio.Lock()

    async def start_evaluation(self, train_round: int, start_timestamp_seconds: int, model_weights: Any) -> None:
        """Starts the evaluation of a checkpoint, in a task, unless it runs already: a resumed training may ask again.

        Args:
            start_timestamp_seconds: when the evaluation begins, in seconds since 1970; it ends `duration` later.
        """
        if train_round in self._running:
            return
        name = _EVALUATION_NAME.format(round_num=train_round)
        states = self.create_state_manager_fn(name)
        evaluation = self.create_process_fn(name)
        process, _ = evaluation
        await states.remove_all()  # of an evaluation that an interrupted run began in this round
        await states.save(process.set_model_weights(await call_async(process.initialize), model_weights), version=0)
        self._running[train_round] = int(start_timestamp_seconds)
        await self._save()
        self._start(train_round, evaluation, states)

    async def resume_from_previous_state(self) -> bool:
        """Goes on with the evaluations that an interrupted program left; False if there is no saved state."""
        saved, _ = await self._states.load_latest({"rounds": 0, "began": 0})
        if saved is None:
            return False
        self._running = dict(zip(saved["rounds"].tolist(), saved["began"].tolist(), strict=True))
        for train_round in self._running:
            name = _EVALUATION_NAME.format(round_num=train_round)
            self._start(train_round, self.create_process_fn(name), self.create_state_manager_fn(name))
        return True

    async def wait_for_evaluations_to_finish(self) -> None:
        """Waits for all evaluations; raises the error of one that failed."""
        while self._tasks:
            finished, self._tasks = await asyncio.wait(self._tasks)
            for task in finished:
                task.result()

    async def record_evaluations_finished(self, train_round: int) -> None:
        """Forgets an evaluation, so that it is not resumed.

        Raises:
            InvalidValue: it is not running.
        """
        if train_round not in self._running:
            raise InvalidValue(f"no evaluation of training round {train_round} is running")
        del self._running[train_round]
        await self._save()

    async def _save(self) -> None:
        """Saves which evaluations run and when they began, for `resume_from_previous_state`."""
        async with self._saving:
            versions = await self._states.get_versions() or [-1]
            rounds, began = (np.array(list(part), np.int64) for part in (self._running, self._running.values()))
            await self._states.save({"rounds": rounds, "began": began}, version=versions[-1] + 1)

    def _start(self, train_round: int, evaluation: ProcessAndManager, states: FileProgramStateManager) -> None:
        """Starts the task of an evaluation, whose first state `states` has."""
        self._tasks.add(asyncio.create_task(self._evaluate(train_round, evaluation, states)))

    async def _evaluate(self, train_round: int, evaluation: ProcessAndManager, states: FileProgramStateManager) -> None:
        """Runs rounds of an evaluation until its time is over, at least one; then forgets it.

        Args:
            states: has the evaluation's last state, whose version is the number of its next round; gets the later ones.
        """
        process, manager = evaluation
        end_s = self._running[train_round] + self.duration.total_seconds()
        state, version = await states.load_latest(await call_async(process.initialize))
        if state is None:
            raise InvalidValue(f"the evaluation of training round {train_round} has no saved state to begin from")
        iterator = self.data_source.iterator()
        while True:
            output: Any = await call_async(process.next, state, iterator.select(self.cohort_size))
            if not isinstance(output, LearningProcessOutput):
                raise InvalidValue(f"an evaluation gives a LearningProcessOutput, not a {type(output).__name__}")
            state = output.state
            if manager is not None:
                await manager.release(_metrics_to_release(output, "current_round_metrics"), train_round + version)
            version += 1
            await states.save(state, version)
            if time.time() >= end_s:
                break
        if self.aggregated_metrics_manager is not None:
            metrics = _metrics_to_release(output, "total_rounds_metrics")
            await self.aggregated_metrics_manager.release(metrics, train_round)
        await self.record_evaluations_finished(train_round)
        await states.remove_all()


def _metrics_to_release(output: Any, name: str) -> dict[str, Any]:
    """The metrics of an evaluation round, with the part of this name as the model's."""
    return extract_and_rewrap_metrics(output.metrics, path=("client_work", "eval", name))


def extract_and_rewrap_metrics(metrics_structure: Mapping[str, Any], *, path: Sequence[str]) -> dict[str, Any]:
    """The metrics with the part at `path` moved to `model_metrics`, as the programs release them.

    Types: nested dicts of values or references.

    Args:
        metrics_structure: stays as it is.
        path: the keys that lead to the part.
    Raises:
        InvalidValue: `path` is empty.
        NotFound: there is no such part.
    Example:
        >>> metrics = {'client_work': {'train': {'loss': 0.5}}, 'finalizer': ()}
        >>> fc.learning.programs.extract_and_rewrap_metrics(metrics, path=('client_work', 'train'))
        {'client_work': {}, 'finalizer': (), 'model_metrics': {'loss': 0.5}}
    """
    if not path:
        raise InvalidValue("path names a part of the metrics, so it is not empty")
    copy = dict(metrics_structure)
    place = copy
    for name in path[:-1]:
        if name not in place:
            raise NotFound(f"the metrics have no {'/'.join(path)}: there is no {name} among {', '.join(place)}")
        place[name] = dict(place[name])
        place = place[name]
    if path[-1] not in place:
        raise NotFound(f"the metrics have no {'/'.join(path)}: there is no {path[-1]} among {', '.join(place)}")
    part = place.pop(path[-1])
    return {**copy, MODEL_METRICS_PREFIX: part}


async def call_async(computation: Computation, *arguments: Any) -> Any:
    """The values of a call's result, in a federated context or on a runtime; other tasks run meanwhile."""
    if isinstance(context.current_runtime(), FederatedContext):
        return await materialize_value(computation(*arguments))
    return await invoke_async(computation, *arguments)
