"""Measured processes: iterative ones that also give a result and say something about it."""

from typing import NamedTuple

from fedcore.computation import Computation
from fedcore.errors import TypeMismatch
from fedcore.templates.iterative import IterativeProcess, label
from fedcore.types import StructType


class MeasuredProcessOutput(NamedTuple):
    """The result of `next` of a measured process: `<state=S@SERVER,result=R,measurements=M@SERVER>`."""

    state: object
    result: object
    measurements: object


class MeasuredProcess(IterativeProcess):
    """An iterative process whose `next` returns a `MeasuredProcessOutput`.

    Args:
        next_is_multi_arg: as for an iterative process: whether `next` takes more than the state. Default: it may.
    Raises:
        TypeMismatch: as for an iterative process, or `next` returns something else.
    Example:
        >>> output = process.next(process.initialize(), values)
        >>> output.result, output.measurements
    """

    def __init__(self, initialize_fn: Computation, next_fn: Computation, next_is_multi_arg: bool | None = None) -> None:
        super().__init__(initialize_fn, next_fn, next_is_multi_arg)
        result = next_fn.type_signature.result
        names = result.names if isinstance(result, StructType) else ()
        if names != ("state", "result", "measurements"):
            raise TypeMismatch(
                f"{type(self).__name__}: {label('next_fn', next_fn)} returns a MeasuredProcessOutput\n"
                f"  wants  <state=…,result=…,measurements=…>\n"
                f"  has    {result}"
            )
