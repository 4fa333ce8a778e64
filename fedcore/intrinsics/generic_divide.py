from fedcore.intrinsics import numerics
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rules import meets
from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic(
    "(left: T, right: W -> T) where T: inexact, W: numeric",
    level=LOCAL,
    rule=meets("right", casts=True),
    constants={"left": "right", "right": "left"},
)
def generic_divide(left: NumpyValue, right: NumpyValue) -> NumpyValue:
    """Divides leaf by leaf; a scalar `right` divides every leaf.

    `right` is cast to the dtype of the left leaf. A real `right` divides both parts of a complex leaf. Division by zero
    gives infinities and NaN, as in numpy.

    Example:
        >>> average = fc.generic_divide(total, count)  # or total / count
    """
    return numerics.divide(left, right)
