"""Strings that many clients have."""

from typing import TYPE_CHECKING

from fedcore.analytics.heavy_hitters import iblt
from fedcore.tff_names import tff_names

__all__ = ["iblt"]

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.analytics.heavy_hitters")
