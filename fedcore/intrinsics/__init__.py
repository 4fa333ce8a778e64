"""The intrinsics of the language, one file each: signature, meaning, documentation, lowering.

An import here adds the intrinsic to `fc`.
"""

from fedcore.intrinsics import planned  # the operations of a plan
from fedcore.intrinsics.cast import cast as cast
from fedcore.intrinsics.equal import equal as equal
from fedcore.intrinsics.federated_aggregate import federated_aggregate as federated_aggregate
from fedcore.intrinsics.federated_apply import federated_apply as federated_apply
from fedcore.intrinsics.federated_broadcast import federated_broadcast as federated_broadcast
from fedcore.intrinsics.federated_collect import federated_collect as federated_collect
from fedcore.intrinsics.federated_count import federated_count as federated_count
from fedcore.intrinsics.federated_eval import federated_eval as federated_eval
from fedcore.intrinsics.federated_map import federated_map as federated_map
from fedcore.intrinsics.federated_max import federated_max as federated_max
from fedcore.intrinsics.federated_mean import federated_mean as federated_mean
from fedcore.intrinsics.federated_min import federated_min as federated_min
from fedcore.intrinsics.federated_random_seed import federated_random_seed as federated_random_seed
from fedcore.intrinsics.federated_secure_aggregate import federated_secure_aggregate as federated_secure_aggregate
from fedcore.intrinsics.federated_secure_modular_sum import federated_secure_modular_sum as federated_secure_modular_sum
from fedcore.intrinsics.federated_secure_select import federated_secure_select as federated_secure_select
from fedcore.intrinsics.federated_secure_sum import federated_secure_sum as federated_secure_sum
from fedcore.intrinsics.federated_secure_sum_bitwidth import (
    federated_secure_sum_bitwidth as federated_secure_sum_bitwidth,
)
from fedcore.intrinsics.federated_select import federated_select as federated_select
from fedcore.intrinsics.federated_sum import federated_sum as federated_sum
from fedcore.intrinsics.federated_value import federated_value as federated_value
from fedcore.intrinsics.federated_zip import federated_zip as federated_zip
from fedcore.intrinsics.generic_divide import generic_divide as generic_divide
from fedcore.intrinsics.generic_minus import generic_minus as generic_minus
from fedcore.intrinsics.generic_multiply import generic_multiply as generic_multiply
from fedcore.intrinsics.generic_plus import generic_plus as generic_plus
from fedcore.intrinsics.generic_zero import generic_zero as generic_zero
from fedcore.intrinsics.less import less as less
from fedcore.intrinsics.maximum import maximum as maximum
from fedcore.intrinsics.message import message as message
from fedcore.intrinsics.minimum import minimum as minimum
from fedcore.intrinsics.modulo import modulo as modulo
from fedcore.intrinsics.rows import sequence_from_groups as sequence_from_groups
from fedcore.intrinsics.rows import sequence_from_rows as sequence_from_rows
from fedcore.intrinsics.sequence_map import sequence_map as sequence_map
from fedcore.intrinsics.sequence_reduce import sequence_reduce as sequence_reduce
from fedcore.intrinsics.sequence_sum import sequence_sum as sequence_sum
from fedcore.intrinsics.where import where as where

NAMES = tuple(sorted(name for name, value in globals().items() if callable(value) and not name.startswith("_")))
"""The names that `fc` takes from here."""
