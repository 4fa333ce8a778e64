"""Nested structures of tensors or of their specs, for annotations."""

from typing import Any, TypeAlias

TensorStructure: TypeAlias = Any
"""A tensor or its spec, or a tuple, list, dict, NamedTuple or attrs object of tensor structures.

Any, since a recursive type would know neither the attributes nor the keys of the containers.
"""
