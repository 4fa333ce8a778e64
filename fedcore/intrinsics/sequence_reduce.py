from fedcore.intrinsics.rules import zero_fits
from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic(
    "(value: T*, zero: Z, op: (<A,T> -> A) -> A)",
    level=LOCAL,
    rule=zero_fits("op"),
    widens={"A": "Z"},
    per_element="op",
)
def sequence_reduce(value, zero, op):
    """Folds the elements of a sequence in order; an empty sequence gives `zero`.

    `zero` may be narrower than what `op` returns, as float32[0] is than float32[?].

    Example:
        >>> total = fc.sequence_reduce(sequence, 0.0, lambda total, x: total + x)
    """
    total = zero
    for x in value:
        total = op(total, x)
    return total
