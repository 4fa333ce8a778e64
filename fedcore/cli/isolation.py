"""Runs commands that read files in a child process, since a malformed graph can make TensorFlow end its process.

The child runs the command and writes to the terminal. The parent only waits, and reads how the child ended.

Decision 0088.
"""

import contextlib
import mmap
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from typing import IO, TYPE_CHECKING, Any

import click

from fedcore.cli.reproducer import Work
from fedcore.errors import FedcoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else ()
"""Signals that the parent sends on to the child; none on Windows, which cannot fork."""
_LOST_OUTPUT = 120  # Python's exit code if the last flush fails
_SENT_BY_A_PROCESS = 0  # `si_code` of a signal that a process sent, not a terminal to its process group


class FileCommand(click.Command):
    """A command whose body runs in a child process, if the command is the program of its process.

    If it is called from Python (`standalone_mode=False`, click's `CliRunner`, replaced standard streams), the body runs
    in the caller's process: the caller needs its exceptions, its output and the modules that it imports.

    Guarantees:
      - The child ends with the command; it never returns to the code of the caller.
      - The command ends with the child's exit code. If a signal ends the child, the command raises a `FedcoreError`,
        which names the file and, if it can be found, the operation.
      - The child receives Ctrl-C and SIGTERM, also if they are sent to the parent only. No child outlives its parent.
      - The child uses standard input, output and error directly.
    """

    def invoke(self, ctx: click.Context) -> Any:
        work = ctx.find_object(Work)
        if work is not None and work.is_program and _has_own_streams() and _can_fork():
            ended_by = _in_child()
            if ended_by is not None:
                raise FedcoreError(_explanation(ended_by, _files(ctx), trusted=bool(ctx.params.get("trusted"))))
        return super().invoke(ctx)


def _has_own_streams() -> bool:
    """Whether the standard streams are the process' original streams, which a child shares."""
    return all(getattr(sys, name) is getattr(sys, f"__{name}__") for name in ("stdin", "stdout", "stderr"))


@contextlib.contextmanager
def child_ends_here() -> "Iterator[None]":
    """Ends a child that was forked in the `with` block, when the child leaves the block; the parent goes on."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            _end_process(sys.exc_info()[1])


def _end_process(error: BaseException | None) -> None:
    """Ends this process with Python's exit code for the exception, without running the parent's exit handlers."""
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code or 0
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or _LOST_OUTPUT
    os._exit(code)


def _can_fork() -> bool:
    """Whether this process can be forked: not with threads or with TensorFlow, whose locks a child would copy."""
    forks = hasattr(os, "fork") and hasattr(signal, "sigwaitinfo")
    return forks and threading.active_count() == 1 and "tensorflow" not in sys.modules


_held_back: "IO[bytes] | None" = None
"""The child's stderr while it is held back, in a file that the parent reads if the child dies; None without a child."""


@contextlib.contextmanager
def held_back() -> "Iterator[IO[bytes]]":
    """Gives an empty file, to which stderr is redirected for a while; with a child, the file that the parent reads."""
    if _held_back is None:
        with tempfile.TemporaryFile() as file:
            yield file
        return
    _held_back.seek(0)
    _held_back.truncate()
    yield _held_back


# A line of stderr with the reason of an abort: of TensorFlow's CHECK, or of a C++ exception that nothing catches.
_FATAL = re.compile(rb"F\d{4} .*?\] (?P<check>.*)|(?P<thrown>terminate called .*|  what\(\): .*)")


def _last_words() -> str:
    """TensorFlow's last fatal message, if it was held back from stderr; else an empty text."""
    if _held_back is None:
        return ""
    _held_back.seek(0)
    messages = [match["check"] or match["thrown"] for line in _held_back if (match := _FATAL.match(line.rstrip()))]
    return f"\n  TensorFlow says: {messages[-1].decode(errors='replace')[:500].strip()}" if messages else ""


def _in_child() -> int | None:
    """Forks. Returns None in the child, and in the parent the signal that ended the child.

    Raises:
        click.exceptions.Exit: in the parent, when the child has ended without a signal.
    """
    global _held_back
    sys.stdout.flush()
    sys.stderr.flush()
    _held_back = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
    status = _status_of_child(_limit_memory)
    if status is None:
        return None
    if not os.WIFSIGNALED(status):
        raise click.exceptions.Exit(os.waitstatus_to_exitcode(status))
    ended_by = os.WTERMSIG(status)
    if ended_by in _PASSED_ON:  # the sender wants this process to end by the signal, too
        signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    return ended_by


def _status_of_child(prepare: "Callable[[], None]") -> int | None:
    """Forks. Returns None in the child, after `prepare()`, and in the parent the child's wait status, at its end."""
    waited = {signal.SIGCHLD, *_PASSED_ON}  # blocked, so that none is lost before `sigwaitinfo`
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _end_with(parent)
        prepare()
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        return None
    try:
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status
            received = signal.sigwaitinfo(waited)
            # The child has those of a terminal already.
            if received.si_signo != signal.SIGCHLD and received.si_code == _SENT_BY_A_PROCESS:
                os.kill(child, received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def _end_with(parent: int) -> None:
    """Makes this process end when its parent ends; on Linux only."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _limit_memory() -> None:
    """Limits this process to the machine's memory, so that no file drives the machine into swapping."""
    import resource

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or soft > memory:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (memory, hard))


def _files(ctx: click.Context) -> list[str]:
    """The files that a command reads; the names are those of the verbs' parameters for files."""
    paths = [ctx.params.get(name) for name in ("target", "file", "a", "b")]
    names = [str(name) for name in (*paths, *ctx.params.get("files", ())) if name is not None]
    return ["<stdin>" if name == "-" else name for name in names]


def _explanation(ended_by: int, files: list[str], *, trusted: bool) -> str:
    """The message about a child that ended by the signal of this number while it read files."""
    names = ", ".join(files) or "the command"
    last_words = _last_words()
    for file in files:
        cause = _operation_that_kills(file, trusted=trusted)
        if cause:
            return f"{file}: TensorFlow ends the process ({_signal_name(ended_by)}) {cause}{last_words}"
    if ended_by == signal.SIGKILL:
        return f"{names}: the process that read it was killed; it may have run out of memory"
    ending = f"TensorFlow ended the process ({_signal_name(ended_by)}), which it does where a graph is wrong"
    return f"{names}: {ending}{last_words}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _operation_that_kills(file: str, *, trusted: bool) -> str | None:
    """The operation whose import ends a process; None if no operation of the file does.

    A second child imports the graphs operation by operation, and writes each name to memory that the parent shares.
    """
    if not os.path.isfile(file):
        return None
    note = mmap.mmap(-1, 4096)
    status = _status_of_child(_limit_memory)
    if status is None:
        with contextlib.suppress(Exception, KeyboardInterrupt):
            _import_each(file, note, trusted=trusted)
        os._exit(0)
    if not os.WIFSIGNALED(status):
        return None
    return f"when it imports {note[:].rstrip(bytes(1)).decode(errors='ignore')}"


def _import_each(file: str, note: mmap.mmap, *, trusted: bool) -> None:
    """Imports a file's graphs operation by operation, silently; writes the name of each to `note` before its import."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    import fedcore.intrinsics  # noqa: F401  declares the operations that a file may hold
    from fedcore.graphs.graphdef.validation.allow_list import check_graphs
    from fedcore.graphs.graphdef.validation.stepwise_import import import_each
    from fedcore.ir import bundle, verify

    def write_note(operation: str) -> None:
        note[:] = operation.encode()[: len(note)].ljust(len(note), b"\0")

    module = verify(bundle.read(file))
    check_graphs(module, trusted=trusted)
    for graph in module.graphs:
        import_each(graph, module.blob(graph.digest), write_note)
