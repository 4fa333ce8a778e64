"""Strings that many clients have."""

from fedcore.analytics.heavy_hitters import iblt

__all__ = ["iblt"]
