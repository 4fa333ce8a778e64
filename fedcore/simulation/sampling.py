"""Samples the clients of a round."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from fedcore.errors import InvalidValue
from fedcore.scalars import random_generator, seed_number, whole_number

Id = TypeVar("Id")


def build_uniform_sampling_fn(
    sample_range: Sequence[Id], replace: bool = False, random_seed: int | None = None, *, seed: int | None = None
) -> Callable[[int, int], list[Id]]:
    """Builds a function that samples the clients of a round uniformly.

    A sample depends on the seed and the round number only, so a training that is resumed samples equal clients. A
    sample of n clients takes time in proportion to n, however many clients there are.

    Args:
        sample_range: the identifiers to sample from.
        replace: whether a client may be sampled twice in a round.
        random_seed: a whole number. Default: drawn when the function is built.
        seed: another name of `random_seed`.
    Returns:
        A function (round number, at least 0; number of clients) -> identifiers.
    Raises:
        ValueError: both names of the seed are given; or the function is asked for more clients than there are, and
            `replace` is False.
    Example:
        >>> sample = build_uniform_sampling_fn(["a", "b", "c", "d"], random_seed=1)
        >>> sample(7, 2) == sample(7, 2)
        True
        >>> len(set(sample(8, 4)))
        4
    """
    if random_seed is not None and seed is not None:
        raise InvalidValue("build_uniform_sampling_fn: random_seed and seed are one argument; give one of them")
    ids = list(sample_range)
    given = random_seed if seed is None else seed
    entropy = int(np.random.default_rng().integers(2**63)) if given is None else seed_number("random_seed", given)

    def sample(round_num: int, size: int) -> list[Id]:
        round_number = whole_number("round_num", round_num, at_least=0)
        size = whole_number("size", size, at_least=0)
        if size > len(ids) and not replace:
            raise InvalidValue(f"cannot draw {size} of {len(ids)} clients without replacement")
        rng = random_generator(entropy, round_number)
        return [ids[i] for i in rng.choice(len(ids), size=size, replace=replace)]

    return sample
