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
def maximum(left: NumpyValue, right: NumpyValue) -> NumpyValue:
    """The larger of two values, element by element; a scalar `right` is compared with every element.

    NaN on either side gives NaN.

    Example:
        >>> positive = fc.maximum(x, 0.0)
    """
    return numerics.maximum(left, right)
