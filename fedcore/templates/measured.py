"""Measured processes: iterative ones that also give a result and say something about it."""

from collections.abc import Iterator

import attrs

from fedcore.computation import Computation
from fedcore.errors import TypeMismatch
from fedcore.templates.iterative import IterativeProcess, label
from fedcore.types import StructType


@attrs.frozen
class MeasuredProcessOutput:
    """The result of `next` of a measured process: `<state=S@SERVER,result=R,measurements=M@SERVER>`."""

    state: object
    result: object
    measurements: object

    def __iter__(self) -> Iterator:
        return iter((self.state, self.result, self.measurements))


class MeasuredProcess(IterativeProcess):
    """An iterative process whose `next` returns a `MeasuredProcessOutput`.

    Raises:
        TypeMismatch: as for an iterative process, or `next` returns something else.
    Example:
        >>> output = process.next(process.initialize(), values)
        >>> output.result, output.measurements
    """

    def __init__(self, initialize_fn: Computation, next_fn: Computation) -> None:
        super().__init__(initialize_fn, next_fn)
        result = next_fn.type_signature.result
        names = result.names if isinstance(result, StructType) else ()
        if names != ("state", "result", "measurements"):
            raise TypeMismatch(
                f"{type(self).__name__}: {label('next_fn', next_fn)} returns a MeasuredProcessOutput\n"
                f"  wants  <state=…,result=…,measurements=…>\n"
                f"  has    {result}"
            )
