"""Handwritten digits with Keras alone: docs/training.md says which lines change to train at 20 clients.

python examples/keras_script.py
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

EPOCHS, BATCH = 20, 32


def load_data():
    """Images and labels for training, validation and test."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    order = np.random.default_rng(0).permutation(len(images))
    ends = (1200, 1500)
    return zip(np.split(images[order], ends), np.split(labels[order], ends), strict=True)


def make_model():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu", kernel_constraint="max_norm"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main(epochs=EPOCHS):
    keras.utils.set_random_seed(0)
    train, validation, test = load_data()
    counts = np.bincount(train[1])
    class_weight = {digit: counts.mean() / count for digit, count in enumerate(counts)}
    model = make_model()
    callbacks = [
        keras.callbacks.EarlyStopping("val_accuracy", patience=5, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=3),
        keras.callbacks.ModelCheckpoint("digits.keras", "val_accuracy", save_best_only=True),
        keras.callbacks.CSVLogger("digits.csv"),
        keras.callbacks.TerminateOnNaN(),
    ]
    model.fit(
        *train,
        batch_size=BATCH,
        epochs=epochs,
        validation_data=validation,
        class_weight=class_weight,
        callbacks=callbacks,
    )
    _, accuracy = model.evaluate(*test)
    print(f"test accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
