"""Discrete Gaussian numbers: from a table of their distribution function, and large ones by rounding normal numbers.

Source: Canonne, Kamath, Steinke 2020, "The discrete Gaussian for differential privacy", arXiv:2004.00010, for the
distribution; they sample it by rejection.

Decision 0321.
"""

import math

import tensorflow as tf

_UNIT = 2.0**-52
"""The distance of two float64 draws."""
_REACH = 9.0
"""Standard deviations of the table; beyond them the probability is below 2**-52, less than a draw can tell."""
ROUNDED = 2048.0
"""Standard deviation from which a rounded normal number has the distribution, up to less than a draw can tell."""


def distribution(stddev: float) -> tuple[tf.Tensor, int]:
    """P(X <= k) for k = -m, …, m - 1, float64, and m. P(X = k) is proportional to exp(-k² / (2 stddev²)).

    The table is computed in the graph, which would hold kilobytes of it.
    """
    reach = math.ceil(_REACH * stddev) + 1
    k = tf.cast(tf.range(-reach, reach + 1), tf.float64)
    weights = tf.exp(-tf.square(k) / (2 * stddev**2)) if stddev else tf.cast(k == 0, tf.float64)
    sums = tf.cumsum(weights)
    return sums[:-1] / sums[-1], reach


def discrete_gaussian(size: int, stddev: float) -> tf.Tensor:
    """Draws int64 [size] from the call's seed."""
    if stddev >= ROUNDED:
        # Rounding adds 1/12 to the variance. The fourth cumulant is then -1/120, not 0.
        return tf.cast(tf.round(normal(size, math.sqrt(stddev**2 - 1 / 12))), tf.int64)
    table, reach = distribution(stddev)
    return tf.searchsorted(table, _uniform([size]), side="left", out_type=tf.int64) - reach


def normal(size: int, stddev: float) -> tf.Tensor:
    """Draws normal numbers, float64 [size], with the tails that 52 bits give: up to 8.5 standard deviations.

    `tf.random.normal` cuts them at 5.7.
    """
    pairs = -(-size // 2)
    uniform = _uniform([2, pairs])
    radius, angle = tf.sqrt(tf.math.log(uniform[0]) * (-2 * stddev**2)), uniform[1] * (2 * math.pi)
    return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], 0)[:size]


def _uniform(shape: list[int]) -> tf.Tensor:
    """Draws float64 between 0 and 1, without both."""
    return tf.random.uniform(shape, dtype=tf.float64) + _UNIT / 2
