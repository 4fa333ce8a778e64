"""Losses, metrics, masks and sample weights of Keras models mean what Keras' compile, fit and evaluate mean."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from onednn_faults import needs_bfloat16

import fedcore as fc
from fedcore.errors import TracingError
from fedcore.graphs.batched.batching_rules import matmul
from fedcore.learning import algorithms, models, optimizers
from fedcore.learning.models.gradients import dense_gradients_of

L, ops = keras.layers, keras.ops
RNG = np.random.default_rng(0)
EXAMPLES, BATCH, RATE = 10, 4, 0.1
X = RNG.normal(size=(EXAMPLES, 6)).astype(np.float32)
KINDS = RNG.integers(0, 3, EXAMPLES).astype(np.int32)
SIZES = RNG.normal(size=(EXAMPLES, 1)).astype(np.float32)
SIGNS = (SIZES > 0).astype(np.int64)
WEIGHTS = RNG.uniform(0, 2, EXAMPLES).astype(np.float32)
WORDS = RNG.integers(0, 5, (EXAMPLES, 4)).astype(np.int32)
TAGS = RNG.integers(0, 3, (EXAMPLES, 4)).astype(np.int32)
TAG_WEIGHTS = RNG.uniform(0, 2, (EXAMPLES, 4)).astype(np.float32)
IMAGES = RNG.normal(size=(EXAMPLES, 8, 8, 1)).astype(np.float32)
MASKS = RNG.integers(0, 2, (EXAMPLES, 8, 8)).astype(np.int32)
SPARSE = keras.losses.SparseCategoricalCrossentropy


def sequential(*layers, shape=(6,), dtype="float32"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers])


def dense(units, **options):
    return lambda: sequential(L.Dense(units, **options))


def softmax():
    return sequential(L.Dense(3, activation="softmax"))


def tagger():
    words = L.Embedding(5, 4, mask_zero=True)
    return sequential(words, L.LSTM(5, return_sequences=True), L.Dense(3, activation="softmax"), shape=(4,))


def image_masks():
    return sequential(L.Conv2D(1, 3, padding="same", activation="sigmoid"), shape=(8, 8, 1))


def image_classes():
    return sequential(L.Conv2D(3, 3, padding="same", activation="softmax"), shape=(8, 8, 1))


def two_outputs(kind):
    x = keras.Input((6,))
    outputs = {"kind": L.Dense(3, activation="softmax", name="kind")(x), "size": L.Dense(1, name="size")(x)}
    return keras.Model(x, outputs if kind is dict else list(outputs.values()))


class Several(keras.Model):
    def __init__(self):
        super().__init__()
        self.kind, self.size = L.Dense(3, activation="softmax"), L.Dense(1)

    def call(self, x):
        return self.kind(x), self.size(x)


def squares(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred), -1)


class AddsLoss(L.Layer):
    def call(self, x):
        self.add_loss(ops.mean(ops.square(x)))
        return x


class Counts(L.Layer):
    def __init__(self):
        super().__init__()
        self.mean = keras.metrics.Mean(name="activation")

    def call(self, x):
        self.mean.update_state(x)
        return x


class OwnLoss(keras.Sequential):
    def compute_loss(self, x, y, y_pred, sample_weight):
        return ops.mean(ops.square(y - y_pred)) + 0.1 * ops.mean(ops.abs(x)) + ops.sum(self.losses)


class LossWithPenalty(keras.Model):
    def __init__(self):
        super().__init__()
        self.out, self.penalty = L.Dense(3), keras.metrics.Mean(name="penalty")

    def call(self, x):
        return self.out(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        penalty = ops.mean(ops.square(y_pred))
        self.penalty.update_state(penalty)
        return super().compute_loss(x, y, y_pred, sample_weight) + (0.3 * penalty if training else 0.0)


class OwnMetrics(keras.Model):
    def __init__(self):
        super().__init__()
        self.out, self.energy = L.Dense(3), keras.metrics.Mean(name="energy")

    def call(self, x):
        return self.out(x)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        self.energy.update_state(ops.square(x))
        return {**results, "energy": self.energy.result()}


def mixed():
    return sequential(L.Dense(8, activation="relu", dtype="mixed_bfloat16"), L.Dense(1, dtype="mixed_bfloat16"))


BY_NAME = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
LABELS = {"kind": KINDS, "size": SIZES}
CASES = {
    "own function, labels [N], predictions [N,1]": (
        dense(1),
        (X, SIZES[:, 0].copy()),
        {"loss": squares, "metrics": ["mae", squares]},
    ),
    "own function, integer labels": (dense(1), (X, KINDS), {"loss": squares}),
    "mask, loss by name": (tagger, (WORDS, TAGS), {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}),
    "mask, weights [B,T], loss is a function": (
        tagger,
        (WORDS, TAGS, TAG_WEIGHTS),
        {
            "loss": keras.losses.sparse_categorical_crossentropy,
            "metrics": ["acc"],
            "weighted_metrics": ["acc"],
        },
    ),
    "mask, object": (tagger, (WORDS, TAGS, TAG_WEIGHTS), {"loss": SPARSE(), "weighted_metrics": ["accuracy"]}),
    "masks [N,8,8] for [N,8,8,1]": (
        image_masks,
        (IMAGES, MASKS),
        {"loss": "binary_crossentropy", "metrics": ["accuracy", keras.metrics.BinaryIoU([0, 1])]},
    ),
    "intersections of classes": (
        image_classes,
        (IMAGES, MASKS),
        {"loss": "ce", "metrics": [keras.metrics.MeanIoU(3, sparse_y_pred=False)]},
    ),
    "a flat list of metrics, one for each output": (
        lambda: two_outputs(list),
        (X, (KINDS, SIZES)),
        {"loss": ["sparse_categorical_crossentropy", "mse"], "metrics": ["accuracy", "mae"], "loss_weights": [1, 0.3]},
    ),
    "weights and weighted metrics by output": (
        lambda: two_outputs(dict),
        (X, LABELS, {"kind": WEIGHTS, "size": WEIGHTS[::-1].copy()}),
        {"loss": BY_NAME, "metrics": {"kind": "acc"}, "weighted_metrics": {"kind": ["acc"], "size": "mae"}},
    ),
    "one weight for all outputs": (
        lambda: two_outputs(dict),
        (X, LABELS, WEIGHTS),
        {"loss": BY_NAME, "weighted_metrics": {"kind": ["acc"], "size": "mae"}},
    ),
    "labels of one output only": (lambda: two_outputs(dict), (X, {"kind": KINDS}), {"loss": {"kind": SPARSE()}}),
    "one loss for all outputs": (lambda: two_outputs(list), (X, (SIZES, SIZES)), {"loss": "mse"}),
    "outputs without names": (
        Several,
        (X, (KINDS, SIZES)),
        {"loss": ["sparse_categorical_crossentropy", "mse"], "metrics": [["accuracy"], ["mae"]]},
    ),
    "an ignored class": (
        dense(3),
        (X, np.where(KINDS == 2, -1, KINDS)),
        {"loss": SPARSE(from_logits=True, ignore_class=-1)},
    ),
    "names by shapes, integers": (softmax, (X, KINDS[:, None].copy()), {"loss": "ce", "metrics": ["accuracy"]}),
    "names by shapes, one unit": (
        dense(1, activation="sigmoid"),
        (X, SIGNS),
        {"loss": "crossentropy", "metrics": ["acc"]},
    ),
    "names by shapes, one-hot": (
        softmax,
        (X, np.eye(3, dtype=np.float32)[KINDS]),
        {"loss": "crossentropy", "metrics": ["accuracy"]},
    ),
    "classes of losses and metrics": (
        dense(1),
        (X, SIZES),
        {"loss": keras.losses.MeanSquaredError, "metrics": [keras.metrics.MeanAbsoluteError]},
    ),
    "one metric three times": (
        dense(1),
        (X, SIZES, WEIGHTS),
        {"loss": "mse", "metrics": ["mae", "mae"], "weighted_metrics": ["mae"]},
    ),
    "a metric that is a function": (dense(1), (X, SIZES), {"loss": "mse", "metrics": [lambda y, p: ops.mean(p)]}),
    "labels [N,1] for [N,3]": (dense(3), (X, SIZES), {"loss": "mse", "loss_weights": 2.0}),
    "mixed precision": (mixed, (X, SIZES), {"loss": squares, "metrics": ["mae"]}),
    "regularizers": (
        dense(3, kernel_regularizer="l2", activity_regularizer="l1"),
        (X, KINDS),
        {"loss": SPARSE(from_logits=True)},
    ),
    "a layer's loss alone": (lambda: sequential(L.Dense(3), AddsLoss()), (X, KINDS), {"loss": None}),
    "a layer's metric": (lambda: sequential(L.Dense(3), Counts()), (X, KINDS), {"loss": SPARSE(from_logits=True)}),
    "compute_loss": (
        lambda: OwnLoss([keras.Input((6,)), L.Dense(1, kernel_regularizer="l2")]),
        (X, SIZES),
        {"loss": None, "metrics": ["mae"]},
    ),
    "compute_loss by training": (LossWithPenalty, (X, KINDS, WEIGHTS), {"loss": SPARSE(from_logits=True)}),
    "compute_metrics": (OwnMetrics, (X, KINDS), {"loss": SPARSE(from_logits=True), "metrics": ["accuracy"]}),
    "predictions [N]": (
        lambda: sequential(L.Dense(1), L.Reshape(())),
        (X, SIZES[:, 0].copy()),
        {"loss": "mse", "metrics": ["mae"]},
    ),
    **{
        f"reduction {reduction}": (
            dense(3),
            (X, KINDS, WEIGHTS),
            {"loss": SPARSE(from_logits=True, reduction=reduction), "metrics": ["accuracy"]},
        )
        for reduction in ("sum", None, "mean_with_sample_weight")
    },
    "a loss that is not reduced, of two": (
        lambda: two_outputs(list),
        (X, (KINDS, SIZES)),
        {"loss": [SPARSE(reduction=None), "mse"]},
    ),
}


def compiled(make, weights, options):
    """A Keras model with these weights, compiled without a graph, which Keras would compile with XLA."""
    model = make()
    model(WORDS[:1] if make is tagger else IMAGES[:1] if make in (image_masks, image_classes) else X[:1])
    weights.assign_weights_to(model)
    weights_of_losses = options.get("loss_weights")
    if isinstance(weights_of_losses, list):
        options = {**options, "loss_weights": [float(w) for w in weights_of_losses]}
    model.compile(keras.optimizers.SGD(RATE), run_eagerly=True, **options)
    return model


def rows(columns, start):
    return keras.tree.map_structure(lambda a: tf.constant(a[start : start + BATCH]), columns)


def run(model, weights, columns, *, training):
    """The weights and metrics of a pure model after a client's batches, by the gradients of its steps."""
    state = model.initial_metrics()
    for start in range(0, EXAMPLES, BATCH):
        gradients, _, others, state = dense_gradients_of(model, weights, state, rows(columns, start), training)
        trained = [w - RATE * g for w, g in zip(weights.trainable, gradients, strict=True)] if training else None
        weights = fc.learning.ModelWeights(tuple(trained or weights.trainable), others)
    return weights, model.finalize_metrics(model.report_metrics(state))


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=needs_bfloat16) if n == "mixed precision" else n for n in CASES]
)
def test_it_means_what_it_means_for_compile(name):
    make, columns, options = CASES[name]
    batches = tf.data.Dataset.from_tensor_slices(columns).batch(BATCH)
    model = models.trace_model(lambda: fc.learning.from_keras_model(make(), input_spec=batches.element_spec, **options))
    first = model.initial_weights()
    plain = compiled(make, first, options)
    evaluated = plain.evaluate(batches, verbose=0, return_dict=True)
    fitted = {metric: values[0] for metric, values in plain.fit(batches, shuffle=False, verbose=0).history.items()}
    _, evaluation = run(model, first, columns, training=False)
    after, training = run(model, first, columns, training=True)
    for metrics, want in ((evaluation, evaluated), (training, fitted)):
        assert set(metrics) == {*want, "num_examples", "num_batches"}
        for metric, value in want.items():
            np.testing.assert_allclose(metrics[metric], value, rtol=1e-4, atol=1e-5, err_msg=metric)
    for a, b in zip(after.trainable, plain.trainable_variables, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6, err_msg=b.path)


def round_metrics(make, data, **options):
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(make(), input_spec=data.element_spec, **options),
        optimizers.build_sgdm(RATE),
    )
    return process.next(process.initialize(), [data]).metrics["client_work"]["train"]


@pytest.mark.filterwarnings("ignore:Layer '")  # Flatten passes on no mask
def test_queries_that_are_masked_whole_attend_to_all_positions(monkeypatch):
    """Their scores all lie at the dtype's minimum: the softmax is 1/n each, also beside classes that padding adds."""
    monkeypatch.setattr(matmul, "LONG_RUN", 0)  # rows are padded, as those of other instruction sets and long ones

    def attention():
        words = keras.Input((4,), dtype="int32")
        x = L.Embedding(5, 4, mask_zero=True)(words)
        x = L.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
        return keras.Model(words, L.Dense(3)(L.Flatten()(x)))

    words = np.where(np.arange(4) < np.arange(EXAMPLES)[:, None] % 4, WORDS, 0).astype(np.int32)
    model = attention()
    data = fc.data.ClientDataset.from_columns((words, KINDS)).batch(EXAMPLES)
    loss = SPARSE(from_logits=True)
    metrics = round_metrics(lambda: model, data, loss=loss)
    np.testing.assert_allclose(metrics["loss"], loss(KINDS, model(words)), rtol=1e-5)


def test_labels_without_a_last_axis_are_not_spread_over_the_batch():
    x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.float32([1, 2, 3, 4])
    data = fc.data.ClientDataset.from_columns((x, y)).batch(4)
    make = lambda: sequential(L.Dense(1, kernel_initializer="ones"), shape=(2,))  # noqa: E731
    assert round_metrics(make, data, loss=squares)["loss"] == 31.5


def test_a_batch_of_one_takes_the_weights_of_its_steps():
    columns = tuple(a[:1] for a in (WORDS, TAGS, TAG_WEIGHTS))
    state = tagger()
    data = fc.data.ClientDataset.from_columns(columns).batch(1)
    loss = keras.losses.sparse_categorical_crossentropy
    metrics = round_metrics(lambda: state, data, loss=loss)
    want = SPARSE()(columns[1], state(columns[0]), sample_weight=columns[2])
    np.testing.assert_allclose(metrics["loss"], want, rtol=1e-5)


def test_sparse_inputs_mean_what_dense_ones_do():
    dense_x = np.where(np.abs(X) > 1, X, 0).astype(np.float32)

    def make():
        x = keras.Input((6,), sparse=True)
        return keras.Model(x, L.Dense(3)(x))

    data = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(dense_x), KINDS)).batch(BATCH)
    process, of_dense = (
        algorithms.build_weighted_fed_avg(
            lambda make=make, spec=spec: fc.learning.from_keras_model(make(), SPARSE(from_logits=True), spec),
            optimizers.build_sgdm(RATE),
        )
        for make, spec in ((make, None), (make, data.element_spec), (dense(3), None))[1:]
    )
    state = of_dense.initialize()
    want = of_dense.next(state, [fc.data.ClientDataset.from_columns((dense_x, KINDS)).batch(BATCH)])
    after = process.next(process.set_model_weights(process.initialize(), state.model), [data])
    assert after.metrics["client_work"]["train"]["loss"] == pytest.approx(want.metrics["client_work"]["train"]["loss"])
    for a, b in zip(after.state.model.trainable, want.state.model.trainable, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_type_of_sparse_inputs_comes_from_the_model():
    x = keras.Input((6,), sparse=True)
    model = fc.learning.from_keras_model(keras.Model(x, L.Dense(3)(x)), SPARSE(from_logits=True))
    assert isinstance(model.input_spec[0], tf.SparseTensorSpec)


def test_a_compiled_model_keeps_what_compile_was_given():
    model = softmax()
    model.compile("sgd", "mse", metrics=["mae"])
    want = model.evaluate(X, np.eye(3)[KINDS], verbose=0, return_dict=True)
    fc.learning.from_keras_model(model, "sparse_categorical_crossentropy", (X, KINDS), ["accuracy"])
    assert model.evaluate(X, np.eye(3)[KINDS], verbose=0, return_dict=True) == want
    other = softmax()
    fc.learning.from_keras_model(other, "sparse_categorical_crossentropy", (X, KINDS), ["accuracy"])
    assert not other.compiled
    assert not other.metrics


def test_a_metric_without_sample_weight_is_taken_as_by_tff():
    class Wrong(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="wrong")
            self.count = self.add_weight(name="count", initializer="zeros")

        def update_state(self, y_true, y_pred):
            self.count.assign_add(ops.sum(ops.cast(ops.cast(y_true, "int32") != ops.argmax(y_pred, -1), "float32")))

        def result(self):
            return self.count

    data = fc.data.ClientDataset.from_columns((X, KINDS)).batch(BATCH)
    metrics = round_metrics(softmax, data, loss=SPARSE(), metrics=[Wrong(), "accuracy"])
    assert metrics["wrong"] == pytest.approx(EXAMPLES * (1 - metrics["accuracy"]))


class OwnTrainStep(keras.Sequential):
    def train_step(self, data):
        return {}


class OwnTestStep(keras.Sequential):
    def test_step(self, data):
        return {}


class NoMetric(keras.Sequential):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {"largest": ops.max(y_pred)}


class NoLoss(keras.Sequential):
    def compute_loss(self, x, y, y_pred, sample_weight=None):
        pass


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (OwnTrainStep, r"OwnTrainStep has a train_step of its own, .* Write the loss in compute_loss\(x, y, y_pred, s"),
        (OwnTestStep, r"OwnTestStep has a test_step of its own, .* whose forward_pass is yours"),
        (NoMetric, r"compute_metrics of NoMetric reports 'largest', which is no metric .* by its name \(loss\)"),
        (NoLoss, "compute_loss of NoLoss returns None; it returns the loss"),
    ],
)
def test_steps_that_no_algorithm_calls_are_refused(kind, says):
    with pytest.raises(TracingError, match=says):
        fc.learning.from_keras_model(kind([keras.Input((6,)), L.Dense(3)]), SPARSE(from_logits=True), (X, KINDS))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loss": "mse", "metrics": ["accuraccy"]}, "Keras has no metric named 'accuraccy'"),
        ({"loss": {"kind": "mse", "height": "mse"}}, "loss names the output 'height', but the model has kind, size"),
        (
            {"loss": {"kind": "mse"}},
            r"Expected keys \['kind', 'size'\] in loss dict, but found loss.keys\(\)=\['kind'\]",
        ),
        ({"loss": "mse", "metrics": ["mae"]}, r"the metrics of .* expected: 2, got: 1"),
        ({"loss": "mse", "metrics": {"height": "mae"}}, "metrics names the output 'height', but the model has kind, s"),
        ({"loss": [None, None]}, r"is None for each of its outputs; give one, such as loss=\{'kind': …\}"),
    ],
)
def test_losses_and_metrics_that_no_output_has_are_named(options, says):
    with pytest.raises(TracingError, match=says):
        fc.learning.from_keras_model(two_outputs(list), input_spec=(X, (SIZES, SIZES)), **options)


def test_a_loss_that_calls_python_is_refused():
    def by_python(y_true, y_pred):
        return tf.ensure_shape(tf.numpy_function(lambda a: a.sum(-1), [y_pred], tf.float32), [None])

    with pytest.raises(TracingError, match="calls Python while it runs"):
        fc.learning.from_keras_model(softmax(), by_python, (X, KINDS))


def test_regularizers_alone_are_no_loss():
    with pytest.raises(TracingError, match="from_keras_model needs a loss"):
        fc.learning.from_keras_model(dense(3, kernel_regularizer="l2")(), None, (X, KINDS))


@pytest.mark.parametrize("make_optimizer", [keras.optimizers.AdamW, keras.optimizers.SGD], ids=["AdamW", "SGD"])
def test_weights_that_the_loss_does_not_depend_on_do_not_decay(make_optimizer):
    def model_fn():
        x = keras.Input((6,))
        model = keras.Model(x, {"kind": L.Dense(3)(x), "size": L.Dense(1)(x)})
        spec = tf.TensorSpec([None, 6]), {"kind": tf.TensorSpec([None], tf.int32)}
        return fc.learning.from_keras_model(model, {"kind": SPARSE(from_logits=True)}, spec)

    client = fc.data.ClientDataset.from_columns((X, {"kind": KINDS})).batch(BATCH)
    process = algorithms.build_weighted_fed_avg(model_fn, lambda: make_optimizer(RATE, weight_decay=0.1))
    start = process.initialize()
    after, _ = process.next(start, [client, client])
    moved = [
        not np.array_equal(a, b)
        for a, b in zip(start.global_model_weights.trainable, after.global_model_weights.trainable, strict=True)
    ]
    assert moved == [True, True, False, False]


class SquaredRunningValue(L.Layer):
    def build(self, shape):
        self.value = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        self.value.assign(ops.mean(x) + 1.0)
        return x + ops.square(self.value)


def test_no_gradient_flows_through_a_value_that_a_layer_assigns():
    model = models.from_keras_model(
        sequential(SquaredRunningValue(), shape=(1,)), "mse", (tf.TensorSpec([2, 1]), tf.TensorSpec([2, 1]))
    )
    batch = (tf.constant([[1.0], [3.0]]), tf.zeros([2, 1]))
    with tf.GradientTape() as tape:
        tape.watch(batch)
        output, _, _ = model.step(model.initial_weights(), model.initial_metrics(), batch, training=True)
    np.testing.assert_allclose(output.predictions, [[10.0], [12.0]])
    np.testing.assert_allclose(tape.gradient(output.loss, batch[0]), [[10.0], [12.0]])


@pytest.mark.parametrize("is_built", [True, False])
def test_a_layer_that_assigns_in_every_call_starts_from_its_first_value(is_built):
    layer = SquaredRunningValue()
    model = sequential(layer, L.Dense(1), shape=(1,)) if is_built else keras.Sequential([layer, L.Rescaling(1.0, 1.0)])
    pure = models.from_keras_model(model, "mse", (tf.TensorSpec([2, 1]), tf.TensorSpec([2, 1])))
    assert layer.value.numpy() == 0.0
    assert pure.initial_weights().non_trainable[0].numpy() == 0.0


class OwnGradient(L.Layer):
    def __init__(self, wrap):
        super().__init__()
        self.wrap, self.inner = wrap, L.Dense(3)

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return self.wrap(lambda x: self.inner(x))(x)


def straight_through(function):
    @tf.custom_gradient
    def call(x):
        return function(x), lambda upstream, variables=None: (x * 0.0, [tf.zeros(v.shape) for v in variables or ()])

    return call


@pytest.mark.parametrize("wrap", [straight_through, tf.recompute_grad, keras.remat])
def test_a_weight_inside_a_function_with_a_gradient_of_its_own_is_refused(wrap):
    says = r"the layer own_gradient.* reads the weight .*kernel inside a function with a gradient of its own"
    with pytest.raises(TracingError, match=says):
        models.from_keras_model(sequential(OwnGradient(wrap)), SPARSE(), (X, KINDS))


def test_losses_of_outputs_of_no_examples_are_zero():
    model = fc.learning.from_keras_model(two_outputs(list), [SPARSE(), "mse"], (X, (KINDS, SIZES)))
    metrics = model.finalize_metrics(model.report_metrics(model.initial_metrics()))
    losses = {name: float(metrics[name]) for name in ("loss", "kind_loss", "size_loss")}
    assert losses == dict.fromkeys(losses, 0.0)


@pytest.mark.parametrize("kind", [list, dict])
def test_accuracy_has_a_name_of_its_own_in_a_list_by_outputs(kind):
    labels = {"kind": KINDS, "size": SIZES} if kind is dict else (KINDS, SIZES)
    metrics = [{"hits": "accuracy"}, {"error": "mae"}]
    model = fc.learning.from_keras_model(two_outputs(kind), [SPARSE(), "mse"], (X, labels), metrics)
    assert {"kind_hits", "size_error"} <= set(model.metric_names)
