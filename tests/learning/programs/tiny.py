"""A learning process that compiles at once: the weights walk towards the clients' mean, with the round's noise."""

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.learning import LearningAlgorithmState, LearningProcess, LearningProcessOutput, ModelWeights

WEIGHTS = fc.to_type(ModelWeights((fc.TensorType("float32", [3]),), ()))


def build(noise: float = 0.1) -> LearningProcess:
    """Metrics: `loss`, the mean distance, and `num_examples`; the learning rate is a hyperparameter."""
    first = fc.tf_computation(lambda: (tf.random.normal([3]), tf.constant(0.5), tf.constant(0, tf.int64)))

    @fc.federated_computation
    def initialize():
        weights, learning_rate, round_number = fc.federated_eval(first, fc.SERVER)
        nothing = fc.federated_value((), fc.SERVER)
        return fc.federated_zip(
            LearningAlgorithmState(
                ModelWeights((weights,), ()),
                nothing,
                nothing,
                nothing,
                {"learning_rate": learning_rate},
                round_number,
                fc.federated_random_seed(fc.SERVER),
            )
        )

    state_type = initialize.type_signature.result

    @fc.tf_computation(fc.TensorType("float32", [3]), fc.SequenceType("float32"))
    def work(weights, examples):
        total, count = tf.zeros([]), tf.zeros([])
        for x in examples:
            total, count = total + x, count + 1.0
        moved = total / count + noise * tf.random.normal([3])
        return {"step": moved - weights, "count": count}

    @fc.tf_computation(state_type.member, fc.TensorType("float32", [3]))
    def move(state, step):
        rate = state.finalizer["learning_rate"]
        return state.replace(
            global_model_weights=ModelWeights((state.global_model_weights.trainable[0] + rate * step,), ()),
            round=state.round + 1,
        )

    @fc.tf_computation(fc.TensorType("float32", [3]), "float32")
    def measure(step, count):
        return {"client_work": {"train": {"loss": tf.norm(step), "num_examples": count}}, "finalizer": {"step": step}}

    @fc.federated_computation(state_type, fc.FederatedType(fc.SequenceType("float32"), fc.CLIENTS))
    def next_round(state, data):
        weights = fc.federated_broadcast(state.global_model_weights.trainable[0])
        worked = fc.federated_map(work, (weights, data))
        step, count = fc.federated_mean(worked.step), fc.federated_sum(worked.count)
        return LearningProcessOutput(fc.federated_map(move, (state, step)), fc.federated_map(measure, (step, count)))

    return LearningProcess(initialize, next_round, hyperparameters={"finalizer": ["learning_rate"]})


def build_evaluation() -> LearningProcess:
    """Metrics: `loss`, which is the first weight, and `clients`, the number of clients."""
    process = build()
    state_type = process.initialize.type_signature.result

    @fc.federated_computation(state_type, fc.FederatedType(fc.SequenceType("float32"), fc.CLIENTS))
    def next_round(state, data):
        first = fc.federated_map(fc.tf_computation(lambda w: w[0]), state.global_model_weights.trainable[0])
        current = fc.federated_zip({"loss": first, "clients": fc.federated_count(data)})
        return LearningProcessOutput(
            state,
            fc.federated_zip(
                {"client_work": {"eval": {"current_round_metrics": current, "total_rounds_metrics": current}}}
            ),
        )

    return LearningProcess(process.initialize, next_round)


def clients(number: int = 6):
    """Client i has i + 1 examples."""
    rng = np.random.default_rng(0)
    data = {f"client_{i}": rng.normal(size=i + 1).astype(np.float32) for i in range(number)}
    return fc.simulation.datasets.TestClientData(data)
