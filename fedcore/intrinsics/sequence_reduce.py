from fedcore.intrinsics.numerics import BinaryFunction, NumpyValue
from fedcore.intrinsics.rules import zero_fits
from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic(
    "(value: T*, zero: Z, op: (<A,T> -> A) -> A)",
    level=LOCAL,
    rule=zero_fits("op"),
    widens={"A": "Z"},
    per_element="op",
)
def sequence_reduce(value: list[NumpyValue], zero: NumpyValue, op: BinaryFunction) -> NumpyValue:
    """Folds the elements of a sequence in order; an empty sequence gives `zero`.

    The type of `zero` may be narrower than the result of `op`: float32[0] for float32[?].

    Example:
        >>> total = fc.sequence_reduce(sequence, 0.0, lambda total, x: total + x)
    """
    total = zero
    for x in value:
        total = op(total, x)
    return total
