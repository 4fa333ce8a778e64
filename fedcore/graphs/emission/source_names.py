"""Names of emitted operations, which hold the user's code that an operation comes from: errors and profiles tell it.

    at-train.py-34/sequential/dense/BatchMatMulV2
    at-train.py-34/in-fedcore/learning/optimizers/sgdm.py-20/mul_1/Mul

Decision 0275.
"""

import functools
import re

from fedcore.errors import Location
from fedcore.graphs.dataflow.graph import Node
from fedcore.ir.module import NodeSource

_LINE = r"([A-Za-z0-9_.\\/>-]+?)-([0-9]+)/"
_NAME = re.compile(rf"at-{_LINE}(?:in-{_LINE})?([A-Za-z0-9_.\\/>-]+)")


def operation_name(node: Node) -> str:
    """The name of the operation of a node, before TensorFlow makes it unique."""
    return node.op if node.source is None else f"{_scope(node.source)}{node.op}"


def source_in(text: str) -> NodeSource | None:
    """The source in the first name of an emitted operation in a text, such as an error's; None if there is none."""
    match = _NAME.search(text)
    if match is None:
        return None
    file, line, library, library_line, name = match.groups()
    called = None if library is None else Location(library, int(library_line))
    return NodeSource(name.rpartition("/")[0], Location(file, int(line), library=called))


@functools.lru_cache(4096)
def _scope(source: NodeSource) -> str:
    """The name scope of the operations of a source, with a `/` at its end; empty if its line is not known."""
    name = source.name.rpartition("/")[0] or source.name  # without the name of the traced operation itself
    if source.location is None:
        return ""
    library = source.shown_library
    called = "" if library is None else f"in-{_line(library)}"
    return f"at-{_line(source.location)}{called}{_legal(name)}/"


def _line(location: Location) -> str:
    """A line in a name scope, as `_LINE` matches it."""
    return f"{_legal(location.file)}-{location.line}/"


def _legal(name: str) -> str:
    """A name without characters that names of operations may not have."""
    return re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name)
