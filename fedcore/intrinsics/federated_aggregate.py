from collections.abc import Callable, Sequence

from fedcore.intrinsics.numerics import BinaryFunction, NumpyValue
from fedcore.intrinsics.planned import join_in_tree
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
    *,
    block_size: int,
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
    return report(fold_in_blocks(value, zero, accumulate, merge, block_size))


def fold_in_blocks(
    values: Sequence[NumpyValue], zero: NumpyValue, accumulate: BinaryFunction, merge: BinaryFunction, block_size: int
) -> NumpyValue:
    """The partial of all values: each block of `block_size` starts from `zero`, and blocks are merged in a tree."""
    partials = []
    for start in range(0, max(len(values), 1), block_size):
        partial = zero
        for x in values[start : start + block_size]:
            partial = accumulate(partial, x)
        partials.append(partial)
    return merge(zero, partials[0]) if len(partials) == 1 else join_in_tree(merge, partials)
