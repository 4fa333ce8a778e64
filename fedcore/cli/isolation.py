"""Commands that read files run in a child process, since TensorFlow may end the process that it is in.

The child does everything, and writes to the terminal itself. The parent takes nothing from it but how it ended.
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
from typing import IO, TYPE_CHECKING

import click

from fedcore.cli.reproducer import Work
from fedcore.errors import FedcoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else ()
_LOST_OUTPUT = 120  # Python's exit code where the last flush fails
_SENT_BY_A_PROCESS = 0  # the code of a signal that a terminal did not send to the whole group


class FileCommand(click.Command):
    """A command whose body runs in a child process, where the command is the program of its process.

    Called from Python (`standalone_mode=False`, click's `CliRunner`, other standard streams), it runs in the caller's
    process: the caller wants its exceptions, its output and the modules that it imports.

    Guarantees:
      - The child ends where the command ends. It never goes on with the code of the caller.
      - The command ends with the child's exit code; a child that a signal ends is a `FedcoreError` that names the
        file, and the operation where it can be found.
      - Ctrl-C and SIGTERM reach the child, also where they are sent to the parent alone; no child outlives its parent.
      - Standard input, output and error are the child's own.
    """

    def invoke(self, ctx):
        work = ctx.find_object(Work)
        if work is not None and work.is_program and _has_own_streams() and _can_fork():
            ended_by = _in_child()
            if ended_by is not None:
                raise FedcoreError(_explanation(ended_by, _files(ctx), trusted=bool(ctx.params.get("trusted"))))
        return super().invoke(ctx)


def _has_own_streams() -> bool:
    """Whether the standard streams are those of the process, which a child shares."""
    return all(getattr(sys, name) is getattr(sys, f"__{name}__") for name in ("stdin", "stdout", "stderr"))


@contextlib.contextmanager
def child_ends_here() -> "Iterator[None]":
    """Ends a child that was forked inside, with the exit code that it leaves with; the parent goes on."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            _end_process(sys.exc_info()[1])


def _end_process(error: BaseException | None) -> None:
    """Ends this process as Python does for the exception, but without the handlers and threads of the parent."""
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
    """A process with threads, or in which TensorFlow is loaded, cannot be forked safely."""
    forks = hasattr(os, "fork") and hasattr(signal, "sigwaitinfo")
    return forks and threading.active_count() == 1 and "tensorflow" not in sys.modules


_held_back: "IO[bytes] | None" = None  # what the child holds back from stderr; the parent reads it if the child dies


@contextlib.contextmanager
def held_back() -> "Iterator[IO[bytes]]":
    """An empty file for what is held back from stderr."""
    if _held_back is None:
        with tempfile.TemporaryFile() as file:
            yield file
        return
    _held_back.seek(0)
    _held_back.truncate()
    yield _held_back


_FATAL = re.compile(rb"F\d{4} .*?\] (?P<check>.*)|(?P<thrown>terminate called .*|  what\(\): .*)")


def _last_words() -> str:
    """What TensorFlow said before it ended the process, where that was held back."""
    if _held_back is None:
        return ""
    _held_back.seek(0)
    found = [match["check"] or match["thrown"] for line in _held_back if (match := _FATAL.match(line.rstrip()))]
    return f"\n  TensorFlow says: {found[-1].decode(errors='replace')[:500].strip()}" if found else ""


def _in_child() -> int | None:
    """Forks. Returns None in the child; in the parent the signal that ended the child.

    Raises:
        click.exceptions.Exit: in the parent, once the child has ended by itself.
    """
    global _held_back
    sys.stdout.flush()
    sys.stderr.flush()
    _held_back = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
    status = _status_of_child(_limit_memory)
    if status is None:
        return None
    if not os.WIFSIGNALED(status):
        raise click.exceptions.Exit(os.waitstatus_to_exitcode(status))
    ended_by = os.WTERMSIG(status)
    if ended_by in _PASSED_ON:  # whoever sent it wants this process to end in the same way
        signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    return ended_by


def _status_of_child(prepare: "Callable[[], None]") -> int | None:
    """Forks. Returns None in the child, once it is prepared; in the parent how the child ended, once it has."""
    waited = {signal.SIGCHLD, *_PASSED_ON}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _end_with(parent)
        prepare()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    try:
        while True:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                return status
            received = signal.sigwaitinfo(waited)
            if received.si_signo != signal.SIGCHLD and received.si_code == _SENT_BY_A_PROCESS:
                os.kill(child, received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with(parent: int) -> None:
    """Has this process end when its parent does; on Linux only."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _limit_memory() -> None:
    """Has an allocation beyond the machine's memory fail, so that no file drives the machine into swapping."""
    import resource

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or soft > memory:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (memory, hard))


def _files(ctx: click.Context) -> list[str]:
    found = [ctx.params.get(name) for name in ("target", "file", "a", "b")]
    names = [str(name) for name in (*found, *ctx.params.get("files", ())) if name is not None]
    return ["<stdin>" if name == "-" else name for name in names]


def _explanation(ended_by: int, files: list[str], *, trusted: bool) -> str:
    shown = ", ".join(files) or "the command"
    said = _last_words()
    for file in files:
        found = _operation_that_kills(file, trusted=trusted)
        if found:
            return f"{file}: TensorFlow ends the process ({_name(ended_by)}) {found}{said}"
    if ended_by == signal.SIGKILL:
        return f"{shown}: the process that read it was killed; it may have run out of memory"
    return f"{shown}: TensorFlow ended the process ({_name(ended_by)}), which it does where a graph is wrong{said}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _operation_that_kills(file: str, *, trusted: bool) -> str | None:
    """The operation at which a process dies that imports the file's graphs one operation at a time; None if none does.

    A second child imports the operations, and notes each in memory that the parent sees.
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
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    import fedcore.intrinsics  # noqa: F401  declares the operations that a file may hold
    from fedcore.graphs.graphdef.allow_list import check_graphs
    from fedcore.graphs.graphdef.stepwise_import import import_each
    from fedcore.ir import bundle, verify

    def noted(operation: str) -> None:
        note[:] = operation.encode()[: len(note)].ljust(len(note), b"\0")

    module = verify(bundle.read(file))
    check_graphs(module, trusted=trusted)
    for graph in module.graphs:
        import_each(graph, module.blob(graph.digest), noted)
