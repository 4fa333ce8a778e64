from fedcore.intrinsics import numerics
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rules import meets
from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic(
    "(left: T, right: W -> T) where T: numeric, W: numeric",
    level=LOCAL,
    rule=meets("right"),
    constants={"left": "right", "right": "left"},
)
def generic_minus(left: NumpyValue, right: NumpyValue) -> NumpyValue:
    """Subtracts leaf by leaf; a scalar `right`, of the leaf's dtype, is subtracted from every element.

    Integer overflow wraps, as in numpy.

    Example:
        >>> change = fc.generic_minus(after, before)  # or after - before
    """
    return numerics.subtract(left, right)
