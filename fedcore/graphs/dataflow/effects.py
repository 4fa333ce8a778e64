"""Operations that do more than compute their results."""

import functools

from fedcore.graphs import private_api
from fedcore.graphs.dataflow.graph import REGIONS


@functools.cache
def has_effect(op: str) -> bool:
    """Whether an operation of TensorFlow has effects or a state.

    It stays though nothing reads it, and two equal ones are not merged. The effects of an operation with regions are
    those of the nodes in them.
    """
    if op in REGIONS:
        return False
    definition = private_api.op_definition(op)
    return definition is None or definition.is_stateful
