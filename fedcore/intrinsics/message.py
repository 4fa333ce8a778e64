"""`fc.message`: marks what crosses between clients and server.

Decision 0120.
"""

from collections.abc import Sequence

from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.secure_ranges import check_ranges
from fedcore.ir.module import Attributes
from fedcore.ir.operations import operation
from fedcore.types import TensorType, Type, map_tensors


def _typing(types: Sequence[Type], attributes: Attributes) -> Type:
    if "secure" in attributes:
        check_ranges("message", types[0], (attributes["secure"],), may_be_open=False)
        return types[0]

    def message_type(leaf: TensorType) -> TensorType:
        """The type of a leaf that crosses: an encoder's bytes become a code."""
        is_code = leaf.dtype.name == "uint8" and leaf.rank == 1
        return TensorType("code", leaf.shape) if is_code else leaf

    return map_tensors(message_type, types[0])


@operation(_typing)
def message(value: NumpyValue, *, secure: str = "") -> NumpyValue:
    """Marks what crosses: what the other side computes from it does not cross again. Vectors of uint8 become codes.

    A code starts with its number of bits (int32, little endian), which is its size where it crosses; the bytes behind
    its bits are not sent. A client that gives `federated_aggregate` messages sends them alone, also where
    `accumulate` decodes them by operations that do not need the accumulator.

    `secure`, which the compiler writes, is the range of the integers of a secure sum. They take the bits of the range.

    Example:
        >>> sent = fc.message(value)
    """
    return value
