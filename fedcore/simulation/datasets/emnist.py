"""Federated EMNIST: handwritten digits and letters, 28 x 28 pixels, by writer.

Source:
    Cohen et al. 2017, arXiv:1702.05373 (EMNIST); Caldas et al. 2018, arXiv:1812.01097 (LEAF), for the split by writer.
"""

from __future__ import annotations

import os

import numpy as np

from fedcore.simulation.datasets.client_data import ArrayClientData, ClientData
from fedcore.simulation.datasets.downloads import Archive
from fedcore.simulation.datasets.published import Published

_FIELDS = {"label": ("int32", ()), "pixels": ("float32", (28, 28))}
_DIGITS = Published(
    Archive(
        "fed_emnist_digitsonly.tar.bz2",
        "55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b",
        ("fed_emnist_digitsonly_train.h5", "fed_emnist_digitsonly_test.h5"),
    ),
    "emnist_all.sqlite",
    ("digits_only_train", "digits_only_test"),
    _FIELDS,
)
_ALL = Published(
    Archive(
        "fed_emnist.tar.bz2",
        "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
        ("fed_emnist_train.h5", "fed_emnist_test.h5"),
    ),
    "emnist_all.sqlite",
    ("all_train", "all_test"),
    _FIELDS,
)


def load_data(only_digits: bool = True, cache_dir: str | os.PathLike | None = None) -> tuple[ClientData, ClientData]:
    """Loads federated EMNIST as (training data, test data); each writer is a client of both.

    3,383 writers with 341,873 and 40,832 examples of digits; or 3,400 with 671,585 and 77,483 of all characters. The
    background is 1.0 and ink is 0.0. Downloaded once; see `datasets`.

    Types, for each client:
        <label=int32,pixels=float32[28,28]>*

    Args:
        only_digits: whether labels are the digits 0 to 9; else 10 to 35 are upper and 36 to 61 lower case letters too.
        cache_dir: directory of downloaded files. Default: $FEDCORE_DATA, or ~/.cache/fedcore/datasets.
    Raises:
        FedcoreError: the file is not there and cannot be downloaded, or is damaged; or h5py is not installed.
    """
    train, test = (_DIGITS if only_digits else _ALL).load("emnist.load_data", cache_dir)
    return train, test


def get_synthetic() -> ClientData:
    """Synthetic data with the type of `load_data`, for tests: two clients, each with one image of each digit."""
    digits = np.stack([_seven_segments(digit) for digit in range(10)])
    shifted = np.roll(digits, 2, axis=2)
    columns = {"label": np.tile(np.arange(10, dtype=np.int32), 2), "pixels": np.concatenate([digits, shifted])}
    return ArrayClientData(columns, {"synthetic1": (0, 10), "synthetic2": (10, 20)})


_SEGMENTS = {  # of a seven-segment display: rows and columns of an image
    "top": (slice(5, 8), slice(9, 18)),
    "middle": (slice(13, 16), slice(9, 18)),
    "bottom": (slice(21, 24), slice(9, 18)),
    "upper left": (slice(5, 16), slice(8, 11)),
    "upper right": (slice(5, 16), slice(16, 19)),
    "lower left": (slice(13, 24), slice(8, 11)),
    "lower right": (slice(13, 24), slice(16, 19)),
}
_DARK: tuple[set[str], ...] = (  # the segments that a digit does not have
    {"middle"},
    {"top", "middle", "bottom", "upper left", "lower left"},
    {"upper left", "lower right"},
    {"upper left", "lower left"},
    {"top", "bottom", "lower left"},
    {"upper right", "lower left"},
    {"upper right"},
    {"middle", "bottom", "upper left", "lower left"},
    set(),
    {"lower left"},
)


def _seven_segments(digit: int) -> np.ndarray:
    """float32 [28, 28]: the digit on a seven-segment display, with ink 0.0 on 1.0."""
    image = np.ones((28, 28), np.float32)
    for name, place in _SEGMENTS.items():
        if name not in _DARK[digit]:
            image[place] = 0.0
    return image
