from fedcore.intrinsics.rules import zero_fits
from fedcore.ir.operations import TO_SERVER, intrinsic


@intrinsic(
    "(value: {T}@CLIENTS, zero: Z, accumulate: (<A,T> -> A), merge: (<A,A> -> A), report: (A -> R) -> R@SERVER)",
    rule=zero_fits("accumulate"),
    widens={"A": "Z"},
    crosses=TO_SERVER,
    per_client="accumulate",
)
def federated_aggregate(value, zero, accumulate, merge, report):
    """Folds client values into one at the server, by blocks of clients and a tree of merges.

    Each block of clients starts from `zero` and accumulates its clients in order; `merge` joins two such
    partials; `report` turns the last one into the result. No clients: `report(zero)`.

    `zero` may be narrower than the accumulator, as float32[0] is than float32[?]. Blocks end where the plan says, so
    `merge` has to give what accumulating on would have: `fc.testing.check_aggregation` finds one that does not. The
    functions capture constants only.

    Example:
        >>> count = fc.federated_aggregate(values, 0, lambda n, _: n + 1, lambda m, n: m + n, lambda n: n)
    """
    total = zero
    for x in value:
        total = accumulate(total, x)
    return report(merge(zero, total))
