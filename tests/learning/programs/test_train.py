"""`train`: the loop that everyone would write, with what belongs around it."""

import asyncio
import errno
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tiny

import fedcore as fc
from fedcore.errors import ExecutionError, FedcoreError, InvalidValue, NotFound, TypeMismatch
from fedcore.learning import programs
from fedcore.learning.programs.monitor import Monitor
from fedcore.program import FileProgramStateManager, MemoryReleaseManager


def weights(state) -> bytes:
    return state.global_model_weights.trainable[0].tobytes()


def train(process, data, rounds, **options):
    return programs.train(process, data, rounds, **{"clients_per_round": 3, "seed": 5, "progress": False, **options})


def test_it_is_the_loop_that_one_writes_by_hand(process, data):
    sample = fc.simulation.build_uniform_sampling_fn(data.client_ids, seed=5)
    state, losses = process.initialize.invoke(seed=5), []
    for round_num in range(4):
        cohort = [data.create_tf_dataset_for_client(i) for i in sample(round_num, 3)]
        state, metrics = process.next(state, cohort)
        losses.append(float(metrics["client_work"]["train"]["loss"]))
    history = train(process, data, 4)
    assert weights(history.state) == weights(state)
    assert history["loss"] == losses
    assert [row["round"] for row in history] == [1, 2, 3, 4]
    assert history.seed == 5


def test_without_a_seed_runs_differ_and_the_history_says_the_seed(process, data):
    first, second = (train(process, data, 1, seed=None) for _ in range(2))
    assert first.seed != second.seed
    assert train(process, data, 1, seed=first.seed).rows == first.rows


def test_rows_have_short_names_counts_and_bits(process, data):
    (row,) = train(process, data, 1).rows
    assert list(row) == [
        "round",
        "loss",
        "num_examples",
        "finalizer/step",
        "clients",
        "broadcast_bits",
        "aggregate_bits",
    ]
    assert row["clients"] == 3
    assert row["broadcast_bits"] == 3 * 3 * 32
    assert len(row["finalizer/step"]) == 3


def test_a_directory_has_checkpoints_a_table_and_summaries(process, data, tmp_path):
    history = train(process, data, 5, directory=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "metrics.csv", "run_state.json", "tensorboard"]
    assert asyncio.run(FileProgramStateManager(tmp_path / "checkpoints").get_versions()) == [3, 4, 5]
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0].split(",") == list(history.rows[0])
    assert [float(line.split(",")[1]) for line in lines[1:]] == history["loss"]
    assert list((tmp_path / "tensorboard").iterdir())


def test_without_tensorboard_a_directory_has_all_but_summaries(process, data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    history = train(process, data, 2, directory=tmp_path, hparams={"lr": 0.1})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "metrics.csv", "run_state.json"]
    assert train(process, data, 2, directory=tmp_path).rows == history.rows


def test_a_resumed_training_is_an_unbroken_one_bit_for_bit(process, data, tmp_path):
    whole = train(process, data, 6, directory=tmp_path / "whole")
    train(process, data, 2, directory=tmp_path / "parts")

    class Failing(programs.Callback):
        def on_round_end(self, round_number, logs):
            if round_number == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(process, data, 6, directory=tmp_path / "parts", callbacks=[Failing()])
    parts = train(process, data, 6, directory=tmp_path / "parts", seed=None)
    assert parts.rows == whole.rows
    assert weights(parts.state) == weights(whole.state)
    assert parts.state.seed == whole.state.seed
    tables = [(tmp_path / name / "metrics.csv").read_bytes() for name in ("whole", "parts")]
    assert tables[0] == tables[1]
    assert len(parts.seconds) == 6


def test_a_finished_training_runs_no_more(process, data, tmp_path):
    first = train(process, data, 2, directory=tmp_path)
    again = train(process, data, 2, directory=tmp_path)
    assert again.rows == first.rows
    assert weights(again.state) == weights(first.state)


def test_a_damaged_checkpoint_costs_one_round(process, data, tmp_path):
    whole = train(process, data, 4, directory=tmp_path)
    path = tmp_path / "checkpoints" / "program_state_4.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.warns(RuntimeWarning, match=r"program_state_4.json is damaged.*version 3 is used"):
        again = train(process, data, 4, directory=tmp_path)
    assert weights(again.state) == weights(whole.state)
    assert again.rows == whole.rows


def test_another_seed_or_another_process_is_refused(process, data, tmp_path):
    train(process, data, 1, directory=tmp_path)
    with pytest.raises(InvalidValue, match="those of seed 5, not 6"):
        train(process, data, 2, directory=tmp_path, seed=6)

    @fc.federated_computation
    def initialize():
        return fc.federated_value({"round": np.int64(0), "seed": np.int64(0)}, fc.SERVER)

    @fc.federated_computation(
        initialize.type_signature.result, fc.FederatedType(fc.SequenceType("float32"), fc.CLIENTS)
    )
    def next_round(state, data):
        return fc.learning.LearningProcessOutput(state, fc.federated_value({}, fc.SERVER))

    other = fc.learning.LearningProcess(initialize, next_round)
    with pytest.raises(TypeMismatch, match="state/state: the saved program state has other parts"):
        train(other, data, 2, directory=tmp_path)


def test_other_versions_plans_and_threads_are_told(process, data, tmp_path, monkeypatch):
    train(process, data, 1, directory=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("importlib.metadata.version", lambda name: "0.0.1")
        with pytest.warns(RuntimeWarning, match=r"may differ from those of an unbroken run\n.*fedcore: .* 0.0.1 now"):
            train(process, data, 1, directory=tmp_path)
    with pytest.warns(RuntimeWarning, match=r"unbroken run\n  plan: \w{12}… before, \w{12}… now$"):
        train(tiny.build(noise=0.2), data, 1, directory=tmp_path)


def test_one_training_at_a_time_uses_a_directory(process, data, tmp_path):
    class Another(programs.Callback):
        def on_round_end(self, round_number, logs):
            with pytest.raises(InvalidValue, match="another training uses"):
                train(process, data, 1, directory=tmp_path)

    train(process, data, 1, directory=tmp_path, callbacks=[Another()])


@pytest.mark.parametrize("at", range(1, 11))
def test_a_disk_that_fills_costs_nothing_that_was_saved(process, data, tmp_path, monkeypatch, at):
    from fedcore import whole_files

    count, write = [0], whole_files._flush_file

    def full(path, mode):
        count[0] += 1
        if count[0] >= at:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(whole_files, "_flush_file", full)
        if at <= 9:  # the state, the table, its first row with the columns, two files for each of three checkpoints
            with pytest.raises(OSError, match="No space left") as caught:
                train(process, data, 3, directory=tmp_path)
            assert caught.value.__context__ is None  # the event loop's errors are not the user's
        else:
            train(process, data, 3, directory=tmp_path)
    assert train(process, data, 3, directory=tmp_path).rows == train(process, data, 3).rows


def test_what_killed_writers_left_is_removed(process, data, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    left = [tmp_path / ".0.partial", tmp_path / "checkpoints" / ".1.partial"]
    for path in left:
        path.write_text("")
    train(process, data, 1, directory=tmp_path)
    assert not any(path.exists() for path in left)


def test_a_function_of_the_round_is_a_sampler(process, data, tmp_path):
    asked = []

    def alternating(rounds_before):
        asked.append(rounds_before)
        return data.client_ids[rounds_before % 2 :: 2]

    class Seen(programs.Callback):
        def on_round_end(self, round_number, logs):
            logs["ids"] = "".join(client[-1] for client in self.training.client_ids)

    for rounds in (2, 3):
        history = train(process, data, rounds, sampler=alternating, directory=tmp_path, callbacks=[Seen()])
    assert history["ids"] == ["024", "135", "024"]
    assert asked == [0, 1, 2]
    with pytest.raises(TypeMismatch, match=r"sampler\(0\) returns the identifiers of clients, not 3"):
        train(process, data, 1, sampler=lambda rounds_before: 3)


def test_evaluations_are_due_every_k_rounds_and_at_the_end_and_shift_nothing(process, evaluation, data):
    plain = train(process, data, 5)
    options = {"evaluation": evaluation, "evaluation_data": data, "evaluate_every": 2}
    history = train(process, data, 5, **options, evaluation_clients=4)
    assert [row["round"] for row in history if "val_loss" in row] == [2, 4, 5]
    assert history["val_clients"] == [4, 4, 4]
    assert history.rows[-1]["val_loss"] == history.state.global_model_weights.trainable[0][0]
    assert weights(history.state) == weights(plain.state)
    assert train(process, data, 1, **options)["val_clients"] == [6]
    with pytest.raises(TypeMismatch, match="given together"):
        train(process, data, 1, evaluation=evaluation)


def test_a_round_that_fails_runs_again_with_the_same_clients(process, data):
    failures = [OSError("the network is gone"), OSError("still")]

    def load(client_id):
        if failures:
            raise failures.pop()
        return data.create_tf_dataset_for_client(client_id)

    flaky = fc.simulation.datasets.ClientData.from_clients_and_tf_fn(data.client_ids, load)
    history = train(process, flaky, 2, retries=2)
    assert history.rows == train(process, data, 2).rows
    failures += [OSError("gone")] * 3
    with pytest.raises((OSError, ExecutionError), match="gone"):
        train(process, flaky, 2, retries=1)


def test_an_evaluation_that_fails_runs_again_and_its_round_does_not(process, data):
    failures = [OSError("the network is gone"), OSError("still")]

    def load(client_id):
        if failures:
            raise failures.pop()
        return data.create_tf_dataset_for_client(client_id)

    flaky = fc.simulation.datasets.ClientData.from_clients_and_tf_fn(data.client_ids, load)
    rounds = []

    class Counting(programs.Callback):
        def on_result(self, round_number):
            rounds.append(round_number)

    history = train(process, data, 2, evaluation=process, evaluation_data=flaky, retries=2, callbacks=[Counting()])
    assert not failures
    assert history.rows == train(process, data, 2, evaluation=process, evaluation_data=data).rows
    assert rounds == [1, 2]
    failures += [OSError("gone")] * 50
    with pytest.raises((OSError, ExecutionError), match="gone"):
        train(process, data, 1, evaluation=process, evaluation_data=flaky, retries=1)


def test_a_refused_round_runs_again_with_other_clients_up_to_a_bound(process, data):
    seen = []

    def refused(output):
        seen.append(output.metrics["client_work"]["train"]["loss"])
        return len(seen) < 3

    history = train(process, data, 1, retries=2, should_retry_round=refused)
    assert len(set(seen)) == 3
    assert history["loss"] == [seen[-1]]
    with pytest.raises(ExecutionError, match="round 1: should_retry_round refused the results of all 3 attempts"):
        train(process, data, 1, retries=2, should_retry_round=lambda output: True)


def test_a_data_source_goes_on_where_it_was(process, data, tmp_path):
    def source():
        return fc.program.DatasetDataSource([data.create_tf_dataset_for_client(i) for i in data.client_ids], seed=3)

    whole = train(process, source(), 4)
    train(process, source(), 2, directory=tmp_path)
    assert train(process, source(), 4, directory=tmp_path).rows == whole.rows


def test_release_managers_get_each_round(process, data):
    memory = MemoryReleaseManager()
    history = train(process, data, 2, release_managers=[memory])
    assert list(memory.values()) == [1, 2]
    assert memory.values()[2]["loss"] == history["loss"][1]
    assert "round" not in memory.values()[2]


def test_it_runs_in_a_running_event_loop(process, data, tmp_path):
    async def notebook():
        return train(process, data, 1, directory=tmp_path)

    assert len(asyncio.run(notebook())) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": -1}, "rounds is a whole number, 0 or more"),
        (
            {"clients_per_round": 7},
            r"a round cannot have 7 of 6 clients\n  fix: clients_per_round=None for all clients",
        ),
        ({"data": [1, 2]}, "data is a fc.simulation.datasets.ClientData or a FederatedDataSource, not"),
        ({"data": [1, 2]}, "fix: a list has a tf.data.Dataset of each client"),
        ({"data": tf.data.Dataset.range(2)}, r"fix: data=\[dataset\] for one client"),
        (
            {"data": (np.zeros(2), np.zeros(2))},
            r"fix: fc\.simulation\.datasets\.split_over_clients\(data, num_clients\)\.preprocess\(lambda dataset: d",
        ),
        ({"process": "p"}, "process is a fc.learning.LearningProcess, not 'p'"),
        ({"callbacks": print}, r"callbacks is a list, not .*\n  fix: callbacks=\[…\]"),
        ({"release_managers": None}, r"release_managers is a list, not None"),
        ({"callbacks": [print]}, "a callback is a fc.learning.programs.Callback"),
        ({"release_managers": [print]}, "a release manager is a fc.program.ReleaseManager"),
        ({"checkpoint_every": 0}, "checkpoint_every is a whole number, 1 or more, not 0"),
    ],
)
def test_wrong_arguments_are_named(process, data, change, message):
    arguments = {"process": process, "data": data, "rounds": 1, **change}
    with pytest.raises((TypeMismatch, InvalidValue), match=message):
        train(**arguments)


# Other forms of data.


def test_data_sets_in_a_list_or_a_dict_are_clients(process, data):
    datasets = {f"client_{i}": data.create_tf_dataset_for_client(i) for i in data.client_ids}
    want = train(process, fc.simulation.datasets.from_clients(datasets), 2)
    for given in (datasets, [*datasets.values()]):
        assert train(process, given, 2).rows == want.rows


def test_evaluation_data_may_be_arrays_a_data_set_or_a_list():
    import keras

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(70, 3)).astype(np.float32), rng.integers(0, 2, 70)
    training = fc.simulation.datasets.split_over_clients((x, y), 3).preprocess(lambda dataset: dataset.batch(8))

    def model_fn():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(model, loss, training.element_type_structure)

    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, fc.learning.optimizers.build_sgdm(0.1))
    evaluation = fc.learning.algorithms.build_fed_eval(model_fn)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    rows = [
        train(process, training, 1, evaluation=evaluation, evaluation_data=given).rows
        for given in (fc.simulation.datasets.from_clients({"test": batches}), (x, y), batches, [batches])
    ]
    assert rows[0][0]["val_num_examples"] == 70
    assert rows[1:] == rows[:1] * 3
    with pytest.raises(TypeMismatch, match=r"float64\[\?,3\]"):
        train(process, training, 1, evaluation=evaluation, evaluation_data=(x.astype(float), y))


def test_a_clock_takes_a_list(process, data):
    datasets = [data.create_tf_dataset_for_client(i) for i in data.client_ids]
    ids = [f"client_{i}" for i in range(len(datasets))]
    clock = fc.simulation.SynchronousClock(fc.simulation.build_devices(ids, work_s=1, seed=0), 2, seed=0)
    assert len(train(process, datasets, 2, clock=clock).rows) == 2


# Callbacks.


def test_callbacks_see_the_training_and_may_stop_it(process, data):
    seen = []

    class Told(programs.Callback):
        def on_train_begin(self):
            seen.append(("begin", self.training.rounds))

        def on_round_begin(self, round_number):
            seen.append((round_number, int(self.training.state.round)))

        def on_round_end(self, round_number, logs):
            logs["twice"] = 2 * logs["loss"]
            self.training.stop_training = round_number == 2

        def on_train_end(self):
            seen.append(("end", self.training.round))

    history = train(process, data, 9, callbacks=[Told()])
    assert seen == [("begin", 9), (1, 0), (2, 1), ("end", 2)]
    assert history["twice"] == [2 * loss for loss in history["loss"]]


def fed(stop, values):
    """The rounds that a callback lets run, with these values of its metric."""

    class Values(programs.Callback):
        def on_round_end(self, round_number, logs):
            value = values[round_number - 1]
            if value is not None:
                logs["val_loss"] = value

    return [Values(), stop]


@pytest.mark.parametrize(
    ("options", "values", "rounds"),
    [
        ({}, [3.0, 2.0, 2.0, 1.0], 3),
        ({"patience": 2}, [3.0, 4.0, 2.0, 2.5, 2.5], 5),
        ({"patience": 1, "mode": "max"}, [3.0, 4.0, 2.0], 3),
        ({"min_delta": 0.5}, [3.0, 2.8, 1.0], 2),
        ({"start_from_round": 3}, [1.0, 2.0, 3.0, 4.0], 4),
        ({"baseline": 2.0, "patience": 1}, [3.0, 2.9, 2.95, 1.0], 3),
        ({"patience": 1}, [3.0, None, None, 3.5, 2.0], 4),
        ({"patience": 1}, [3.0, float("nan"), 1.0], 2),
    ],
)
def test_early_stopping(process, data, options, values, rounds):
    stop = programs.EarlyStopping(**options)
    history = train(process, data, len(values), callbacks=fed(stop, values))
    assert len(history) == rounds == stop.stopped_round


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"min_delta": "a"}, "min_delta is a number, not 'a'"),
        ({"min_delta": float("nan")}, "min_delta is a finite number, not nan"),
        ({"baseline": "a"}, "baseline is a number or None, not 'a'"),
        ({"baseline": float("nan")}, "baseline is a number that a metric can beat, not nan"),
        ({"start_from_round": "a"}, "start_from_round is a whole number, not 'a'"),
    ],
)
def test_early_stopping_refuses_what_it_could_not_compare(options, says):
    with pytest.raises(FedcoreError, match=says):
        programs.EarlyStopping(**options)


def test_early_stopping_restores_the_best_weights_also_after_a_resume(process, data, tmp_path):
    values = [3.0, 2.0, 2.5, 2.5, 2.5]

    def stopping():
        return fed(programs.EarlyStopping(patience=3, restore_best_weights=True), values)

    best = train(process, data, 2)
    train(process, data, 3, directory=tmp_path, callbacks=stopping())
    history = train(process, data, 9, directory=tmp_path, callbacks=stopping())
    assert len(history) == 5
    assert weights(history.state) == weights(best.state)
    again = train(process, data, 9, directory=tmp_path, callbacks=stopping())
    assert weights(again.state) == weights(best.state)
    with pytest.raises(InvalidValue, match="states of the callbacks EarlyStopping; those that are given are none"):
        train(process, data, 9, directory=tmp_path)


@pytest.mark.parametrize("prefix", ["", "val_"])
def test_the_loss_of_a_round_without_examples_is_not_followed(prefix):
    empty, measured = ({f"{prefix}loss": loss, f"{prefix}num_examples": n} for loss, n in ((0.0, 0), (0.5, 4)))
    monitor = Monitor(f"{prefix}loss", "auto")
    assert [monitor.value(row) for row in (empty, measured)] == [None, 0.5]
    assert Monitor(f"{prefix}num_examples", "max").value(empty) == 0
    rows = [{"clock/time_s": float(i), **row} for i, row in enumerate([empty, measured])]
    assert programs.History(rows).time_to(f"{prefix}loss", 0.6) == 1.0


def test_a_metric_that_is_not_there_is_named(process, data):
    with pytest.raises(NotFound, match=r"no number accuracy; they have round, loss"):
        train(process, data, 1, callbacks=[programs.EarlyStopping("accuracy")])


def test_a_metric_that_an_evaluation_has_not_is_named(process, data, evaluation):
    stop = programs.EarlyStopping("val_accuracy")
    with pytest.raises(NotFound, match=r"no number val_accuracy; they have round, loss.* val_loss"):
        train(process, data, 1, evaluation=evaluation, evaluation_data=data, callbacks=[stop])


@pytest.mark.parametrize(
    "make", [programs.EarlyStopping, lambda: programs.ModelCheckpoint("m.keras", None, save_best_only=True)]
)
def test_a_callback_that_waited_for_an_evaluation_in_vain_says_so(process, data, make):
    with pytest.warns(RuntimeWarning, match="no round had the metric val_loss, so nothing followed it; train computes"):
        assert len(train(process, data, 2, callbacks=[make()])) == 2


def test_paths_of_models_that_cannot_be_are_named(process, data, tmp_path):
    with pytest.raises(InvalidValue, match=r"to a path that ends in .keras, not 'model.weights.h5'"):
        programs.ModelCheckpoint("model.weights.h5", None)
    write = programs.ModelCheckpoint(tmp_path / "{val_loss}.keras", None)
    with pytest.raises(NotFound, match=r"names val_loss, but round 1 has round, loss"):
        train(process, data, 1, callbacks=[write])
    write = programs.ModelCheckpoint(tmp_path / "{loss:03d}.keras", None)
    with pytest.raises(InvalidValue, match=r"loss:03d}.keras does not fit round=1, loss=.*: Unknown format code 'd'"):
        train(process, data, 1, callbacks=[write])


@pytest.mark.parametrize("name", ["{}", "{0}", "{round:03q}", "{round!x}", "{round.x}", "{round", "round}"])
def test_a_path_of_a_model_whose_braces_no_round_fills_is_refused(name):
    with pytest.raises(
        InvalidValue, match=r"braces of the path hold names of the logs, .*not as in (?s:.)*doubled: {{"
    ):
        programs.ModelCheckpoint(f"{name}.keras", None)


def test_a_path_of_a_model_may_have_formats_of_any_log():
    for name in ("{round:03d}", "{val_loss:.2f}", "{note:>8s}", "{quantiles[0]:.1e}", "{{round}}", "{loss!r:>9}"):
        programs.ModelCheckpoint(f"{name}.keras", None)


def test_the_learning_rate_follows_its_schedule_also_after_a_resume(process, data, tmp_path):
    def halved():
        return [programs.LearningRateScheduler(lambda round_number, rate: rate / 2)]

    whole = train(process, data, 3, callbacks=halved())
    assert whole.state.finalizer["learning_rate"] == 0.5 / 8
    train(process, data, 1, directory=tmp_path, callbacks=halved())
    assert train(process, data, 3, directory=tmp_path, callbacks=halved()).rows == whole.rows
    with pytest.raises(InvalidValue, match=r"no hyperparameter client_work.rate; it has finalizer.learning_rate"):
        train(process, data, 1, callbacks=[programs.LearningRateScheduler(max, "client_work.rate")])


def test_a_schedule_sets_the_rate_of_a_process_that_is_composed_of_parts(process, data):
    def set_hparams(state, hparams):
        return process.set_hparams(state, hparams)

    own = fc.learning.LearningProcess(
        process.initialize, process.next, get_hparams_fn=process.get_hparams, set_hparams_fn=set_hparams
    )
    halved = programs.LearningRateScheduler(lambda round_number, rate: rate / 2)
    assert train(own, data, 3, callbacks=[halved]).state.finalizer["learning_rate"] == 0.5 / 8
    with pytest.raises(InvalidValue, match=r"no hyperparameter finalizer.rate; it has finalizer.learning_rate"):
        train(own, data, 1, callbacks=[programs.LearningRateScheduler(max, "finalizer.rate")])


def test_the_best_model_is_written(process, data, tmp_path):
    class Model:
        """The calls of a Keras model that the callback makes."""

        trainable_variables = non_trainable_variables = non_trainable_weights = ()

        def save(self, path):
            Path(path).write_text("saved")

    class Weights:
        def assign_weights_to(self, model):
            pass

    class Process(fc.learning.LearningProcess):
        def get_model_weights(self, state):
            return Weights()

    own = Process(process.initialize, process.next)
    path = str(tmp_path / "model-{round}-{val_loss:.1f}.keras")
    write = programs.ModelCheckpoint(path, Model(), save_best_only=True)
    train(own, data, 4, callbacks=fed(write, [3.0, 4.0, 2.0, None]))
    names = [f"model-{best}.{suffix}" for best in ("1-3.0", "3-2.0") for suffix in ("keras", "md")]
    assert sorted(p.name for p in tmp_path.iterdir()) == names


# The history.


def test_the_history_as_a_table(process, data):
    pytest.importorskip("pandas")
    history = train(process, data, 3)
    table = history.to_pandas()
    assert table.index.tolist() == table["round"].tolist() == [1, 2, 3]
    assert table["loss"].tolist() == history["loss"]
    assert table.index.name is None
    assert history[-1] == history.rows[-1]
    assert table.columns[-1] == "seconds"
    assert programs.History().to_pandas().empty
    assert programs.History([{"round": 1, "loss": 2.0}]).to_pandas()["seconds"].isna().all()


def test_the_history_as_plots(process, data, tmp_path):
    pytest.importorskip("matplotlib")
    history = programs.History(
        [{"round": 1, "loss": 2.0, "x": [1, 2]}, {"round": 2, "loss": 1.0, "val_loss": 3.0}], [0, 0]
    )
    figure = history.plot(tmp_path / "loss.png")
    (axis,) = figure.axes
    assert axis.get_title(loc="left") == "loss"
    assert [list(line.get_ydata()) for line in axis.lines] == [[2.0, 1.0], [3.0]]
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(NotFound, match="the history has no accuracy; it has round, loss"):
        history.plot(metrics=["accuracy"])
    with pytest.raises(NotFound, match="the history has no auc"):
        history["auc"]


def test_a_missing_package_names_its_extra(process, data, monkeypatch):
    import sys

    for module in ("pandas", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidValue, match=r"pip install 'fedcore\[pandas\]'"):
        programs.History().to_pandas()
    with pytest.raises(InvalidValue, match=r"(?s)MLflowReleaseManager needs mlflow.*'fedcore\[mlflow\]'"):
        fc.program.MLflowReleaseManager()
    with pytest.raises(InvalidValue, match=r"pip install 'fedcore\[wandb\]'"):
        fc.program.WandbReleaseManager()


def test_progress_prints_a_line_for_each_round(process, data, capsys):
    train(process, data, 2, progress=True)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["round", "loss", "num_examples", "seconds", "bits"]
    assert [line.split()[0] for line in lines] == ["1/2", "2/2"]
    assert all(line.endswith("bit") for line in lines)


def test_progress_shows_losses_first_and_epsilon(capsys):
    from fedcore.learning.programs.progress_bar import _columns

    row = {"round": 1, "accuracy": 0.5, "loss": 2.0, "n": 3, "aggregator/x": 1.0, "aggregator/dp/epsilon": 0.1}
    assert _columns(row, evaluates=True) == ["loss", "accuracy", "val_loss", "val_accuracy", "aggregator/dp/epsilon"]


def test_the_names_of_the_columns_are_printed_again(process, data, capsys):
    train(process, data, 60, progress=True)
    lines = capsys.readouterr().out.splitlines()
    assert [number for number, line in enumerate(lines) if line.split()[0] == "round"] == [0, 26, 52]


def failing(data, client):
    def generated():
        yield np.float32(1)
        raise ValueError("bad record")

    def create(client_id):
        if client_id != client:
            return data.create_tf_dataset_for_client(client_id)
        return tf.data.Dataset.from_generator(generated, output_signature=tf.TensorSpec([], tf.float32))

    return fc.simulation.datasets.ClientData.from_clients_and_tf_fn(data.client_ids, create)


def test_a_client_that_fails_is_named_by_its_id_and_its_traceback_stands_in_the_report(process, data):
    clients = failing(data, "client_2")
    with pytest.raises(ExecutionError) as raised:
        train(process, clients, 1, clients_per_round=None)
    first, second = str(raised.value).splitlines()
    assert first == "client 'client_2' failed: ValueError: bad record"
    assert second.startswith("  in the stage @clients of next_round, which ends at ")
    with fc.use(fc.runtime.local(on_client_failure=fc.runtime.drop())):
        train(process, clients, 1, clients_per_round=None)
    report = fc.context.last_report()
    assert report.dropped == {2: "client_2: ValueError: bad record"}
    assert 'raise ValueError("bad record")' in report.tracebacks[2]


def test_a_client_that_cannot_be_read_is_named(process, data):
    def create(client_id):
        raise KeyError("no file")

    clients = fc.simulation.datasets.ClientData.from_clients_and_tf_fn(data.client_ids, create)
    with pytest.raises(KeyError) as raised:
        train(process, clients, 1, clients_per_round=None)
    assert raised.value.__notes__ == ["while client 'client_0' was read"]


def test_it_runs_on_the_reference_runtime(process, data, tmp_path):
    with fc.use(fc.runtime.reference()):
        history = train(process, data, 2, directory=tmp_path)
    assert history["loss"] == pytest.approx(train(process, data, 2)["loss"], rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{"rows": "[" * 100_000}, {"rows": 5}, {"seconds": None}, {"callbacks": 7}],
    ids=["deep", "a number", "nothing", "no list"],
)
def test_a_checkpoint_from_elsewhere_is_an_error_with_a_message(process, data, tmp_path, changes):
    train(process, data, 1, directory=tmp_path)
    manager = fc.program.FileProgramStateManager(tmp_path / "checkpoints")
    state = asyncio.run(manager.load(1))
    asyncio.run(manager.save(state | changes, 2))
    with pytest.raises(InvalidValue, match="the checkpoint of round 2 is none of a training"):
        train(process, data, 3, directory=tmp_path)


AUGMENTED = {
    "columns": lambda d: d.map(lambda x: x + tf.random.uniform([])).shuffle(2).repeat(2),
    "tf.data": lambda d: d.map(lambda x: x + tf.random.uniform([])).window(2).flat_map(lambda w: w.batch(2)).unbatch(),
}


@pytest.mark.parametrize("name", AUGMENTED)
def test_augmented_data_follow_the_seed_and_resume_exactly(process, data, name, tmp_path):
    augmented = data.preprocess(AUGMENTED[name])
    whole = train(process, augmented, 4)
    assert train(process, augmented, 4).rows == whole.rows
    assert train(process, augmented, 4, seed=6)["loss"] != whole["loss"]
    train(process, augmented, 2, directory=tmp_path)
    assert weights(train(process, augmented, 4, directory=tmp_path).state) == weights(whole.state)


def test_augmented_data_differ_in_every_round(process, data):
    noise = data.preprocess(lambda d: d.map(lambda x: tf.random.uniform([]) * 100))
    history = train(process, noise, 3, clients_per_round=None)
    assert len({tuple(row["finalizer/step"]) for row in history}) == 3
