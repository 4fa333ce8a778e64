"""Aggregation that tunes itself: the bounds for clipping and zeroing follow the clients' own norms.

One client of twenty sends what is a thousand times too large. With a plain mean it ruins the model; with a bound that
follows a quantile of the norms it is left out, and nobody had to know how large a change is.

    python examples/tuned_aggregators.py
"""

import keras

import fedcore as fc
from fedcore import aggregators as agg


def robust_mean():
    """Zeroes what is far beyond the usual, clips to the norm that four in five clients stay within, and averages."""
    usual = agg.PrivateQuantileEstimationProcess.no_noise(initial_estimate=1.0, target_quantile=0.8, learning_rate=0.5)
    largest = agg.PrivateQuantileEstimationProcess.no_noise(
        initial_estimate=10.0, target_quantile=0.9, learning_rate=1.0
    )
    mean = agg.clipping_factory(usual, agg.MeanFactory())
    return agg.zeroing_factory(largest.map(lambda q: 2.0 * q + 1.0), mean)


def clients_of(train):
    data = [train.create_tf_dataset_for_client(c).batch(16) for c in train.client_ids]
    data = [d.map(lambda e: (e["pixels"], e["label"])) for d in data]
    return [data[0].map(lambda x, y: (x * 1000.0, y)), *data[1:]]


def main(rounds=15):
    train, test = fc.simulation.datasets.digits.load_data(num_clients=20, alpha=1.0)
    data = clients_of(train)
    held_out = test.create_tf_dataset_for_client("test").batch(100).map(lambda e: (e["pixels"], e["label"]))

    def model_fn():
        model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        return fc.learning.from_keras_model(
            model,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=data[0].element_spec,
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )

    evaluation = fc.learning.algorithms.build_fed_eval(model_fn)
    found = {}
    for name, aggregator in {"plain mean": None, "robust mean": robust_mean()}.items():
        process = fc.learning.algorithms.build_weighted_fed_avg(
            model_fn, lambda: keras.optimizers.SGD(0.2), model_aggregator=aggregator
        )
        with fc.use(seed=0):
            state = process.initialize()
        for r in range(rounds):
            state, metrics = process.next(state, data)
            if aggregator is not None and r % 5 == 4:
                zeroing = metrics["aggregator"]
                clipping = zeroing["zeroing"]
                print(
                    f"round {r + 1:2d}: zeroed {zeroing['zeroed_count']} beyond {zeroing['zeroing_norm']:.2f}, "
                    f"clipped {clipping['clipped_count']} to {clipping['clipping_norm']:.2f}"
                )
        held = evaluation.set_model_weights(evaluation.initialize(), state.model)
        _, metrics = evaluation.next(held, [held_out])
        found[name] = float(metrics["client_work"]["eval"]["current_round_metrics"]["accuracy"])
        print(f"{name}: test accuracy {found[name]:.1%}")
    return found


if __name__ == "__main__":
    main()
