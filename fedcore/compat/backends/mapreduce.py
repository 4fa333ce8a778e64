"""`fc.backends.mapreduce`: the one name of TFF's that is an intrinsic here; plans stand in place of its forms."""

from typing import Any

from fedcore.intrinsics import federated_secure_modular_sum
from fedcore.tff_names import tff_name

__all__ = ["federated_secure_modular_sum"]


def __getattr__(name: str) -> Any:
    return tff_name("fedcore.backends.mapreduce", name)
