"""Models written by hand, as a class with variables or as functions: the same rounds as the Keras model."""

import functools
import zipfile
from collections import OrderedDict

import keras
import numpy as np
import pytest
import tensorflow as tf
import warm_processes

import fedcore as fc
from fedcore.errors import FedcoreError, InvalidValue, TracingError, TypeMismatch
from fedcore.learning import algorithms, models

from .conftest import random_clients

SPEC = (tf.TensorSpec([None, 5]), tf.TensorSpec([None], tf.int32))
SIZES = [7, 3, 12]


def sgd():
    return keras.optimizers.SGD(0.1)


def first_kernel():
    return tf.reshape(tf.range(15, dtype=tf.float32) / 15, [5, 3])


class Softmax(fc.learning.Model):
    """A linear classifier with variables of its own, a mean of the inputs that moves, and counted metrics."""

    def __init__(self):
        self.kernel = tf.Variable(first_kernel, name="kernel")
        self.bias = tf.Variable(lambda: tf.zeros([3]), name="bias")
        self.mean = tf.Variable(lambda: tf.zeros([5]), trainable=False, name="mean")
        self.hits = tf.Variable(0.0, trainable=False, name="hits")
        self.count = tf.Variable(0.0, trainable=False, name="count")
        self.largest = tf.Variable(-1.0, trainable=False, name="largest")

    trainable_variables = property(lambda self: [self.kernel, self.bias])
    non_trainable_variables = property(lambda self: [self.mean])
    local_variables = property(lambda self: [self.hits, self.count, self.largest])
    input_spec = property(lambda self: SPEC)

    def predict_on_batch(self, x, training=True):
        return tf.matmul(x, self.kernel) + self.bias

    @tf.function
    def forward_pass(self, batch_input, training=True):
        x, y = batch_input
        logits = self.predict_on_batch(x, training)
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, 0))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        self.hits.assign_add(tf.reduce_sum(tf.cast(tf.argmax(logits, -1, tf.int32) == y, tf.float32)))
        self.count.assign_add(tf.cast(tf.shape(y)[0], tf.float32))
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(x)))
        return fc.learning.BatchOutput(loss, logits, tf.shape(y)[0])

    def report_local_unfinalized_metrics(self):
        return OrderedDict(accuracy=[self.hits, self.count], largest=self.largest)

    def metric_finalizers(self):
        return OrderedDict(accuracy=lambda values: values[0] / values[1], largest=lambda value: value)

    def reset_metrics(self):
        self.hits.assign(0.0)
        self.count.assign(0.0)
        self.largest.assign(-9.0)


def keras_model_fn():
    initializer = lambda shape, dtype: first_kernel()  # noqa: E731
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, kernel_initializer=initializer)])
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    return fc.learning.from_keras_model(
        model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), SPEC, [accuracy]
    )


def forward_pass(weights, batch, training):
    (kernel, bias), (x, y) = weights.trainable, batch
    logits = tf.matmul(x, kernel) + bias
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    return fc.learning.BatchOutput(loss, logits, tf.shape(y)[0])


def update_metrics(state, batch, output):
    hits = tf.cast(tf.argmax(output.predictions, -1, tf.int32) == batch[1], tf.float32)
    return {
        "accuracy": (
            state["accuracy"][0] + tf.reduce_sum(hits),
            state["accuracy"][1] + tf.cast(tf.size(hits), tf.float32),
        )
    }


def functional_model_fn():
    start = fc.learning.ModelWeights((first_kernel().numpy(), np.zeros(3, np.float32)), ())
    metrics = (
        lambda: {"accuracy": (tf.constant(0.0), tf.constant(0.0))},
        update_metrics,
        lambda state: {"accuracy": state["accuracy"][0] / state["accuracy"][1]},
    )
    predict = lambda weights, x, training: tf.matmul(x, weights.trainable[0]) + weights.trainable[1]  # noqa: E731
    return models.FunctionalModel(start, forward_pass, SPEC, predict, metrics)


BUILDERS = {
    "fed avg": lambda m: algorithms.build_weighted_fed_avg(m, sgd),
    "unweighted": lambda m: algorithms.build_unweighted_fed_avg(m, sgd, lambda: keras.optimizers.Adam(0.1)),
    "fed sgd": lambda m: algorithms.build_fed_sgd(m, sgd),
    "fed prox": lambda m: algorithms.build_weighted_fed_prox(m, 0.3, sgd),
    "schedule": lambda m: algorithms.build_weighted_fed_avg_with_optimizer_schedule(m, lambda r: 0.1, sgd),
    "mime lite": lambda m: algorithms.build_weighted_mime_lite(m, keras.optimizers.SGD(0.1, momentum=0.9)),
    "older": lambda m: fc.learning.build_federated_averaging_process(m, sgd),
}


@pytest.fixture(scope="module")
def built():
    """The process of a name and a model, built and compiled once."""
    return functools.cache(lambda name, model_fn: BUILDERS[name](model_fn))


@pytest.fixture(scope="module")
def two_rounds(built):
    """The state after two rounds of a process, and the metrics of the second."""

    @functools.cache
    def run(name, model_fn):
        process = built(name, model_fn)
        state = process.initialize()
        for _ in range(2):
            state, metrics = process.next(state, random_clients(SIZES))
        return state, metrics

    return run


def train_metrics(metrics):
    return metrics["train"] if "train" in metrics else metrics["client_work"]["train"]


SHARE_FED_AVG = {"unweighted", "fed prox", "schedule"}
"""Algorithms whose clients' work is that of "fed avg"."""


@pytest.mark.parametrize(
    ("model_fn", "name"),
    [
        *(pytest.param(Softmax, n, marks=pytest.mark.soak if n in SHARE_FED_AVG else ()) for n in BUILDERS),
        *((functional_model_fn, n) for n in ("fed avg", "mime lite")),
    ],
)
def test_two_rounds_equal_those_of_the_keras_model(two_rounds, model_fn, name):
    (mine, my_metrics), (keras_state, keras_metrics) = (two_rounds(name, m) for m in (model_fn, keras_model_fn))
    for a, b in zip(mine.model.trainable, keras_state.model.trainable, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    my_metrics, keras_metrics = train_metrics(my_metrics), train_metrics(keras_metrics)
    for metric in ("loss", "accuracy", "num_examples"):
        np.testing.assert_allclose(my_metrics[metric], keras_metrics[metric], rtol=1e-5)


@pytest.mark.parametrize("model_fn", [keras_model_fn, Softmax, functional_model_fn])
def test_the_type_of_the_weights_is_that_of_the_state(built, model_fn):
    found = fc.learning.models.weights_type_from_model(model_fn)
    process = built("fed avg", model_fn)
    assert found == process.initialize.type_signature.result.member.global_model_weights
    assert found == fc.learning.models.weights_type_from_model(model_fn())


def test_a_model_of_functions_has_the_same_rounds_as_one_with_variables(two_rounds):
    functional = functional_model_fn()
    assert models.model_from_functional(functional).input_spec == SPEC
    makers = functional_model_fn, lambda: models.model_from_functional(functional)
    rounds = [two_rounds("fed avg", make) for make in makers]
    results = [(state.global_model_weights, metrics) for state, metrics in rounds]
    for one, other in zip(*map(tf.nest.flatten, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_metrics_by_keras_replace_those_of_a_model_of_functions():
    functional = functional_model_fn()
    made = [lambda: keras.metrics.SparseCategoricalAccuracy(name="hits")]
    process = algorithms.build_fed_eval(lambda: models.model_from_functional(functional, made))
    own = algorithms.build_fed_eval(functional)
    found, wanted = (
        each.next(each.initialize(), random_clients(SIZES))[1]["client_work"]["eval"]["current_round_metrics"]
        for each in (process, own)
    )
    assert found["hits"] == wanted["accuracy"]
    assert "accuracy" not in found


def test_a_model_of_functions_is_read_back_from_its_file(tmp_path):
    functional, x = functional_model_fn(), np.ones([2, 5], np.float32)
    models.save_functional_model(functional, tmp_path / "model")
    model = models.load_functional_model(tmp_path / "model")
    weights = functional.initial_weights()
    np.testing.assert_array_equal(model.initial_weights().trainable[0], weights.trainable[0])
    np.testing.assert_allclose(model.predict_on_batch(weights, x), functional.predict_on_batch(weights, x, False))
    assert model.batch_type == functional.batch_type
    with pytest.raises(TypeMismatch, match="is no model of functions, such as a FunctionalModel"):
        models.save_functional_model(keras_model_fn, tmp_path / "other")


def test_only_a_model_of_functions_becomes_one_with_variables():
    with pytest.raises(TypeMismatch, match="is no model of functions, such as a FunctionalModel"):
        models.model_from_functional(functional_model_fn)


def test_scaffold_evaluation_and_personalization_take_them():
    clients = random_clients(SIZES)
    found = []
    for make in (Softmax, functional_model_fn):
        process = algorithms.build_scaffold(make, 0.1, num_clients=3)
        state = process.initialize()
        state, _, _ = process.next(state, clients, [process.initial_client_state()] * 3)
        evaluation = algorithms.build_fed_eval(make)
        _, metrics = evaluation.next(evaluation.set_model_weights(evaluation.initialize(), state.model), clients)
        adapted = algorithms.build_personalization_eval_computation(make, {"sgd": sgd})
        rows = adapted(state.model, [{"train_data": c, "test_data": c} for c in clients])
        current = metrics["client_work"]["eval"]["current_round_metrics"]
        found.append((current["loss"], current["accuracy"], *sorted(rows["sgd"]["loss"])))
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_non_trainable_variables_move_and_are_averaged(built):
    process = built("fed avg", Softmax)
    clients = random_clients(SIZES)
    state, _ = process.next(process.initialize(), clients)
    want = []
    for dataset in clients:
        mean = np.zeros(5)
        for x, _ in dataset.as_numpy_iterator():
            mean = 0.9 * mean + 0.1 * x.mean(0)
        want.append(mean)
    np.testing.assert_allclose(state.model.non_trainable[0], np.average(want, axis=0, weights=SIZES), rtol=1e-5)


def test_local_variables_need_not_be_sums_at_a_client(built):
    clients = random_clients([7])
    _, metrics = (p := built("fed avg", Softmax)).next(p.initialize(), clients)
    want = max(x.max() for x, _ in clients[0].as_numpy_iterator())
    np.testing.assert_allclose(metrics["client_work"]["train"]["largest"], want, rtol=1e-6)


def test_keras_layers_may_stand_in_a_class_of_ones_own(two_rounds):
    class Wrapped(Softmax):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(3, kernel_initializer=lambda shape, dtype: first_kernel())
            self.layer.build([None, 5])

        trainable_variables = property(lambda self: self.layer.trainable_variables)

        def predict_on_batch(self, x, training=True):
            return self.layer(x)

    found = [two_rounds("fed avg", make)[0].model.trainable for make in (Wrapped, Softmax)]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_metrics_of_a_class_of_ones_own_have_their_default_names_in_each_graph():
    class Measured(Softmax):
        def __init__(self):
            super().__init__()
            self.auc = keras.metrics.AUC()

        local_variables = property(lambda self: self.auc.variables)

        def forward_pass(self, batch_input, training=True):
            self.auc.update_state([0, 1], [0.2, 0.8])
            return super().forward_pass(batch_input, training)

        def report_local_unfinalized_metrics(self):
            return {self.auc.name: [tf.convert_to_tensor(v) for v in self.auc.variables]}

        def metric_finalizers(self):
            return {self.auc.name: fc.learning.metrics.create_keras_metric_finalizer(self.auc)}

        def reset_metrics(self):
            self.auc.reset_state()

    process = algorithms.build_weighted_fed_avg(Measured, lambda: keras.optimizers.SGD(0.0))
    _, metrics = process.next(process.initialize(), random_clients([4]))
    assert metrics["client_work"]["train"]["auc"] == 1


def test_weights_that_init_assigns_are_where_training_starts():
    class Warm(Softmax):
        def __init__(self):
            super().__init__()
            self.bias.assign([1.0, 2.0, 3.0])

    process = algorithms.build_weighted_fed_avg(Warm, lambda: keras.optimizers.SGD(0.0))
    state = process.initialize()
    np.testing.assert_array_equal(state.model.trainable[1], [1, 2, 3])
    moved = fc.learning.ModelWeights((state.model.trainable[0], np.float32([4, 5, 6])), state.model.non_trainable)
    after, _ = process.next(process.set_model_weights(state, moved), random_clients([4]))
    np.testing.assert_array_equal(after.model.trainable[1], [4, 5, 6])


class Lazy(Softmax):
    def forward_pass(self, batch_input, training=True):
        self.extra = tf.Variable(1.0, name="extra")
        return super().forward_pass(batch_input, training)


class NoLoss(Softmax):
    def forward_pass(self, batch_input, training=True):
        return fc.learning.BatchOutput(None, None, 3)


class VectorLoss(Softmax):
    def forward_pass(self, batch_input, training=True):
        return fc.learning.BatchOutput(tf.zeros([2]), None, 3)


class NoOutput(Softmax):
    def forward_pass(self, batch_input, training=True):
        return tf.constant(1.0)


class OtherMetrics(Softmax):
    def metric_finalizers(self):
        return {"precision": lambda values: values[0]}


OUTSIDE = tf.Variable(tf.zeros([5, 3]), name="outside")


class Captured(Softmax):
    trainable_variables = property(lambda self: [OUTSIDE, self.bias])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Captured, "returns a model with the variable outside:0, which it did not make"),
        (Lazy, "makes the variable extra while it is used: make all variables in __init__"),
        (NoLoss, "returns a BatchOutput without a loss"),
        (VectorLoss, r"returns a loss of shape \(2,\); it is the mean of the batch"),
        (NoOutput, "it returns a fc.learning.BatchOutput"),
        (OtherMetrics, "name other metrics: accuracy, largest, precision is in one of them only"),
        (Softmax(), "model_fn is a function that makes a model, not Softmax"),
    ],
)
def test_what_a_model_does_wrong_is_named(make, says):
    with pytest.raises(TracingError, match=says):
        algorithms.build_weighted_fed_avg(make, sgd)


LOADED = """
import sys
import numpy as np
import fedcore as fc
from fedcore.learning import algorithms, models, optimizers

model = models.load(sys.argv[1])
process = algorithms.build_weighted_fed_avg(model, optimizers.build_sgdm(0.1))
rng = np.random.default_rng(0)
data = [
    fc.data.ClientDataset.from_columns(
        (rng.normal(size=(n, 5)).astype(np.float32), rng.integers(0, 3, n).astype(np.int32))
    ).batch(4)
    for n in (7, 3, 12)
]
state = process.initialize.invoke(seed=1)
state, metrics = process.next(state, data)
predict = fc.tf_computation(lambda: model.predict_on_batch(model.initial_weights(), np.ones([2, 5], np.float32)))
np.savez(sys.argv[2], *state.model.trainable, metrics["client_work"]["train"]["accuracy"], predict())
"""


@pytest.mark.parametrize("model_fn", [Softmax, functional_model_fn, keras_model_fn])
def test_a_saved_model_trains_in_a_process_that_has_not_its_code(built, model_fn, tmp_path):
    models.save(model_fn, tmp_path / "model")
    warm_processes.python({"code": LOADED}, tmp_path / "model", tmp_path / "out.npz", cwd=tmp_path)
    process = built("fed avg", model_fn)
    state, metrics = process.next(process.initialize(), random_clients(SIZES))
    with np.load(tmp_path / "out.npz") as out:
        *weights, accuracy, predictions = (out[name] for name in out.files)
    for a, b in zip(weights, state.model.trainable, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(accuracy, metrics["client_work"]["train"]["accuracy"], rtol=1e-6)
    np.testing.assert_allclose(predictions, np.ones([2, 5]) @ first_kernel().numpy(), rtol=1e-6)


def test_what_holds_no_model_is_refused(tmp_path):
    with pytest.raises(FedcoreError, match=r"holds no model: there is no model\.zip"):
        models.load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FedcoreError, match="is a file; a model is saved to a directory"):
        models.save(keras_model_fn, tmp_path / "file")
    with pytest.raises(FedcoreError, match=r"^path is empty; a model has a directory of its own$"):
        models.load("")


def test_a_save_that_ends_half_way_leaves_the_model_that_was_there(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError("on purpose")

    models.save(functional_model_fn, tmp_path)
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", fails)
        with pytest.raises(OSError, match="on purpose"):
            models.save(Softmax, tmp_path)
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_bytes() == before
    models.load(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "mixed", "empty"])
def test_a_damaged_model_is_refused(damage, tmp_path):
    models.save(functional_model_fn, tmp_path)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    if damage == "mixed":
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr("another.fed", b"")
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        file.write_bytes({"cut": data[:middle], "flipped": flipped, "empty": b""}[damage])
    with pytest.raises(InvalidValue, match=r"model\.zip is no model"):
        models.load(tmp_path)


FUNCTIONS = {name: lambda *values: None for name in ("forward_pass_fn", "predict_on_batch_fn", "loss_fn")}


@pytest.mark.parametrize("names", [(), ("loss_fn",), ("predict_on_batch_fn",), tuple(FUNCTIONS)], ids=str)
def test_a_functional_model_has_one_forward_pass(names):
    weights = models.ModelWeights((np.zeros([5, 3], np.float32),), ())
    message = "^a functional model is given forward_pass_fn, or loss_fn and predict_on_batch_fn$"
    with pytest.raises(TracingError, match=message):
        models.FunctionalModel(weights, input_spec=SPEC, **{name: FUNCTIONS[name] for name in names})


def test_a_batch_that_is_a_dict_is_read_by_its_keys():
    model = models.FunctionalModel(
        fc.learning.ModelWeights((np.ones([2, 1], np.float32),), ()),
        input_spec={"x": tf.TensorSpec([None, 2]), "y": tf.TensorSpec([None, 1])},
        predict_on_batch_fn=lambda weights, x, training: x @ weights.trainable[0],
        loss_fn=lambda output, label: tf.reduce_mean((output - label) ** 2),
    )
    x, y = tf.ones([3, 2]), tf.zeros([3, 1])
    assert [float(model.forward_pass(batch).loss) for batch in ({"x": x, "y": y}, {"y": y, "x": x})] == [4, 4]


class Examples(keras.metrics.Metric):
    """Counts examples; its result is the variable itself."""

    def __init__(self):
        super().__init__(name="examples")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

    def result(self):
        return self.total


def test_a_metric_whose_result_is_a_variable_is_finalized_from_its_state():
    model = models.model_from_functional(functional_model_fn(), [Examples])
    assert float(model.metric_finalizers()["examples"]([tf.constant(5.0)])) == 5
