"""`fc.backends`: TFF's place for the functions that install a runtime."""

from typing import TYPE_CHECKING

from fedcore.compat.backends import mapreduce, native, test
from fedcore.tff_names import tff_names

__all__ = ["mapreduce", "native", "test"]

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.backends")
