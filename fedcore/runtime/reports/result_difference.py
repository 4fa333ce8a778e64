"""The comparison of two results."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from fedcore.types import fields_of


def difference(have: Any, want: Any, tolerance: float = 64, path: str = "the result") -> str | None:
    """The first difference of two results, as a sentence; None if they agree.

    Integers must be equal. NaN agrees with NaN.

    Args:
        tolerance: number of roundings by which floats may differ.
        path: name of the part of the result that is compared, for the sentence.
    """
    fields = fields_of(want)
    if fields is not None and type(have) is type(want):
        pairs = [(f"{path}.{name}", getattr(have, name), field) for name, field in fields.items()]
    elif isinstance(want, Mapping):
        if not isinstance(have, Mapping) or list(have) != list(want):
            return f"{path} is {have!r}, not {want!r}"
        pairs = [(f"{path}.{k}", have[k], want[k]) for k in want]
    elif isinstance(want, list | tuple):
        if not isinstance(have, list | tuple) or len(have) != len(want):
            return f"{path} is {have!r}, not {want!r}"
        pairs = [(f"{path}[{i}]", h, w) for i, (h, w) in enumerate(zip(have, want, strict=True))]
    else:
        return None if _agree(np.asarray(have), np.asarray(want), tolerance) else f"{path} is {have!r}, not {want!r}"
    return next((d for p, h, w in pairs if (d := difference(h, w, tolerance, p))), None)


def _agree(have: np.ndarray, want: np.ndarray, tolerance: float) -> bool:
    """Whether two leaves agree, as of `difference`."""
    if have.shape != want.shape:
        return False
    if want.dtype.kind in "OSU" or have.dtype.kind in "OSU":
        return have.tolist() == want.tolist()
    if have.dtype != want.dtype:
        return False
    if want.dtype.kind not in "fc" and want.dtype.name != "bfloat16":
        return bool(np.array_equal(have, want))
    if want.dtype.kind == "c":  # part by part: an infinite real part must not hide a wrong imaginary part
        return _agree(have.real, want.real, tolerance) and _agree(have.imag, want.imag, tolerance)
    # At most a tenth, since 64 roundings of bfloat16 are half of a number.
    bound = min(tolerance * float(ml_dtypes.finfo(want.dtype).eps), 0.1)
    close = np.isclose(have.astype(np.float64), want.astype(np.float64), bound, bound, equal_nan=True)
    return bool(close.all())
