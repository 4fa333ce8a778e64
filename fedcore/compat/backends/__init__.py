"""`fc.backends`: TFF's place for the functions that install a runtime."""

from fedcore.compat.backends import native

__all__ = ["native"]
