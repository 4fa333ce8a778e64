"""Python numbers from what a user gives for one: also numpy scalars, and tensors and arrays of rank 0.

Decision 0081.
"""

import operator
import sys
from typing import Any

import numpy as np

from fedcore.errors import InvalidValue, TypeMismatch, brief

_SEEDS = range(-(1 << 63), 1 << 63)


def whole_number(name: str, value: object, *, at_least: int | None = None, at_most: int | None = None) -> int:
    """`value` as an int.

    Args:
        name: of the argument, for messages.
    Raises:
        TypeMismatch: it is no integer.
        InvalidValue: it is less than `at_least`, or greater than `at_most`, which needs `at_least`.
    """
    limit = f", {at_least} or more" if at_most is None else f", {at_least} to {at_most}"
    expected = "a whole number" if at_least is None else f"a whole number{limit}"
    number = _index(value)
    if number is None:
        raise TypeMismatch(f"{name} is {expected}, not {brief(value)}")
    if (at_least is not None and number < at_least) or (at_most is not None and number > at_most):
        raise InvalidValue(f"{name} is {expected}, not {brief(number)}")
    return number


def _index(value: Any) -> int | None:
    """An integer of Python, numpy or TensorFlow as an int; None for a bool and for what is no integer."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except Exception:  # a symbolic tensor raises errors of its own
        return None


def real_number(name: str, value: object, *, at_least: float | None = None, above: float | None = None) -> float | int:
    """`value` as a finite float, or an int where it is one.

    Raises:
        TypeMismatch: it is no real number.
        InvalidValue: it is not finite, or not in the range.
    """
    limit = f", {at_least} or more" if at_least is not None else f" above {above}" if above is not None else ""
    number = _index(value)
    real: float | int | None = _float(value) if number is None else number
    if real is None:
        raise TypeMismatch(f"{name} is a number{limit}, not {brief(value)}")
    is_too_low = (at_least is not None and real < at_least) or (above is not None and real <= above)
    if is_too_low or not abs(real) <= sys.float_info.max:
        raise InvalidValue(f"{name} is a finite number{limit}, not {brief(real)}")
    return real


def _float(value: Any) -> float | None:
    """A number of Python, numpy or TensorFlow as a float; None for a bool, a text, and what is no single number."""
    kind = getattr(getattr(value, "dtype", None), "name", "")
    if isinstance(value, bool | str | bytes) or kind == "bool" or getattr(value, "shape", ()) != ():
        return None
    try:
        number = float(value)
    except Exception:  # a symbolic tensor raises errors of its own
        return None
    return number if isinstance(number, float) else None  # AutoGraph makes a tensor of a symbolic one


def seed_number(name: str, value: object) -> int:
    """`value` as a seed: an integer of 64 bits, negative ones too.

    Raises:
        TypeMismatch: it is no integer.
        InvalidValue: it has more than 64 bits.
    """
    number = whole_number(name, value)
    if number not in _SEEDS:
        raise InvalidValue(f"{name} is a whole number of 64 bits, with its sign, not {brief(number)}")
    return number


def seed_or_drawn(name: str, value: object) -> int:
    """`value` as a seed, or one that is drawn where it is None.

    Raises:
        TypeMismatch, InvalidValue: as for `seed_number`.
    """
    return int(np.random.default_rng().integers(2**63)) if value is None else seed_number(name, value)


def python_scalar(value: Any) -> Any:
    """A numpy scalar, or an array or tensor of rank 0, as the Python number that it holds; anything else as it is."""
    if isinstance(value, bool | int | float | complex | str | bytes | type | None) or not hasattr(value, "dtype"):
        return value
    try:
        return np.asarray(value).item() if tuple(value.shape) == () else value
    except Exception:  # a symbolic tensor raises errors of its own
        return value


def random_generator(seed: int, *more: int) -> np.random.Generator:
    """numpy's generator for a seed, which may be negative, and further numbers that are not."""
    parts = [seed_number("seed", seed) % (1 << 64), *more]
    return np.random.default_rng(parts if more else parts[0])
