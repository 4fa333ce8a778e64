"""The numbers of a nested structure, by name."""

from typing import Any

import numpy as np

from fedcore.program.structures import leaves_with_names


def scalars_of(value: Any) -> dict[str, float]:
    """The leaves that are single numbers, as floats; arrays, texts and everything else are left out.

    Example:
        >>> scalars_of({"train": {"loss": np.float32(0.5), "name": "a"}})
        {'train/loss': 0.5}
    """
    scalars = {}
    for name, leaf in leaves_with_names(value):
        if hasattr(leaf, "as_numpy_iterator"):
            continue
        array = np.asarray(leaf)
        if not array.shape and array.dtype.kind in "biuf":
            scalars[name] = float(array)
    return scalars
