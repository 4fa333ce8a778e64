"""Side effects of graphs: operations tied to this process, random numbers, state, prints and assertions."""

from tensorflow.core.framework import graph_pb2

from fedcore.errors import TracingError
from fedcore.graphs import private_api
from fedcore.graphs.graphdef.form.function_calls import operations_in

_EFFECTS = frozenset({"Print", "PrintV2", "Assert"})
# Operations that are stateful only if a function that they call is -> their stateless form.
STATELESS_CALL = {
    "StatefulPartitionedCall": "PartitionedCall",
    "While": "StatelessWhile",
    "If": "StatelessIf",
    "Case": "StatelessCase",
}

_PYTHON = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})
_TABLES = ("LookupTable", "HashTable", "MutableHashTable", "MutableDenseHashTable", "AnonymousHashTable")
_FILES = (
    *("ReadFile", "WriteFile", "MatchingFiles", "Save", "Restore", "MergeV2Checkpoints", "WriteSummary"),
    *("TFRecordReader", "TextLineReader", "WholeFileReader", "IdentityReader", "FixedLengthRecordReader", "ReaderRead"),
    *("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "CSVDataset", "SqlDataset"),
)


class TiedToProcess(TracingError):
    """A function uses what one process has, or draws what no seed of a call decides: it does not run elsewhere."""


def refuse_tied_to_process(graph_def: graph_pb2.GraphDef, description: str) -> None:
    """Checks that no operation of a traced function is tied to this process.

    Args:
        description: the function, for messages.
    Raises:
        TiedToProcess: names the operation, the function and an alternative.
    """
    for op in sorted(operations_in(graph_def)):
        if op in _PYTHON:
            raise TiedToProcess(
                f"{description} calls Python while it runs (op {op}, from tf.py_function or tf.numpy_function); a "
                "graph runs where there is no Python. Write it with TensorFlow's operations"
            )
        if op.startswith(_TABLES):
            raise TiedToProcess(
                f"{description} uses a lookup table that may change (op {op}), which lives in one process. Use a "
                "tf.lookup.StaticHashTable over keys and values that do not, or look up before the data come in"
            )
        if op.startswith(_FILES):
            raise TiedToProcess(
                f"{description} reads or writes files while it runs (op {op}). Read before, and pass what was read "
                "as an argument"
            )
        if op != "VarHandleOp" and _is_shared(op):
            raise TiedToProcess(
                f"{description} keeps state in the op {op}, which every call in the process shares. Use a "
                "tf.Variable made inside the function, which starts fresh in every call, or pass the state as an "
                "argument"
            )


def _is_shared(op: str) -> bool:
    """Whether calls share the operation's resource, which TensorFlow finds by a name."""
    declared = private_api.op_definition(op)
    return declared is not None and any(attr.name == "shared_name" for attr in declared.attr)


def side_effects_of(graph_def: graph_pb2.GraphDef) -> tuple[str, ...]:
    """The graph attributes of a canonical graph, a subset of `effects`, `seeded` and `stateful`.

    effects    it prints or asserts
    seeded     it takes the seed of its random numbers as an argument
    stateful   it has variables or other resources, which start fresh in every call
    """
    ops = operations_in(graph_def)
    effects = {
        "effects": bool(ops & _EFFECTS),
        "seeded": any(node.name == "seed" and node.op == "Placeholder" for node in graph_def.node),
        "stateful": any(is_stateful(op) for op in ops - _EFFECTS),
    }
    return tuple(name for name, holds in effects.items() if holds)


def is_stateful(op: str) -> bool:
    """Whether an operation is stateful by itself. A call is not; the called function is examined instead."""
    if op in STATELESS_CALL:
        return False
    declared = private_api.op_definition(op)
    return declared is not None and declared.is_stateful
