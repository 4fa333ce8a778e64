"""Values that layers assign and that are no weights: from batch to batch of a client, and anew in each round."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.learning import algorithms

K, L = keras.optimizers, keras.layers
X = np.ones((12, 2), np.float32)
DATA = fc.data.ClientDataset.from_columns((X, X[:, :1])).batch(4)  # three batches


class Counter(L.Layer):
    """Gives the number of calls before, and counts the call."""

    def __init__(self, dtype):
        super().__init__(name="counter")
        self.kind = dtype

    def build(self, shape):
        self.count = self.add_weight(shape=(), dtype=self.kind, initializer="zeros", trainable=False, name="count")

    def call(self, x):
        count = self.count.value
        if self.kind == "bool":
            self.count.assign(tf.logical_not(count))
        elif self.kind == "string":
            self.count.assign(tf.strings.join([count, "x"]))
            count = tf.strings.length(count)
        else:
            self.count.assign(count + tf.cast(1, self.kind))
        return 0 * x + tf.cast(tf.math.real(count) if self.kind.startswith("complex") else count, x.dtype)


def mean_prediction(y, prediction):
    return tf.reduce_mean(prediction, -1)


def model_fn(dtype="int32"):
    layers = [Counter(dtype), L.Dense(1, kernel_initializer=keras.initializers.Constant(0.5))]
    return fc.learning.from_keras_model(
        keras.Sequential([keras.Input((2,)), *layers]), mean_prediction, DATA.element_spec
    )


def standing():
    return K.SGD(0.0)


def trained(process, data=DATA, state=None):
    output = process.next(process.initialize() if state is None else state, [data, data])
    return output.state, float(output.metrics["client_work"]["train"]["loss"])


def evaluated(make):
    process = algorithms.build_fed_eval(make)
    metrics = process.next(process.initialize(), [DATA, DATA]).metrics
    return float(metrics["client_work"]["eval"]["current_round_metrics"]["loss"])


DTYPES = {
    **dict.fromkeys(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"], 1.0),
    **dict.fromkeys(["float16", "bfloat16", "float32", "float64", "complex64", "complex128", "string"], 1.0),
    "bool": 1 / 3,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("training", [True, False])
def test_a_counter_of_each_dtype_goes_from_batch_to_batch(dtype, training):
    model = model_fn(dtype)
    losses = [float(model.forward_pass(batch, training).loss) for batch in DATA]
    assert sum(losses) / 3 == pytest.approx(DTYPES[dtype])


@pytest.mark.parametrize("dtype", ["bool", "complex64", "float32", "string", "uint8"])
def test_a_counter_goes_on_at_each_client(dtype):
    assert evaluated(lambda: model_fn(dtype)) == pytest.approx(DTYPES[dtype])


def test_a_counter_goes_on_over_epochs_and_starts_anew_in_a_round_as_in_fit():
    process = algorithms.build_weighted_fed_avg(model_fn, standing)
    state, loss = trained(process, DATA.repeat(2))
    assert loss == trained(process, DATA.repeat(2), state)[1] == 2.5


def test_keras_counts_in_fit_as_a_client_does():
    model = keras.Sequential([keras.Input((2,)), Counter("int32"), L.Dense(1, kernel_initializer="ones")])
    model.compile(standing(), mean_prediction)
    model.fit(X, X[:, :1], batch_size=4, epochs=2, verbose=0)
    assert int(model.layers[0].count) == 6


TRAININGS = {
    "proximal": lambda: algorithms.build_weighted_fed_prox(model_fn, 0.1, standing),
    "mime lite": lambda: algorithms.build_weighted_mime_lite(model_fn, standing),
    "gradient descent": lambda: algorithms.build_fed_sgd(model_fn, standing),
    "of functions": lambda: algorithms.build_weighted_fed_avg(
        lambda: fc.learning.models.model_from_functional(
            fc.learning.models.trace_model(model_fn), [lambda: keras.metrics.MeanAbsoluteError()]
        ),
        standing,
    ),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_counter_goes_on_in_each_algorithm(name):
    assert trained(TRAININGS[name]())[1] == 1.0


def test_a_counter_goes_on_where_clients_have_states():
    process = algorithms.build_scaffold(model_fn, 1e-9, num_clients=1)
    output = process.next(process.initialize(), [DATA], [process.initial_client_state()])
    assert output.metrics["client_work"]["train"]["loss"] == pytest.approx(1.0)


def test_a_counter_goes_on_in_personalization_before_and_after():
    evaluate = algorithms.build_personalization_eval_computation(model_fn, {"own": standing})
    weights = fc.learning.models.trace_model(model_fn).initial_weights()
    metrics = evaluate(weights, [{"train_data": DATA, "test_data": DATA}])
    assert [float(m["loss"][0]) for m in metrics.values()] == [1.0, 1.0]


def test_a_counter_goes_on_in_reconstruction_and_its_evaluation():
    def make():
        shared, own = L.Dense(2, kernel_initializer="ones"), L.Dense(1, kernel_initializer="zeros", name="own")
        counter = Counter("int32")
        return fc.learning.models.ReconstructionModel.from_keras_model_and_layers(
            keras.Sequential([keras.Input((2,)), shared, counter, own]),
            global_layers=[shared, counter],
            local_layers=[own],
            input_spec=DATA.element_spec,
        )

    options = {"loss_fn": lambda: mean_prediction, "reconstruction_optimizer_fn": lambda: K.SGD(1.0)}
    process = algorithms.build_fed_recon_eval(make, **options)
    metrics = process.next(process.initialize(), [DATA.repeat(2)]).metrics["client_work"]["eval"]
    # Three steps take 0 + 1 + 2 from both entries of the kernel and 3 from the bias; the evaluation meets 0, 1 and 2.
    assert metrics["current_round_metrics"]["loss"] == pytest.approx(2 * -3 * 1.0 - 3)


def test_a_process_from_a_file_counts_too(tmp_path):
    process = algorithms.build_weighted_fed_avg(model_fn, standing)
    fc.save(process.next, tmp_path / "next.fed")
    output = fc.load(tmp_path / "next.fed")(process.initialize(), [DATA])
    assert output.metrics["client_work"]["train"]["loss"] == 1.0


class Own(fc.learning.Model):
    """Counts in a variable that is in none of its lists."""

    def __init__(self):
        self.kernel = tf.Variable(lambda: tf.ones([2, 1]), name="kernel")
        self.calls = tf.Variable(0, trainable=False)

    trainable_variables = property(lambda self: [self.kernel])
    non_trainable_variables = property(lambda self: [])
    local_variables = property(lambda self: [])
    input_spec = property(lambda self: DATA.element_spec)

    def predict_on_batch(self, x, training=True):
        return x @ self.kernel

    def forward_pass(self, batch_input, training=True):
        loss = 0 * tf.reduce_sum(self.predict_on_batch(batch_input[0])) + tf.cast(self.calls, tf.float32)
        self.calls.assign_add(1)
        return fc.learning.BatchOutput(loss, None, tf.shape(batch_input[0])[0])

    def report_local_unfinalized_metrics(self):
        return {}

    def metric_finalizers(self):
        return {}

    def reset_metrics(self):
        pass


def test_a_variable_in_no_list_of_an_own_model_goes_on():
    assert trained(algorithms.build_weighted_fed_avg(Own, standing))[1] == evaluated(Own) == 1.0


def test_integers_that_no_step_assigns_are_not_carried():
    class Table(L.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=(5,), dtype="int32", initializer="ones", trainable=False)

        def call(self, x):
            return x * tf.cast(tf.reduce_sum(self.table.value), x.dtype)

    model = keras.Sequential([keras.Input((2,)), Table(), L.Dense(1, kernel_initializer="ones")])
    pure = fc.learning.from_keras_model(model, mean_prediction, DATA.element_spec)
    assert pure.initial_metrics()["layer_states"] == ()


def test_a_weight_that_its_gradient_overwrites_is_refused():
    model = keras.Sequential([keras.Input((2,)), L.Dense(1)])
    model.layers[0].bias.overwrite_with_gradient = True
    with pytest.raises(fc.errors.TracingError, match=r"the weight \S+/bias is overwritten by its gradient"):
        fc.learning.from_keras_model(model, "mse", DATA.element_spec)


class CountingInitializer(keras.initializers.Initializer):
    calls = 0

    def __call__(self, shape, dtype=None, **options):
        self.calls += 1
        return self.calls * tf.ones(shape)


def test_an_initializer_that_counts_in_python_gives_the_value_that_the_model_has():
    def make():
        model = keras.Sequential([keras.Input((2,)), L.Dense(1, kernel_initializer=CountingInitializer())])
        return fc.learning.from_keras_model(model, "mse", DATA.element_spec)

    state = algorithms.build_weighted_fed_avg(make, standing).initialize()
    assert state.global_model_weights.trainable[0].tolist() == [[1.0], [1.0]]
