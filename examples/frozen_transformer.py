"""Fine-tuning a frozen transformer with adapters, with differential privacy.

A small transformer is trained on a task, then frozen. Clients have another task, and train adapters of rank 4 in its
dense layers, and its head. Only these cross and are saved.

    python examples/frozen_transformer.py
"""

import tempfile
from pathlib import Path

import keras
import numpy as np

import fedcore as fc

WORDS, LENGTH, WIDTH, CLIENTS, PRETRAINING = 100, 16, 64, 40, 6_000


def transformer() -> keras.Model:
    words = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(WORDS, WIDTH)(words)
    for _ in range(2):
        y = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(4, WIDTH // 4)(y, y)
        y = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.Dense(WIDTH)(keras.layers.Dense(2 * WIDTH, activation="gelu")(y))
    return keras.Model(words, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x)))


def sequences(count: int, seed: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Words, and whether more than this share of them are of one kind, half of the words."""
    x = np.random.default_rng(seed).integers(0, WORDS, (count, LENGTH)).astype(np.int32)
    return x, ((x % 10 < 5).mean(1) > share).astype(np.int32)


def pretrain(path: Path) -> None:
    keras.utils.set_random_seed(0)
    model = transformer()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    model.fit(*sequences(PRETRAINING, 0, 0.5), epochs=3, batch_size=50, verbose=0)  # pyright: ignore  Keras: a str by default
    model.save_weights(path)


def with_adapters(path: Path) -> keras.Model:
    """The transformer of a file, frozen, with adapters in its dense layers and a trained head."""
    model = transformer()
    model.load_weights(path)
    *layers, _head = model.layers
    for layer in layers:
        layer.trainable = False
        if isinstance(layer, keras.layers.Dense):
            layer.trainable = True
            layer.enable_lora(4)
    return model


def main(rounds: int = 10) -> list[float]:
    """The accuracies on words of the second kind, before the training and as it goes on."""
    accuracies = []
    data = [fc.data.ClientDataset.from_columns(sequences(60, 1 + k, 0.35)).batch(20) for k in range(CLIENTS)]
    test = [fc.data.ClientDataset.from_columns(sequences(1_000, 999, 0.35)).batch(100)]
    with tempfile.TemporaryDirectory() as folder:
        pretrained = Path(folder) / "pretrained.weights.h5"
        pretrain(pretrained)

        def model_fn():
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            accuracy = [keras.metrics.SparseCategoricalAccuracy("accuracy")]
            return fc.learning.from_keras_model(with_adapters(pretrained), loss, data[0].element_spec, accuracy)

        private = fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.1, CLIENTS, clip=0.5)
        process = fc.learning.algorithms.build_unweighted_fed_avg(
            model_fn, lambda: keras.optimizers.SGD(0.1), model_aggregator=private
        )
        evaluation = fc.learning.algorithms.build_fed_eval(model_fn)
        state, evaluated = process.initialize.invoke(seed=0), evaluation.initialize()
        kibit = [0.0, 0.0]
        print("round  accuracy  Kibit sent to a client  Kibit back")
        for number in range(rounds + 1):
            if number:
                state, _ = process.next(state, data)
                report = fc.context.last_report()
                assert report is not None  # of the call above
                kibit = [bits / CLIENTS / 1024 for bits in (report.broadcast_bits, report.aggregate_bits)]
            if number in (0, 1, 2) or number == rounds:
                weights = process.get_model_weights(state)
                _, metrics = evaluation.next(evaluation.set_model_weights(evaluated, weights), test)
                accuracy = metrics["client_work"]["eval"]["current_round_metrics"]["accuracy"]
                accuracies.append(float(accuracy))
                crossed = f"{kibit[0]:22.0f}  {kibit[1]:10.0f}" if number else ""
                print(f"{number:5}  {accuracy:8.3f}  {crossed}")
        adapters = Path(folder) / "adapters.safetensors"
        fc.learning.models.save_adapters(model_fn, process.get_model_weights(state), adapters)
        print(f"adapters: {adapters.stat().st_size / 1024:.0f} KiB; base: {pretrained.stat().st_size / 1024:.0f} KiB")
        weights = fc.learning.models.load_adapters(model_fn, adapters)
        merged = fc.learning.models.merge_adapters(with_adapters(pretrained), weights)
        merged.save(Path(folder) / "model.keras")
    return accuracies


if __name__ == "__main__":
    main()
