from functools import reduce

from fedcore.intrinsics import numerics
from fedcore.intrinsics.federated_map import federated_map
from fedcore.intrinsics.federated_secure_aggregate import secure_sum_of
from fedcore.intrinsics.maximum import maximum
from fedcore.intrinsics.minimum import minimum
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rules import meets
from fedcore.intrinsics.secure_ranges import ranges_up_to
from fedcore.ir.module import Constant
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value
from fedcore.types import StructType, Type, member_of, tensor_leaves


@intrinsic(
    "(value: {T}@CLIENTS, max_input: M -> T@SERVER) where T: integer, M: integer",
    rule=meets("max_input"),
    constants={"max_input": "value"},
)
def federated_secure_sum(value: list[NumpyValue], max_input: NumpyValue, *, T: Type) -> NumpyValue:
    """Adds client integers of 0 to `max_input` in a secure sum: the server learns the sum only.

    `fc.runtime.local(secure_aggregation='masked')` runs the protocol; other runtimes give its result, but hide nothing.
    Values are clipped to 0 … `max_input` first, a number for all leaves, or a struct with a number for each leaf. The
    sum wraps, as in `federated_sum`. No clients give zeros.

    Example:
        >>> total = fc.federated_secure_sum(counts, 1000)
    """
    clipped = [numerics.minimum(numerics.maximum(x, numerics.zeros_like(x)), max_input) for x in value]
    return reduce(numerics.add, clipped, numerics.zeros(T))


@federated_secure_sum.lowering
def _(value: Value, max_input: Value) -> Value:
    clipped = federated_map(lambda x: minimum(maximum(x, 0), max_input), value)
    return secure_sum_of(clipped, ranges_up_to(member_of(value.type), _clip_limits(max_input, value)))


def _clip_limits(max_input: Value, value: Value) -> list[int | None]:
    """For each leaf of the value the number to which it is clipped; None if the program computes the number."""
    leaves = len(tensor_leaves(member_of(value.type)))
    stack, numbers = [max_input], []
    while stack:
        op = max_input.builder.operation(part := stack.pop())
        if op is not None and op.kind == "struct" and isinstance(part.type, StructType):
            stack.extend(
                reversed([Value(part.builder, o, t) for o, t in zip(op.operands, part.type.types, strict=True)])
            )
            continue
        constant = op.attributes["value"] if op is not None and op.kind == "literal" else None
        number = int(constant.to_numpy().max(initial=0)) if isinstance(constant, Constant) else None
        numbers += [number] * len(tensor_leaves(part.type))
    return numbers * leaves if len(numbers) == 1 else numbers
