"""Strings that many clients have."""

from fedcore.analytics.heavy_hitters import iblt
from fedcore.tff_names import tff_name

__all__ = ["iblt"]


def __getattr__(name):
    return tff_name("fedcore.analytics.heavy_hitters", name)
