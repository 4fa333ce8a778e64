from fedcore.intrinsics import numerics
from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic("(left: T, right: T -> T) where T: numeric", level=LOCAL)
def generic_plus(left, right):
    """Adds leaf by leaf.

    Integer overflow wraps, as in numpy.

    Example:
        >>> total = fc.generic_plus(a, b)  # or a + b
    """
    return numerics.add(left, right)
