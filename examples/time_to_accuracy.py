"""Time to accuracy on devices of different speeds: waiting for all clients, for the fastest 10 of 13, and for none.

python examples/time_to_accuracy.py [time_to_accuracy.png]
"""

import sys

import keras

import fedcore as fc

CLIENTS, PER_ROUND, CONCURRENCY, TARGET = 100, 10, 40, 0.85
HOURS = 8.0


def load():
    train, test = fc.simulation.datasets.digits.load_data(num_clients=CLIENTS)
    sizes = {i: len(list(train.create_tf_dataset_for_client(i))) for i in train.client_ids}
    return train.preprocess(lambda d: batches(d.repeat(2))), test.preprocess(batches), sizes


def batches(dataset):
    return dataset.batch(10).map(lambda e: (e["pixels"], e["label"]))


def model_of(spec):
    def model_fn():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(32, activation="relu")]
        return fc.learning.from_keras_model(
            keras.Sequential([*layers, keras.layers.Dense(10)]),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=spec,
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )

    return model_fn


class StopAfter(fc.learning.programs.Callback):
    """Ends a training after some hours of its clock."""

    def __init__(self, hours):
        self.hours = hours

    def on_round_end(self, round_number, logs):
        self.training.stop_training = logs["clock/time_s"] > 3600 * self.hours


def main(path="time_to_accuracy.png", *, hours=HOURS):
    train, test, sizes = load()
    model_fn = model_of(train.element_type_structure)
    devices = fc.simulation.build_devices(train.client_ids, work_s=120, examples=sizes, dropout=0.05, seed=1)
    fed_avg = fc.learning.algorithms.build_unweighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
    fed_buff = fc.learning.algorithms.build_fed_buff(model_fn, lambda: keras.optimizers.SGD(0.1))
    synchronous, buffered = fc.simulation.SynchronousClock, fc.simulation.BufferedClock
    runs = {
        "synchronous": (fed_avg, synchronous(devices, PER_ROUND, seed=2)),
        "over-selected": (fed_avg, synchronous(devices, PER_ROUND, over_selection=1.3, seed=2)),
        "FedBuff": (fed_buff, buffered(devices, PER_ROUND, concurrency=CONCURRENCY, seed=2)),
    }
    histories = {}
    print(f"{'':20}  rounds  hours to {TARGET:.0%}  clients selected")
    for name, (process, clock) in runs.items():
        history = histories[name] = fc.learning.programs.train(
            process,
            train,
            10_000,
            clock=clock,
            seed=0,
            evaluation=fc.learning.algorithms.build_fed_eval(model_fn),
            evaluation_data=test,
            evaluate_every=2,
            callbacks=[StopAfter(hours)],
            progress=False,
        )
        reached = history.time_to("val_accuracy", TARGET) / 3600
        print(f"{name:20}  {len(history):6}  {reached:12.2f}  {sum(history['clock/selected']):16}")
    fc.learning.programs.plot_histories(histories, path, ["val_accuracy"], over="time")
    return histories


if __name__ == "__main__":
    main(*sys.argv[1:2])
