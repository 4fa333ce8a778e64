"""Imports the graphs of a module in a child process, since a malicious graph can crash TensorFlow.

The child reads a bundle from its standard input. It writes a line before each operation that it imports, and at the end
`ok` or the error.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import fedcore
from fedcore.errors import FedcoreError
from fedcore.ir import bundle
from fedcore.ir.module import Module

MAX_BYTES = 8 * 2**30  # of address space, plus 20 times the size of the graphs
MAX_SECONDS = 60  # of CPU time, plus a second for each million bytes of graphs

# TensorFlow would import Keras, which no graph needs. At the end Python would free TensorFlow object by object.
_CHILD = """import os, sys
sys.modules["keras"] = None
from fedcore.graphs.graphdef.validation import isolated_import
isolated_import.main()
os._exit(0)"""

_AT, _WRONG, _OK = "at", "wrong", "ok"  # the kinds of the child's lines


def check_in_child(module: Module, *, trusted: bool) -> None:
    """Checks and imports the module's graphs in a child process, operation by operation.

    Raises:
        FedcoreError: a graph is refused, or the child crashed or exceeded its time or memory; the message names the
            operation.
    """
    graphs = Module(module.stage, module.graphs, (), module.blobs)
    data = bundle.to_bytes(graphs)
    seconds = MAX_SECONDS + len(data) // 1_000_000
    package = str(Path(fedcore.__file__).parent.parent)
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [
        sys.executable,
        "-P",
        "-c",
        _CHILD,
        json.dumps({"trusted": trusted, "seconds": seconds}),
    ]
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout:
        stdin.write(data)
        stdin.seek(0)
        try:  # an exception in this call, such as Ctrl-C, ends the child too
            process = subprocess.run(
                command, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL, env=environment, timeout=10 * seconds
            )
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            code = None
        stdout.seek(0)
        lines = [json.loads(line) for line in stdout.read().decode(errors="replace").splitlines() if line.endswith("]")]
    _raise_if_failed(code, lines)


def _raise_if_failed(code: int | None, lines: list[list[str]]) -> None:
    """Raises unless the child has imported all graphs.

    Args:
        code: exit code of the child, negative for a signal; None if it was ended after its time.
        lines: pairs of a kind and a text, as the child wrote them.
    Raises:
        FedcoreError: the child refused a graph, crashed, or exceeded its time; names the operation if it is known.
    """
    kind, text = lines[-1] if lines else ("", "")
    if code == 0 and kind == _OK:
        return
    if code == 0 and kind == _WRONG:
        raise FedcoreError(text)
    at = f" at {text}" if kind == _AT else ""
    if code is None or code == -signal.SIGXCPU:
        raise FedcoreError(f"importing the graphs takes too long{at}")
    reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    raise FedcoreError(f"TensorFlow ends the process ({reason}) that imports the graphs{at}")


def main() -> None:
    """The child process."""
    options = json.loads(sys.argv[1])
    data = sys.stdin.buffer.read()
    from fedcore.graphs.graphdef.validation.allow_list import check_graphs  # imports TensorFlow
    from fedcore.graphs.graphdef.validation.stepwise_import import import_each

    _limit(MAX_BYTES + 20 * len(data), options["seconds"])
    try:
        module = bundle.from_bytes(data)
        check_graphs(module, trusted=options["trusted"])
        for graph in module.graphs:
            import_each(graph, module.blob(graph.digest), lambda operation: _say(_AT, operation))
    except FedcoreError as error:
        _say(_WRONG, str(error))
    except MemoryError:
        _say(_WRONG, "importing the graphs takes more memory than is allowed")
    else:
        _say(_OK, "")


def _limit(more_bytes: int, seconds: int) -> None:
    """Limits the address space and the CPU time of this process, and lets it write no core dump.

    A lower limit that the process has already stays.

    Args:
        more_bytes: address space beyond the pages that are in use now.
        seconds: CPU time.
    """
    import resource

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    for which, limit in ((resource.RLIMIT_AS, used + more_bytes), (resource.RLIMIT_CPU, seconds)):
        _, hard = resource.getrlimit(which)
        if hard == resource.RLIM_INFINITY or limit < hard:
            resource.setrlimit(which, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _say(kind: str, text: str) -> None:
    """Writes a line to the parent at once, so that the parent has it if this process crashes."""
    sys.stdout.write(json.dumps([kind, text]) + "\n")
    sys.stdout.flush()
