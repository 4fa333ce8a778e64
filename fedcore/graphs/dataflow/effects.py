"""Operations that do more than compute their results."""

import functools

from fedcore.graphs import private_api
from fedcore.graphs.dataflow.graph import REGIONS


@functools.cache
def has_effect(op: str) -> bool:
    """Whether an operation has effects or a state: it stays though nothing reads it, and two of it are not equal."""
    if op in REGIONS:
        return False
    definition = private_api.op_definition(op)
    return definition is None or definition.is_stateful
