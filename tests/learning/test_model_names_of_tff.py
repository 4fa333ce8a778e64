"""Models and optimizers in training loops of one's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, TracingError

models, optimizers = fc.learning.models, fc.learning.optimizers
X, Y = np.ones([3, 2], np.float32), np.full([3, 1], 2.0, np.float32)
SPEC = (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1]))


def keras_model():
    layers = [keras.layers.Dense(1, kernel_initializer="zeros")]
    return models.from_keras_model(keras.Sequential([keras.Input((2,)), *layers]), "mse", SPEC)


def functional():
    def predict(weights, x, training):
        (kernel,), _ = weights
        return x @ kernel

    def loss(output, label, sample_weight=None):
        return tf.reduce_mean((output - label) ** 2)

    def update(state, labels, batch_output, sample_weight=None):
        return {"largest": (state["largest"][0] + tf.reduce_max(labels),)}

    fns = (lambda: {"largest": (tf.constant(0.0),)}, update, lambda state: {"largest": state["largest"][0]})
    start = ((np.zeros([2, 1], np.float32),), ())
    return models.FunctionalModel(
        initial_weights=start, predict_on_batch_fn=predict, loss_fn=loss, metrics_fns=fns, input_spec=SPEC
    )


def loaded(folder):
    models.save(keras_model, folder)
    return models.load(folder)


@pytest.fixture(params=["keras", "functional", "loaded"])
def model(request, tmp_path):
    made = {
        "keras": keras_model,
        "functional": lambda: models.model_from_functional(functional()),
        "loaded": lambda: loaded(tmp_path),
    }
    return made[request.param]()


def test_a_training_loop_by_variables(model):
    with tf.GradientTape() as tape:
        output = model.forward_pass((X, Y))
    gradients = tape.gradient(output.loss, model.trainable_variables)
    assert float(output.loss) == 4.0
    assert gradients[0].numpy().tolist() == [[-4.0], [-4.0]]
    model.trainable_variables[0].assign([[1.0], [1.0]])
    assert model.predict_on_batch(X).numpy().tolist() == Y.tolist()
    report = model.report_local_unfinalized_metrics()
    assert float(model.metric_finalizers()["loss"](report["loss"])) == 4.0
    model.reset_metrics()
    assert int(model.report_local_unfinalized_metrics()["num_examples"][0]) == 0
    assert model.input_spec[0].shape.as_list() == [None, 2]


@pytest.mark.parametrize("looped", ["for", "reduce", "function"])
@pytest.mark.parametrize("kind", ["keras", "functional", "loaded"])
def test_a_loop_of_a_computation_keeps_counts_and_weights(kind, looped, tmp_path):
    models.save(keras_model, tmp_path)
    data = fc.data.ClientDataset.from_columns((X, Y)).batch(2)

    @fc.tf_computation(fc.SequenceType(fc.to_type(SPEC)))
    def train(batches):
        model = {
            "keras": keras_model,
            "functional": lambda: models.model_from_functional(functional()),
            "loaded": lambda: models.load(tmp_path),
        }[kind]()

        def step(count, batch):
            with tf.GradientTape() as tape:
                output = model.forward_pass(batch)
            kernel = model.trainable_variables[0]
            kernel.assign_sub(0.1 * tape.gradient(output.loss, [kernel])[0])
            return count + 1

        def loop(batches):
            count = tf.constant(0)
            for batch in batches:
                count = step(count, batch)
            return count

        steps = {"for": loop, "reduce": lambda b: b.reduce(tf.constant(0), step), "function": tf.function(loop)}
        count = steps[looped](batches)
        report = model.report_local_unfinalized_metrics()
        return count, report["num_examples"], report["loss"], model.trainable_variables[0].read_value()

    count, (examples,), (loss, _), kernel = train(data)
    assert (count, examples) == (2, 3)
    np.testing.assert_allclose(loss, 4 * 2 + 1.2**2, rtol=1e-6)
    np.testing.assert_allclose(kernel, [[0.64], [0.64]], rtol=1e-6)


def test_weights_are_called_or_read():
    for model in (keras_model(), functional()):
        trainable, non_trainable = model.initial_weights
        assert isinstance(trainable[0], np.ndarray)
        assert model.initial_weights().non_trainable == non_trainable == ()
        ones = ([np.ones_like(w) for w in trainable], ())
        output = model.predict_on_batch(model_weights=ones, x=X, training=True)
        assert float(model.loss(output=output, label=Y)) in (0.0, 1.0)


def test_a_functional_model_by_its_loss_counts_metrics_as_tff_does():
    evaluation = fc.learning.algorithms.build_fed_eval(functional())
    clients = [fc.data.ClientDataset.from_columns((X, Y)).batch(2)]
    _, metrics = evaluation.next(evaluation.initialize(), clients)
    found = metrics["client_work"]["eval"]["current_round_metrics"]
    assert (found["largest"], found["loss"], found["num_examples"]) == (4.0, 4.0, 3)


def test_a_functional_model_needs_its_functions():
    with pytest.raises(TracingError, match="forward_pass_fn, or loss_fn and predict_on_batch_fn"):
        models.FunctionalModel(((), ()), input_spec=SPEC, loss_fn=lambda output, label: 0.0)


def test_only_a_functional_model_becomes_one_with_variables():
    with pytest.raises(FedcoreError, match="'mse' is no model of functions, such as a FunctionalModel"):
        models.model_from_functional("mse")


def test_weights_are_a_pair():
    trainable, non_trainable = weights = fc.learning.ModelWeights((1.0,), ())
    assert (weights[0], weights[1], len(weights)) == (trainable, non_trainable, 2)


def test_weights_become_arrays():
    variables = {"a": tf.Variable([1.0, 2.0]), "b": [tf.constant(3.0)]}
    weights = fc.learning.ModelWeights(variables, (np.float64(4.0),)).convert_variables_to_arrays()
    variables["a"].assign([0.0, 0.0])
    assert all(type(leaf) is np.ndarray for leaf in tf.nest.flatten(tuple(weights)))
    assert weights.trainable["a"].tolist() == [1.0, 2.0]
    assert (float(weights.trainable["b"][0]), float(weights.non_trainable[0])) == (3.0, 4.0)


def test_weights_go_into_models_with_variables_and_come_back():
    spec = (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 3]))
    layers = [keras.Input((2,)), keras.layers.Dense(3), keras.layers.BatchNormalization()]
    model = fc.learning.from_keras_model(keras.Sequential(layers), "mse", spec)

    class Own(fc.learning.Model):
        def __init__(self):
            self.trainable_variables = [tf.Variable(tf.zeros(v.shape)) for v in model.trainable_variables]
            self.non_trainable_variables = [tf.Variable(tf.zeros(v.shape)) for v in model.non_trainable_variables]

        trainable_variables = non_trainable_variables = local_variables = input_spec = None
        forward_pass = predict_on_batch = report_local_unfinalized_metrics = metric_finalizers = reset_metrics = None

    ones = fc.learning.ModelWeights(*(tuple(np.ones(v.shape, "f") for v in group) for group in model.weights))
    for made in (model, Own()):
        ones.assign_weights_to(made)
        found = fc.learning.ModelWeights.from_model(made)
        tf.nest.map_structure(np.testing.assert_array_equal, tuple(found), tuple(ones))


def test_gradients_that_do_not_match_are_refused():
    weights = {"a": tf.zeros(2), "b": [tf.zeros(())]}
    optimizers.check_weights_gradients_match(weights, {"a": None, "b": [tf.ones(())]})
    for wrong in ({"a": tf.zeros(2)}, {"a": tf.zeros(3), "b": [None]}, {"a": tf.zeros(2, tf.float64), "b": [None]}):
        with pytest.raises(
            FedcoreError, match=r"gradients are nested as weights are|a weight float32\(2,\) has a gradient float"
        ):
            optimizers.check_weights_gradients_match(weights, wrong)
    sgd = optimizers.build_sgdm(0.1)
    with pytest.raises(FedcoreError, match=r"a weight of shape \(2,\) and a gradient of shape \(3,\)"):
        sgd.next(sgd.initialize(weights), weights, {"a": tf.zeros(3), "b": [tf.zeros(())]})


def test_sparse_gradients_become_tensors():
    sparse = tf.IndexedSlices(tf.constant([2.0]), tf.constant([1]), tf.constant([3]))
    dense, other = optimizers.handle_indexed_slices_gradients([sparse, None])
    assert dense.numpy().tolist() == [0.0, 2.0, 0.0]
    assert other is None


def test_the_rate_stands_under_its_key():
    state = optimizers.build_adam(0.25).initialize(tf.TensorSpec([2], tf.float32))
    assert float(state[optimizers.LEARNING_RATE_KEY]) == 0.25
