from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic("(value: T*, zero: Z, op: (<Z,T> -> Z) -> Z)", level=LOCAL)
def sequence_reduce(value, zero, op):
    """Folds the elements of a sequence in order; an empty sequence gives `zero`.

    Example:
        >>> total = fc.sequence_reduce(sequence, 0.0, lambda total, x: total + x)
    """
    total = zero
    for x in value:
        total = op(total, x)
    return total
