from fedcore.intrinsics import numerics
from fedcore.intrinsics.rules import meets
from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic(
    "(left: T, right: W -> T) where T: inexact, W: numeric",
    level=LOCAL,
    rule=meets("right", casts=True),
    constants={"left": "right", "right": "left"},
)
def generic_divide(left, right):
    """Divides leaf by leaf; where `right` is a scalar, every leaf by it.

    `right` is cast to the dtype of the leaf it meets; a real one divides both parts of a complex leaf. Division by zero
    gives infinities and NaN, as in numpy.

    Example:
        >>> average = fc.generic_divide(total, count)  # or total / count
    """
    return numerics.divide(left, right)
