"""The noise of the Gaussian mechanism for an epsilon and a delta."""

import math

from fedcore.errors import InvalidValue
from fedcore.scalars import real_number

__all__ = ["analytic_gauss_stddev"]


def analytic_gauss_stddev(epsilon: float, delta: float, norm_bound: float, tol: float = 1e-12) -> float:
    """The least standard deviation of Gaussian noise with which a value of bounded norm is (epsilon, delta)-private.

    Types: Python numbers.

    Args:
        epsilon: 0 or more.
        delta: from 0 to 1; 0 needs infinite noise, and 1 needs none.
        norm_bound: the greatest L2 norm by which one client changes the value; 0 needs no noise.
        tol: the error of the result, over `norm_bound`, if it is above 1; otherwise relative.
    Raises:
        FedcoreError: a number is outside its range.
    Source: Balle and Wang 2018, "Improving the Gaussian mechanism for differential privacy", arXiv:1805.06530,
        Theorem 8, solved by bisection in place of Algorithm 1.
    Example:
        >>> round(fc.analytics.differential_privacy.analytic_gauss_stddev(1.0, 1e-5, norm_bound=1.0), 4)
        3.7306
    """
    epsilon = float(real_number("epsilon", epsilon, at_least=0))
    delta = float(real_number("delta", delta, at_least=0))
    norm_bound = float(real_number("norm_bound", norm_bound, at_least=0))
    tol = float(real_number("tol", tol, above=0))
    if delta > 1:
        raise InvalidValue(f"delta is at most 1, not {delta}")
    if norm_bound == 0 or delta == 1:
        return 0.0
    if delta == 0:
        return math.inf

    def delta_at(sigma: float) -> float:
        """The delta of noise of `sigma` standard deviations for a norm bound of 1: Theorem 8."""

        def normal_cdf(x: float) -> float:
            return math.erfc(-x / math.sqrt(2)) / 2

        tail = normal_cdf(-1 / (2 * sigma) - epsilon * sigma)
        weighted = math.exp(epsilon + math.log(tail)) if tail else 0.0  # the exponential alone may overflow
        return normal_cdf(1 / (2 * sigma) - epsilon * sigma) - weighted

    low, high = 0.0, 1.0
    while delta_at(high) > delta:
        low, high = high, 2 * high
    if low == 0:
        low = high / 2
        while delta_at(low) <= delta:
            low, high = low / 2, low
    while high - low > tol * max(1.0, high) and (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return norm_bound * high
