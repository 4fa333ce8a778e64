"""TFF's training loop: rounds, evaluation, saved states and released metrics."""

from __future__ import annotations

import collections
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

from fedcore.computation.asynchronous import run_awaitable
from fedcore.errors import TypeMismatch, brief
from fedcore.scalars import whole_number
from fedcore.templates import IterativeProcess
from fedcore.templates.iterative import state_and_metrics

ROUND_NUMBER_KEY = "round_number"
ROUND_TIME_KEY = "round_time_in_seconds"
TRAINING_TIME_KEY = "training_time_in_seconds"
EVALUATION_TIME_KEY = "evaluation_time_in_seconds"
EVALUATION_METRICS_PREFIX = "evaluation/"

Metrics = MutableMapping[str, Any]


def run_training_process(
    training_process: IterativeProcess,
    training_selection_fn: Callable[[int], Any],
    total_rounds: int,
    evaluation_fn: Callable[[Any, Any], Mapping[str, Any]] | None = None,
    evaluation_selection_fn: Callable[[int], Any] | None = None,
    rounds_per_evaluation: int = 1,
    program_state_manager: Any = None,
    rounds_per_saving_program_state: int = 1,
    metrics_managers: Iterable[Any] | None = None,
) -> Any:
    """Runs rounds 1 to `total_rounds` of a process, and returns the last state.

    Round 0 is the initial state: it is evaluated and saved. A run whose manager has a saved state goes on after its
    round. Metrics are those that `next` returns, with `round_number` and `training_time_in_seconds`; where a round is
    evaluated, those of `evaluation_fn` with the prefix `evaluation/`, and `evaluation/evaluation_time_in_seconds`.

    Args:
        training_process: `next : (<state,data> -> <state,metrics>)`, with metrics by name.
        training_selection_fn: round number -> the data of the round's clients.
        total_rounds: how many rounds are run, those of an earlier run included.
        evaluation_fn: (state, data) -> metrics by name. Default: nothing is evaluated.
        evaluation_selection_fn: round number -> the data of clients to evaluate. Default: nothing is evaluated.
        rounds_per_evaluation: rounds from one evaluation to the next.
        program_state_manager: has coroutines `load_latest(structure) -> (state or None, version)` and
            `save(state, version)`; see `fc.program`. Default: nothing is saved.
        rounds_per_saving_program_state: rounds from one saved state to the next.
        metrics_managers: each has a coroutine `release(metrics, key=round number)`; see `fc.program`.
    Raises:
        FedcoreError: a number is out of range, or the metrics of a round have no names.
    Example:
        >>> state = run_training_process(process, lambda round_number: clients, total_rounds=2)
    """
    last_round = whole_number("total_rounds", total_rounds, at_least=0)
    evaluated_every = whole_number("rounds_per_evaluation", rounds_per_evaluation, at_least=1)
    saved_every = whole_number("rounds_per_saving_program_state", rounds_per_saving_program_state, at_least=1)
    managers = list(metrics_managers or ())

    def evaluate(state: object, round_number: int) -> Metrics:
        if evaluation_fn is None or evaluation_selection_fn is None:
            return {}
        began = time.time()
        metrics = _by_name("evaluation_fn", evaluation_fn(state, evaluation_selection_fn(round_number)))
        metrics[EVALUATION_TIME_KEY] = time.time() - began
        return {EVALUATION_METRICS_PREFIX + name: value for name, value in metrics.items()}

    def release(metrics: Metrics, round_number: int) -> None:
        for manager in managers:
            _finish(manager.release(metrics, key=round_number))

    state = training_process.initialize()
    saved, version = (None, 0) if program_state_manager is None else _finish(program_state_manager.load_latest(state))
    if saved is not None:
        state = saved
    else:
        version = 0
        metrics = evaluate(state, 0)
        if metrics:
            release(metrics, 0)
        if program_state_manager is not None:
            _finish(program_state_manager.save(state, 0))

    for round_number in range(version + 1, last_round + 1):
        began = time.time()
        output = training_process.next(state, training_selection_fn(round_number))
        state, round_metrics = state_and_metrics(output)
        metrics = _by_name("training_process.next", round_metrics)
        metrics[TRAINING_TIME_KEY] = time.time() - began
        metrics[ROUND_NUMBER_KEY] = round_number
        if round_number % evaluated_every == 0:
            metrics.update(evaluate(state, round_number))
        release(metrics, round_number)
        if program_state_manager is not None and round_number % saved_every == 0:
            _finish(program_state_manager.save(state, round_number))
    return state


def _by_name(owner: str, metrics: Any) -> Metrics:
    """The metrics as a new dict; TypeMismatch, which names `owner`, where they have no names."""
    if hasattr(metrics, "_asdict"):
        metrics = metrics._asdict()
    if not isinstance(metrics, Mapping):
        raise TypeMismatch(f"run_training_process: the metrics of {owner} are by name, not {brief(metrics)}")
    return collections.OrderedDict(metrics)


def _finish(result: Any) -> Any:
    """The result of an awaitable; anything else as it is."""
    return run_awaitable(result) if inspect.isawaitable(result) else result
