"""How a model does at the clients that it does worst at: digits at clients of few labels, one of them mislabelled.

python examples/fairness.py
"""

import keras

import fedcore as fc

CLIENTS, ROUNDS, RATE = 30, 40, 0.1


def load():
    """Digits of clients that hardly share a label; client 7 has every label wrong by one."""
    train, _ = fc.simulation.datasets.digits.load_data(num_clients=CLIENTS, alpha=0.3)
    odd = train.client_ids[7]

    def batches(client_id):
        shift = 1 if client_id == odd else 0
        return (
            train.create_tf_dataset_for_client(client_id)
            .map(lambda e: (e["pixels"], (e["label"] + shift) % 10))
            .batch(20)
        )

    return fc.simulation.datasets.ClientData.from_clients_and_tf_fn(train.client_ids, batches), odd


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


def main(rounds=ROUNDS):
    data, odd = load()
    model_fn = model_of(data.element_type_structure)
    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(RATE))
    evaluation = fc.learning.algorithms.build_fed_eval(model_fn, per_client=[0.1, 0.5])  # lint: allow unaggregated
    history = fc.learning.programs.train(
        process,
        data.preprocess(lambda dataset: dataset.repeat(3)),
        rounds,
        clients_per_round=10,
        seed=0,
        evaluation=evaluation,
        evaluation_data=data,
        evaluate_every=10,
    )
    for mean, (low, median) in zip(history["val_accuracy"], history["val_per_client/accuracy"], strict=True):
        print(f"accuracy {mean:.1%} of all examples; of clients the median {median:.1%}, the 10th percentile {low:.1%}")
    found = fc.learning.programs.evaluate_clients(evaluation, history.state.global_model_weights, data)
    counts, edges = found.histogram("accuracy", bins=5)
    for count, low, high in zip(counts, edges, edges[1:], strict=False):
        print(f"{low:6.1%} to {high:6.1%}  {'#' * count}")
    print("worst:", ", ".join(f"{client_id} {value:.1%}" for client_id, value in found.worst("accuracy", 3).items()))
    return found, odd


if __name__ == "__main__":
    main()
