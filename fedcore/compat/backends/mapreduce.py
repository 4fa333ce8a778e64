"""`fc.backends.mapreduce`: the one name of TFF's that is an intrinsic here; plans stand in place of its forms."""

from fedcore.intrinsics import federated_secure_modular_sum
from fedcore.tff_names import tff_names

__all__ = ["federated_secure_modular_sum"]

__getattr__ = tff_names("fedcore.backends.mapreduce")
