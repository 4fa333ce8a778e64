"""Partitioners: split a data set over clients.

A partitioner takes the examples' labels, `int[n]`, and returns an ascending array of example indices for each client.
Each example goes to exactly one client, each client gets at least one example, and equal arguments give equal splits.
`plot` shows a split; `fc.simulation.datasets.split_over_clients` makes client data with one.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcore.errors import InvalidValue
from fedcore.scalars import random_generator, real_number, whole_number
from fedcore.simulation.partition_plot import plot as plot

Parts = list[NDArray[np.int64]]


def iid(labels: ArrayLike, num_clients: int, seed: int = 0) -> Parts:
    """Shuffles the examples and splits them evenly: sizes differ by at most one.

    Raises:
        ValueError: there are fewer examples than clients.
    Example:
        >>> [len(part) for part in iid(np.zeros(7), 3)]
        [3, 2, 2]
    """
    n = _num_examples(labels, num_clients)
    return _ascending(np.array_split(random_generator(seed).permutation(n), num_clients))


def dirichlet(labels: ArrayLike, num_clients: int, alpha: float, seed: int = 0) -> Parts:
    """Gives each client a random mix of labels, and all clients equally many examples (to within one).

    A client's mix is drawn from Dir(alpha · K · p), for K labels with frequencies p. With a small `alpha` a client has
    mostly one label; with a large `alpha` its mix is close to p. When the examples of a label run out, the label is
    removed from the mixes of the remaining clients, so the last clients get the labels that are left.

    Args:
        alpha: above 0. If the labels are equally frequent, the concentration parameter of each label.
    Raises:
        ValueError: there are fewer examples than clients, or `alpha` is not finite and above 0.
    Source:
        Hsu et al. 2019, arXiv:1909.06335, section 3. Their α is `alpha` · K here. The rule for labels that run out is
        not from the paper.
    Example:
        >>> labels = np.repeat([0, 1], 50)
        >>> [len(np.unique(labels[part])) for part in dirichlet(labels, 2, alpha=0.001)]
        [1, 1]
    """
    n = _num_examples(labels, num_clients)
    alpha = float(real_number("alpha", alpha, above=0))
    rng = random_generator(seed)
    # `left` is int [K]: how many examples of each label are left; they are the first ones of the label's pool.
    _, label_index, left = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    pools = [rng.permutation(np.flatnonzero(label_index == k)) for k in range(len(left))]
    concentration = alpha * len(left) * left / n

    parts = []
    for size in _even_sizes(n, num_clients):
        mix = rng.dirichlet(concentration)
        counts = _draw_counts(rng, mix, left, size)
        drawn = [pool[end - count : end] for pool, end, count in zip(pools, left, counts, strict=True)]
        parts.append(np.concatenate(drawn))
        left = left - counts
    return _ascending(parts)


def shards(labels: ArrayLike, num_clients: int, shards_per_client: int = 2, seed: int = 0) -> Parts:
    """Sorts by label, cuts into equal shards, and gives each client `shards_per_client` of them at random.

    Raises:
        ValueError: there are fewer examples than shards.
    Source:
        McMahan et al. 2017, arXiv:1602.05629, section 3 (the pathological non-IID split).
    Example:
        >>> labels = np.repeat(np.arange(10), 60)
        >>> max(len(np.unique(labels[part])) for part in shards(labels, 30)) <= 2
        True
    """
    n = _num_examples(labels, num_clients)
    num_shards = num_clients * shards_per_client
    if not num_clients <= num_shards <= n:
        raise InvalidValue(f"cannot cut {n} examples into {num_clients} x {shards_per_client} shards")
    rng = random_generator(seed)
    shuffled = rng.permutation(n)
    by_label = shuffled[np.argsort(np.asarray(labels)[shuffled], kind="stable")]
    all_shards = np.array_split(by_label, num_shards)
    shards_of_clients = rng.permutation(num_shards).reshape(num_clients, shards_per_client)
    return _ascending(np.concatenate([all_shards[i] for i in row]) for row in shards_of_clients)


def quantity_skew(labels: ArrayLike, num_clients: int, alpha: float, seed: int = 0) -> Parts:
    """Splits shuffled examples so that sizes follow Dir(alpha): each client gets one example, and a share of the rest.

    Args:
        alpha: above 0. With a small `alpha` a few clients have nearly all examples; with a large one sizes are equal.
    Raises:
        ValueError: there are fewer examples than clients, or `alpha` is not finite and above 0.
    Source:
        Li et al. 2021, arXiv:2102.02079, for quantity skew. The minimum of one example is not from the paper.
    Example:
        >>> sum(len(part) for part in quantity_skew(np.zeros(100), 5, alpha=0.5))
        100
    """
    n = _num_examples(labels, num_clients)
    alpha = float(real_number("alpha", alpha, above=0))
    rng = random_generator(seed)
    shares = rng.dirichlet(np.full(num_clients, alpha))
    return _shuffled_with_shares(rng, n, shares)


def power_law(labels: ArrayLike, num_clients: int, exponent: float = 1.0, seed: int = 0) -> Parts:
    """Splits shuffled examples so that sizes follow a power law: the r-th largest client has a share of r^-exponent.

    Each client gets one example, and its share of the rest; which client is the r-th largest is drawn.

    Args:
        exponent: above 0. With 1 the largest client has twice the examples of the second.
    Raises:
        ValueError: there are fewer examples than clients, or `exponent` is not finite and above 0.
    Source:
        Zipf's law, for the sizes of Li et al. 2020, arXiv:1812.06127, which follow a power law that the paper leaves
        open. The minimum of one example is not from the paper.
    Example:
        >>> sorted(len(part) for part in power_law(np.zeros(1000), 4, exponent=1.0))
        [121, 160, 240, 479]
    """
    n = _num_examples(labels, num_clients)
    exponent = float(real_number("exponent", exponent, above=0))
    rng = random_generator(seed)
    ranks = rng.permutation(num_clients) + 1.0
    shares = ranks**-exponent
    return _shuffled_with_shares(rng, n, shares / shares.sum())


def _shuffled_with_shares(rng: np.random.Generator, n: int, shares: NDArray) -> Parts:
    """Shuffled examples in parts of one example and a share of the rest.

    Args:
        shares: [clients], with the sum 1.
    """
    spare = n - len(shares)
    ends = np.minimum(np.floor(np.cumsum(shares)[:-1] * spare), spare).astype(np.int64)
    return _ascending(np.split(rng.permutation(n), ends + np.arange(1, len(shares))))


def _num_examples(labels: ArrayLike, num_clients: int) -> int:
    """The number of examples; InvalidValue where labels are no vector, or too few for so many clients."""
    shape = np.shape(labels)
    if len(shape) != 1:
        raise InvalidValue(f"labels must have the shape [n], not {list(shape)}")
    if not 1 <= whole_number("num_clients", num_clients) <= shape[0]:
        raise InvalidValue(f"cannot give each of {num_clients} clients one of {shape[0]} examples")
    return shape[0]


def _even_sizes(n: int, num_clients: int) -> list[int]:
    return [n // num_clients + (i < n % num_clients) for i in range(num_clients)]


def _draw_counts(rng: np.random.Generator, mix: NDArray, left: NDArray, size: int) -> NDArray:
    """int [K]: how many of `size` labels drawn from `mix` are of each label; at most `left`.

    A label that has run out is drawn again.
    """
    counts = np.zeros_like(left)
    while (missing := size - counts.sum()) > 0:
        odds = np.where(counts < left, mix, 0.0)
        if odds.sum() < 1e-12:  # all labels of the mix have run out: draw from the labels that are left
            odds = (left - counts).astype(float)
        counts = np.minimum(counts + rng.multinomial(missing, odds / odds.sum()), left)
    return counts


def _ascending(parts: Iterable[NDArray]) -> Parts:
    return [np.sort(part).astype(np.int64) for part in parts]
