"""The intrinsics of the language, one file each: signature, meaning, documentation, lowering."""

from fedcore.intrinsics import planned  # the operations of a plan
from fedcore.intrinsics.federated_aggregate import federated_aggregate
from fedcore.intrinsics.federated_apply import federated_apply
from fedcore.intrinsics.federated_broadcast import federated_broadcast
from fedcore.intrinsics.federated_eval import federated_eval
from fedcore.intrinsics.federated_map import federated_map
from fedcore.intrinsics.federated_mean import federated_mean
from fedcore.intrinsics.federated_sum import federated_sum
from fedcore.intrinsics.federated_value import federated_value
from fedcore.intrinsics.federated_zip import federated_zip
from fedcore.intrinsics.generic_divide import generic_divide
from fedcore.intrinsics.generic_minus import generic_minus
from fedcore.intrinsics.generic_multiply import generic_multiply
from fedcore.intrinsics.generic_plus import generic_plus
from fedcore.intrinsics.generic_zero import generic_zero
from fedcore.intrinsics.sequence_map import sequence_map
from fedcore.intrinsics.sequence_reduce import sequence_reduce
from fedcore.intrinsics.sequence_sum import sequence_sum
from fedcore.ir.operations import LOCAL, PLACED, Intrinsic, intrinsic, lookup, operation, registered

__all__ = [
    "LOCAL",
    "PLACED",
    "Intrinsic",
    "federated_aggregate",
    "federated_apply",
    "federated_broadcast",
    "federated_eval",
    "federated_map",
    "federated_mean",
    "federated_sum",
    "federated_value",
    "federated_zip",
    "generic_divide",
    "generic_minus",
    "generic_multiply",
    "generic_plus",
    "generic_zero",
    "intrinsic",
    "lookup",
    "operation",
    "planned",
    "registered",
    "sequence_map",
    "sequence_reduce",
    "sequence_sum",
]
