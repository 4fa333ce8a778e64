"""Algorithms composed by hand of `fc.learning.templates`, and the checks of their parts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, TypeMismatch

from .conftest import random_clients

T, OPTIMIZERS = fc.learning.templates, fc.learning.optimizers
BY_EXAMPLES = fc.learning.ClientWeighting.NUM_EXAMPLES
CLIENTS = random_clients([7, 3, 4])


def make():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return fc.learning.from_keras_model(model, loss, CLIENTS[0].element_spec)


MODEL = fc.learning.models.trace_model(make)


@fc.tf_computation
def start():
    return MODEL.initial_weights()


WEIGHTS = start.type_signature.result
FLOAT = fc.to_type("float32")


def composed(work, server=None, **parts):
    made = {
        "model_weights_distributor": T.build_broadcast_process(WEIGHTS),
        "client_work": work,
        "model_update_aggregator": fc.aggregators.MeanFactory().create(WEIGHTS["trainable"], FLOAT),
        "model_finalizer": T.build_apply_optimizer_finalizer(server or OPTIMIZERS.build_sgdm(1.0), WEIGHTS),
    }
    return T.compose_learning_process(start, **{**made, **parts})


def delta_work(**options):
    return T.build_model_delta_client_work(MODEL, OPTIMIZERS.build_sgdm(0.1), BY_EXAMPLES, **options)


def gradient_work():
    """FedSGD by hand: the mean gradient over a client's examples."""

    @fc.tf_computation(WEIGHTS, fc.SequenceType(MODEL.batch_type))
    def gradient(weights, batches):
        def add(carry, batch):
            with tf.GradientTape() as tape:
                tape.watch(weights.trainable)
                loss = MODEL.step(weights, MODEL.initial_metrics(), batch, True)[0].loss
            count = tf.cast(tf.shape(batch[1])[0], tf.float32)
            found = tape.gradient(loss, weights.trainable)
            return tuple(c + g * count for c, g in zip(carry[0], found, strict=True)), carry[1] + count

        total, count = batches.reduce((tuple(map(tf.zeros_like, weights.trainable)), tf.constant(0.0)), add)
        return T.ClientResult(tuple(t / tf.maximum(count, 1.0) for t in total), count)

    @fc.federated_computation
    def initialize():
        return fc.federated_value((), fc.SERVER)

    @fc.federated_computation(
        initialize.type_signature.result,
        fc.FederatedType(WEIGHTS, fc.CLIENTS),
        fc.FederatedType(fc.SequenceType(MODEL.batch_type), fc.CLIENTS),
    )
    def next_fn(state, weights, data):
        result = fc.federated_map(gradient, (weights, data))
        return fc.templates.MeasuredProcessOutput(state, result, fc.federated_value((), fc.SERVER))

    return T.ClientWorkProcess(initialize, next_fn)


def same_bits(process, builder, rounds=2):
    theirs = builder.initialize()
    mine = process.set_model_weights(process.initialize(), builder.get_model_weights(theirs))
    for _ in range(rounds):
        mine, metrics = process.next(mine, CLIENTS)
        theirs, wanted = builder.next(theirs, CLIENTS)
    pairs = zip(process.get_model_weights(mine).trainable, builder.get_model_weights(theirs).trainable, strict=True)
    assert all(a.tobytes() == b.tobytes() for a, b in pairs)
    return metrics, wanted


@pytest.fixture(scope="module")
def fed_avg():
    return composed(delta_work())


def test_fed_avg_by_hand_has_the_bits_of_its_builder(fed_avg):
    builder = fc.learning.algorithms.build_weighted_fed_avg(make, OPTIMIZERS.build_sgdm(0.1))
    metrics, wanted = same_bits(fed_avg, builder)
    assert metrics["client_work"] == wanted["client_work"]
    assert metrics["finalizer"] == {"update_non_finite": 0}


def test_fed_prox_by_hand_has_the_bits_of_its_builder():
    builder = fc.learning.algorithms.build_weighted_fed_prox(make, 0.5, OPTIMIZERS.build_sgdm(0.1))
    same_bits(composed(delta_work(proximal_strength=0.5)), builder)


def test_fed_sgd_by_hand_has_the_bits_of_its_builder():
    builder = fc.learning.algorithms.build_fed_sgd(make, OPTIMIZERS.build_adam(0.1))
    same_bits(composed(gradient_work(), OPTIMIZERS.build_adam(0.1)), builder)


def test_hyperparameters_are_those_of_the_parts(fed_avg):
    state = fed_avg.initialize()
    assert fed_avg.get_hparams(state)["finalizer"] == {"learning_rate": 1.0}
    still = fed_avg.set_hparams(state, {"client_work": {"learning_rate": 0.0}})
    after, _ = fed_avg.next(still, CLIENTS)
    before = fed_avg.get_model_weights(still)
    assert np.array_equal(fed_avg.get_model_weights(after).trainable[0], before.trainable[0])
    with pytest.raises(FedcoreError, match="no hyperparameter momentum; it has learning_rate"):
        fed_avg.set_hparams(state, {"client_work": {"momentum": 0.5}})


def test_a_non_finite_update_leaves_weights_and_state(fed_avg):
    finalizer = T.build_apply_optimizer_finalizer(OPTIMIZERS.build_sgdm(1.0, momentum=0.9), WEIGHTS)
    weights = fed_avg.get_model_weights(fed_avg.initialize())
    update = tuple(np.full_like(w, np.nan) for w in weights.trainable)
    output = finalizer.next(finalizer.initialize(), weights, update)
    assert output.measurements["update_non_finite"] == 1
    assert np.array_equal(output.result.trainable[0], weights.trainable[0])
    assert not output.state["velocity"][0].any()


def test_a_custom_rejection_needs_no_measurements():
    weights = fc.tf_computation(lambda: fc.learning.ModelWeights((tf.zeros(1),), ())).type_signature.result
    never = T.build_apply_optimizer_finalizer(OPTIMIZERS.build_sgdm(1.0), weights, lambda state, update: (False, None))
    zeros = fc.learning.ModelWeights((np.zeros(1, np.float32),), ())
    output = never.next(never.initialize(), zeros, (np.float32([np.inf]),))
    assert output.result.trainable[0] == -np.inf
    assert output.measurements == ()


def test_parts_of_other_kinds_and_types_are_refused():
    with pytest.raises(TypeMismatch, match="client_work is a ClientWorkProcess, not str"):
        composed("work")
    plain = fc.aggregators.SumFactory().create(WEIGHTS["trainable"])
    with pytest.raises(TypeMismatch, match="model_update_aggregator is a weighted one"):
        composed(delta_work(), model_update_aggregator=plain)
    with pytest.raises(TypeMismatch, match="model_weights_distributor does not take the weights"):
        composed(delta_work(), model_weights_distributor=T.build_broadcast_process("float32"))
    with pytest.raises(TypeMismatch, match="takes a type of ModelWeights without placements, not float32"):
        T.build_apply_optimizer_finalizer(OPTIMIZERS.build_sgdm(), "float32")
    with pytest.raises(TypeMismatch, match="takes a type without placements"):
        T.build_broadcast_process(fc.FederatedType("float32", fc.SERVER))


def test_processes_name_the_value_that_stands_elsewhere():
    @fc.federated_computation
    def initialize():
        return fc.federated_value(0.0, fc.SERVER)

    server, clients = (fc.FederatedType("float32", place) for place in (fc.SERVER, fc.CLIENTS))

    @fc.federated_computation(server, server)
    def at_server(state, value):
        return fc.templates.MeasuredProcessOutput(state, value, state)

    @fc.federated_computation(server, clients, clients)
    def no_result(state, weights, data):
        return fc.templates.MeasuredProcessOutput(state, data, state)

    with pytest.raises(
        TypeMismatch, match=r"the result of next_fn .* stands at CLIENTS, but has the type float32@SERVER"
    ):
        T.DistributionProcess(initialize, at_server)
    with pytest.raises(
        TypeMismatch, match="takes a state, weights at SERVER, an update at SERVER; it has 2 parameters"
    ):
        T.FinalizerProcess(initialize, at_server)
    with pytest.raises(TypeMismatch, match="the result of next_fn is a ClientResult, not float32"):
        T.ClientWorkProcess(initialize, no_result)


def test_a_learning_process_takes_functions_of_any_state():
    @fc.federated_computation
    def initialize():
        return fc.federated_value(1.0, fc.SERVER)

    @fc.federated_computation(initialize.type_signature.result, fc.FederatedType("float32", fc.CLIENTS))
    def next_fn(state, data):
        return T.LearningProcessOutput(state, fc.federated_sum(data))

    get = fc.tf_computation("float32")(lambda state: state * 2)
    put = fc.tf_computation("float32", "float32")(lambda state, weights: weights / 2)
    process = T.LearningProcess(initialize, next_fn, get, put)
    assert process.get_model_weights(process.initialize()) == 2.0
    assert process.set_model_weights(1.0, 6.0) == 3.0
    with pytest.raises(TypeMismatch, match="get_model_weights does not take the state"):
        T.LearningProcess(initialize, next_fn, fc.tf_computation("int32")(lambda state: state), put)
