"""Federated iNaturalist 2017: photographs of species, by user or by place.

Source: Hsu et al. 2020, Federated visual classification with real-world data distribution, arXiv:2003.08082.
"""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedcore.errors import TypeMismatch, brief
from fedcore.simulation.datasets.client_data import ClientData
from fedcore.simulation.datasets.photographs import load_photographs, synthetic_photographs

if TYPE_CHECKING:
    import tensorflow as tf

_SOURCE = "https://github.com/visipedia/inat_comp/tree/master/2017"


class INaturalistSplit(enum.Enum):
    """How the photographs are split over clients: by user, or by places with about so many photographs."""

    USER_120K = enum.auto()
    GEO_100 = enum.auto()
    GEO_300 = enum.auto()
    GEO_1K = enum.auto()
    GEO_3K = enum.auto()
    GEO_10K = enum.auto()
    GEO_30K = enum.auto()


def load_data(
    image_dir: str | os.PathLike = "images",
    cache_dir: str | os.PathLike = "cache",
    split: INaturalistSplit = INaturalistSplit.USER_120K,
) -> tuple[ClientData, tf.data.Dataset]:
    """Reads the photographs that TFF wrote to a directory, as (training data by client, test data).

    Types, for each client, sizes of photographs being open: `<image/decoded=uint8[?,?,?],class=int64[1]>*`

    Args:
        image_dir: of TFF's conversion, which is not there; changes nothing.
        cache_dir: the directory that has a directory for each split.
        split: the split to read.
    Raises:
        InvalidValue: the files are not there; nothing is downloaded.
        TypeMismatch: `split` is no `INaturalistSplit`.
    """
    if not isinstance(split, INaturalistSplit):
        raise TypeMismatch(f"split is an INaturalistSplit, such as INaturalistSplit.USER_120K, not {brief(split)}")
    return load_photographs("inaturalist.load_data", Path(cache_dir).absolute() / split.name, _SOURCE)


def get_synthetic() -> ClientData:
    """Synthetic data like those of `load_data`, for tests: one client with three photographs of noise."""
    return synthetic_photographs((128, 128, 3), np.array([0, 1, 2], np.int64))
