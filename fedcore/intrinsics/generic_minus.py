from fedcore.intrinsics import numerics
from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic("(left: T, right: T -> T) where T: numeric", level=LOCAL)
def generic_minus(left, right):
    """Subtracts leaf by leaf.

    Integer overflow wraps, as in numpy.

    Example:
        >>> change = fc.generic_minus(after, before)  # or after - before
    """
    return numerics.subtract(left, right)
