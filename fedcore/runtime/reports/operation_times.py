"""Time of a program's operations, by TensorFlow's profiler, summed by operation and line of the user.

Decision 0276.
"""

import collections
import re
import tempfile
from pathlib import Path

import attrs
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.stages.imported_names import source_of_name
from fedcore.ir import Module
from fedcore.ir.module import NodeSource

_EVENT = re.compile(r"([^:\s]*/[^:\s]*|[A-Za-z]\w*):(_?[A-Z]\w*)")
"""The name of the profiler's event of an operation: name of the node, kind of the operation."""

_SHOWN = 20  # operations in the text of a profile


@attrs.frozen
class OperationTime:
    """The time of an operation of a program.

    Args:
        operation: kind of TensorFlow's operation, such as `Conv2D`.
        source: the user's code; None for operations that fedcore adds, such as those that pack clients' rows.
        seconds: time over all calls and threads.
        calls: how often it ran.
    """

    operation: str
    source: NodeSource | None
    seconds: float
    calls: int

    def __str__(self) -> str:
        code = "(of fedcore)" if self.source is None else str(self.source)
        return f"{self.seconds * 1e3:10.2f} ms {self.calls:7} x  {self.operation:<28} {code}"


@attrs.define
class Profile:
    """The times of a program's operations, the longest first.

    Args:
        operations: the times; empty until the profile's context ends.
    """

    operations: list[OperationTime] = attrs.field(factory=list)

    @property
    def seconds(self) -> float:
        """The time of all operations, over all threads."""
        return sum(each.seconds for each in self.operations)

    def __str__(self) -> str:
        lines = [str(each) for each in self.operations[:_SHOWN]]
        left = self.operations[_SHOWN:]
        if left:
            lines.append(f"{sum(e.seconds for e in left) * 1e3:10.2f} ms of {len(left)} more operations")
        return "\n".join(lines)


class OperationProfiler:
    """Runs TensorFlow's profiler, and reads what it wrote.

    Raises:
        FedcoreError: another profile runs in the process.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fedcore-profile-")
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, python_tracer_level=0)
        try:
            tf.profiler.experimental.start(self._folder.name, options=options)
        except tf.errors.AlreadyExistsError:
            self._folder.cleanup()
            raise FedcoreError("a profile of TensorFlow runs in this process already") from None

    def stop(self, plan: Module | None) -> list[OperationTime]:
        """Ends the profile; returns the times of the operations.

        Args:
            plan: the program's plan, whose graphs know the sources of imported nodes; None if nothing was compiled.
        """
        tf.profiler.experimental.stop()
        with self._folder as folder:
            return _read(Path(folder), plan)


def _read(folder: Path, plan: Module | None) -> list[OperationTime]:
    """The operations in the files of a profile, the longest first."""
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError as error:
        raise FedcoreError(f"this TensorFlow has no format of profiles: {error}") from None
    times: dict[tuple[str, NodeSource | None], list[float]] = collections.defaultdict(list)
    sources: dict[str, NodeSource | None] = {}
    for file in folder.rglob("*.xplane.pb"):
        for plane in xplane_pb2.XSpace.FromString(file.read_bytes()).planes:
            for event in (event for line in plane.lines for event in line.events):
                match = _EVENT.fullmatch(plane.event_metadata[event.metadata_id].name)
                if match is None:
                    continue
                name, kind = match.groups()
                if name not in sources:
                    sources[name] = source_of_name(name, plan)
                # TensorFlow's variants of an operation, such as `_FusedConv2D`, begin with an underscore.
                times[kind.removeprefix("_"), sources[name]].append(event.duration_ps * 1e-12)
    operations = [OperationTime(kind, source, sum(each), len(each)) for (kind, source), each in times.items()]
    return sorted(operations, key=lambda each: -each.seconds)
