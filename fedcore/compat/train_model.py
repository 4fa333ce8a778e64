"""TensorFlow Federated's program for training and evaluating a model; `fc.learning.programs.train` is fedcore's."""

import datetime
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedcore.compat.evaluation_manager import EvaluationManager, call_async, extract_and_rewrap_metrics
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.learning.programs.training import refuse_choosing_from_noise
from fedcore.program import FederatedDataSource, ProgramStateManager, ReleaseManager, materialize_value
from fedcore.templates.iterative import state_and_metrics

_MODEL_RELEASE_PERIOD = 10  # rounds


class ProgramState(NamedTuple):
    """The state of `train_model` after a round.

    Types: `state` is that of the process; the other parts are numbers, and the iterator of the data source.

    Args:
        next_evaluation_timestamp_seconds: when the next evaluation is due, in seconds since 1970; None if that is
            decided by the round.
    Example:
        >>> fc.learning.programs.ProgramState(state, 0, None, None).round_number
        0
    """

    state: Any
    round_number: int
    next_evaluation_timestamp_seconds: int | None
    data_iterator: Any


async def train_model(
    *,
    train_process: LearningProcess,
    initial_train_state: LearningAlgorithmState | None = None,
    train_data_source: FederatedDataSource,
    train_per_round_clients: int,
    train_total_rounds: int,
    should_retry_round: Callable[[LearningProcessOutput], bool] | None = None,
    program_state_manager: ProgramStateManager,
    model_output_manager: ReleaseManager,
    train_metrics_manager: ReleaseManager | None = None,
    evaluation_manager: EvaluationManager | None = None,
    evaluation_periodicity: int | datetime.timedelta = 1,
) -> None:
    """Trains for some rounds and releases what it finds, as TFF's `train_model`. `train` is the simpler program.

    Types: as for `train`.

    A program that was interrupted goes on after the state that was saved last. Outside a
    `fc.program.NativeFederatedContext` it runs as well.

    Args:
        train_process: the process; its metrics have `client_work/train`.
        initial_train_state: the state to begin with. Default: that of `train_process.initialize`.
        train_data_source: the clients; the place of its iterator is saved with the state.
        train_per_round_clients, train_total_rounds: clients of a round; rounds in all.
        should_retry_round: whether a result is refused; the round is run again with other clients, without a bound.
            Default: none is refused. Not for a process that adds noise, as for `train`.
        program_state_manager: keeps the state of each round, and that of round 0.
        model_output_manager: gets the state under `training_checkpoint_round_R` for the rounds 0, 10, 20, … and the
            last.
        train_metrics_manager: gets each round's metrics: the model's under `model_metrics`, and
            `program_metrics/num_retries`. Default: none.
        evaluation_manager: evaluates in tasks beside the training. Default: no evaluation.
        evaluation_periodicity: rounds or time from one evaluation to the next; the last round is always evaluated.
    Raises:
        NotFound: the metrics have no `client_work/train`.
        TypeMismatch: `evaluation_periodicity` is neither.
        InvalidValue: the saved state is that of another process; or as for `train`.
    Example:
        >>> import asyncio, tempfile
        >>> metrics = fc.program.MemoryReleaseManager()
        >>> asyncio.run(fc.learning.programs.train_model(
        ...     train_process=process, train_data_source=fc.program.DatasetDataSource([client_a, client_b], seed=0),
        ...     train_per_round_clients=2, train_total_rounds=2, train_metrics_manager=metrics,
        ...     program_state_manager=fc.program.FileProgramStateManager(tempfile.mkdtemp()),
        ...     model_output_manager=fc.program.MemoryReleaseManager()))
        >>> list(metrics.values())
        [1, 2]
    """
    _check_periodicity(evaluation_periodicity)
    if should_retry_round is not None and isinstance(train_process, LearningProcess):
        refuse_choosing_from_noise(train_process)
    if evaluation_manager is not None:
        await evaluation_manager.resume_from_previous_state()
    if initial_train_state is None:
        state = await call_async(train_process.initialize)
    else:
        state = await materialize_value(initial_train_state)
    program = ProgramState(state, 0, None, train_data_source.iterator())
    saved, _ = await program_state_manager.load_latest(program)
    if saved is not None:
        program = saved
    else:
        await program_state_manager.save(program, version=0)
        await model_output_manager.release(state, key="training_checkpoint_round_0")
    while program.round_number < train_total_rounds:
        output, retries = await _run_round(train_process, program, train_per_round_clients, should_retry_round)
        number = program.round_number + 1
        is_due, next_time = _evaluation_due(program, number == train_total_rounds, evaluation_periodicity)
        if evaluation_manager is not None and is_due:
            weights = train_process.get_model_weights(output.state)
            began = int(datetime.datetime.now().timestamp())
            await evaluation_manager.start_evaluation(number, began, weights)
        program = ProgramState(output.state, number, next_time, program.data_iterator)
        if train_metrics_manager is not None:
            await train_metrics_manager.release(_metrics_to_release(output.metrics, retries), key=number)
        if number % _MODEL_RELEASE_PERIOD == 0 or number == train_total_rounds:
            key = f"training_checkpoint_round_{number}"
            await model_output_manager.release(output.state, key=key)
        await program_state_manager.save(program, version=number)
    if evaluation_manager is not None:
        await evaluation_manager.wait_for_evaluations_to_finish()


def _check_periodicity(periodicity: Any) -> None:
    if isinstance(periodicity, bool) or not isinstance(periodicity, int | datetime.timedelta):
        raise TypeMismatch(f"evaluation_periodicity is rounds or a datetime.timedelta, not {brief(periodicity)}")
    if isinstance(periodicity, int) and periodicity < 1:
        raise InvalidValue(f"evaluation_periodicity is a number of rounds, 1 or more, not {periodicity}")


async def _run_round(
    process: LearningProcess,
    program: ProgramState,
    clients: int,
    should_retry: Callable[[LearningProcessOutput], bool] | None,
) -> tuple[Any, int]:
    """The result of the next round, and how often the round was run again because `should_retry` refused it."""
    retries = 0
    while True:
        result = await call_async(process.next, program.state, program.data_iterator.select(clients))
        output = LearningProcessOutput(*state_and_metrics(result))
        if should_retry is None or not should_retry(output):
            return output, retries
        retries += 1
        logging.getLogger("fedcore").warning("training round %d runs again", program.round_number + 1)


def _evaluation_due(
    program: ProgramState, is_last: bool, periodicity: int | datetime.timedelta
) -> tuple[bool, int | None]:
    """Whether the next round is evaluated, and when the evaluation after it is due, as in `ProgramState`.

    Args:
        program: the state before the round.
        is_last: whether it is the last round.
    """
    if isinstance(periodicity, int):
        return is_last or (program.round_number + 1) % periodicity == 0, None
    now, due_at = datetime.datetime.now(), program.next_evaluation_timestamp_seconds
    if due_at is None or due_at < now.timestamp():
        return True, int((now + periodicity).timestamp())
    return is_last, due_at


def _metrics_to_release(metrics: Mapping[str, Any], retries: int) -> dict[str, Any]:
    """The metrics of a training round, in the form that `train_model` documents."""
    train_metrics = extract_and_rewrap_metrics(metrics, path=("client_work", "train"))
    return {**train_metrics, "program_metrics": {"num_retries": retries}}
