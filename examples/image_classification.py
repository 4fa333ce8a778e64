"""Handwritten digits at 50 clients: a convolutional network by federated averaging, 40 rounds.

python examples/image_classification.py
"""

import keras

import fedcore as fc

BATCH, EPOCHS = 10, 3


def prepared(dataset, epochs=EPOCHS):
    """A client's batches of (pixels, label), shuffled anew every round."""
    return dataset.shuffle(500).repeat(epochs).batch(BATCH).map(lambda example: (example["pixels"], example["label"]))


def make_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main(rounds=40, clients_per_round=10):
    train, test = fc.simulation.datasets.digits.load_data(num_clients=50)
    sample = fc.simulation.build_uniform_sampling_fn(train.client_ids, seed=1)
    batch_type = prepared(train.create_tf_dataset_for_client(train.client_ids[0])).element_spec

    def model_fn():  # called once by each builder; the model is made inside
        return fc.learning.from_keras_model(
            make_model(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=batch_type,
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )

    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
    evaluation = fc.learning.algorithms.build_fed_eval(model_fn)
    with fc.use(seed=0):
        state = process.initialize()
    for r in range(rounds):
        cohort = [prepared(train.create_tf_dataset_for_client(c)) for c in sample(r, clients_per_round)]
        state, metrics = process.next(state, cohort)
        now = metrics["client_work"]["train"]
        print(f"round {r + 1:3d}   loss {now['loss']:.3f}   accuracy {now['accuracy']:.1%}")

    test_set = prepared(test.create_tf_dataset_for_client("test"), epochs=1)
    held = evaluation.set_model_weights(evaluation.initialize(), process.get_model_weights(state))
    _, metrics = evaluation.next(held, [test_set])
    accuracy = float(metrics["client_work"]["eval"]["current_round_metrics"]["accuracy"])
    print(f"test accuracy {accuracy:.1%}")

    model = make_model()  # an ordinary Keras model from here on
    state.model.assign_weights_to(model)
    return accuracy


if __name__ == "__main__":
    main()
