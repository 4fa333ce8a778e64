"""The choice of a training loop that TFF's algorithms take.

Decision 0162.
"""

import enum

from fedcore.errors import TypeMismatch, brief


class LoopImplementation(enum.Enum):
    """How TFF writes a client's loop over its batches; algorithms take it so that TFF's programs run.

    fedcore's compiler writes one loop, for one client or for many at a time, so both values give the same process.

    Types: none; it is an argument of builders.

    Example:
        >>> loop = fc.learning.LoopImplementation.DATASET_ITERATOR
        >>> process = fc.learning.algorithms.build_fed_sgd(model_fn, loop_implementation=loop)
    """

    DATASET_ITERATOR = enum.auto()
    DATASET_REDUCE = enum.auto()


def check_loop_implementation(loop_implementation: object) -> None:
    """Raises TypeMismatch for anything else than a `LoopImplementation`."""
    if not isinstance(loop_implementation, LoopImplementation):
        raise TypeMismatch(f"loop_implementation is a fc.learning.LoopImplementation, not {brief(loop_implementation)}")
