"""Federated Google Landmarks v2: photographs of landmarks, by photographer.

Source: Hsu et al. 2020, Federated visual classification with real-world data distribution, arXiv:2003.08082.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedcore.simulation.datasets.client_data import ClientData
from fedcore.simulation.datasets.photographs import load_photographs, synthetic_photographs

if TYPE_CHECKING:
    import tensorflow as tf

_SOURCE = "https://github.com/cvdfoundation/google-landmark"


def load_data(
    num_worker: int = 1, cache_dir: str | os.PathLike = "cache", gld23k: bool = False, base_url: str = _SOURCE
) -> tuple[ClientData, tf.data.Dataset]:
    """Reads the landmarks that TFF wrote to a directory, as (training data by client, test data).

    Types, for each client, sizes of photographs being open: `<image/decoded=uint8[?,?,?],class=int64[1]>*`

    Args:
        num_worker: of TFF's download, which is not there; changes nothing.
        cache_dir: the directory that has `gld160k` and `gld23k`.
        gld23k: whether the small data set is read: 233 clients and 203 classes in place of 1,262 and 2,028.
        base_url: where the photographs come from, for the message that they are not there.
    Raises:
        InvalidValue: the files are not there; nothing is downloaded.
    """
    folder = Path(cache_dir).absolute() / ("gld23k" if gld23k else "gld160k")
    return load_photographs("gldv2.load_data", folder, base_url)


def get_synthetic() -> ClientData:
    """Synthetic data like those of `load_data`, for tests: one client with three photographs of noise."""
    return synthetic_photographs((600, 800, 3), np.array([[0], [1], [2]], np.int64))
