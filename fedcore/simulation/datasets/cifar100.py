"""Federated CIFAR-100: color images, 32 x 32 pixels, over clients by a hierarchical Dirichlet allocation of labels.

Source:
    Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images; Reddi et al. 2020, arXiv:2003.00295, for the
    split.
"""

from __future__ import annotations

import os

import numpy as np

from fedcore.simulation.datasets.client_data import ArrayClientData, ClientData
from fedcore.simulation.datasets.downloads import Archive
from fedcore.simulation.datasets.published import Published

_PUBLISHED = Published(
    Archive(
        "fed_cifar100.tar.bz2",
        "e8575e22c038ecef1ce6c7d492d7abee7da13b1e1ba9b70a7fc18531ba7590de",
        ("fed_cifar100_train.h5", "fed_cifar100_test.h5"),
    ),
    "cifar100.sqlite",
    ("train", "test"),
    {"coarse_label": ("int64", ()), "image": ("uint8", (32, 32, 3)), "label": ("int64", ())},
)


def load_data(cache_dir: str | os.PathLike | None = None) -> tuple[ClientData, ClientData]:
    """Loads federated CIFAR-100 as (training data, test data): 500 and 100 clients with 100 images each.

    Downloaded once; see `datasets`.

    Types, for each client:
        <coarse_label=int64,image=uint8[32,32,3],label=int64>*

    Args:
        cache_dir: directory of downloaded files. Default: $FEDCORE_DATA, or ~/.cache/fedcore/datasets.
    Raises:
        FedcoreError: the file is not there and cannot be downloaded, or is damaged; or h5py is not installed.
    """
    train, test = _PUBLISHED.load("cifar100.load_data", cache_dir)
    return train, test


def get_synthetic() -> ClientData:
    """Synthetic data with the type of `load_data`, for tests: two clients with five images each.

    The image of a label is noise around one color, which depends on the label.
    """
    labels = np.tile(np.array([0, 51, 51, 88, 71], np.int64), 2)
    coarse = np.tile(np.array([4, 4, 4, 8, 10], np.int64), 2)
    colors = np.stack([labels * 37 % 200, labels * 91 % 200, labels * 53 % 200], axis=1)[:, None, None, :]
    noise = np.random.default_rng(0).integers(0, 56, (len(labels), 32, 32, 3))
    columns = {"coarse_label": coarse, "image": (colors + noise).astype(np.uint8), "label": labels}
    return ArrayClientData(columns, {"synthetic1": (0, 5), "synthetic2": (5, 10)})
