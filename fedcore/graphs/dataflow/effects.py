"""Operations that do more than compute their results."""

import functools

from fedcore.graphs import private_api
from fedcore.graphs.dataflow.graph import REGIONS


@functools.cache
def has_effect(op_type: str) -> bool:
    """Whether operations of a type have effects or a state, so that nodes that nothing reads stay, and equal ones too.

    False for a type with regions: its effects are those of the nodes in them. A type that TensorFlow does not know is
    taken to have effects.
    """
    if op_type in REGIONS:
        return False
    definition = private_api.op_definition(op_type)
    return definition is None or definition.is_stateful
