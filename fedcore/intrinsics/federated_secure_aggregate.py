from collections.abc import Callable, Sequence

from fedcore.intrinsics.federated_aggregate import fold_in_blocks
from fedcore.intrinsics.generic_plus import generic_plus
from fedcore.intrinsics.generic_zero import generic_zero
from fedcore.intrinsics.numerics import BinaryFunction, NumpyValue
from fedcore.intrinsics.rules import zero_fits
from fedcore.intrinsics.secure_ranges import check_ranges
from fedcore.ir.module import Attributes
from fedcore.ir.operations import TO_SERVER, intrinsic
from fedcore.ir.values import Value
from fedcore.types import Type, member_of


def _check_zero_and_ranges(name: str, types: Sequence[Type], attributes: Attributes) -> None:
    zero_fits("accumulate")(name, types, attributes)
    check_ranges(name, member_of(types[0]), attributes["secure"], may_be_open=False)


@intrinsic(
    "(value: {T}@CLIENTS, zero: T, accumulate: (<T,T> -> T), merge: (<T,T> -> T), report: (T -> R) -> R@SERVER)",
    attributes=("secure",),
    rule=_check_zero_and_ranges,
    crosses=TO_SERVER,
    per_client="accumulate",
)
def federated_secure_aggregate(
    value: list[NumpyValue],
    zero: NumpyValue,
    accumulate: BinaryFunction,
    merge: BinaryFunction,
    report: Callable[[NumpyValue], NumpyValue],
    secure: tuple[str, ...],
    *,
    block_size: int,
) -> NumpyValue:
    """A sum of integers that crosses in a secure sum, where the runtime has a protocol for it; core of the secure sums.

    As `federated_aggregate`, where `accumulate` and `merge` add. `secure` has for each leaf the range of the clients'
    integers, as `fedcore.intrinsics.secure_ranges` writes it. A runtime with a protocol computes the partial of each
    client, `accumulate(zero, value)`, and lets the server see the sum of these partials only.

    Example:
        >>> counts = fc.federated_value(1, fc.CLIENTS)
        >>> plus = lambda a, b: a + b
        >>> total = fc.federated_secure_aggregate(counts, 0, plus, plus, lambda n: n, ("0..9",))
    """
    return report(fold_in_blocks(value, zero, accumulate, merge, block_size))


def secure_sum_of(
    value: Value,
    ranges: tuple[str, ...],
    plus: Callable[[Value, Value], Value] = generic_plus,
    report: Callable[[Value], Value] = lambda total: total,
) -> Value:
    """The secure sum of a client value, leaf by leaf.

    Args:
        ranges: for each leaf the range of the integers.
        plus: adds two values. Default: integer overflow wraps.
        report: computes the result from the sum. Default: the sum.
    """
    zero = generic_zero(member_of(value.type))
    return federated_secure_aggregate(
        value, zero, lambda a, b: plus(a, b), lambda a, b: plus(a, b), lambda a: report(a), secure=ranges
    )
