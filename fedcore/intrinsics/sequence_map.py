from collections.abc import Callable

from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic("(fn: (T -> U), arg: T* -> U*)", level=LOCAL, per_element="fn")
def sequence_map(fn: Callable[[NumpyValue], NumpyValue], arg: list[NumpyValue]) -> list[NumpyValue]:
    """Applies `fn` to every element of a sequence, lazily, when the element is drawn.

    Example:
        >>> scaled = fc.sequence_map(lambda x: x * 2.0, sequence)
    """
    return [fn(x) for x in arg]
