"""Handwritten digits, 8 x 8 pixels. They are part of scikit-learn, so loading them needs no network.

Source:
    E. Alpaydin and C. Kaynak 1998, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository: the
    1,797 examples of its test set. It does not name writers, so the examples are split over clients by label.
"""

import numpy as np

from fedcore.errors import FedcoreError
from fedcore.scalars import seed_number
from fedcore.simulation import partition
from fedcore.simulation.datasets.client_data import ArrayClientData, ClientData, numbered_ids


def load_data(
    num_clients: int = 100, alpha: float = 0.3, test_fraction: float = 0.15, seed: int = 0
) -> tuple[ClientData, ClientData]:
    """Loads the digits as (training data, test data).

    The training data are split over clients by label. The test data have a single client `test`, with labels in the
    proportions of the whole. An example is in the test data or at exactly one training client.

    Types, for each client:
        <label=int32,pixels=float32[8,8,1]>*   with pixels from 0 to 1

    Args:
        num_clients: number of clients of the training data, each with at least one example.
        alpha: similarity of the clients' labels; see `partition.dirichlet`.
        test_fraction: fraction of the examples in the test data, between 0 and 1.
        seed: seed of both splits.
    Raises:
        FedcoreError: scikit-learn is not installed.
        ValueError: there are more clients than training examples, or `test_fraction` or `alpha` is out of range.
    Example:
        >>> train, test = load_data(num_clients=10)
        >>> len(train.client_ids), test.client_ids
        (10, ['test'])
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as missing:
        raise FedcoreError(
            "digits.load_data: the digits ship with scikit-learn, which is not installed; "
            "fix: pip install 'fedcore[data]'"
        ) from missing

    raw = load_digits()
    labels = raw.target.astype(np.int32)
    columns = {"label": labels, "pixels": (raw.images / 16).astype(np.float32)[..., np.newaxis]}
    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=test_fraction,
        stratify=labels,
        random_state=seed_number("seed", seed) % (1 << 32),
    )
    parts = partition.dirichlet(labels[train], num_clients, alpha, seed)
    at_clients = {client_id: train[part] for client_id, part in zip(numbered_ids(num_clients), parts, strict=True)}
    return (
        ArrayClientData.from_partition(columns, at_clients),
        ArrayClientData.from_partition(columns, {"test": np.sort(test)}),
    )


def get_synthetic() -> ClientData:
    """Synthetic data with the type of `load_data`, for tests: three clients with ten examples each.

    The image of digit k is faint noise with a bright 2 x 2 square, whose position depends on k. Needs no scikit-learn.
    """
    digits = np.tile(np.arange(10, dtype=np.int32), 3)
    pixels = np.random.default_rng(0).uniform(0, 0.2, (len(digits), 8, 8, 1)).astype(np.float32)
    for image, k in zip(pixels, digits, strict=True):
        row, column = 2 * (k // 4), 2 * (k % 4)
        image[row : row + 2, column : column + 2] = 1.0
    ranges = {f"client_{i}": (10 * i, 10 * i + 10) for i in range(3)}
    return ArrayClientData({"label": digits, "pixels": pixels}, ranges)
