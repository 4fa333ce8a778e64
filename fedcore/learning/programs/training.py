"""A training that runs: its rounds, its evaluations, its checkpoints."""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from fedcore import context
from fedcore.aggregators.state_containers import PRIVATE_STATES, container_paths
from fedcore.computation.asynchronous import run_awaitable
from fedcore.errors import ExecutionError, FedcoreError, InvalidValue
from fedcore.ir.locations import warn_user
from fedcore.learning.asynchronous_process import AsynchronousProcess
from fedcore.learning.client_state_process import ClientStateProcess
from fedcore.learning.process import LearningProcess, LearningProcessOutput
from fedcore.learning.programs.callback import Callback
from fedcore.learning.programs.checkpoint_writer import CheckpointWriter
from fedcore.learning.programs.client_memory import ClientMemory, containers_of
from fedcore.learning.programs.cohorts import Cohorts
from fedcore.learning.programs.history import TIME, History, measures, row_of
from fedcore.learning.programs.starting_models import StartingModels
from fedcore.learning.programs.surroundings import differences, surroundings_of
from fedcore.program import ProgramStateManager, ReleaseManager
from fedcore.program.run_directory import FINISHED, STOPPED, write_run_state
from fedcore.simulation import VirtualClock
from fedcore.slow_steps import timed_slow_steps
from fedcore.templates.iterative import state_and_metrics
from fedcore.types import member_of, strip_placement

PARTS = ("state", "seed", "rows", "seconds", "stopped", "callbacks", "cohorts", "surroundings")
"""The names of the parts of every checkpoint; `Training._checkpoint` gives them in this order."""

CLIENT_STATES = "client_states"
"""The name of the further part of a checkpoint of a `ClientStateProcess`."""

STARTING_MODELS = "starting_models"
"""The name of the further part of a checkpoint of an `AsynchronousProcess`."""


@attrs.frozen(kw_only=True)
class Settings:
    """The arguments of `train` of these names, checked."""

    rounds: int
    evaluate_every: int
    checkpoint_every: int
    retries: int
    should_retry_round: Callable[[LearningProcessOutput], bool] | None = None
    directory: Path | None = None


class Training:
    """A running training; callbacks see it as `self.training`.

    Guarantees:
      - Rounds depend on the process, its state, the seed and the data only, not on evaluations, releases or resumes.
      - A checkpoint is written after the round's releases and beside the next round, so after a crash at most the
        rounds since the last complete checkpoint are run again, and release managers that replace by key end as after
        an unbroken run.

    Attributes:
        process: the learning process.
        state: its state; a callback may assign it.
        round: the round that runs, or ran last; the first is 1, and 0 stands before it.
        rounds: the number of the last round.
        history: the rows so far.
        measures: the names of the model's metrics that are measured, not counted, without `val_` and without what
            callbacks add; empty before the first round.
        stop_training: whether the training ends after this round.
        directory: where its files are; None without one.
        client_states: the states that clients keep, by client id; empty for a process without.
    Args:
        cohorts: draws the clients of each round.
        seed: the training's, which checkpoints keep.
        evaluate: (training state, round) -> metrics of the global model by name. None: no evaluation.
        state_manager: keeps the checkpoints. None: there are none.
        memory: the states of the clients of a `ClientStateProcess`. None for another process.
        clock: says which clients' work each round gets, and when it ends. None: rounds have no times.
    """

    def __init__(
        self,
        process: LearningProcess,
        cohorts: Cohorts,
        seed: int,
        settings: Settings,
        *,
        evaluate: Callable[[Any, int], Any] | None,
        callbacks: Sequence[Callback],
        release_managers: Sequence[ReleaseManager],
        state_manager: ProgramStateManager | None,
        memory: ClientMemory | None,
        clock: VirtualClock | None,
    ) -> None:
        self.process = process
        self.state: Any = None
        self.round = 0
        self.rounds = settings.rounds
        self.directory = settings.directory
        self.history = History()
        self.measures: list[str] = []
        self.stop_training = False
        self._cohorts = cohorts
        self._seed = seed
        self._settings = settings
        self._evaluate = evaluate
        self._callbacks = list(callbacks)
        self._release_managers = list(release_managers)
        self._state_manager = state_manager
        self._memory = memory
        self._clock = clock
        self._models = StartingModels(process) if isinstance(process, AsynchronousProcess) else None
        self._writer: CheckpointWriter | None = None
        self._surroundings: dict[str, str] = {}

    @property
    def client_ids(self) -> list:
        """The identifiers of the clients that the newest round drew; of a data source, which has none, []."""
        return getattr(self._cohorts, "client_ids", [])

    @property
    def client_states(self) -> Mapping:
        return {} if self._memory is None else self._memory.states

    @property
    def number_of_clients(self) -> int | None:
        """How many clients there are to draw from; None for a data source, which does not say."""
        return getattr(self._cohorts, "number_of_clients", None)

    @property
    def evaluates(self) -> bool:
        """Whether some rounds are evaluated."""
        return self._evaluate is not None

    def run(self, initial_state: Callable[[], Any]) -> History:
        """Runs the rounds that are not yet run.

        Args:
            initial_state: makes the state of a training that begins.
        """
        for callback in self._callbacks:
            callback.set_training(self)
        if self._state_manager is not None:
            self._surroundings = surroundings_of(self.process)
        if not self._resume():
            if self._memory is not None:
                self._memory.begin(None)
            self.state = initial_state()
        for callback in self._callbacks:
            callback.on_train_begin()
        with contextlib.ExitStack() as stack:
            if self._memory is not None:
                stack.callback(self._memory.states.close)
            if self._state_manager is not None:
                self._writer = stack.enter_context(CheckpointWriter(self._state_manager))
            compile_seconds = stack.enter_context(timed_slow_steps())
            while self.round < self.rounds and not self.stop_training:
                self._run_round(compile_seconds)
        if self.directory is not None:
            write_run_state(self.directory, FINISHED if self.round >= self.rounds else STOPPED)
        for callback in self._callbacks:
            callback.on_train_end()
        self.history.client_states = self.client_states
        self.history.state = self.state
        self.history.seed = self._seed
        return self.history

    def _run_round(self, compile_seconds: Callable[[], float]) -> None:
        """Runs the next round, with its callbacks, evaluation and releases, and its checkpoint if one is due.

        Args:
            compile_seconds: how long this training has compiled so far; a row's seconds leave that time out.
        """
        self.round += 1
        began, compiled = time.perf_counter(), compile_seconds()
        for callback in self._callbacks:
            callback.on_round_begin(self.round)
        output, counts = self._next()
        self.state = output.state
        for callback in self._callbacks:
            callback.on_result(self.round)
        is_last = self.round == self.rounds
        evaluated = None
        if self._evaluate is not None and (is_last or self.round % self._settings.evaluate_every == 0):
            evaluated = self._evaluation(self._evaluate)
        row = row_of(self.round, output.metrics, evaluated, counts)
        self.measures = measures([row])
        self.history.rows.append(row)
        self.history.seconds.append(time.perf_counter() - began - (compile_seconds() - compiled))
        for callback in self._callbacks:
            callback.on_round_end(self.round, row)
        # A list would be a structure of numbers; a metric that is an array is one leaf.
        released = {k: np.array(v) if isinstance(v, list) else v for k, v in row.items() if k != "round"}
        for manager in self._release_managers:
            run_awaitable(manager.release(released, self.round))
        if self._writer is None:
            return
        if is_last or self.stop_training or self.round % self._settings.checkpoint_every == 0:
            self._save()
        else:
            self._writer.check()

    def _next(self) -> tuple[LearningProcessOutput, dict[str, int]]:
        """(The result of the round, the counted columns of its row by name); stores the clients' new states.

        After an error the round runs again with the same cohort, after a refused result with another one.

        Raises:
            ExecutionError: no attempt gave a result that is to be kept.
        """
        refused_results, attempts, refuses = 0, self._settings.retries + 1, self._settings.should_retry_round
        cohort = self._cohorts.draw(self.round - 1, refused_results)
        for attempt in range(1, attempts + 1):
            try:
                output, client_states = self._call(cohort)
            except (ExecutionError, OSError) as error:
                if attempt == attempts:
                    raise
                logging.getLogger("fedcore").warning("round %d runs again: %s", self.round, error)
                continue
            report = context.last_report()
            assert report is not None
            if refuses is None or not refuses(output):
                if self._memory is not None:
                    self._memory.put(self.client_ids, client_states, self.round)
                return output, self._counts(len(cohort), report.broadcast_bits, report.aggregate_bits)
            refused_results += 1
            logging.getLogger("fedcore").warning("round %d runs again with other clients", self.round)
            cohort = self._cohorts.draw(self.round - 1, refused_results)
        raise ExecutionError(f"round {self.round}: should_retry_round refused the results of all {attempts} attempts")

    def _evaluation(self, evaluate: Callable[[Any, int], Any]) -> Any:
        """The metrics of the round's model. After an error only the evaluation runs again, not the round."""
        for _ in range(self._settings.retries):
            try:
                return evaluate(self.state, self.round)
            except (ExecutionError, OSError) as error:
                logging.getLogger("fedcore").warning("the evaluation of round %d runs again: %s", self.round, error)
        return evaluate(self.state, self.round)

    def _counts(self, clients: int, broadcast_bits: int, aggregate_bits: int) -> dict[str, Any]:
        """The counted columns of the round's row by name: clients, bits, and those of the clock.

        Drops the models from which no client is at work any more.

        Args:
            clients: how many clients' work the round got.
            broadcast_bits, aggregate_bits: of the round's report. The report counts no models of an
                `AsynchronousProcess`; they are added here.
        """
        clock_round = None if self._clock is None else self._clock.round(self.round - 1)
        if self._models is not None:
            broadcast_bits += self._models.bits * (clients if clock_round is None else clock_round.selected)
            self._models.retain(frozenset() if clock_round is None else clock_round.in_flight)
        counts: dict[str, Any] = {"clients": clients}
        counts |= {"broadcast_bits": broadcast_bits, "aggregate_bits": aggregate_bits}
        if clock_round is not None:
            counts |= {TIME: clock_round.ends_s, "clock/selected": clock_round.selected}
            if self._models is not None:
                staleness = [self.round - 1 - version for version in clock_round.versions]
                counts["clock/staleness"] = float(np.mean(staleness)) if staleness else 0.0
        return counts

    def _call(self, cohort: Any) -> tuple[LearningProcessOutput, Sequence]:
        """The result of one call of the process, and the new states of the cohort's clients; () if they keep none.

        An `AsynchronousProcess` also takes the model that each client began from, a `ClientStateProcess` the state of
        each client.
        """
        if self._models is not None:
            newest = self.round - 1  # model r is that after r rounds; without a clock, all clients begin from it
            self._models.add(newest, self.state.global_model_weights)
            versions = (newest,) * len(cohort) if self._clock is None else self._clock.round(newest).versions
            output = self.process.next(self.state, cohort, self._models.starts(versions, newest))
            return LearningProcessOutput(*state_and_metrics(output)), ()
        if self._memory is None:
            return LearningProcessOutput(*state_and_metrics(self.process.next(self.state, cohort))), ()
        states = self._memory.cohort_states(self.client_ids, self.state)
        state, metrics, client_states = self.process.next(self.state, cohort, states)
        return LearningProcessOutput(state, metrics), client_states

    def _save(self) -> None:
        """Begins to write a checkpoint, and before it the states of clients."""
        assert self._writer is not None
        checkpoint, write_states = self._checkpoint(), None
        if self._memory is not None:
            checkpoint[CLIENT_STATES], write_states = self._memory.states.begin_save(self.round)
        if self._models is not None:
            checkpoint[STARTING_MODELS] = self._models.checkpoint()
        self._writer.save(checkpoint, self.round, write_states)

    def _checkpoint(self) -> dict[str, Any]:
        """The parts of a checkpoint that every process has: `PARTS`."""
        parts = (
            self.state,
            self._seed,
            json.dumps(self.history.rows),
            np.array(self.history.seconds),
            self.stop_training,
            self._callback_states(),
            self._cohorts.get_state(),
            self._surroundings,
        )
        return dict(zip(PARTS, parts, strict=True))

    def _callback_states(self) -> list[tuple[str, Any]]:
        """The callbacks that have a state, by the names of their classes."""
        states = [(type(callback).__name__, callback.get_state()) for callback in self._callbacks]
        return [(name, state) for name, state in states if state is not None]

    def _resume(self) -> bool:
        """Goes on from the newest checkpoint that is whole; False if there is none.

        Raises:
            InvalidValue: the checkpoint is that of another training.
        """
        if self._state_manager is None:
            return False
        checkpoint, version = run_awaitable(self._state_manager.load_latest(checkpoint_structure(self.process)))
        if checkpoint is None:
            return False
        try:
            self._go_on_from(checkpoint, version)
        except FedcoreError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise InvalidValue(f"the checkpoint of round {version} is none of a training: {error}") from error
        return True

    def _go_on_from(self, checkpoint: dict[str, Any], version: int) -> None:
        """Restores the training from the checkpoint of round `version`; warns if plan, packages or threads changed.

        Raises:
            InvalidValue: the checkpoint has another seed, other callbacks, or another time of its last round.
        """
        if checkpoint["seed"] != self._seed:
            raise InvalidValue(
                f"the checkpoints are those of seed {checkpoint['seed']}, not {self._seed}: take that seed"
            )
        states = self._callback_states()
        if [name for name, _ in checkpoint["callbacks"]] != [name for name, _ in states]:
            have, want = (
                ", ".join(name for name, _ in callbacks) or "none" for callbacks in (checkpoint["callbacks"], states)
            )
            raise InvalidValue(f"the checkpoint has states of the callbacks {have}; those that are given are {want}")
        changed = differences(checkpoint["surroundings"], self._surroundings)
        if changed:
            text = "the checkpoint was written otherwise, so further rounds may differ from those of an unbroken run"
            warn_user("\n  ".join([text, *changed]))
        if self._memory is not None:
            self._memory.begin((checkpoint[CLIENT_STATES], version))
        if self._clock is not None:
            _check_time(self._clock, version, json.loads(checkpoint["rows"]))
        if self._models is not None:
            self._models.begin(checkpoint[STARTING_MODELS])
        self.state, self.round, self.stop_training = checkpoint["state"], version, checkpoint["stopped"]
        self.history = History(json.loads(checkpoint["rows"]), checkpoint["seconds"].tolist())
        callbacks = [callback for callback in self._callbacks if callback.get_state() is not None]
        for callback, (_, state) in zip(callbacks, checkpoint["callbacks"], strict=True):
            callback.set_state(state)
        if checkpoint["cohorts"] is not None:
            self._cohorts.set_state(checkpoint["cohorts"])


def refuse_choosing_from_noise(process: LearningProcess) -> None:
    """Refuses `should_retry_round` for a process whose results must not be chosen from.

    Raises:
        InvalidValue: it adds noise.
    """
    paths = [".".join(path) for path in container_paths(member_of(process.state_type), PRIVATE_STATES)]
    if paths:
        raise InvalidValue(
            f"should_retry_round looks at results of a process that adds noise (by the state's {', '.join(paths)})\n"
            "  each result is a release that costs privacy, and the results of one round have the same noise, so that\n"
            "  two of them tell of the clients without noise\n"
            "  fix: leave out should_retry_round; rounds that fail run again by retries alone"
        )


def _check_time(clock: VirtualClock, version: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuses a checkpoint whose last round ended at another time than the clock says.

    Args:
        version: the number of that round; that of 0, before the first, has no time.
        rows: the history of the checkpoint.
    Raises:
        InvalidValue: the times differ, or the rows have none.
    """
    have = next((row.get(TIME) for row in reversed(rows)), None)
    if version and have != clock.round(version - 1).ends_s:
        when = "had no time" if have is None else f"ended at {have} s"
        raise InvalidValue(
            f"the checkpoints are those of another clock: round {version} {when}, and ends at "
            f"{clock.round(version - 1).ends_s} s by this one\n"
            "  fix: the devices and the seeds of the first call; a clock without seed= draws one"
        )


def checkpoint_structure(process: LearningProcess) -> dict[str, Any]:
    """The structure of a process's checkpoints, for `ProgramStateManager.load_latest`: by part, None where any fits.

    The state alone has a structure to restore: its containers, such as `ModelWeights`.
    """
    parts = {**dict.fromkeys(PARTS), "state": containers_of(strip_placement(process.state_type))}
    if isinstance(process, AsynchronousProcess):
        return {**parts, STARTING_MODELS: None}
    return {**parts, CLIENT_STATES: None} if isinstance(process, ClientStateProcess) else parts
