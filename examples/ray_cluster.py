"""Federated averaging on a Ray cluster: one line differs from a training on this machine.

Without an address a cluster is started on this machine, and ends with the script.

    python examples/ray_cluster.py
    RAY_ADDRESS=10.0.0.1:6379 python examples/ray_cluster.py
"""

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc


def clients(number: int) -> list[fc.data.ClientDataset]:
    """Points in the plane, with the side of a line on which they lie; each client has points around its own centre."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(number):
        points = rng.normal(rng.normal(size=2), 1, (20, 2)).astype(np.float32)
        found.append(fc.data.ClientDataset.from_columns((points, (points.sum(1) > 0).astype(np.int32))).batch(5))
    return found


def build_process():
    def model_fn():
        net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
        return fc.learning.from_keras_model(
            net,
            input_spec=(tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.int32)),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )

    return fc.learning.algorithms.build_weighted_fed_avg(
        model_fn, client_optimizer_fn=fc.learning.optimizers.build_sgdm(learning_rate=0.1)
    )


def train(process, cohort, rounds: int):
    """The last state and the metrics of each round."""
    state, metrics = process.initialize.invoke(seed=0), []
    for _ in range(rounds):
        state, of_round = process.next(state, cohort)
        metrics.append(of_round["client_work"]["train"])
    return state, metrics


def main(rounds: int = 10, number: int = 40, workers: int | None = None):
    """The states after training on the cluster and on this machine, the metrics, and where clients ran."""
    process, cohort = build_process(), clients(number)
    runtime = fc.runtime.ray(num_workers=workers)
    try:
        with fc.use(runtime):  # the one line; fc.use(fc.runtime.local()) trains here
            on_cluster, metrics = train(process, cohort, rounds)
            report = fc.context.last_report()
    finally:
        runtime.close()
    here, _ = train(process, cohort, rounds)
    return on_cluster, here, metrics, report.placements if report else {}


if __name__ == "__main__":
    on_cluster, here, metrics, placements = main()
    for round_num, of_round in enumerate(metrics):
        print(round_num, of_round)
    print(placements)
    weights = [tf.nest.flatten(state.global_model_weights.trainable) for state in (on_cluster, here)]
    same = all(np.array_equal(a, b) for a, b in zip(*weights, strict=True))
    print("the weights are those of the local runtime" if same else "the weights differ from the local runtime's")
