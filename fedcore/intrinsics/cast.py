from fedcore.errors import TypeMismatch
from fedcore.intrinsics import numerics
from fedcore.ir.operations import operation
from fedcore.types import TensorType, Type, as_dtype, map_tensors


def _typing(types, attributes) -> Type:
    dtype = as_dtype(attributes["dtype"])

    def of_leaf(leaf: TensorType) -> TensorType:
        if "str" in (leaf.dtype.name, dtype.name) and leaf.dtype != dtype:
            raise TypeMismatch(f"cast: {leaf} is not cast to {dtype}: text is no number")
        return TensorType(dtype, leaf.shape)

    return map_tensors(of_leaf, types[0])


@operation(_typing, attributes=("dtype",))
def cast(value, dtype):
    """Casts every leaf to a dtype.

    A cast from float to integer truncates; floats beyond the limits of the integer dtype become the nearest limit, and
    NaN becomes 0. Integers wrap. Complex numbers lose their imaginary part, except in a cast to bool. Bools become 0
    and 1; numbers other than 0 become true.

    Example:
        >>> weight = fc.cast(num_examples, 'float32')
    """
    return numerics.cast(value, as_dtype(dtype))
