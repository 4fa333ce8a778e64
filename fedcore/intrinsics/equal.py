from fedcore.intrinsics import numerics
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rules import comparison_typing
from fedcore.ir.operations import operation


@operation(
    comparison_typing("equal", "(left: T, right: W -> T) where T: tensor, W: tensor"),
    constants={"left": "right", "right": "left"},
)
def equal(left: NumpyValue, right: NumpyValue) -> NumpyValue:
    """Compares for equality, element by element; gives bools in the shape of `left`.

    A scalar `right` is compared with every element. NaN equals nothing. Strings are compared by their bytes.

    Example:
        >>> is_seven = fc.equal(label, 7)
    """
    return numerics.equal(left, right)
