"""An algorithm from the bottom: federated gradient descent for linear regression, in four computations.

python examples/custom_algorithm.py
"""

import numpy as np
import tensorflow as tf

import fedcore as fc

WEIGHTS = fc.to_type(("float32", [3]))
EXAMPLE = fc.to_type((("float32", [3]), "float32"))


@fc.tf_computation
def start():
    return tf.zeros([3])


@fc.tf_computation((WEIGHTS, "float32"), EXAMPLE, WEIGHTS)
def add_gradient(total, example, weights):
    """Adds the gradient of one squared error, and counts the example."""
    (gradient, count), (x, y) = total, example
    return gradient + 2.0 * (tf.tensordot(weights, x, 1) - y) * x, count + 1.0


@fc.tf_computation(WEIGHTS, WEIGHTS, "float32")
def step(weights, gradient, count):
    return weights - 0.1 * tf.math.divide_no_nan(gradient, count)


@fc.federated_computation
def initialize():
    return fc.federated_eval(start, fc.SERVER)


@fc.federated_computation(fc.FederatedType(WEIGHTS, fc.SERVER), fc.FederatedType(fc.SequenceType(EXAMPLE), fc.CLIENTS))
def next_round(weights, data):
    """Clients add up the gradients of their examples; the server takes one step."""

    @fc.federated_computation(WEIGHTS, fc.SequenceType(EXAMPLE))
    def at_client(sent, examples):
        zero = fc.generic_zero((WEIGHTS, "float32"))
        return fc.sequence_reduce(examples, zero, lambda total, example: add_gradient(total, example, sent))

    totals = fc.federated_sum(fc.federated_map(at_client, (fc.federated_broadcast(weights), data)))
    return fc.federated_map(step, (weights, totals[0], totals[1]))


def main(rounds=100):
    process = fc.templates.IterativeProcess(initialize, next_round)
    rng, truth = np.random.default_rng(0), np.array([1.0, -2.0, 0.5], np.float32)
    clients = []
    for size in (5, 20, 50):
        x = rng.normal(size=(size, 3)).astype(np.float32)
        clients.append(fc.data.ClientDataset.from_columns((x, x @ truth)))
    weights = process.initialize()
    for _ in range(rounds):
        weights = process.next(weights, clients)
    print("found", np.round(weights, 3), "of", truth)
    print("\nthe round as it is planned:\n")
    print(next_round.to_text("planned"))
    return weights, truth


if __name__ == "__main__":
    main()
