from collections.abc import Callable

from fedcore.intrinsics.numerics import BinaryFunction, NumpyValue
from fedcore.intrinsics.rules import zero_fits
from fedcore.ir.operations import TO_SERVER, intrinsic


@intrinsic(
    "(value: {T}@CLIENTS, zero: Z, accumulate: (<A,T> -> A), merge: (<A,A> -> A), report: (A -> R) -> R@SERVER) "
    "where Z: local",
    rule=zero_fits("accumulate"),
    widens={"A": "Z"},
    crosses=TO_SERVER,
    per_client="accumulate",
)
def federated_aggregate(
    value: list[NumpyValue],
    zero: NumpyValue,
    accumulate: BinaryFunction,
    merge: BinaryFunction,
    report: Callable[[NumpyValue], NumpyValue],
) -> NumpyValue:
    """Folds client values into a server value, by blocks of clients and a tree of merges.

    Each block starts from `zero` and accumulates its clients in order. `merge` joins the partials of two blocks, and
    `report` converts the last partial to the result. No clients: `report(zero)`.

    The type of `zero` may be narrower than the accumulator: float32[0] for float32[?]. The plan decides where blocks
    end, so merging two partials must equal accumulating all their clients in one block;
    `fc.testing.check_aggregation` tests this. The functions capture constants only.

    Example:
        >>> count = fc.federated_aggregate(values, 0, lambda n, _: n + 1, lambda m, n: m + n, lambda n: n)
    """
    total = zero
    for x in value:
        total = accumulate(total, x)
    return report(merge(zero, total))
