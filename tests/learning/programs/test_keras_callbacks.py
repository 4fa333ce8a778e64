"""Callbacks of Keras in `train`: a round is an epoch to them."""

import csv
import math

import keras
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import InvalidValue, TypeMismatch
from fedcore.learning import algorithms, programs

C, K, L = keras.callbacks, keras.optimizers, keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 24).astype(np.int32)
DATA = fc.simulation.datasets.from_arrays((X, Y), np.arange(24) % 3).preprocess(lambda dataset: dataset.batch(4))
ALL = fc.simulation.datasets.from_clients([(X, Y)]).preprocess(lambda dataset: dataset.batch(4))
CROSS = "sparse_categorical_crossentropy"


def make_model(optimizer="sgd", *, frozen=False):
    start = keras.initializers.GlorotUniform(1)
    hidden = L.Dense(4, activation="tanh", kernel_initializer=start, trainable=not frozen)
    model = keras.Sequential([keras.Input((4,)), hidden, L.Dense(3, activation="softmax", kernel_initializer=start)])
    model.compile(optimizer, CROSS, metrics=["accuracy"], run_eagerly=True)
    return model


def build(model):
    def model_fn():
        return fc.learning.from_keras_model(model, input_spec=DATA.element_type_structure)

    return algorithms.build_weighted_fed_avg(model_fn), algorithms.build_fed_eval(model_fn)


def train(processes, rounds, *callbacks, data=DATA, **options):
    process, evaluation = processes
    options = {"clients_per_round": None, "seed": 1, "progress": False, "evaluate_every": 1, **options}
    return programs.train(
        process, data, rounds, evaluation=evaluation, evaluation_data=ALL, callbacks=callbacks, **options
    )


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def processes(model):
    return build(model)


def test_one_client_gives_callbacks_the_logs_and_weights_of_fit():
    def recording():
        seen = []

        def record(epoch, logs):
            kernel = callback.model.trainable_variables[0].numpy()
            seen.append((epoch, dict(logs), kernel))

        callback = C.LambdaCallback(on_epoch_end=record)
        return callback, seen

    plain = make_model()
    ours, seen = recording()
    theirs, wanted = recording()
    train(build(make_model()), 3, ours, data=ALL)
    plain.fit(X, Y, batch_size=4, shuffle=False, epochs=3, verbose=0, validation_data=(X, Y), callbacks=[theirs])
    assert [epoch for epoch, *_ in seen] == [0, 1, 2]
    for (_, logs, kernel), (_, wanted_logs, wanted_kernel) in zip(seen, wanted, strict=True):
        assert set(logs) == set(wanted_logs) == {"loss", "accuracy", "val_loss", "val_accuracy"}
        np.testing.assert_allclose([logs[n] for n in wanted_logs], list(wanted_logs.values()), rtol=1e-4)
        np.testing.assert_allclose(kernel, wanted_kernel, rtol=1e-4, atol=1e-6)


def test_the_hooks_of_a_round_are_those_of_an_epoch(processes):
    calls = []

    class Hooks(C.Callback):
        def on_train_begin(self, logs=None):
            calls.append("train begins")

        def on_epoch_begin(self, epoch, logs=None):
            calls.append(f"epoch {epoch} begins")

        def on_epoch_end(self, epoch, logs=None):
            calls.append(f"epoch {epoch} of {self.params['epochs']} ends")

        def on_train_end(self, logs=None):
            calls.append("train ends")

    train(processes, 2, Hooks())
    assert calls == [
        *("train begins", "epoch 0 begins", "epoch 0 of 2 ends", "epoch 1 begins", "epoch 1 of 2 ends", "train ends")
    ]


def test_a_csv_has_the_metrics_of_the_rounds(processes, tmp_path):
    history = train(processes, 3, C.CSVLogger(tmp_path / "log.csv"))
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert [float(row[name]) for row in rows] == history[name]


def test_a_checkpoint_of_keras_has_the_best_global_model(processes, tmp_path):
    path = tmp_path / "best.keras"
    history = train(processes, 4, C.ModelCheckpoint(path, monitor="val_accuracy", save_best_only=True))
    loaded = keras.models.load_model(path)
    _, accuracy = loaded.evaluate(X, Y, batch_size=4, verbose=0)
    assert accuracy == pytest.approx(max(history["val_accuracy"]))


@pytest.mark.parametrize("frozen", [False, True])
def test_early_stopping_ends_the_training_and_restores_the_best_weights(frozen):
    model = make_model(frozen=frozen)
    stop = C.EarlyStopping("val_loss", patience=2, min_delta=100.0, restore_best_weights=True)
    history = train(build(model), 9, stop)
    assert len(history) == 3
    restored = model.evaluate(X, Y, batch_size=4, verbose=0)[0]
    assert restored == pytest.approx(history["val_loss"][0], rel=1e-5)
    kernel = history.state.global_model_weights.trainable[-2]
    np.testing.assert_array_equal(kernel, model.trainable_variables[-2].numpy())


def test_the_direction_of_a_metric_is_that_of_compile(processes):
    stop = C.EarlyStopping("val_accuracy", patience=1)
    train(processes, 1, stop)
    assert stop.monitor_op is keras.ops.greater


def test_a_loss_that_is_not_finite_ends_the_training():
    broken = DATA.preprocess(lambda dataset: dataset.map(lambda x, y: (x * math.inf, y)))
    assert len(train(build(make_model()), 5, C.TerminateOnNaN(), data=broken)) == 1


def test_a_plateau_reduces_the_rate_of_the_clients():
    process, evaluation = build(make_model(K.SGD(0.5)))
    rates = []

    class Rates(programs.Callback):
        def on_round_begin(self, round_number):
            rates.append(float(process.get_hparams(self.training.state)["client_work"]["learning_rate"]))

    plateau = C.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=100.0)
    train((process, evaluation), 4, plateau, Rates())
    assert rates == [0.5, 0.5, 0.25, 0.125]


def test_a_schedule_of_keras_sets_the_rate_of_the_clients(processes):
    process, _ = processes
    history = train(processes, 3, C.LearningRateScheduler(lambda epoch, rate: 0.1 / (1 + epoch)))
    assert float(process.get_hparams(history.state)["client_work"]["learning_rate"]) == pytest.approx(0.1 / 3)


def test_tensorboard_has_the_metrics_of_epochs(processes, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = train(processes, 2, C.TensorBoard(tmp_path))
    events = EventAccumulator(str(tmp_path / "validation"), size_guidance={"tensors": 0}).Reload()
    values = [float(np.frombuffer(e.tensor_proto.tensor_content, np.float32)[0]) for e in events.Tensors("epoch_loss")]
    assert values == pytest.approx(history["val_loss"])


def test_weights_that_a_callback_sets_are_those_of_the_next_round(model, processes):
    class Zeros(C.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.set_weights([np.zeros_like(w) for w in self.model.get_weights()])

    history = train(processes, 1, Zeros())
    assert not any(np.any(w) for w in history.state.global_model_weights.trainable)


def test_the_model_has_the_weights_of_the_last_round(model, processes):
    history = train(processes, 2, C.History())
    for variable, weight in zip(model.trainable_variables, history.state.global_model_weights.trainable, strict=True):
        np.testing.assert_array_equal(variable.numpy(), weight)


def test_a_resumed_training_is_an_unbroken_one(tmp_path):
    def run(rounds, **options):
        stop = C.EarlyStopping("val_loss", patience=3, min_delta=100.0, restore_best_weights=True)
        plateau = C.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=100.0)
        return train(build(make_model(K.SGD(0.2))), rounds, stop, plateau, **options)

    whole = run(9)
    run(2, directory=tmp_path)
    resumed = run(9, directory=tmp_path)
    assert len(whole) == 4
    assert resumed.rows == whole.rows
    for a, b in zip(*(h.state.global_model_weights.trainable for h in (whole, resumed)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_a_callback_counts_is_part_of_a_checkpoint(tmp_path):
    class Counts(C.Callback):
        epochs, total, best = (), np.float32(0), np.zeros(2)

        def on_epoch_end(self, epoch, logs=None):
            self.epochs = (*self.epochs, epoch)
            self.total = self.total + np.float32(logs["loss"])
            self.best = float(self.total) if epoch else np.ones(2)

    whole, resumed = Counts(), Counts()
    train(build(make_model()), 3, whole)
    train(build(make_model()), 2, Counts(), directory=tmp_path)
    train(build(make_model()), 3, resumed, directory=tmp_path)
    assert (resumed.epochs, resumed.total, resumed.best) == (whole.epochs, whole.total, whole.best)
    assert whole.epochs == (0, 1, 2)


def test_a_checkpoint_of_other_callbacks_is_refused(tmp_path):
    train(build(make_model()), 1, C.History(), directory=tmp_path)
    with pytest.raises(
        InvalidValue, match="states of Keras' callbacks History; those that are given are TerminateOnNaN"
    ):
        train(build(make_model()), 2, C.TerminateOnNaN(), directory=tmp_path)


class EachBatch(C.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


class InValidation(C.Callback):
    def on_test_end(self, logs=None):
        pass


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            EachBatch,
            r"EachBatch has on_train_batch_end, which fit calls for each batch.*\n  fix: on_epoch_begin\(epoch\)",
        ),
        (
            lambda: C.LambdaCallback(on_train_batch_begin=lambda batch, logs: None),
            "LambdaCallback has on_train_batch_begin",
        ),
        (InValidation, r"InValidation has on_test_end, which fit calls in its validation.*\n  fix: .* metrics val_…"),
        (
            lambda: C.ModelCheckpoint("a.keras", save_freq=5),
            'ModelCheckpoint does not run .*\n  fix: save_freq="epoch"',
        ),
        (lambda: C.TensorBoard("a", update_freq="batch"), 'TensorBoard does not run .*\n  fix: update_freq="epoch"'),
        (lambda: C.BackupAndRestore("a"), r"BackupAndRestore does not run .*\n  fix: train\(directory=…\)"),
        (C.ProgbarLogger, r"ProgbarLogger does not run .*\n  fix: train\(progress=True\)"),
        (C.SwapEMAWeights, r"SwapEMAWeights does not run .*\n  fix: keras.optimizers.SGD\(use_ema=True\)"),
    ],
)
def test_callbacks_that_need_batches_are_named_with_what_takes_their_place(processes, make, says):
    with pytest.raises(InvalidValue, match=says):
        train(processes, 1, make())


def test_a_process_without_a_keras_model_takes_no_callbacks_of_keras(process, data):
    with pytest.raises(
        InvalidValue,
        match=r"History: Keras' callbacks are given the Keras model .*\n  fix: build it of fc.learning.from_keras",
    ):
        programs.train(process, data, 1, clients_per_round=1, progress=False, callbacks=[C.History()])


def test_a_rate_that_no_client_has_is_not_set():
    uncompiled = keras.Sequential([keras.Input((4,)), L.Dense(3, activation="softmax")])
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(uncompiled, CROSS, DATA.element_type_structure), "sgd"
    )
    plateau = C.ReduceLROnPlateau("loss")
    with pytest.raises(
        InvalidValue, match=r"ReduceLROnPlateau sets model.optimizer.learning_rate, but \w+ has no opti"
    ):
        programs.train(process, DATA, 1, clients_per_round=1, progress=False, callbacks=[plateau])
    model = make_model()
    process = algorithms.build_fed_sgd(
        lambda: fc.learning.from_keras_model(model, input_spec=DATA.element_type_structure)
    )
    halved = C.LearningRateScheduler(lambda epoch, rate: rate / 2)
    with pytest.raises(InvalidValue, match=r"process has no hyperparameter client_work.learning_rate"):
        programs.train(process, DATA, 1, clients_per_round=1, progress=False, callbacks=[halved])


def test_what_is_no_callback_is_refused(processes):
    with pytest.raises(TypeMismatch, match=r"a callback is a fc.learning.programs.Callback or one of Keras, not 3"):
        train(processes, 1, 3)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("epochs", "epochs is an argument of Keras' fit, not of train\n  fix: rounds=…"),
        ("validation_split", r"fix: data, evaluation_data = data.train_validation_split\(0.2\)"),
        ("class_weight", r"fix: fc.learning.from_keras_model\(model, class_weight=…\)"),
    ],
)
def test_arguments_of_fit_are_named_with_what_takes_their_place(processes, name, says):
    with pytest.raises(TypeMismatch, match=says):
        train(processes, 1, **{name: 1})
