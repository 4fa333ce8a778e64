"""Facts about the noise of a private aggregation, read from its state or from its factory.

Decision 0137.
"""

import itertools
import math
from typing import Any

import attrs
import numpy as np

from fedcore.aggregators import DifferentiallyPrivateFactory
from fedcore.aggregators.private_noise import BandedNoise, BandedNoiseState, TreeNoise, TreeNoiseState
from fedcore.aggregators.state_containers import PRIVATE_STATES, container_paths
from fedcore.errors import InvalidValue, TypeMismatch
from fedcore.templates import IterativeProcess
from fedcore.types import member_of

_DIGITS = 6
"""Significant digits of a noise multiplier that is read from float32 numbers."""


@attrs.frozen
class Mechanism:
    """The noise of a round.

    Args:
        noise_multiplier: standard deviation of the noise over the greatest norm of a client's value; for an adaptive
            clip that of the one Gaussian mechanism which sum and count together are as private as.
        restart_every: rounds of a tree; None without trees.
        coefficients: of a banded factorisation; None without one.
        is_discrete: discrete noise of several clients, which is as private as the Gaussian of this noise multiplier in
            the sense of concentrated differential privacy, not in every sense.
    """

    noise_multiplier: float
    restart_every: int | None = None
    coefficients: tuple[float, ...] | None = None
    is_discrete: bool = False

    @property
    def is_correlated(self) -> bool:
        """Whether the noise of a round depends on that of other rounds."""
        return self.restart_every is not None or self.coefficients is not None


def mechanism_of_factory(factory: DifferentiallyPrivateFactory) -> Mechanism:
    """The mechanism of the aggregations that a factory makes."""
    noise = factory.noise
    return Mechanism(
        factory.noise_multiplier,
        noise.restart_every if isinstance(noise, TreeNoise) else None,
        noise.coefficients if isinstance(noise, BandedNoise) else None,
    )


def private_state_path(process: IterativeProcess) -> list[str]:
    """The names that lead from a process's state to that of its one private aggregation.

    Raises:
        TypeMismatch: it has none, or several.
    """
    paths = container_paths(member_of(process.state_type), PRIVATE_STATES)
    if len(paths) == 1:
        return paths[0]
    how_many = "no aggregation" if not paths else f"{len(paths)} aggregations, {' and '.join(map('.'.join, paths))},"
    raise TypeMismatch(
        f"the state of the process holds {how_many} with noise; a ledger follows one, which "
        "fc.aggregators.DifferentiallyPrivateFactory or DistributedDiscreteGaussianFactory makes; "
        "fc.privacy.example_epsilon has the epsilon of build_dp_sgd"
    )


def at_path(state: Any, path: list[str]) -> Any:
    """The part of a state in its containers, or in dicts and lists as read from a file."""
    for name in path:
        state = part(state, name)
    return state


def part(value: Any, name: str) -> Any:
    """A part of a container, a dict or a list; that of a list or tuple without names by its number as text."""
    if isinstance(value, list | tuple) and name.isdigit():
        return value[int(name)]
    return value[name] if isinstance(value, dict) else getattr(value, name)


def mechanism_of_state(private: Any) -> Mechanism:
    """The mechanism of the round that ends in a state.

    Raises:
        InvalidValue: a number in it is none that a factory makes.
    """
    if "sensitivity" in _names(private):
        return _distributed_mechanism(private)
    return Mechanism(_noise_multiplier(private), *_noise_correlation(part(private, "noise")))


def _noise_multiplier(private: Any) -> float:
    """The noise multiplier of the Gaussian mechanism that is as private as a round's sum and, if noisy, its count.

    Raises:
        InvalidValue: a number in the state is none that a factory makes.
    """
    clip, multiplier = (float(np.asarray(part(private, name))) for name in ("clip", "noise_multiplier"))
    count = part(private, "count_stddev")  # an empty tuple or list with a fixed clip
    for name, number, least in (("clip", clip, "above 0"), ("noise_multiplier", multiplier, "0 or more")):
        if not math.isfinite(number) or number < 0 or (name == "clip" and number == 0):
            raise InvalidValue(f"{name} of the state is a finite number, {least}, not {number}")
    if np.size(count):
        count_stddev = float(np.asarray(count))
        if not (math.isfinite(count_stddev) and count_stddev >= 0):
            raise InvalidValue(f"count_stddev of the state is a finite number, 0 or more, not {count_stddev}")
        has_noise = multiplier and count_stddev  # a sum or a count without noise reveals the clients' values
        multiplier = (multiplier**-2 + (2 * count_stddev) ** -2) ** -0.5 if has_noise else 0.0
    return _rounded(multiplier)


def _noise_correlation(noise: Any) -> tuple[int | None, tuple[float, ...] | None]:
    """(restart_every, coefficients) of a `Mechanism`, from the state of its noise.

    Raises:
        InvalidValue: a number in the state is none that a factory makes.
    """
    names = _names(noise)
    if names == {a.name for a in attrs.fields(TreeNoiseState)}:
        restart = int(part(noise, "restart_every"))
        levels = len(part(noise, "nodes"))
        if not 1 <= restart < 1 << levels:
            raise InvalidValue(f"restart_every of a tree of {levels} levels is 1 to {(1 << levels) - 1}, not {restart}")
        return restart, None
    if names == {a.name for a in attrs.fields(BandedNoiseState)}:
        coefficients = tuple(_rounded(c) for c in np.asarray(part(noise, "coefficients")))
        if not all(a >= b >= 0 for a, b in itertools.pairwise((math.inf, *coefficients))) or not coefficients[0]:
            raise InvalidValue("the coefficients of a banded mechanism are positive and do not increase")
        return None, coefficients
    return None, None


def _rounded(number: float) -> float:
    """The number with the significant digits that float32 has, so that equal noise is equal in all rounds."""
    return float(f"{number:.{_DIGITS}g}")


def noise_cohort_size(private: Any) -> float | None:
    """How many clients the round stands for, where fewer are simulated; else None.

    Raises:
        InvalidValue: the number in the state is none that a factory makes.
    """
    if "simulated_clients" not in _names(private):
        return None
    clients = float(np.asarray(part(private, "clients_per_round")))
    if not 0 < clients < math.inf:
        raise InvalidValue(f"clients_per_round of the state is a finite number above 0, not {clients}")
    return clients


def draws_from_own_key(private: Any) -> bool:
    """Whether each call draws its noise from a new key of the operating system."""
    return "key" in _names(private) and not isinstance(part(private, "key"), tuple | list)


def _names(value: Any) -> set[str]:
    """The names of the parts of an attrs object or a dict; none of anything else."""
    return set(value) if isinstance(value, dict) else {a.name for a in getattr(type(value), "__attrs_attrs__", ())}


def _distributed_mechanism(private: Any) -> Mechanism:
    """The sum of the clients' discrete Gaussian noises.

    Source: Kairouz, Liu, Steinke 2021, arXiv:2102.06387, Proposition 14.
    """
    sensitivity, stddev = (float(np.asarray(part(private, name))) for name in ("sensitivity", "noise_stddev"))
    dimension, clients = (int(np.asarray(part(private, name))) for name in ("dimension", "clients"))
    if not (0 < sensitivity < math.inf and 0 <= stddev < math.inf and dimension >= 1 and clients >= 0):
        raise InvalidValue(
            "sensitivity and dimension of the state are above 0, noise_stddev and clients 0 or more, not "
            f"{sensitivity}, {dimension}, {stddev} and {clients}"
        )
    if not stddev:
        return Mechanism(0.0, is_discrete=True)
    # How far the sum of discrete Gaussians is from one; τ in the source.
    distance = 10 * sum(math.exp(-2 * (math.pi * stddev) ** 2 * k / (k + 1)) for k in range(1, clients))
    ratio = sensitivity / (math.sqrt(max(clients, 1)) * stddev)
    # The sum is (epsilon² / 2)-concentrated differentially private, as a Gaussian of noise multiplier 1 / epsilon is.
    epsilon = min(math.sqrt(ratio**2 + distance * dimension / 2), ratio + distance * math.sqrt(dimension))
    return Mechanism(_rounded(1 / epsilon), is_discrete=True)
