from collections.abc import Sequence

from fedcore.errors import TracingError, TypeMismatch
from fedcore.intrinsics import numerics
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.active import active_builder
from fedcore.ir.module import Attributes
from fedcore.ir.operations import operation
from fedcore.ir.values import Value
from fedcore.types import TensorType, Type, contains, is_static, leaves, to_type


def _typing(types: Sequence[Type], attributes: Attributes) -> None:
    return None  # the declared type of the operation determines the zeros


@operation(_typing, name="generic_zero")
def _operation(*, result_type: Type) -> NumpyValue:
    """Zeros of the result's type.

    Example:
        >>> zero = fc.generic_zero({'sum': 'float32[10]', 'count': 'int32'})
    """
    return numerics.zeros(result_type)


def generic_zero(type_: object) -> Value:
    """Zeros of `type_`, a type of numbers with known shapes.

    Raises:
        TypeMismatch: a dimension is unknown, or a leaf is not a number.
    Example:
        >>> zero = fc.generic_zero({'sum': 'float32[10]', 'count': 'int32'})
    """
    type_ = to_type(type_)
    if contains(type_, lambda t: isinstance(t, TensorType) and not is_static(t.shape)):
        raise TypeMismatch(f"generic_zero: {type_} has unknown dimensions, so its zero is not known")
    bad = [
        f"{path or 'it'} is {t}" for path, t in leaves(type_) if not (isinstance(t, TensorType) and t.dtype.is_numeric)
    ]
    if bad:
        raise TypeMismatch(f"generic_zero: only numbers have a zero; {', '.join(bad)}")
    builder = active_builder()
    if builder is None:
        raise TracingError("generic_zero stands outside a computation")
    return builder.append(_operation.name, [], type_)
