"""An aggregator of one's own: only the signs of a change are sent and the server takes the majority.

A client's change costs the same however large it is, and no client can shout. Used in federated averaging and put
inside another aggregator.

    python examples/custom_aggregator.py

Source: Bernstein et al. 2018, "signSGD with majority vote", arXiv:1810.05291, Algorithm 1.
"""

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc


class MajorityVoteFactory(fc.aggregators.UnweightedAggregationFactory):
    """`step_size` times the sign of the sum of the clients' signs, element by element; a tie gives 0.

    Types, for inexact V:
        next  (<state=<>@SERVER,value={V}@CLIENTS> ->
               <state=<>@SERVER,result=V@SERVER,measurements=<agreement=float32>@SERVER>)
    """

    def __init__(self, step_size):
        self.step_size = step_size

    def create(self, value_type):
        @fc.tf_computation(value_type)
        def vote(value):
            return tf.nest.map_structure(lambda v: tf.cast(tf.sign(v), tf.int32), value), 1

        @fc.tf_computation
        def decide(votes, voters, like):
            leaves = [tf.reshape(tf.abs(v), [-1]) for v in tf.nest.flatten(votes)]
            agreement = tf.reduce_mean(tf.cast(tf.concat(leaves, 0), tf.float32)) / tf.cast(voters, tf.float32)
            steps = tf.nest.map_structure(lambda v, x: self.step_size * tf.cast(tf.sign(v), x.dtype), votes, like)
            return steps, {"agreement": agreement}

        @fc.federated_computation
        def initialize():
            return fc.federated_value((), fc.SERVER)

        def body(state, value, _):
            total = fc.federated_sum(fc.federated_map(vote, value))
            decided = fc.federated_map(lambda t: decide(t[0], t[1], fc.generic_zero(value_type)), total)
            return fc.templates.MeasuredProcessOutput(state, decided[0], decided[1])

        return fc.aggregators.aggregation_process(initialize, value_type, None, body)


def main(rounds=15):
    process = MajorityVoteFactory(1.0).create(fc.to_type(("float32", [3])))
    changes = [np.array(v, np.float32) for v in ([1, -9, 0.1], [2, -1, -0.1], [-5, -2, 0.2])]
    print("majority of", [c.tolist() for c in changes], "is", process.next(process.initialize(), changes).result)

    train, _ = fc.simulation.datasets.digits.load_data(num_clients=20, alpha=10.0)
    data = [
        train.create_tf_dataset_for_client(c).batch(16).map(lambda e: (e["pixels"], e["label"]))
        for c in train.client_ids
    ]

    def model_fn():
        model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        return fc.learning.from_keras_model(
            model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), input_spec=data[0].element_spec
        )

    measured = fc.aggregators.zeroing_factory(100.0, MajorityVoteFactory(0.05))  # composes like any other
    learning = fc.learning.algorithms.build_unweighted_fed_avg(
        model_fn, lambda: keras.optimizers.SGD(0.1), model_aggregator=measured
    )
    state, losses, metrics = learning.initialize(), [], {}
    for _ in range(rounds):
        state, metrics = learning.next(state, data)
        losses.append(float(metrics["client_work"]["train"]["loss"]))
    agreement = metrics["aggregator"]["zeroing"]["agreement"]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; clients agreed to {agreement:.0%} at last")
    return losses


if __name__ == "__main__":
    main()
