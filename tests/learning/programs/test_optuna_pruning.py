"""`OptunaPruning`: a pruner of Optuna ends trainings."""

import pytest

from fedcore.errors import TypeMismatch
from fedcore.learning import programs

optuna = pytest.importorskip("optuna")


def test_a_pruned_training_has_the_row_and_the_checkpoint_of_its_last_round(process, data, tmp_path):
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.0, n_warmup_steps=2))

    def objective(trial):
        pruning = programs.OptunaPruning(trial, "loss")
        programs.train(process, data, 9, clients_per_round=2, seed=0, directory=tmp_path, callbacks=[pruning])

    study.optimize(objective, n_trials=1)
    (trial,) = study.trials
    assert trial.state == optuna.trial.TrialState.PRUNED
    assert list(trial.intermediate_values) == [1, 2, 3][: len(trial.intermediate_values)]
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert len(rows) - 1 == len(trial.intermediate_values) < 9


def test_a_trial_that_is_none_is_refused():
    with pytest.raises(TypeMismatch, match=r"trial is an optuna\.Trial, not 3"):
        programs.OptunaPruning(3, "loss")
