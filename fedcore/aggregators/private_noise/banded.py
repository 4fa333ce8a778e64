"""Banded matrix factorisation: Gaussian noise correlated over rounds by a Toeplitz factor of the prefix sums.

Source: Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", arXiv:2306.08153. There C is any banded
matrix; here it is Toeplitz, as in McKenna 2024, arXiv:2405.15913, so that it needs no number of rounds to run.
"""

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from fedcore.aggregators.private_noise.normal import Draw


@attrs.frozen(eq=False)  # of arrays
class BandedNoiseState:
    """The last noises of a banded mechanism.

    Args:
        past: float32 [bands - 1, size], the newest first.
        coefficients: float32 [bands], the first column of C.
    """

    past: Any
    coefficients: Any


@attrs.frozen
class BandedNoise:
    """The rows of C⁻¹ z, for independent z: round t's noise y solves c_0 y_t + c_1 y_(t-1) + … = z_t.

    Args:
        coefficients: c, positive, not increasing, of norm 1: what a client's value in one round adds to z has then
            the value's norm.
    """

    coefficients: tuple[float, ...]

    def initialize(self, size: int) -> BandedNoiseState:
        return BandedNoiseState(
            tf.zeros([len(self.coefficients) - 1, size]), tf.constant(self.coefficients, tf.float32)
        )

    def next(self, state: BandedNoiseState, size: int, draw: Draw) -> tuple[tf.Tensor, BandedNoiseState]:
        """The noise of a round for z of standard deviation 1, float32 [size], and the next state."""
        c = state.coefficients
        noise = (draw(0, size) - tf.linalg.matvec(state.past, c[1:], transpose_a=True)) / c[0]
        past = tf.concat([noise[None], state.past], 0)[: len(self.coefficients) - 1]
        return noise, BandedNoiseState(past, c)


def optimal_coefficients(rounds: int, bands: int) -> tuple[float, ...]:
    """The coefficients for which the noise of the prefix sums of `rounds` rounds has the least mean square.

    Starts from the square root of the prefix sums (Fichtenberger, Henzinger, Upadhyay 2022, arXiv:2202.11205), cut to
    `bands` coefficients, and descends by BFGS.
    """
    bands = min(bands, rounds)
    k = np.arange(1, bands)
    start = np.cumprod((2 * k - 1) / (2 * k))
    coefficients = _minimise(lambda tail: _log_error(np.concatenate([[1.0], tail]), rounds), start)
    c = np.concatenate([[1.0], coefficients])
    return tuple((c / np.linalg.norm(c)).tolist())


def mean_square_error(coefficients: ArrayLike, rounds: int) -> float:
    """The mean square of the noise of the prefix sums, for z of standard deviation 1 and one participation."""
    return float(np.exp(_log_error(np.asarray(coefficients, np.float64), rounds)[0]) / rounds)


def _log_error(c: np.ndarray, rounds: int) -> tuple[float, np.ndarray]:
    """(logarithm of the total square of the prefix sums' noise for columns of norm 1, its gradient by c[1:]).

    It is log(|C|² · |A C⁻¹|²), where c is the first column of C, A makes prefix sums, |C| is the norm of a column, and
    |A C⁻¹| the Frobenius norm.
    """
    # The first column of C⁻¹, which solves C x = (1, 0, …).
    inverse = np.zeros(rounds)
    for t in range(rounds):
        reach = min(t, len(c) - 1)
        inverse[t] = (float(t == 0) - c[1 : reach + 1] @ inverse[t - reach : t][::-1]) / c[0]
    prefix = np.cumsum(inverse)
    occurrences = np.arange(rounds, 0, -1)  # of each entry of the first column of A C⁻¹ in this Toeplitz matrix
    total, size = occurrences @ prefix**2, c @ c
    moved = np.convolve(prefix, inverse)[:rounds]  # minus the change of the prefix sums with a coefficient
    slope = [-2 * (occurrences[i:] * prefix[i:]) @ moved[: rounds - i] for i in range(1, len(c))]
    return float(np.log(total) + np.log(size)), np.asarray(slope) / total + 2 * c[1:] / size


def _minimise(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]], x: np.ndarray, steps: int = 200
) -> np.ndarray:
    """The x where a function is least, by BFGS with a halving line search among x with 1 >= x[0] >= x[1] >= … >= 0.

    Args:
        function: x -> (value, gradient).
        x: float64 [n], the start.
        steps: at most.
    """
    value, gradient = function(x)
    inverse = np.eye(len(x))
    for _ in range(steps if len(x) else 0):
        direction, rate = -inverse @ gradient, 1.0
        while rate > 1e-10:
            candidate = x + rate * direction
            ordered = np.all(np.diff(np.concatenate([[1.0], candidate, [0.0]])) <= 0)
            new_value, new_gradient = function(candidate) if ordered else (np.inf, gradient)
            if new_value < value + 1e-4 * rate * (gradient @ direction):
                break
            rate /= 2
        else:
            break
        s, y = candidate - x, new_gradient - gradient  # the letters of BFGS
        x, gradient, gain, value = candidate, new_gradient, value - new_value, new_value
        if gain < 1e-12:
            break
        if s @ y > 1e-16:
            left = np.eye(len(x)) - np.outer(s, y) / (s @ y)
            inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
    return x
