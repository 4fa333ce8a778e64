"""Functions of the user's own may have `if` and `for` over tensors, as in a `tf.function`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TracingError, TypeMismatch
from fedcore.learning import algorithms, optimizers, templates

X = np.float32([[1], [2], [3], [4]])
DATA = fc.data.ClientDataset.from_columns((X, 2 * X)).batch(1)
SPEC = DATA.element_spec


def line():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    return fc.learning.from_keras_model(model, "mse", SPEC)


def halved_later(number):
    if number > 0:
        return 0.0
    return 0.1


def heavy(report):
    weight = tf.constant(1.0)
    if report["num_batches"][0] > 2:
        weight = tf.constant(3.0)
    return weight


def slopes(process, rounds=2, cohort=(DATA,)):
    state, found = process.initialize(), []
    for _ in range(rounds):
        state = process.next(state, list(cohort)).state
        found.append(float(state.model.trainable[0][0, 0]))
    return found


def test_a_schedule_of_rounds():
    first, second = slopes(
        algorithms.build_weighted_fed_avg_with_optimizer_schedule(line, halved_later, optimizers.build_sgdm())
    )
    assert first == second != 0


def test_a_schedule_of_steps():
    scheduled = optimizers.schedule_learning_rate(optimizers.build_sgdm(), halved_later)
    once = algorithms.build_weighted_fed_avg(line, scheduled)
    (of_one_step,) = slopes(algorithms.build_weighted_fed_avg(line, optimizers.build_sgdm(0.1)), 1, [DATA.take(1)])
    assert slopes(once, 1) == [of_one_step]


def test_a_weighting():
    process = algorithms.build_weighted_fed_avg(line, optimizers.build_sgdm(0.1), client_weighting=heavy)
    (long,), (short,) = (slopes(process, 1, [data]) for data in (DATA, DATA.take(1)))
    assert slopes(process, 1, [DATA, DATA.take(1)])[0] == pytest.approx((3 * long + short) / 4)


def capped(weights, batch, training):
    ((slope,), (x, y)), examples = (weights.trainable, batch), 0
    predictions = x @ slope
    if tf.reduce_max(predictions) > 1.0:
        predictions = predictions * 0.0
    for _ in x:
        examples += 1
    return fc.learning.BatchOutput(tf.reduce_mean((predictions - y) ** 2), predictions, examples)


class Capped(fc.learning.Model):
    def __init__(self):
        self.slope = tf.Variable(lambda: tf.ones([1, 1]))

    trainable_variables = property(lambda self: [self.slope])
    non_trainable_variables = local_variables = property(lambda self: [])
    input_spec = property(lambda self: SPEC)

    def predict_on_batch(self, x, training=True):
        return x @ self.slope

    def forward_pass(self, batch_input, training=True):
        return capped(fc.learning.ModelWeights((self.slope,), ()), batch_input, training)

    def report_local_unfinalized_metrics(self):
        return {}

    def metric_finalizers(self):
        return {}

    def reset_metrics(self):
        pass


def of_functions():
    weights = fc.learning.ModelWeights((np.ones([1, 1], np.float32),), ())
    return fc.learning.models.FunctionalModel(weights, capped, SPEC)


@pytest.mark.parametrize("make", [of_functions, Capped])
def test_a_models_forward_pass(make):
    process = algorithms.build_weighted_fed_avg(make, optimizers.build_sgdm(0.1))
    assert slopes(process, 1) == pytest.approx([1.2])  # the first batch moves it, the others are above the cap


def first_half(dataset):
    count = 0
    for _ in dataset:
        count += 1
    return dataset.take(count // 2), dataset.skip(count // 2)


def reconstruction_model():
    own, shared = keras.layers.Dense(1, kernel_initializer="ones"), keras.layers.Dense(1, kernel_initializer="ones")
    return fc.learning.models.ReconstructionModel.from_keras_model_and_layers(
        keras.Sequential([keras.Input((1,)), own, shared]), global_layers=[shared], local_layers=[own], input_spec=SPEC
    )


def test_a_split_of_a_clients_data():
    process = algorithms.build_fed_recon(
        reconstruction_model, loss_fn=keras.losses.MeanSquaredError, dataset_split_fn=first_half
    )
    _, metrics = process.next(process.initialize(), [DATA.take(3)])
    assert metrics["client_work"]["train"]["num_examples"] == 2


@pytest.mark.parametrize("split", [lambda data: data, lambda data: (data, data, data)])
def test_a_split_that_gives_no_two_datasets_is_refused(split):
    with pytest.raises(TypeMismatch, match="a dataset_split_fn returns two datasets: that of the reconstruction, and"):
        algorithms.build_fed_recon(reconstruction_model, loss_fn=keras.losses.MeanSquaredError, dataset_split_fn=split)


def error(model, data):
    total = tf.constant(0.0)
    for batch in data.batch(2):
        total += model.forward_pass(batch, training=False).loss
    return {"error": total}


def test_functions_of_a_personalization():
    evaluate = algorithms.build_personalization_eval_computation(
        line, {"none": lambda: lambda model, train, test: error(model, test)}, baseline_evaluate_fn=error
    )
    examples = fc.data.ClientDataset.from_columns((X, 2 * X))
    found = evaluate(line().weights, [{"train_data": examples, "test_data": examples}])
    assert found["none"]["error"] == found["baseline_metrics"]["error"] == [(4 + 16) / 2 + (36 + 64) / 2]


def large(state, update):
    reject = False
    if tf.reduce_max(tf.abs(update[0])) > 1.0:
        reject = True
    return reject, {}


def test_a_rule_that_rejects_updates():
    weights = fc.learning.models.weights_type_from_model(line)
    step = templates.build_apply_optimizer_finalizer(optimizers.build_sgdm(1.0), weights, large)
    start = fc.learning.ModelWeights((np.zeros([1, 1], np.float32),), ())
    for change, moved in ((0.5, -0.5), (2.0, 0.0)):
        after = step.next(step.initialize(), start, (np.float32([[change]]),)).result
        assert after.trainable[0] == moved


# fmt: off
TWO = (lambda r: 0.1 if r < 1 else 0.2), (lambda r: 0.3 if r < 1 else 0.4)
# fmt: on


def test_control_flow_of_lambdas_on_one_line_says_what_to_write():
    with pytest.raises(
        TracingError, match=r"`<lambda>` \(.*test_control_flow.py:\d+\) decides by the value of a"
    ) as error:
        algorithms.build_weighted_fed_avg_with_optimizer_schedule(line, TWO[1], optimizers.build_sgdm())
    assert "several lambdas stand on its line\n  fix: write each lambda on a line of its own" in str(error.value)


def test_control_flow_without_a_source_says_what_to_write():
    unread = eval("lambda x: x if x > 0 else -x")
    with pytest.raises(TracingError, match=r"its source cannot be read: use tf.where or tf.cond"):
        fc.tf_computation(unread, "int32")
