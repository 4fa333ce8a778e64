from fedcore.intrinsics import numerics
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rules import meets
from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic(
    "(left: T, right: W -> T) where T: numeric, W: numeric",
    level=LOCAL,
    rule=meets("right", casts=True),
    constants={"left": "right", "right": "left"},
)
def generic_multiply(left: NumpyValue, right: NumpyValue) -> NumpyValue:
    """Multiplies leaf by leaf; a scalar `right` multiplies every leaf.

    `right` is cast to the dtype of the left leaf. A real `right` scales both parts of a complex leaf. Integer overflow
    wraps, as in numpy.

    Example:
        >>> weighted = fc.generic_multiply(update, num_examples)  # or update * num_examples
    """
    return numerics.multiply(left, right)
