"""Models as programs of TFF write and use them."""

from collections import OrderedDict

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TracingError

models, sgdm = fc.learning.models, fc.learning.optimizers.build_sgdm
SPEC = (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1]))
X, Y = np.ones([3, 2], np.float32), np.full([3, 1], 2.0, np.float32)


def dense():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])


def keras_model():
    return models.from_keras_model(dense(), keras.losses.MeanSquaredError(), SPEC)


def functional(loss_fn=lambda output, label: tf.reduce_mean(output - label), **options):
    start = ((np.ones([2, 1], np.float32),), ())
    return models.FunctionalModel(start, None, SPEC, lambda w, x, training: x @ w[0][0], loss_fn=loss_fn, **options)


class OfAnyBatch(models.VariableModel):
    """Counts the entries of a batch's first part; its loss is their sum times a weight."""

    spec: object = None

    def __init__(self):
        self.scale, self.count = tf.Variable(0.0), tf.Variable(0, trainable=False)

    trainable_variables = property(lambda self: [self.scale])
    non_trainable_variables = property(lambda self: [])
    local_variables = property(lambda self: [self.count])
    input_spec = property(lambda self: self.spec)

    def predict_on_batch(self, x, training=True):
        return x

    def forward_pass(self, batch_input, training=True):
        first = tf.nest.flatten(batch_input)[0]
        self.count.assign_add(tf.size(first))
        loss = self.scale * tf.reduce_sum(tf.cast(first, tf.float32))
        return models.BatchOutput(loss, None, tf.shape(first)[0])

    def report_local_unfinalized_metrics(self):
        return OrderedDict(count=self.count)

    def metric_finalizers(self):
        return OrderedDict(count=tf.function(lambda count: count))

    def reset_metrics(self):
        self.count.assign(0)


@pytest.mark.parametrize("kind", ["keras", "functional", "loaded"])
def test_models_are_instances_of_both_classes(kind, tmp_path):
    model = functional() if kind == "functional" else keras_model()
    if kind == "loaded":
        models.save(model, tmp_path)
        model = models.load(tmp_path)
    assert isinstance(model, models.VariableModel)
    assert isinstance(model, models.FunctionalModel)


def test_a_model_of_ones_own_is_no_functional_model():
    assert not isinstance(OfAnyBatch(), models.FunctionalModel)


def test_a_functional_model_has_variables_that_start_from_its_weights():
    model = functional()
    output = model.forward_pass((X, Y))
    assert model.trainable_variables[0].numpy().tolist() == [[1.0], [1.0]]
    assert float(output.loss) == 0.0


def test_a_batch_output_unpacks_and_indexes():
    output = models.BatchOutput(1.0, "predictions", 3)
    loss, predictions, num_examples = output
    assert (loss, predictions, num_examples) == (output[0], output[1], output[2]) == (1.0, "predictions", 3)


def test_initial_weights_are_a_structure_to_tf_nest():
    weights = tf.nest.map_structure(tf.Variable, functional().initial_weights)
    assert type(weights) is models.ModelWeights
    assert weights.trainable[0].numpy().tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda output, label: tf.reduce_mean(output - label),
        lambda label, output: tf.reduce_mean(output - label),
        lambda a, b, c: tf.reduce_mean(a - b),
        lambda a, b, sample_weight=None: tf.reduce_mean(a - b),
        lambda *a: tf.reduce_mean(a[0] - a[1]),
        lambda *, output, label: tf.reduce_mean(output - label),
        lambda y_true, y_pred: tf.reduce_mean(y_pred - y_true),
        tf.function(lambda a, b, sample_weight=None: tf.reduce_mean(a - b)),
    ],
)
def test_losses_are_called_with_predictions_and_labels_in_their_places(loss_fn):
    assert float(functional(loss_fn).loss(tf.constant([[3.0]]), tf.constant([[1.0]]))) == 2.0


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda a, b, c: tf.reduce_mean((a - b) * c),
        lambda output, label, sample_weight=None: tf.reduce_mean((output - label) * sample_weight),
        lambda *, sample_weight, label, output: tf.reduce_mean((output - label) * sample_weight),
    ],
)
def test_losses_get_sample_weights(loss_fn):
    weight = tf.constant([[0.5]])
    assert float(functional(loss_fn).loss(tf.constant([[3.0]]), tf.constant([[1.0]]), weight)) == 1.0


def test_a_loss_without_weights_refuses_sample_weights():
    with pytest.raises(TracingError, match=r"takes no sample_weight, but batches have some: give it a third parameter"):
        functional().loss(tf.constant([[3.0]]), tf.constant([[1.0]]), tf.constant([1.0]))


def test_metrics_are_computed_by_hand():
    def update(state, labels, batch_output, sample_weight=None):
        return OrderedDict(largest=(tf.maximum(state["largest"][0], tf.reduce_max(labels)),))

    fns = (
        lambda: OrderedDict(largest=(tf.constant(0.0),)),
        update,
        lambda state: OrderedDict(largest=state["largest"][0]),
    )
    model = functional(metrics_fns=fns)
    state = model.initialize_metrics_state()
    state = model.update_metrics_state(state, labels=Y, batch_output=models.BatchOutput(predictions=Y))
    assert model.finalize_metrics(state)["largest"].numpy() == 2.0


def test_an_update_of_metrics_with_four_parameters_takes_labels():
    def update(state, y, output, weight=None):
        return {"largest": (tf.maximum(state["largest"][0], tf.reduce_max(y)),)}

    fns = (lambda: {"largest": (tf.constant(0.0),)}, update, lambda state: {"largest": state["largest"][0]})
    process = fc.learning.algorithms.build_fed_eval(functional(metrics_fns=fns))
    _, metrics = process.next(process.initialize(), [[(X, Y)]])
    assert metrics["client_work"]["eval"]["current_round_metrics"]["largest"] == 2.0


@pytest.mark.parametrize("make", [dense, keras_model])
def test_the_weights_of_a_model_made_in_a_computation_are_variables(make):
    @fc.tf_computation
    def doubled():
        model = make()
        weights = models.ModelWeights.from_model(model)
        tf.nest.map_structure(lambda v: v.assign(2 * v), weights.trainable)
        return models.ModelWeights.from_model(model)

    assert doubled().trainable[0].tolist() == [[2.0], [2.0]]


def test_the_weights_of_a_model_made_outside_are_variables_in_a_tf_function():
    model = dense()

    @tf.function
    def double():
        for v in models.ModelWeights.from_model(model).trainable:
            v.assign(2 * v)

    double()
    double()
    assert model.trainable_variables[0].numpy().tolist() == [[4.0], [4.0]]


def test_the_weights_of_a_model_made_outside_are_constants_in_a_computation():
    model = dense()
    weights = fc.tf_computation(lambda: models.ModelWeights.from_model(model))()
    assert weights.trainable[0].tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("spec", "batch"),
    [
        (tf.TensorSpec([None], tf.int32), np.array([1, 2], np.int32)),
        (OrderedDict(temperatures=tf.TensorSpec([None, 1])), OrderedDict(temperatures=np.float32([[1], [2]]))),
        (
            (tf.TensorSpec([None]), OrderedDict(a=tf.TensorSpec([None]), b=(tf.TensorSpec([None], tf.string),))),
            (np.float32([1, 2]), OrderedDict(a=np.float32([0, 0]), b=(np.array([b"", b""]),))),
        ),
        ([tf.TensorSpec([None])] * 4, [np.float32([1, 2])] * 4),
    ],
)
def test_a_model_of_ones_own_takes_batches_of_any_structure(spec, batch):
    model_fn = type("Model", (OfAnyBatch,), {"spec": spec})
    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, sgdm(0.5))
    state, metrics = process.next(process.initialize(), [[batch], [batch, batch]])
    assert metrics["client_work"]["train"]["count"] == 6
    assert state.model.trainable[0] == -2.5  # steps of -0.5 * 3: (2 * -1.5 + 4 * -3) / 6


def test_a_saved_model_of_ones_own_keeps_its_batches(tmp_path):
    spec = OrderedDict(temperatures=tf.TensorSpec([None, 1]))
    models.save(type("Model", (OfAnyBatch,), {"spec": spec}), tmp_path)
    model = models.load(tmp_path)
    assert str(model.batch_type.compact_representation()) == "<temperatures=float32[?,1]>"
    assert model.predict_on_batch(model.initial_weights(), np.float32([[7.0]])).tolist() == [[7.0]]


def test_the_type_of_the_inputs_of_a_saved_model_is_given(tmp_path):
    model_fn = type("Model", (OfAnyBatch,), {"spec": (tf.TensorSpec([None]), tf.TensorSpec([None]))})
    models.save(model_fn, tmp_path, input_type=tf.TensorSpec([3], tf.int32))
    model = models.load(tmp_path)
    assert model.predict_on_batch(model.initial_weights(), np.array([1, 2, 3], np.int32)).tolist() == [1, 2, 3]


@pytest.mark.parametrize("make", [keras_model, functional])
def test_a_batch_holds_no_sequences(make, monkeypatch):
    monkeypatch.setattr(f"{__name__}.SPEC", (fc.SequenceType(np.float32), fc.SequenceType(np.float32)))
    with pytest.raises(TracingError, match=r"a batch holds tensors, but input_spec has the type <float32\*,float32\*>"):
        make()
