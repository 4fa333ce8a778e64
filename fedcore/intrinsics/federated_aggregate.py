from fedcore.ir.operations import intrinsic


@intrinsic("(value: {T}@CLIENTS, zero: Z, accumulate: (<Z,T> -> Z), merge: (<Z,Z> -> Z), report: (Z -> R) -> R@SERVER)")
def federated_aggregate(value, zero, accumulate, merge, report):
    """Folds client values into one at the server, by blocks of clients and a tree of merges.

    Each block of clients starts from `zero` and accumulates its clients in order; `merge` joins two such
    partials; `report` turns the last one into the result. No clients: `report(zero)`.

    Example:
        >>> count = fc.federated_aggregate(values, 0, lambda n, _: n + 1, lambda m, n: m + n, lambda n: n)
    """
    total = zero
    for x in value:
        total = accumulate(total, x)
    return report(merge(zero, total))
