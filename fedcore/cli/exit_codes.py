"""The exit codes, and the conversion of errors to exit codes."""

import atexit
import contextlib
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Never

import click

from fedcore.cli.isolation import child_ends_here
from fedcore.cli.reproducer import Work
from fedcore.cli.verbs import all_verbs, load_verb, summaries
from fedcore.errors import FedcoreError, printable

if TYPE_CHECKING:
    from types import FrameType

OK, WRONG_PROGRAM, USAGE, INTERNAL, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 130, 143

EXIT_CODES = {
    OK: "done",
    WRONG_PROGRAM: "the program is wrong: it does not parse, its types do not fit, it is not valid",
    USAGE: "the command line is wrong",
    INTERNAL: "an error inside fedcore; a file to reproduce it was written",
    INTERRUPTED: "stopped by Ctrl-C",
    TERMINATED: "stopped by SIGTERM",
}


_REFUSED = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE,
    errno.ENFILE,
)  # fmt: skip
"""Errors of the machine or of its settings, not of fedcore."""


class InternalError(Exception):
    """An invariant of fedcore does not hold; the message names it."""


class GuardedGroup(click.Group):
    """A group of commands.

    Guarantees:
      - Every error gives one of `EXIT_CODES`, with its message on stderr and no traceback.
      - Commands get a `Work` by `click.pass_obj`, which they keep up to date for the reproducer.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if standalone_mode:
            atexit.register(gc.freeze)  # with TensorFlow, Python's last search for cycles takes a second
            _open_missing_streams()
        with child_ends_here():
            try:
                return super().main(
                    args, prog_name, complete_var, standalone_mode=standalone_mode, is_program=standalone_mode, **extra
                )
            except OSError as error:  # from printing a help text or click's own message, outside of `invoke`
                if not standalone_mode or error.errno not in _REFUSED:
                    raise
                sys.exit(_report_refusal(error))

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        *,
        is_program: bool = False,
        **extra: Any,
    ) -> click.Context:
        return super().make_context(info_name, args, parent, obj=Work(is_program=is_program), **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return all_verbs()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_verb(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*summaries().items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _sigterm_interrupts():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except FedcoreError as error:
            say(_with_notes(f"fedcore: {error}", error))
            ctx.exit(WRONG_PROGRAM)
        except _Terminated as interrupt:
            say(_with_notes("fedcore: stopped by SIGTERM", interrupt))
            ctx.exit(TERMINATED)
        except MemoryError:
            say("fedcore: this needs more memory than there is")
            ctx.exit(WRONG_PROGRAM)
        except KeyboardInterrupt as interrupt:
            say(_with_notes("fedcore: stopped by Ctrl-C", interrupt))
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:  # the reader has enough, such as `head`
                _drop_unwritten()
                ctx.exit(OK)
            if isinstance(error, OSError) and error.errno in _REFUSED:
                ctx.exit(_report_refusal(error))
            say(ctx.obj.reproduce(error))
            ctx.exit(INTERNAL)


class _Terminated(KeyboardInterrupt):
    """SIGTERM was received. Derived from KeyboardInterrupt, so that commands end as by Ctrl-C."""


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Raises `_Terminated` in the `with` block when SIGTERM is received, unless the program has a handler for it.

    An interrupt that arrives in a finalizer, where Python ignores errors, is raised again a moment later.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def handle(number: int, frame: "FrameType | None") -> Never:
        raise _Terminated

    def raise_interrupts(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            while True:
                try:
                    return _raise_later(unraisable.exc_type)
                except KeyboardInterrupt:  # another one, in this hook; an error here would be ignored too
                    continue
        else:
            hook_before(unraisable)

    hook_before = sys.unraisablehook
    sys.unraisablehook = raise_interrupts
    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.unraisablehook = hook_before


def _raise_later(interrupt: type[BaseException]) -> None:
    """Raises an exception in the main thread after 10 ms, by SIGALRM; does nothing where there are no timers."""
    if not hasattr(signal, "setitimer"):
        return

    def handle(number: int, frame: "FrameType | None") -> Never:
        raise interrupt

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def _with_notes(message: str, error: BaseException) -> str:
    """A message with the notes of an exception (`add_note`) below it."""
    return "\n  ".join([message, *getattr(error, "__notes__", ())])


def say(message: str) -> None:
    """Prints to stderr, if it can be written. On a terminal the message's control characters are escaped."""
    try:
        click.echo(printable(message) if sys.stderr.isatty() else message, err=True)
    except OSError:
        _drop_unwritten()


def _report_refusal(error: OSError) -> int:
    """Says what the operating system refused; returns the exit code."""
    _drop_unwritten()
    say(f"fedcore: {error.filename or 'the output cannot be written'}: {error.strerror}")
    return WRONG_PROGRAM


def _drop_unwritten() -> None:
    """Redirects stdout and stderr to the null device if they cannot be written: Python's flush at exit would fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_missing_streams() -> None:
    """Opens the null device for standard streams that are closed when the process starts (`>&-`)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115  lives as long as the process
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
