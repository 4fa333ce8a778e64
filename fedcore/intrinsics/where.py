from collections.abc import Sequence

from fedcore.errors import TypeMismatch
from fedcore.intrinsics import numerics
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rules import all_of, meets
from fedcore.ir.module import Attributes
from fedcore.ir.operations import LOCAL, intrinsic
from fedcore.types import StructType, TensorType, Type, explain, leaves, map_tensors


def _check_condition(name: str, types: Sequence[Type], attributes: Attributes) -> None:
    """The `Rule` of `where` for its first operand."""
    condition, then = types[0], types[1]
    if not _chooses(condition, then):
        expected = map_tensors(lambda t: TensorType("bool", t.shape), then)
        raise TypeMismatch(explain(f"{name}: `condition` does not fit", condition, expected))


def _chooses(condition: Type, then: Type) -> bool:
    """Whether each leaf of a condition is one bool, or bools in the shape of the leaves of `then` that it chooses."""
    if isinstance(condition, StructType) and isinstance(then, StructType):
        pairs = zip(condition.types, then.types, strict=False)
        return len(condition) == len(then) and all(_chooses(c, t) for c, t in pairs)
    if not isinstance(condition, TensorType) or condition.dtype.name != "bool":
        return False
    return condition.shape == () or all(
        isinstance(t, TensorType) and t.shape == condition.shape for _, t in leaves(then)
    )


@intrinsic(
    "(condition: C, then: T, otherwise: W -> T) where C: tensor, T: tensor, W: tensor",
    level=LOCAL,
    rule=all_of(_check_condition, meets("otherwise", left_index=1, index=2)),
    constants={"then": "otherwise", "otherwise": "then"},
)
def where(condition: NumpyValue, then: NumpyValue, otherwise: NumpyValue) -> NumpyValue:
    """`then` where the condition holds, else `otherwise`, element by element.

    The condition is a single bool, or bools in the shape of `then`. Both sides are computed.

    Example:
        >>> clipped = fc.where(fc.less(x, 1.0), x, 1.0)
    """
    return numerics.where(condition, then, otherwise)
