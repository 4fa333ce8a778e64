"""Runs a learning process for many rounds, with everything around it.

Decision 0130.
"""

import contextlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import keras

from fedcore.computation.asynchronous import run_awaitable
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.learning.asynchronous_process import AsynchronousProcess
from fedcore.learning.client_state_process import ClientStateProcess
from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.learning.programs.callback import Callback
from fedcore.learning.programs.client_memory import ClientMemory
from fedcore.learning.programs.cohorts import as_client_data, check_type, cohorts_of, evaluation_client_data
from fedcore.learning.programs.history import History, plain_metrics
from fedcore.learning.programs.keras_callbacks import with_keras_callbacks
from fedcore.learning.programs.progress_bar import ProgressBar
from fedcore.learning.programs.training import (
    Settings,
    Training,
    checkpoint_structure,
    refuse_choosing_from_noise,
)
from fedcore.program import (
    ClientStates,
    CSVFileReleaseManager,
    FederatedDataSource,
    FileProgramStateManager,
    MemoryClientStates,
    ProgramStateManager,
    ReleaseManager,
    SQLiteClientStates,
    TensorBoardReleaseManager,
)
from fedcore.program.optional_packages import is_installed
from fedcore.program.run_directory import CHECKPOINTS, CLIENT_STATES, METRICS, SUMMARIES, record_state, used_alone
from fedcore.scalars import seed_number, whole_number
from fedcore.seeds import fold_in
from fedcore.simulation import Sampler, VirtualClock
from fedcore.templates.iterative import state_and_metrics

if TYPE_CHECKING:
    import tensorflow as tf

    from fedcore.simulation.datasets import ClientData

    Datasets = Sequence[tf.data.Dataset] | Mapping[str, tf.data.Dataset]


_FIT_REPLACEMENTS = {
    "epochs": "rounds=…; a client's epochs are data.preprocess(lambda dataset: dataset.repeat(epochs).batch(32))",
    "initial_epoch": "directory=…, from which a training goes on",
    "batch_size": "data.preprocess(lambda dataset: dataset.batch(32))",
    "shuffle": "data.preprocess(lambda dataset: dataset.shuffle(1000).batch(32))",
    "steps_per_epoch": "data.preprocess(lambda dataset: dataset.batch(32).take(steps))",
    "class_weight": "fc.learning.from_keras_model(model, class_weight=…)",
    "sample_weight": "batches (x, y, sample_weight)",
    "validation_split": "data, evaluation_data = data.train_validation_split(0.2), before batch()",
    "validation_data": "evaluation=fc.learning.algorithms.build_fed_eval(model_fn), evaluation_data=…",
    "validation_freq": "evaluate_every=…",
    "verbose": "progress=True or progress=False",
}
"""By argument of Keras' `fit`: what a user of `train` writes instead."""

_FunctionT = TypeVar("_FunctionT", bound=Callable)


def _refuse_arguments_of_fit(fn: _FunctionT) -> _FunctionT:
    """Decorates `train`, so that an argument of Keras' `fit` raises a TypeMismatch that names its replacement."""

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        name = next((name for name in kwargs if name in _FIT_REPLACEMENTS), None)
        if name is not None:
            raise TypeMismatch(f"{name} is an argument of Keras' fit, not of train\n  fix: {_FIT_REPLACEMENTS[name]}")
        return fn(*args, **kwargs)

    return call  # type: ignore[return-value]


@_refuse_arguments_of_fit
def train(
    process: LearningProcess,
    data: "ClientData | FederatedDataSource | Datasets",
    rounds: int,
    *,
    clients_per_round: int | None = 10,
    sampler: Sampler | Callable[[int], Sequence] | None = None,
    clock: VirtualClock | None = None,
    seed: int | None = None,
    directory: str | os.PathLike | None = None,
    initial_state: LearningAlgorithmState | None = None,
    evaluation: LearningProcess | None = None,
    evaluation_data: "ClientData | Datasets | tf.data.Dataset | tuple | None" = None,
    evaluate_every: int = 10,
    evaluation_clients: int | None = None,
    callbacks: Sequence["Callback | keras.callbacks.Callback"] = (),
    release_managers: Sequence[ReleaseManager] = (),
    program_state_manager: ProgramStateManager | None = None,
    checkpoint_every: int = 1,
    client_states: ClientStates | None = None,
    retries: int = 0,
    should_retry_round: Callable[[LearningProcessOutput], bool] | None = None,
    hparams: Mapping[str, bool | int | float | str] | None = None,
    progress: bool | None = None,
) -> History:
    """Trains for some rounds: samples clients, evaluates, shows progress, writes metrics and checkpoints, resumes.

    Types, for a state S, batches B and metrics M:
        process     next (<S@SERVER,{B*}@CLIENTS> -> <state=S@SERVER,metrics=M@SERVER>), or a `ClientStateProcess` or
                    `AsynchronousProcess`
        evaluation  as `build_fed_eval` builds it, of the same model
        data        for each client B*

    Called again with the same directory, it goes on after the last checkpoint: to resume a run that was killed, or for
    more rounds. The result is then, bit for bit, that of an unbroken run. The last round of each call is evaluated.

    Args:
        process, data: what is trained, and the clients that it is trained with; also a list of their data sets, of
            batches, which are named `client_0`, `client_1`, … as by `fc.simulation.datasets.from_clients`, or a dict of
            them by client id.
        rounds: the number of the last round, from 1: so many rounds in all, over all calls with this directory.
        clients_per_round: None for all clients in every round.
        sampler: draws the clients of each round from their identifiers, as many as it is built for or, if it takes a
            size, `clients_per_round`; or a function from the number of rounds before, 0 for the first, to the
            identifiers of the round, which a resume calls with the same numbers. A round that is run again has the same
            clients. Default: uniformly, see `seed`.
        clock: decides in place of `clients_per_round` and `sampler` which clients' work each round gets, and when it
            ends, by the times of their devices: a `fc.simulation.SynchronousClock` or, for an `AsynchronousProcess`, a
            `BufferedClock`. The history has the columns `clock/…` and `time_to`. Default: rounds have no times.
        seed: decides the first weights, the clients of each round, and what they draw: the state is
            `process.initialize.invoke(seed=seed)`, and the round after r rounds has the clients
            `build_uniform_sampling_fn(data.client_ids, seed=seed)(r, clients_per_round)`. Default: the seed of the
            directory's checkpoint, or drawn; `history.seed` has it.
        directory: gets the checkpoints, `metrics.csv`, `run_state.json` and, with the extra `tensorboard`, the
            directory `tensorboard`. Default: nothing is written.
        initial_state: the state to begin with. Default: that of `process.initialize`.
        evaluation, evaluation_data: computes metrics `val_…` of the global model, on clients of their own, given as
            `data`; or on a data set of batches; or on arrays (x, y), (x, y, sample_weight) or, of a model without
            labels, x, in batches of 32 as those of Keras' `evaluate`. Default: no evaluation.
        evaluate_every: every how many rounds.
        evaluation_clients: clients of an evaluation, sampled. Default: all.
        callbacks: see `Callback`. Those of Keras run where they read logs and weights only: a round is an epoch to
            them, and `model` the Keras model that the process was built of.
        release_managers: get each round's metrics, with its number as the key; those of the directory come first.
        program_state_manager: keeps the checkpoints. Default: a `FileProgramStateManager` of the directory that keeps
            the last 3; one with `keep_total=` and `keep_every_k=` of your own keeps others. See its `begin_save`.
        checkpoint_every: every how many rounds a checkpoint is written, beside the next round; one is always written
            after the last round.
        client_states: keeps the states of the clients of a `ClientStateProcess`, such as a
            `fc.program.SQLiteClientStates`. Default: the file `client_states.sqlite` of the directory; in memory
            where there is none, and then in the checkpoints of `program_state_manager`.
        retries: how often a round, or an evaluation, is run again that raises an `ExecutionError` or an `OSError`: with
            the same clients, from the same state. Default: never.
        should_retry_round: whether the result of a round is refused; the round is then run again, up to `retries`
            times, with other clients. Default: none is refused. Not for a process that adds noise: each result that it
            looks at would be a release, and all of a round would have the same noise.
        hparams: settings of this run by name, which TensorBoard's tab HPARAMS shows beside its metrics; for a
            directory. Default: none.
        progress: whether a line is printed for each round, and a bar on a terminal. Default: on a terminal and in a
            notebook.
    Returns:
        A `History`: a row for each round, the final state, and the states of clients, by client id.
    Raises:
        TypeMismatch: an argument is of the wrong kind, or one of Keras' `fit`; the first client's data do not fit the
            model, which is found before anything runs or is written.
        InvalidValue: the clients are fewer than a round has; results with noise may be refused; the directory is in
            use, or has checkpoints of another seed or of another process; all its checkpoints are damaged (of some the
            newest that is whole is used, with a warning).
        ExecutionError: a round failed, and failed again `retries` times.
        OSError: a file cannot be written, such as on a full disk: the checkpoints before stay. For a checkpoint it is
            raised at the end of a later round, or of the training.
    Example:
        >>> import os, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> first = fc.learning.programs.train(process, data, 1, clients_per_round=2, seed=7, directory=folder)
        >>> whole = fc.learning.programs.train(process, data, 3, clients_per_round=2, seed=7, directory=folder)
        >>> [row['round'] for row in whole], sorted(os.listdir(folder))
        ([1, 2, 3], ['checkpoints', 'metrics.csv', 'run_state.json', 'tensorboard'])
    """
    _check_kinds(process, callbacks, release_managers)
    data = as_client_data("data", data)
    check_type("data", data, "process", process)
    _check_client_states(process, data, client_states)
    if clock is not None:
        _check_clock(clock, process, data, sampler)
        sampler = partial(_clients_by_clock, clock)
    _check_evaluation(evaluation, evaluation_data)
    if should_retry_round is not None:
        refuse_choosing_from_noise(process)
    settings = Settings(
        rounds=whole_number("rounds", rounds, at_least=0),
        evaluate_every=whole_number("evaluate_every", evaluate_every, at_least=1),
        checkpoint_every=whole_number("checkpoint_every", checkpoint_every, at_least=1),
        retries=whole_number("retries", retries, at_least=0),
        should_retry_round=should_retry_round,
        directory=None if directory is None else Path(directory),
    )
    # A sampler without `takes_size` and a plain function decide themselves how many clients they draw.
    size = clients_per_round if sampler is None or getattr(sampler, "takes_size", False) else None
    with contextlib.ExitStack() as stack:
        state_manager, metric_managers = program_state_manager, list(release_managers)
        if directory is not None:
            stack.enter_context(used_alone(Path(directory)))
            stack.enter_context(record_state(Path(directory)))
            state_manager = state_manager or _checkpoint_manager(Path(directory))
            metric_managers = [*_file_managers(Path(directory), hparams), *metric_managers]
        bar = ProgressBar()
        stack.callback(bar.close)
        training_seed = _training_seed(seed, state_manager)
        memory = None
        if isinstance(process, ClientStateProcess):
            states = _open_client_states(settings.directory, state_manager) if client_states is None else client_states
            memory = ClientMemory(process, states, training_seed)
        training = Training(
            process,
            cohorts_of("data", data, size, training_seed, bar.on_client, sampler),
            training_seed,
            settings,
            evaluate=_build_evaluation(evaluation, evaluation_data, evaluation_clients, training_seed),
            callbacks=[*with_keras_callbacks(callbacks), *([bar] if _shows_progress(progress) else [])],
            release_managers=metric_managers,
            state_manager=state_manager,
            memory=memory,
            clock=clock,
        )
        return training.run(lambda: initial_state or process.initialize.invoke(seed=training_seed))


def _checkpoint_manager(directory: Path) -> FileProgramStateManager:
    return FileProgramStateManager(directory / CHECKPOINTS, keep_total=3, keep_first=False)


def _open_client_states(directory: Path | None, manager: ProgramStateManager | None) -> ClientStates:
    """The store of the clients' states: the file of a training's directory; in memory without a directory.

    A directory without a checkpoint may hold the states of a first round that was killed: they are deleted, since the
    training begins anew.
    """
    if directory is None:
        return MemoryClientStates()
    path = directory / CLIENT_STATES
    if manager is None or not run_awaitable(manager.get_versions()):
        for ending in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
    return SQLiteClientStates(path)


def _file_managers(directory: Path, hparams: Mapping[str, bool | int | float | str] | None) -> list[ReleaseManager]:
    """The release managers that write a directory's `metrics.csv` and, if it is installed, for TensorBoard.

    Raises:
        InvalidValue: `metrics.csv` is damaged.
    """
    path = directory / METRICS
    try:
        table = CSVFileReleaseManager(path, key_fieldname="round")
    except InvalidValue as error:
        raise InvalidValue(
            f"{path} is damaged: it is no table of a training's rounds\n"
            "  fix: move it away; the training goes on with a new one, of the rounds to come"
        ) from error
    if not is_installed("tensorboard"):
        return [table]
    return [table, TensorBoardReleaseManager(directory / SUMMARIES, hparams=hparams)]


def _check_evaluation(evaluation: Any, data: Any) -> None:
    """Refuses an evaluation without data, data without an evaluation, and data that do not fit the evaluation."""
    if (evaluation is None) != (data is None):
        raise TypeMismatch("evaluation and evaluation_data are given together: the process and its clients")
    if isinstance(data, FederatedDataSource):
        raise TypeMismatch("evaluation_data is a fc.simulation.datasets.ClientData, not a FederatedDataSource")
    if evaluation is None:
        return
    if not isinstance(evaluation, LearningProcess):
        raise TypeMismatch(f"evaluation is a process, as of build_fed_eval(model_fn), not {brief(evaluation)}")
    check_type("evaluation_data", evaluation_client_data(data), "evaluation", evaluation)


def _check_kinds(process: Any, callbacks: Sequence[Any], release_managers: Sequence[Any]) -> None:
    """Refuses arguments of `train` of another kind than its signature says."""
    if not isinstance(process, LearningProcess):
        raise TypeMismatch(f"process is a fc.learning.LearningProcess, not {brief(process)}")
    parameters = process.next.module.main.parameters
    if len(parameters) != 2 and not isinstance(process, ClientStateProcess | AsynchronousProcess):
        names = ", ".join(p.name for p in parameters)
        raise TypeMismatch(
            f"train calls process.next(state, data), but next takes {names}: write the loop yourself; a process whose "
            "clients keep a state is a fc.learning.ClientStateProcess, one whose clients begin from older models a "
            "fc.learning.AsynchronousProcess"
        )
    for name, entries in (("callbacks", callbacks), ("release_managers", release_managers)):
        if not isinstance(entries, list | tuple):
            raise TypeMismatch(f"{name} is a list, not {brief(entries)}\n  fix: {name}=[…]")
    for callback in callbacks:
        if not isinstance(callback, Callback | keras.callbacks.Callback):
            raise TypeMismatch(f"a callback is a fc.learning.programs.Callback or one of Keras, not {brief(callback)}")
    for manager in release_managers:
        if not isinstance(manager, ReleaseManager):
            raise TypeMismatch(f"a release manager is a fc.program.ReleaseManager, not {brief(manager)}")


def _check_client_states(process: LearningProcess, data: Any, client_states: Any) -> None:
    if client_states is not None and not isinstance(client_states, ClientStates):
        raise TypeMismatch(
            f"client_states is a fc.program.ClientStates, such as SQLiteClientStates(path), not {brief(client_states)}"
        )
    if not isinstance(process, ClientStateProcess):
        if client_states is not None:
            raise TypeMismatch(f"client_states is for a fc.learning.ClientStateProcess, not {brief(process)}")
    elif isinstance(data, FederatedDataSource):
        raise TypeMismatch(
            "clients that keep a state are known by their ids, which a FederatedDataSource does not tell: data is a "
            "fc.simulation.datasets.ClientData"
        )


def _check_clock(clock: Any, process: LearningProcess, data: Any, sampler: Any) -> None:
    """Refuses what is no clock, and a sampler, data or a process that do not go with the clock."""
    if not isinstance(clock, VirtualClock):
        raise TypeMismatch(
            f"clock is a fc.simulation.VirtualClock, such as SynchronousClock(devices, 10), not {brief(clock)}"
        )
    if sampler is not None:
        raise TypeMismatch("clock selects the clients of each round: leave out sampler")
    if isinstance(data, FederatedDataSource):
        raise TypeMismatch(
            "the clients of a clock are known by their ids, which a FederatedDataSource does not tell: data is a "
            "fc.simulation.datasets.ClientData"
        )
    if clock.is_buffered and not isinstance(process, AsynchronousProcess):
        raise TypeMismatch(
            f"the clients of a {type(clock).__name__} begin from models of earlier rounds, but each round of this "
            "process begins from the newest\n"
            "  fix: fc.learning.algorithms.build_fed_buff, or another fc.learning.AsynchronousProcess"
        )
    missing = set(clock.devices.client_ids).difference(data.client_ids)
    if missing:
        raise InvalidValue(f"the clock has a device of client {brief(min(missing, key=str))}, who is not in data")


def _clients_by_clock(clock: VirtualClock, rounds_before: int) -> Sequence:
    """A sampler of `train`: the ids of the clients whose work the clock puts into a round."""
    return clock.round(rounds_before).client_ids


def _training_seed(seed: int | None, manager: ProgramStateManager | None) -> int:
    """The seed that was given; else that of the newest checkpoint; else a drawn one."""
    if seed is not None:
        return seed_number("seed", seed)
    checkpoint = None if manager is None else run_awaitable(manager.load_latest(None))[0]
    return random.SystemRandom().getrandbits(63) if checkpoint is None else checkpoint["seed"]


def _shows_progress(progress: bool | None) -> bool:
    """Whether a training prints its progress: as the user says, else on a terminal or in a notebook."""
    if progress is not None:
        return progress
    from rich.console import Console

    console = Console()
    return console.is_terminal or console.is_jupyter


def _build_evaluation(
    evaluation: LearningProcess | None, data: Any, clients: int | None, seed: int
) -> Callable[[Any, int], Any] | None:
    """The function (training state, round) -> metrics of the global model by name; None without an evaluation.

    Args:
        data: the evaluation data as the user gives them to `train`.
        clients: how many clients each evaluation samples; None for all.
        seed: the training's, from which the evaluation's own is derived, so that it draws other numbers.
    """
    if evaluation is None:
        return None
    seed = fold_in(seed, 0)
    cohorts = cohorts_of("evaluation_data", evaluation_client_data(data), clients, seed, lambda read, size: None)
    first_state: list[Any] = []  # holds the evaluation's initial state from the first call on

    def evaluate(state: Any, round_number: int) -> Any:
        if not first_state:
            first_state.append(evaluation.initialize.invoke(seed=seed))
        eval_state = evaluation.set_model_weights(first_state[0], state.global_model_weights)
        _, metrics = state_and_metrics(evaluation.next(eval_state, cohorts.draw(round_number, 0)))
        work = metrics.get("client_work", metrics)
        return work["eval"]["current_round_metrics"] if "eval" in work else work

    return evaluate


def evaluate_state(evaluation: LearningProcess, data: "ClientData", state: Any) -> dict[str, Any]:
    """The metrics of a state's global model over all clients, as Python's numbers and lists."""
    compute = _build_evaluation(evaluation, data, clients=None, seed=0)
    assert compute is not None
    return plain_metrics(compute(state, 0))


def newest_state(process: LearningProcess, directory: str | os.PathLike) -> tuple[Any, int]:
    """The state of the newest checkpoint of a training's directory, and its round; (None, 0) if there is none."""
    checkpoint, version = run_awaitable(_checkpoint_manager(Path(directory)).load_latest(checkpoint_structure(process)))
    return (None, 0) if checkpoint is None else (checkpoint["state"], version)
