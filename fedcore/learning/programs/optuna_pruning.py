"""Tells a trial of Optuna how a training does, and ends the training where Optuna prunes the trial."""

from typing import TYPE_CHECKING, Any

from fedcore.errors import TypeMismatch, brief
from fedcore.learning.programs.callback import Callback
from fedcore.learning.programs.monitor import Monitor
from fedcore.program.optional_packages import optional_package

if TYPE_CHECKING:
    import optuna


class OptunaPruning(Callback):
    """Reports a metric of each round to a trial of Optuna; the pruner of its study may end the training.

    Types: the metric is a number in the logs; one of the evaluation, `val_…`, is reported in evaluated rounds.

    Args:
        trial: as the objective of `optuna.study.Study.optimize` gets it.
        monitor: the metric that the study optimizes.
    Raises:
        optuna.TrialPruned: by `train`, after the round's checkpoint, where the pruner ends the trial; `Study.optimize`
            expects it of an objective.
        NotFound: the rounds have no such metric.
        TypeMismatch: `trial` is none.
        InvalidValue: optuna is not installed (extra `optuna`).
    Example:
        >>> import optuna
        >>> def objective(trial):
        ...     rate = trial.suggest_float('rate', 0.01, 1.0, log=True)
        ...     process = fc.learning.algorithms.build_fed_sgd(model_fn, fc.learning.optimizers.build_sgdm(rate))
        ...     pruning = fc.learning.programs.OptunaPruning(trial, 'loss')
        ...     history = fc.learning.programs.train(process, data, 3, clients_per_round=2, seed=0, callbacks=[pruning])
        ...     return history['loss'][-1]
        >>> study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
        >>> study.optimize(objective, n_trials=2)
        >>> len(study.trials)
        2
    """

    def __init__(self, trial: "optuna.Trial", monitor: str = "val_loss") -> None:
        self._optuna = optional_package("optuna", "OptunaPruning", extra="optuna")
        if not isinstance(trial, self._optuna.trial.BaseTrial):
            raise TypeMismatch(f"trial is an optuna.Trial, not {brief(trial)}")
        self._trial = trial
        self._monitor = Monitor(monitor, "auto")
        self._is_pruned = False

    def on_round_end(self, round_number: int, logs: dict[str, Any]) -> None:
        value = self._monitor.value(logs)
        if value is None:
            return
        self._trial.report(value, round_number)
        self._is_pruned = self._trial.should_prune()
        self.training.stop_training |= self._is_pruned

    def on_train_end(self) -> None:
        if self._is_pruned:
            raise self._optuna.TrialPruned(f"the pruner ended it after round {self.training.round}")
        self._monitor.check_was_there(self.training.history.rows)
