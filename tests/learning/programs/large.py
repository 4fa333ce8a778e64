"""A learning process whose checkpoints take longer to write than its rounds to run.

Most weights are frozen; the others walk by the mean of the clients' numbers.
"""

import tensorflow as tf
import tiny

import fedcore as fc
from fedcore.learning import LearningAlgorithmState, LearningProcess, LearningProcessOutput, ModelWeights

TRAINED, FROZEN = 2**20, 2**21


def build() -> LearningProcess:
    """Metrics: `loss`, the first weight."""
    normal = tf.random.normal
    first = fc.tf_computation(lambda: (normal([TRAINED]), normal([FROZEN]), tf.constant(0, tf.int64)))

    @fc.federated_computation
    def initialize():
        trained, frozen, round_number = fc.federated_eval(first, fc.SERVER)
        nothing = fc.federated_value((), fc.SERVER)
        weights = ModelWeights((trained,), (frozen,))
        seed = fc.federated_random_seed(fc.SERVER)
        return fc.federated_zip(LearningAlgorithmState(weights, nothing, nothing, nothing, nothing, round_number, seed))

    state_type = initialize.type_signature.result

    @fc.tf_computation(fc.SequenceType("float32"))
    def work(examples):
        total, count = tf.zeros([]), tf.zeros([])
        for x in examples:
            total, count = total + x, count + 1.0
        return total / count

    @fc.tf_computation(state_type.member, "float32")
    def move(state, step):
        weights = state.global_model_weights
        moved = ModelWeights((weights.trainable[0] + step,), weights.non_trainable)
        return state.replace(global_model_weights=moved, round=state.round + 1)

    @fc.federated_computation(state_type, fc.FederatedType(fc.SequenceType("float32"), fc.CLIENTS))
    def next_round(state, data):
        after = fc.federated_map(move, (state, fc.federated_mean(fc.federated_map(work, data))))
        loss = fc.federated_map(fc.tf_computation(lambda w: w[0]), after.global_model_weights.trainable[0])
        return LearningProcessOutput(after, fc.federated_zip({"client_work": {"train": {"loss": loss}}}))

    return LearningProcess(initialize, next_round)


clients = tiny.clients
