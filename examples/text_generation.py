"""Text by letters: an LSTM learns the next letter from clients who each tell of other animals, then writes itself.

The text is made here, so nothing is loaded.

    python examples/text_generation.py
"""

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc

LETTERS = " .abcdefghijklmnopqrstuvwxyz"
LINE, BATCH = 24, 4
ANIMALS = ["fox", "owl", "hare", "crow", "goat", "toad", "wren", "mole"]
PLACES = ["in the barn", "by the pond", "on the hill", "under the oak"]
VERBS = ["sleeps", "sings", "eats", "waits"]


def tale(client, sentences=40):
    """What one client writes: mostly of its own animal."""
    rng = np.random.default_rng(client)
    own = ANIMALS[client % len(ANIMALS)]
    animals = [own if rng.uniform() < 0.7 else rng.choice(ANIMALS) for _ in range(sentences)]
    return " ".join(f"the {a} {rng.choice(VERBS)} {rng.choice(PLACES)}." for a in animals)


def lines_of(text):
    """Lines of letters as numbers, and the same moved on by one letter."""
    codes = np.array([LETTERS.index(letter) for letter in text], np.int32)
    count = (len(codes) - 1) // LINE
    rows = np.arange(count)[:, None] * LINE + np.arange(LINE)
    return fc.data.ClientDataset.from_columns((codes[rows], codes[rows + 1]))


def make_model(length=LINE):
    return keras.Sequential(
        [
            keras.Input((length,), dtype="int32"),
            keras.layers.Embedding(len(LETTERS), 8),
            keras.layers.LSTM(64, return_sequences=True),
            keras.layers.Dense(len(LETTERS)),
        ]
    )


def write(model, start, count=60):
    """Goes on with the most likely letter each time."""
    text, predict = start, tf.function(model)
    for _ in range(count):
        codes = np.array([[LETTERS.index(letter) for letter in text[-LINE:].rjust(LINE)]], np.int32)
        text += LETTERS[int(np.argmax(predict(codes)[0, -1]))]
    return text


def main(rounds=20, clients=16, per_round=8):
    data = {f"teller {i:02d}": lines_of(tale(i)).shuffle(100).batch(BATCH) for i in range(clients)}
    sample = fc.simulation.build_uniform_sampling_fn(sorted(data), seed=0)
    spec = next(iter(data.values())).element_spec

    def model_fn():
        return fc.learning.from_keras_model(
            make_model(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=spec,
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )

    process = fc.learning.algorithms.build_weighted_fed_avg(
        model_fn, lambda: keras.optimizers.Adam(0.01), lambda: keras.optimizers.SGD(1.0, momentum=0.5)
    )
    with fc.use(seed=0):
        state = process.initialize()
    losses = []
    for r in range(rounds):
        state, metrics = process.next(state, [data[c] for c in sample(r, per_round)])
        now = metrics["client_work"]["train"]
        losses.append(float(now["loss"]))
        print(f"round {r + 1:3d}   loss {now['loss']:.3f}   next letter right {now['accuracy']:.1%}")
    model = make_model()
    state.model.assign_weights_to(model)
    written = write(model, "the ")
    print(written)
    return losses, written


if __name__ == "__main__":
    main()
