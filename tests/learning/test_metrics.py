"""Metrics aggregators and counters against plain Keras and numpy."""

import functools

import keras
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import FedcoreError, TracingError, TypeMismatch
from fedcore.learning import algorithms, metrics

from .conftest import examples, random_clients

SIZES = [7, 3, 12]


def sgd():
    return keras.optimizers.SGD(0.1)


@pytest.fixture(scope="module")
def built(model_fn):
    """Federated averaging with a metrics aggregator, built and compiled once."""
    return functools.cache(
        lambda aggregator: algorithms.build_weighted_fed_avg(model_fn, sgd, metrics_aggregator=aggregator)
    )


@pytest.fixture(scope="module")
def round_of(built):
    def run(aggregator, clients=None):
        process = built(aggregator)
        clients = random_clients(SIZES) if clients is None else clients
        return process.next(process.initialize.invoke(seed=1), clients).metrics["client_work"]["train"]

    return run


@pytest.fixture(scope="module")
def alone(process):
    """The loss of each client by itself."""
    state = process.initialize.invoke(seed=1)
    return [process.next(state, [c]).metrics["client_work"]["train"]["loss"] for c in random_clients(SIZES)]


def test_the_secure_sum_gives_what_the_plain_one_does(round_of):
    plain, secure = (round_of(a) for a in (metrics.sum_then_finalize, metrics.secure_sum_then_finalize))
    assert secure["num_examples"] == plain["num_examples"] == 22
    np.testing.assert_allclose(secure["loss"], plain["loss"], rtol=1e-3)


def test_a_sample_holds_a_row_for_each_client(round_of, alone):
    found = round_of(metrics.finalize_then_sample)
    assert sorted(found["num_examples"]) == sorted(SIZES)
    np.testing.assert_allclose(sorted(found["loss"]), sorted(alone), rtol=1e-5)


def test_an_aggregator_may_call_the_finalizers_and_give_the_metrics_alone(round_of):
    def doubled(metric_finalizers, local_unfinalized_metrics_type=None):
        @fc.federated_computation
        def aggregate(client_states):
            total = fc.federated_map(lambda s: fc.generic_plus(s, s), fc.federated_sum(client_states))
            return fc.federated_map(fc.tf_computation(lambda s: metric_finalizers(s)), total)

        return aggregate

    found, plain = (round_of(a) for a in (doubled, metrics.sum_then_finalize))
    assert found["num_examples"] == 2 * plain["num_examples"] == 44
    assert found["loss"] == pytest.approx(plain["loss"])


@pytest.mark.parametrize("wrong", ["sum_then_finalize", metrics.sum_then_finalize({})])
def test_what_is_no_aggregator_of_metrics_is_named(model_fn, wrong):
    with pytest.raises(TypeMismatch, match=r"function of a model's finalizers, such as fc\.learning.* itself"):
        algorithms.build_weighted_fed_avg(model_fn, sgd, metrics_aggregator=wrong)


def test_quantiles_over_the_clients_equal_numpy(round_of, alone):
    found = round_of(metrics.add_client_quantiles(quantiles=(0.0, 0.3, 1.0)))
    want = np.quantile(alone, [0, 0.3, 1])
    np.testing.assert_allclose(found["per_client"]["loss"], want, rtol=1e-5)
    np.testing.assert_allclose(found["per_client"]["num_examples"], np.quantile(SIZES, [0, 0.3, 1]), rtol=1e-6)
    assert found["num_examples"] == 22


def test_quantiles_of_no_clients_are_nan(round_of):
    assert np.isnan(round_of(metrics.add_client_quantiles(), [])["per_client"]["loss"]).all()


def test_a_quantile_outside_its_range_is_refused():
    with pytest.raises(FedcoreError, match="between 0 and 1"):
        metrics.add_client_quantiles(quantiles=(1.5,))


class Wrong(keras.metrics.Metric):
    """A metric of one's own: how many labels are missed."""

    def __init__(self, name="wrong"):
        super().__init__(name=name)
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        missed = keras.ops.not_equal(keras.ops.cast(y_true, "int64"), keras.ops.argmax(y_pred, -1))
        self.count.assign_add(keras.ops.sum(keras.ops.cast(missed, "float32")))

    def result(self):
        return self.count


class Smallest(keras.metrics.Metric):
    """A metric whose states cannot be added."""

    def __init__(self):
        super().__init__(name="smallest")
        self.least = self.add_weight(name="least", initializer="ones")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.least.assign(keras.ops.minimum(self.least, keras.ops.min(y_pred)))

    def result(self):
        return self.least


def with_metrics(given):
    spec = random_clients([1])[0].element_spec

    def model_fn():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(model, loss, spec, given())

    return model_fn


def test_metrics_of_many_kinds_equal_keras_on_the_union():
    kinds = [
        keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
        keras.metrics.SparseTopKCategoricalAccuracy(2, name="top"),
        keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="entropy"),
        Wrong(),
        metrics.NumExamplesCounter(),
        metrics.NumBatchesCounter(),
    ]
    evaluation = algorithms.build_fed_eval(with_metrics(lambda: kinds))
    clients = random_clients(SIZES)
    state = evaluation.initialize()
    _, found = evaluation.next(state, clients)
    current = found["client_work"]["eval"]["current_round_metrics"]
    x, y = (np.concatenate(parts) for parts in zip(*map(examples, clients), strict=True))
    kernel, bias = state.model.trainable
    for metric in kinds[:4]:
        metric.update_state(y, x @ kernel + bias)
        np.testing.assert_allclose(current[metric.name], metric.result(), rtol=1e-5)
    assert (current["num_examples"], current["num_batches"]) == (22, 6)


class Tracked(keras.metrics.Metric):
    """Keeps a number about batches, by a rule (state, batch's number) -> state."""

    def __init__(self, rule):
        super().__init__(name="tracked")
        self.rule, self.value = rule, self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(self.rule(self.value + 0.0, keras.ops.max(y_pred)))

    def result(self):
        return self.value + 0.0


@pytest.mark.parametrize(
    "rule",
    [keras.ops.maximum, lambda state, number: number, lambda state, number: 0.9 * state + 0.1 * number],
    ids=["maximum", "last", "moving average"],
)
def test_a_metric_that_does_not_add_to_its_states_is_refused(rule):
    with pytest.raises(TracingError, match="the metric tracked does not add to its states"):
        with_metrics(lambda: [Tracked(rule)])()
    with_metrics(lambda: [Tracked(lambda state, number: state + number)])()


def test_states_that_cannot_be_added_are_refused():
    with pytest.raises(TracingError, match="the metric smallest does not start from zeros"):
        with_metrics(lambda: [Smallest()])()


def test_default_names_are_those_of_one_model_whatever_the_process_made_before():
    keras.metrics.AUC()  # takes the name in this process
    data = random_clients([4], classes=2)[0]

    def make():
        layers = [keras.Input((5,)), keras.layers.Dense(1, activation="sigmoid")]
        measured = [keras.metrics.AUC(), keras.metrics.AUC(curve="PR")]
        loss = keras.losses.MeanSquaredError()
        return fc.learning.from_keras_model(keras.Sequential(layers), loss, spec, measured)

    spec = tuple(np.asarray(part, np.float32).reshape(4, -1) for part in next(iter(data.as_numpy_iterator())))
    model = fc.learning.models.trace_model(make)
    assert [*model.metrics.initial()] == ["auc", "auc_1"]
    digests = {algorithms.build_fed_eval(make).next.digest for _ in range(2)}
    assert len(digests) == 1
    first, second = keras.metrics.AUC().name, keras.metrics.AUC().name
    assert first != second  # outside, Keras goes on


def test_a_model_may_hold_layers_that_were_made_outside():
    outside = keras.layers.Dense(3)

    def make():
        net = keras.Sequential([keras.Input((5,)), outside, keras.layers.Dense(3)])
        return fc.learning.from_keras_model(net, keras.losses.SparseCategoricalCrossentropy(True), spec)

    spec = random_clients([4])[0].element_spec
    assert len(algorithms.build_fed_eval(make).initialize().model.trainable) == 4
