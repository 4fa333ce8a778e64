"""A learning process whose clients keep a state: how often a client took part, and the mean of all that it saw.

It compiles at once. A client's state begins with the server's weights of its first round, and noise.
"""

import tensorflow as tf
import tiny

import fedcore as fc
from fedcore.learning import ClientStateOutput, ClientStateProcess, ModelWeights

VECTOR = fc.TensorType("float32", [3])


def build() -> ClientStateProcess:
    """Metrics: `loss`, the mean distance between a client's memory and its numbers, and `num_examples`."""
    initialize = tiny.build().initialize
    state_type = initialize.type_signature.result

    @fc.tf_computation(state_type.member)
    def initial_client_state(state):
        first = state.global_model_weights.trainable[0] + tf.random.normal([3])
        return {"memory": first, "rounds": tf.constant(0)}

    own_type = initial_client_state.type_signature.result

    @fc.tf_computation(VECTOR, fc.SequenceType("float32"), own_type)
    def work(weights, examples, own):
        total, count = tf.zeros([]), tf.zeros([])
        for x in examples:
            total, count = total + x, count + 1.0
        moved = 0.5 * own["memory"] + 0.5 * (total / count + 0.1 * tf.random.normal([3]))
        after = {"memory": moved, "rounds": own["rounds"] + 1}
        return {"step": moved - weights, "count": count, "after": after}

    @fc.tf_computation(state_type.member, VECTOR)
    def move(state, step):
        weights = ModelWeights((state.global_model_weights.trainable[0] + 0.5 * step,), ())
        return state.replace(global_model_weights=weights, round=state.round + 1)

    @fc.tf_computation(VECTOR, "float32")
    def measure(step, count):
        return {"client_work": {"train": {"loss": tf.norm(step), "num_examples": count}}}

    client_types = [fc.FederatedType(t, fc.CLIENTS) for t in (fc.SequenceType("float32"), own_type)]

    @fc.federated_computation(state_type, *client_types)
    def next_round(state, data, client_states):
        weights = fc.federated_broadcast(state.global_model_weights.trainable[0])
        worked = fc.federated_map(work, (weights, data, client_states))
        step, count = fc.federated_mean(worked.step), fc.federated_sum(worked.count)
        after, metrics = fc.federated_map(move, (state, step)), fc.federated_map(measure, (step, count))
        return ClientStateOutput(after, metrics, worked.after)

    return ClientStateProcess(initialize, next_round, initial_client_state)


clients = tiny.clients
