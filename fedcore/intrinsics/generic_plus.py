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
def generic_plus(left: NumpyValue, right: NumpyValue) -> NumpyValue:
    """Adds leaf by leaf; a scalar `right`, of the leaf's dtype, is added to every element.

    Integer overflow wraps, as in numpy.

    Example:
        >>> total = fc.generic_plus(a, b)  # or a + b
    """
    return numerics.add(left, right)
