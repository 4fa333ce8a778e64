from collections.abc import Sequence

from fedcore.errors import TypeMismatch
from fedcore.intrinsics import numerics
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.module import Attributes
from fedcore.ir.operations import operation
from fedcore.ir.values import Value
from fedcore.types import StructType, TensorType, Type, as_dtype, map_tensors


def _typing(types: Sequence[Type], attributes: Attributes) -> Type:
    dtype = as_dtype(attributes["dtype"])

    def cast_leaf(leaf: TensorType) -> TensorType:
        if "str" in (leaf.dtype.name, dtype.name) and leaf.dtype != dtype:
            raise TypeMismatch(f"cast: {leaf} is not cast to {dtype}: text is no number")
        return TensorType(dtype, leaf.shape)

    return map_tensors(cast_leaf, types[0])


@operation(_typing, attributes=("dtype",))
def cast(value: NumpyValue, dtype: str) -> NumpyValue:
    """Casts every leaf to a dtype.

    A cast from float to integer truncates; floats beyond the limits of the integer dtype become the nearest limit, and
    NaN becomes 0. Integers wrap. Complex numbers lose their imaginary part, except in a cast to bool. Bools become 0
    and 1; numbers other than 0 become true.

    Example:
        >>> weight = fc.cast(num_examples, 'float32')
    """
    return numerics.cast(value, as_dtype(dtype))


def cast_leaves(value: Value, type_: Type) -> Value:
    """Casts each leaf of a traced value to the dtype of that leaf in `type_`; shapes stay."""
    if value.type == type_:
        return value
    if isinstance(type_, StructType):
        parts = [(name, cast_leaves(value[i], part)) for i, (name, part) in enumerate(type_.elements)]
        return value.builder.struct(parts, getattr(type_, "container", None))
    assert isinstance(type_, TensorType)
    return cast(value, type_.dtype)
