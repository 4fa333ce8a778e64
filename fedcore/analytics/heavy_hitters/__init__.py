"""Strings that many clients have."""

from typing import TYPE_CHECKING

from fedcore.analytics.heavy_hitters import iblt
from fedcore.tff_names import tff_name

__all__ = ["iblt"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        return tff_name("fedcore.analytics.heavy_hitters", name)
