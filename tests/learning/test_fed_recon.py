"""Federated reconstruction against an independent numpy computation."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import InvalidValue, TracingError, TypeMismatch
from fedcore.learning import algorithms, optimizers
from fedcore.learning.models import ReconstructionBatchOutput, ReconstructionModel

SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 1]), y=tf.TensorSpec([None, 1]))
RECON, TRAIN = 0.2, 0.1


class Offset(keras.layers.Layer):
    def build(self, _):
        self.offset = self.add_weight(shape=(1,), initializer="zeros", name="offset")

    def call(self, x):
        return x + self.offset


def keras_model():
    return keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, name="slope"), Offset(name="own")]
    )


def of_layers(model=None, shared=("slope",), local=("own",)):
    model = model or keras_model()
    model.get_layer("slope").kernel.assign([[1.0]])
    groups = [[model.get_layer(name) for name in names] for names in (shared, local)]
    return ReconstructionModel.from_keras_model_and_layers(
        model, global_layers=groups[0], local_layers=groups[1], input_spec=SPEC
    )


class Line(ReconstructionModel):
    """slope * x + offset, with the offset at the client; `drift` is a local number that forward passes move."""

    def __init__(self):
        self.slope = tf.Variable(lambda: tf.ones([1, 1]))
        self.offset = tf.Variable(lambda: tf.zeros([1]))
        self.drift = tf.Variable(lambda: tf.zeros([]), trainable=False)

    global_trainable_variables = property(lambda self: [self.slope])
    global_non_trainable_variables = property(lambda self: [])
    local_trainable_variables = property(lambda self: [self.offset])
    local_non_trainable_variables = property(lambda self: [self.drift])
    input_spec = property(lambda self: SPEC)

    def forward_pass(self, batch_input, training=True):
        self.drift.assign_add(1.0)
        predictions = batch_input["x"] @ self.slope + self.offset
        return ReconstructionBatchOutput(predictions, batch_input["y"], tf.shape(predictions)[0])


def client(*points, batch=2):
    x, y = (np.array([[p[i]] for p in points], np.float32) for i in (0, 1))
    return fc.data.ClientDataset.from_columns(collections.OrderedDict(x=x, y=y)).batch(batch)


CLIENTS = [
    client((1, 3), (2, 5), (0, 1), (3, 3), (1, 1), (2, 2), (1, 0)),
    client((1, 0), (-1, 0), (2, 1)),
    client((5, 5)),  # one batch, so none after the reconstruction
]


def reconstructed(slope, batches):
    offset = 0.0
    for b in batches[::2]:
        offset -= RECON * np.mean(2 * (slope * b["x"] + offset - b["y"]))
    return offset


def one_round(slope):
    """(The mean slope, the clients' errors after their reconstruction, at the slope before each step)."""
    slopes, counts, errors = [], [], []
    for given in CLIENTS:
        batches = list(given.as_numpy_iterator())
        offset, mine = reconstructed(slope, batches), slope
        for b in batches[1::2]:
            error = mine * b["x"] + offset - b["y"]
            errors.extend(error.ravel())
            mine -= TRAIN * np.mean(2 * error * b["x"])
        slopes.append(mine)
        counts.append(sum(len(b["x"]) for b in batches[1::2]))
    return np.average(slopes, weights=counts), np.array(errors)


@pytest.fixture(scope="module", params=[of_layers, Line], ids=["keras", "own"])
def process(request):
    return algorithms.build_fed_recon(
        request.param,
        loss_fn=keras.losses.MeanSquaredError,
        metrics_fn=lambda: [keras.metrics.MeanAbsoluteError(name="mae")],
        client_optimizer_fn=optimizers.build_sgdm(TRAIN),
        reconstruction_optimizer_fn=lambda: keras.optimizers.SGD(RECON),
    )


def test_a_round_trains_the_offsets_and_then_the_slope(process):
    state = process.initialize()
    assert [w.shape for w in state.global_model_weights.trainable] == [(1, 1)]
    assert process.get_model_weights(state).non_trainable == ()
    after, metrics = process.next(state, CLIENTS)
    slope, errors = one_round(1.0)
    np.testing.assert_allclose(after.global_model_weights.trainable[0], [[slope]], rtol=1e-5)
    found = metrics["client_work"]["train"]
    np.testing.assert_allclose([found["loss"], found["mae"]], [np.mean(errors**2), np.mean(abs(errors))], rtol=1e-5)
    assert found["num_examples"] == len(errors) == 4
    assert {name: float(rate) for name, rate in process.get_hparams(state)["client_work"].items()} == {
        "learning_rate": pytest.approx(TRAIN),
        "reconstruction_learning_rate": pytest.approx(RECON),
    }
    slower = process.set_hparams(state, {"client_work": {"reconstruction_learning_rate": 0.0}})
    assert process.next(slower, CLIENTS)[0].global_model_weights.trainable[0] != after.global_model_weights.trainable[0]


def test_the_reference_runtime_gives_the_same_round(process):
    after, _ = process.next(process.initialize(), CLIENTS)
    with fc.use(fc.runtime.reference()):
        reference, _ = process.next(process.initialize(), CLIENTS)
    np.testing.assert_allclose(
        after.global_model_weights.trainable[0], reference.global_model_weights.trainable[0], rtol=1e-6
    )


def test_clients_that_train_nothing_or_diverge_change_nothing(process):
    state = process.initialize()
    poisoned = client((1, np.inf), (2, 5), (0, 1))
    for data, lost in (([], 0), (CLIENTS[2:], 0), ([poisoned], 1)):
        after, metrics = process.next(state, data)
        assert after.global_model_weights.trainable[0] == 1.0
        assert metrics["client_work"]["train"]["num_non_finite_clients"] == lost
    alone, _ = process.next(state, CLIENTS)
    beside, _ = process.next(state, [*CLIENTS, poisoned])
    np.testing.assert_allclose(
        beside.global_model_weights.trainable[0], alone.global_model_weights.trainable[0], rtol=1e-6
    )


def test_an_evaluation_reconstructs_and_keeps_the_global_weights():
    evaluation = algorithms.build_fed_recon_eval(
        of_layers, loss_fn=keras.losses.MeanSquaredError, reconstruction_optimizer_fn=optimizers.build_sgdm(RECON)
    )
    weights = fc.learning.ModelWeights((np.array([[2.0]], np.float32),), ())
    state = evaluation.set_model_weights(evaluation.initialize(), weights)
    state, first = evaluation.next(state, CLIENTS[:1])
    state, second = evaluation.next(state, CLIENTS[1:])
    expected = []
    for given in CLIENTS:
        batches = list(given.as_numpy_iterator())
        offset = reconstructed(2.0, batches)
        expected.append([(2.0 * b["x"] + offset - b["y"]).ravel() for b in batches[1::2]])
    of_first, of_all = (np.concatenate([e for one in given for e in one]) for given in (expected[:1], expected))
    found = [
        first["client_work"]["eval"]["current_round_metrics"],
        second["client_work"]["eval"]["total_rounds_metrics"],
    ]
    np.testing.assert_allclose([f["loss"] for f in found], [np.mean(of_first**2), np.mean(of_all**2)], rtol=1e-5)
    assert found[1]["num_examples"] == 4
    assert state.global_model_weights.trainable[0] == 2.0


def test_without_local_weights_a_round_is_one_of_federated_averaging():
    def all_global():
        return of_layers(shared=("slope", "own"), local=())

    def whole():
        model = keras_model()
        model.get_layer("slope").kernel.assign([[1.0]])
        return fc.learning.from_keras_model(model, keras.losses.MeanSquaredError(), SPEC)

    process = algorithms.build_fed_recon(
        all_global,
        loss_fn=keras.losses.MeanSquaredError,
        dataset_split_fn=ReconstructionModel.simple_dataset_split_fn,
        model_aggregator_factory=fc.aggregators.UnweightedMeanFactory(),
        client_weighting=fc.learning.ClientWeighting.UNIFORM,
    )
    averaging = algorithms.build_unweighted_fed_avg(
        whole, optimizers.build_sgdm(0.1), model_aggregator=fc.aggregators.UnweightedMeanFactory()
    )
    after, _ = process.next(process.initialize(), CLIENTS)
    expected, _ = averaging.next(averaging.initialize(), CLIENTS)
    for found, wanted in zip(
        after.global_model_weights.trainable, expected.global_model_weights.trainable, strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_a_split_repeats_each_part_and_then_limits_it():
    def parts(**options):
        split = ReconstructionModel.build_dataset_split_fn(**options)
        return [[int(i) for i in part] for part in split(tf.data.Dataset.range(5))]

    assert parts() == [[0, 1, 2, 3, 4]] * 2
    assert parts(split_dataset=True, recon_epochs=2, recon_steps_max=4) == [[0, 2, 4, 0], [1, 3]]
    assert parts(recon_steps_max=0, post_recon_epochs=2, post_recon_steps_max=7) == [[], [0, 1, 2, 3, 4, 0, 1]]
    for wrong in ({"recon_epochs": 0}, {"post_recon_steps_max": -1}):
        with pytest.raises(InvalidValue, match=f"{next(iter(wrong))} is a whole number"):
            parts(**wrong)


def test_each_weight_of_a_keras_model_is_global_or_local():
    with pytest.raises(InvalidValue, match=r"but .*offset is neither global nor local$"):
        of_layers(local=())
    with pytest.raises(
        InvalidValue, match=r"offset is in global_trainable_variables and in local_trainable_variables$"
    ):
        of_layers(shared=("slope", "own"))
    other, model = keras_model(), keras_model()
    with pytest.raises(InvalidValue, match=f"is no weight of {model.name}$"):
        ReconstructionModel.from_keras_model_and_layers(
            model, global_layers=model.layers, local_layers=[other.layers[1]], input_spec=SPEC
        )
    model.compile(loss="mse")
    with pytest.raises(InvalidValue, match="is compiled; its loss and optimizer would be left out"):
        of_layers(model)


def test_variables_of_layers_that_draw_need_no_place():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dropout(0.5), keras.layers.Dense(1, name="slope")])
    assert not ReconstructionModel.has_only_global_variables(of_layers(model, shared=(), local=("slope",)))


def test_what_makes_no_reconstruction_model_or_loss_is_refused():
    def build(model_fn=of_layers, loss_fn=keras.losses.MeanSquaredError, **options):
        algorithms.build_fed_recon(model_fn, loss_fn=loss_fn, **options)

    with pytest.raises(TracingError, match=r"returns Sequential; it returns a fc.learning.models.ReconstructionModel"):
        build(keras_model)
    with pytest.raises(TracingError, match="model_fn is a function without arguments, not KerasReconstructionModel"):
        build(of_layers())
    with pytest.raises(TracingError, match="loss_fn is a function without arguments, not MeanSquaredError"):
        build(loss_fn=keras.losses.MeanSquaredError())
    with pytest.raises(TracingError, match="there are two metrics named mae"):
        build(Line, metrics_fn=lambda: [keras.metrics.MeanAbsoluteError(name="mae") for _ in range(2)])
    with pytest.raises(InvalidValue, match=r"takes no weights \(SumFactory\): use client_weighting="):
        build(model_aggregator_factory=fc.aggregators.SumFactory())
    with pytest.raises(TypeMismatch, match=r"model_aggregator_factory is a factory of fc.aggregators, such"):
        build(model_aggregator_factory=7, client_weighting=fc.learning.ClientWeighting.UNIFORM)
