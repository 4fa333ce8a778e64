"""Data sets of photographs in TFF's form: a TFRecord file for each client, and one for test."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedcore.errors import InvalidValue
from fedcore.simulation.datasets.client_data import ArrayClientData, ClientData
from fedcore.simulation.datasets.file_per_user_client_data import FilePerUserClientData

if TYPE_CHECKING:
    import tensorflow as tf

TRAIN_FOLDER, TEST_FILE = "train", "test.tfRecord"


def load_photographs(user: str, folder: Path, source: str) -> tuple[ClientData, tf.data.Dataset]:
    """The training data by client and the test data of a directory that TFF wrote.

    Args:
        user: the function that loads, for messages.
        source: where the photographs come from, for messages.
    Raises:
        InvalidValue: the files are not there.
    """
    missing = [path for path in (folder / TRAIN_FOLDER, folder / TEST_FILE) if not path.exists()]
    if missing:
        raise InvalidValue(
            f"{user}: there is no {missing[0]}; nothing is downloaded, since the photographs are hundreds of GB of "
            f"many owners: get them from {source}, and let TFF's {user} write its files to {folder.parent}"
        )
    return FilePerUserClientData.create_from_dir(folder / TRAIN_FOLDER, read_photographs), read_photographs(
        str(folder / TEST_FILE)
    )


def read_photographs(path: str) -> tf.data.Dataset:
    """The decoded photographs of a TFRecord file."""
    import tensorflow as tf

    stored = {
        "image/encoded_jpeg": tf.io.FixedLenFeature([], tf.string, default_value=""),
        "class": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
    }

    def decode(record: tf.Tensor) -> OrderedDict[str, tf.Tensor]:
        parts = tf.io.parse_single_example(record, stored)
        return OrderedDict(
            [
                ("image/decoded", tf.io.decode_jpeg(parts["image/encoded_jpeg"])),
                ("class", tf.reshape(parts["class"], [1])),
            ]
        )

    return tf.data.TFRecordDataset(path).map(decode)


def synthetic_photographs(shape: tuple[int, int, int], labels: np.ndarray) -> ClientData:
    """One client, `synthetic`, with a photograph of noise for each label."""
    noise = np.random.default_rng(0).integers(0, 255, (len(labels), *shape)).astype(np.uint8)
    return ArrayClientData(OrderedDict([("image/decoded", noise), ("class", labels)]), {"synthetic": (0, len(labels))})
