from fedcore.intrinsics import numerics
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rules import meets
from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic(
    "(left: T, right: W -> T) where T: real, W: real",
    level=LOCAL,
    rule=meets("right"),
    constants={"right": "left"},
)
def minimum(left: NumpyValue, right: NumpyValue) -> NumpyValue:
    """The smaller of two values, element by element; a scalar `right` is compared with every element.

    NaN on either side gives NaN.

    Example:
        >>> capped = fc.minimum(x, 1.0)
    """
    return numerics.minimum(left, right)
