"""What the exit codes mean, and the one place where errors become codes."""

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator

import click

from fedcore.cli.isolation import child_ends_here
from fedcore.cli.reproducer import Work
from fedcore.errors import FedcoreError

OK, WRONG_PROGRAM, USAGE, INTERNAL, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 130, 143

EXIT_CODES = {
    OK: "done",
    WRONG_PROGRAM: "the program is wrong: it does not parse, its types do not fit, it is not valid",
    USAGE: "the command line is wrong",
    INTERNAL: "an error inside fedcore; a file to reproduce it was written",
    INTERRUPTED: "stopped by Ctrl-C",
    TERMINATED: "stopped by SIGTERM",
}


class InternalError(Exception):
    """fedcore broke a rule of its own; the message says which."""


class GuardedGroup(click.Group):
    """A group of commands.

    Guarantees:
      - Every error ends in one of `EXIT_CODES`, with its message on stderr and no traceback.
      - Commands find a `Work` with `click.pass_obj`; what they note in it goes into the reproducer.
    """

    def main(self, args=None, prog_name=None, complete_var=None, standalone_mode: bool = True, **extra):
        with child_ends_here():
            return super().main(
                args, prog_name, complete_var, standalone_mode=standalone_mode, is_program=standalone_mode, **extra
            )

    def make_context(self, info_name, args, parent=None, *, is_program=False, **extra):
        return super().make_context(info_name, args, parent, obj=Work(is_program=is_program), **extra)

    def invoke(self, ctx):
        try:
            with _sigterm_interrupts():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except FedcoreError as error:
            say(f"fedcore: {error}")
            ctx.exit(WRONG_PROGRAM)
        except _Terminated:
            say("fedcore: stopped by SIGTERM")
            ctx.exit(TERMINATED)
        except MemoryError:
            say("fedcore: this needs more memory than there is")
            ctx.exit(WRONG_PROGRAM)
        except KeyboardInterrupt:
            say("fedcore: stopped by Ctrl-C")
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                _leave_closed_pipe()
                ctx.exit(OK)
            say(ctx.obj.reproduce(error))
            ctx.exit(INTERNAL)


class _Terminated(KeyboardInterrupt):
    """SIGTERM came: what runs ends as by Ctrl-C, which a process in the background ignores."""


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Raises `_Terminated` in what runs inside when SIGTERM comes, unless the program has a handler of its own."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def handle(number, frame):
        raise _Terminated

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def say(message: str) -> None:
    """Prints to stderr; a terminal sees no control character of the message."""
    click.echo(printable(message) if sys.stderr.isatty() else message, err=True)


def printable(text: str) -> str:
    """Control characters as JSON escapes them: inside a quoted name the text still means the same."""
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    import json

    return json.dumps(char)[1:-1] if ord(char) != 0x7F else "\\u007f"


def _leave_closed_pipe() -> None:
    """Whoever read our output has seen enough; Python would complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
