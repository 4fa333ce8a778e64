"""Federated averaging by hand, in four blocks: start, send, train at the clients, average. Then put together anew.

Each block is a computation with a type, so another one of the same type takes its place: here a mean that leaves the
largest and smallest changes out.

    python examples/federated_averaging.py
"""

import numpy as np
import tensorflow as tf

import fedcore as fc

FEATURES, CLASSES, RATE = 64, 10, 0.2
WEIGHTS = fc.to_type((("float32", [FEATURES, CLASSES]), ("float32", [CLASSES])))
BATCH = fc.to_type({"label": ("int32", [None]), "pixels": ("float32", [None, 8, 8, 1])})


@fc.tf_computation
def start():
    return tf.zeros([FEATURES, CLASSES]), tf.zeros([CLASSES])


@fc.tf_computation(WEIGHTS, BATCH)
def step(weights, batch):
    """One step of gradient descent on one batch."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        logits = tf.reshape(batch["pixels"], [-1, FEATURES]) @ weights[0] + weights[1]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits))
    gradients = tape.gradient(loss, weights)
    return weights[0] - RATE * gradients[0], weights[1] - RATE * gradients[1]


@fc.tf_computation(BATCH)
def count(batch):
    return tf.cast(tf.shape(batch["label"])[0], tf.float32)


@fc.federated_computation(WEIGHTS, fc.SequenceType(BATCH))
def train(weights, batches):
    """A client: its weights after all of its batches, and how many examples these hold."""
    return fc.sequence_reduce(batches, weights, step), fc.sequence_sum(fc.sequence_map(count, batches))


@fc.federated_computation
def initialize():
    return fc.federated_eval(start, fc.SERVER)


def build(average):
    """The algorithm around a block that joins what the clients send.

    Args:
        average: (client value of weights, client value of examples) -> weights at the server.
    """

    @fc.federated_computation(
        fc.FederatedType(WEIGHTS, fc.SERVER), fc.FederatedType(fc.SequenceType(BATCH), fc.CLIENTS)
    )
    def next_round(weights, data):
        trained = fc.federated_map(train, (fc.federated_broadcast(weights), data))
        return average(trained[0], trained[1])

    return fc.templates.IterativeProcess(initialize, next_round)


def trimmed(weights, _examples):
    process = fc.aggregators.trimmed_mean_factory(0.2).create(WEIGHTS)  # lint: allow unaggregated
    return process.next(process.initialize(), weights).result


def accuracy(weights, test):
    pixels = np.concatenate([e["pixels"] for e in test.as_numpy_iterator()]).reshape(-1, FEATURES)
    labels = np.concatenate([e["label"] for e in test.as_numpy_iterator()])
    return float(((pixels @ weights[0] + weights[1]).argmax(1) == labels).mean())


def main(rounds=15):
    train_data, test_data = fc.simulation.datasets.digits.load_data(num_clients=20, alpha=1.0)
    data = [train_data.create_tf_dataset_for_client(c).shuffle(200).batch(10) for c in train_data.client_ids]
    test = test_data.create_tf_dataset_for_client("test").batch(100)
    broken = [data[0].map(lambda e: {**e, "pixels": e["pixels"] * 1e4}), *data[1:]]
    found = {}
    for name, average in {"mean": fc.federated_mean, "trimmed mean": trimmed}.items():
        process = build(average)
        for who, clients in {"": data, ", one client broken": broken}.items():
            with fc.use(seed=0):
                weights = process.initialize()
                for _ in range(rounds):
                    weights = process.next(weights, clients)
            found[name + who] = accuracy(weights, test)
            print(f"{name + who:35} {found[name + who]:.1%}")
    return found


if __name__ == "__main__":
    main()
