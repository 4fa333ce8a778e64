from fedcore.intrinsics import numerics
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rules import comparison_typing
from fedcore.ir.operations import operation


@operation(
    comparison_typing("less", "(left: T, right: W -> T) where T: real, W: real"),
    constants={"left": "right", "right": "left"},
)
def less(left: NumpyValue, right: NumpyValue) -> NumpyValue:
    """Compares `left < right`, element by element; gives bools in the shape of `left`.

    A scalar `right` is compared with every element. A comparison with NaN gives false.

    Example:
        >>> below = fc.less(x, 0.5)
    """
    return numerics.less(left, right)
