"""Splits of one data set over clients.

Every partitioner takes the examples' labels, `int[n]`, and returns one ascending index array per client. Each
example goes to exactly one client, each client gets at least one, and equal arguments give equal splits.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcore.errors import InvalidValue
from fedcore.scalars import random_generator

Parts = list[NDArray[np.int64]]


def iid(labels: ArrayLike, num_clients: int, seed: int = 0) -> Parts:
    """Shuffles and deals: sizes differ by at most one.

    Raises:
        ValueError: there are fewer examples than clients.
    Example:
        >>> [len(part) for part in iid(np.zeros(7), 3)]
        [3, 2, 2]
    """
    n = _num_examples(labels, num_clients)
    return _ascending(np.array_split(random_generator(seed).permutation(n), num_clients))


def dirichlet(labels: ArrayLike, num_clients: int, alpha: float, seed: int = 0) -> Parts:
    """Gives each client its own mix of labels, and all clients the same number of examples (to within one).

    A client's mix is drawn from Dir(alpha · K · p) for K labels of frequencies p: a small `alpha` leaves a
    client with one label, a large one with the mix of the whole. A label that runs out leaves the mixes of
    the clients still to be served, so the last of them get what is left.

    Args:
        alpha: above 0. At equal frequencies, each label's own concentration.
    Raises:
        ValueError: there are fewer examples than clients, or `alpha` is not above 0.
    Source:
        Hsu et al. 2019, arXiv:1909.06335, section 3. Their α is `alpha` · K here; what follows when a label
        runs out is ours.
    Example:
        >>> labels = np.repeat([0, 1], 50)
        >>> [len(np.unique(labels[part])) for part in dirichlet(labels, 2, alpha=0.001)]
        [1, 1]
    """
    n = _num_examples(labels, num_clients)
    _require_positive(alpha)
    rng = random_generator(seed)
    _, label_index, left = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    pools = [rng.permutation(np.flatnonzero(label_index == k)) for k in range(len(left))]
    concentration = alpha * len(left) * left / n

    parts = []
    for size in _even_sizes(n, num_clients):
        mix = rng.dirichlet(concentration)
        counts = _draw_counts(rng, mix, left, size)
        taken = [pool[m - c : m] for pool, m, c in zip(pools, left, counts, strict=True)]
        parts.append(np.concatenate(taken))
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
    cut = np.array_split(by_label, num_shards)
    dealt = rng.permutation(num_shards).reshape(num_clients, shards_per_client)
    return _ascending(np.concatenate([cut[i] for i in row]) for row in dealt)


def quantity_skew(labels: ArrayLike, num_clients: int, alpha: float, seed: int = 0) -> Parts:
    """Deals shuffled examples so that sizes follow Dir(alpha): one for each client, the rest by the draw.

    Args:
        alpha: above 0. A small one gives a few clients nearly everything, a large one equal sizes.
    Raises:
        ValueError: there are fewer examples than clients, or `alpha` is not above 0.
    Source:
        Li et al. 2021, arXiv:2102.02079, for quantity skew; the one example to start with is ours.
    Example:
        >>> sum(len(part) for part in quantity_skew(np.zeros(100), 5, alpha=0.5))
        100
    """
    n = _num_examples(labels, num_clients)
    _require_positive(alpha)
    rng = random_generator(seed)
    shares = np.cumsum(rng.dirichlet(np.full(num_clients, alpha)))[:-1]
    spare = n - num_clients
    cuts = np.minimum(np.floor(shares * spare), spare).astype(np.int64) + np.arange(1, num_clients)
    return _ascending(np.split(rng.permutation(n), cuts))


def _num_examples(labels: ArrayLike, num_clients: int) -> int:
    shape = np.shape(labels)
    if len(shape) != 1:
        raise InvalidValue(f"labels must have the shape [n], not {list(shape)}")
    if not 1 <= num_clients <= shape[0]:
        raise InvalidValue(f"cannot give each of {num_clients} clients one of {shape[0]} examples")
    return shape[0]


def _require_positive(alpha: float) -> None:
    if not alpha > 0:
        raise InvalidValue(f"alpha must be above 0, not {alpha}")


def _even_sizes(n: int, num_clients: int) -> list[int]:
    return [n // num_clients + (i < n % num_clients) for i in range(num_clients)]


def _draw_counts(rng: np.random.Generator, mix: NDArray, left: NDArray, size: int) -> NDArray:
    """Draws `size` labels from `mix` and counts them; draws of labels that have run out are drawn again."""
    counts = np.zeros_like(left)
    while (missing := size - counts.sum()) > 0:
        odds = np.where(counts < left, mix, 0.0)
        if odds.sum() < 1e-12:  # none of the mix is left: what is there has to do
            odds = (left - counts).astype(float)
        counts = np.minimum(counts + rng.multinomial(missing, odds / odds.sum()), left)
    return counts


def _ascending(parts: Iterable[NDArray]) -> Parts:
    return [np.sort(part).astype(np.int64) for part in parts]
