from fedcore.intrinsics import numerics
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rules import meets
from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic(
    "(left: T, right: W -> T) where T: integer, W: integer",
    level=LOCAL,
    rule=meets("right"),
    constants={"right": "left"},
)
def modulo(left: NumpyValue, right: NumpyValue) -> NumpyValue:
    """The remainder of `left / right`, element by element, with the sign of `right`.

    Modulo 0 is 0, as in numpy.

    Example:
        >>> digit = fc.modulo(count, 10)
    """
    return numerics.modulo(left, right)
