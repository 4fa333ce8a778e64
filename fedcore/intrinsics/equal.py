from collections.abc import Sequence

from fedcore.intrinsics import numerics
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rules import meets
from fedcore.ir.module import Attributes
from fedcore.ir.operations import operation
from fedcore.types import TensorType, Type, map_tensors, parse_signature

_SIGNATURE = parse_signature("(left: T, right: W -> T) where T: tensor, W: tensor")
_rule = meets("right")


def _typing(types: Sequence[Type], attributes: Attributes) -> Type:
    """The type of the result: bools in the shapes of `left`, which `_SIGNATURE` cannot express."""
    _SIGNATURE.match(types, name="equal")
    _rule("equal", types, attributes)
    return map_tensors(lambda t: TensorType("bool", t.shape), types[0])


@operation(_typing, constants={"left": "right", "right": "left"})
def equal(left: NumpyValue, right: NumpyValue) -> NumpyValue:
    """Compares for equality, element by element; gives bools in the shape of `left`.

    A scalar `right` is compared with every element. NaN equals nothing. Strings are compared by their bytes.

    Example:
        >>> is_seven = fc.equal(label, 7)
    """
    return numerics.equal(left, right)
