"""Discrete Gaussian numbers, by the inverse of their distribution function in a table.

Source: Canonne, Kamath, Steinke 2020, "The discrete Gaussian for differential privacy", arXiv:2004.00010, for the
distribution; they sample it by rejection.
"""

import math

import tensorflow as tf

_BITS = 52
_REACH = 9.0
"""Standard deviations of the table; beyond them the probability is below 2**-52, less than a draw can tell."""


def distribution(stddev: float) -> tuple[tf.Tensor, int]:
    """P(X <= k) for k = -m, …, m - 1, float64, and m. P(X = k) is proportional to exp(-k² / (2 stddev²)).

    The table is computed in the graph, which would hold megabytes of it.
    """
    reach = math.ceil(_REACH * stddev) + 1
    k = tf.cast(tf.range(-reach, reach + 1), tf.float64)
    weights = tf.exp(-tf.square(k) / (2 * stddev**2)) if stddev else tf.cast(k == 0, tf.float64)
    sums = tf.cumsum(weights)
    return sums[:-1] / sums[-1], reach


def discrete_gaussian(size: int, stddev: float) -> tf.Tensor:
    """Draws int64 [size] from the call's seed."""
    table, reach = distribution(stddev)
    bits = tf.random.uniform([size], maxval=1 << _BITS, dtype=tf.int64)
    uniform = (tf.cast(bits, tf.float64) + 0.5) * 2.0**-_BITS
    return tf.searchsorted(table, uniform, side="left", out_type=tf.int64) - reach
