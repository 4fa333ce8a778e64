"""Shamir's secret sharing of 32 bytes over the field of PRIME elements."""

import functools
import os
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297
"""The least prime above 2**256, so that 32 bytes are one element."""

SECRET_BYTES = 32
SHARE_BYTES = 33  # of a number below PRIME


def split(secret: bytes, threshold: int, points: Sequence[int]) -> dict[int, bytes]:
    """Point -> share of the secret; `threshold` shares determine the secret, and fewer say nothing about it.

    Args:
        secret: 32 bytes.
        points: distinct numbers from 1 to PRIME - 1.
    """
    constant = int.from_bytes(secret, "little")
    # 49 bytes reduced modulo PRIME are within 2**-135 of uniform.
    coefficients = [int.from_bytes(os.urandom(49), "little") % PRIME for _ in range(threshold - 1)]
    return {x: _value([*coefficients, constant], x).to_bytes(SHARE_BYTES, "little") for x in points}


def _value(coefficients: list[int], x: int) -> int:
    """The polynomial's value; the coefficient of the highest power comes first."""
    total = 0
    for coefficient in coefficients:
        total = (total * x + coefficient) % PRIME
    return total


def is_share(data: bytes) -> bool:
    """Whether bytes are an element of the field."""
    return len(data) == SHARE_BYTES and int.from_bytes(data, "little") < PRIME


def join(shares: Mapping[int, bytes], threshold: int) -> bytes | None:
    """The secret of which `shares` (point -> share) has at least `threshold`; None if no secret has these shares."""
    points = tuple(sorted(shares))[:threshold]
    factors = _factors(points)
    total = sum(f * int.from_bytes(shares[x], "little") for f, x in zip(factors, points, strict=True)) % PRIME
    return total.to_bytes(SECRET_BYTES, "little") if total < 2 ** (8 * SECRET_BYTES) else None


@functools.lru_cache(maxsize=512)
def _factors(points: tuple[int, ...]) -> tuple[int, ...]:
    """For each point the factor of its share in Lagrange's interpolation at 0."""
    factors = []
    for x in points:
        numerator, denominator = 1, 1
        for other in points:
            if other != x:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - x) % PRIME
        factors.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return tuple(factors)
