"""The reproducer: a file that is written when fedcore itself fails, with which a developer can repeat the failure."""

import hashlib
import importlib.metadata
import os
import platform
import shlex
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from fedcore import __version__
from fedcore.whole_files import write_whole

if TYPE_CHECKING:
    from fedcore.ir import Module

_PACKAGES = ("tensorflow", "keras", "numpy", "click")


@attrs.define
class Work:
    """The progress of a command, which goes into the reproducer if the command fails.

    Args:
        text: the text of the file that is read, while there is no module.
        module: the last module before the failure.
        pipeline: the passes that were about to run on the module.
        options: further options of `fedcore opt` with which the failure is repeated, such as `--load my_passes`.
        is_program: whether the command is the program of its process, not called from Python.
    """

    text: str = ""
    module: "Module | None" = None
    pipeline: str = ""
    options: tuple[str, ...] = ()
    is_program: bool = False

    def reproduce(self, error: Exception) -> str:
        """Writes the reproducer, and returns the message for the user."""
        message = f"fedcore: an error inside fedcore: {type(error).__name__}: {error}".split("\n")[0]
        try:
            return f"{message}\n  to reproduce it: {self._write(error)}"
        except Exception as other:  # must not hide the error that is reported
            return f"{message}\n  and no reproducer could be written: {other}\n{_comment(_traceback(error))}"

    def _write(self, error: Exception) -> Path:
        trace = _traceback(error)
        name = f"fedcore-crash-{hashlib.sha256(trace.encode()).hexdigest()[:8]}"
        where = Path.cwd() if os.access(Path.cwd(), os.W_OK) else Path(tempfile.gettempdir())
        path = where / f"{name}.fed"
        target = path
        if self.module is not None and self.module.blobs:
            from fedcore.ir import bundle

            target = where / f"{name}.bundle.fed"  # the text names graphs; their bytes are in the bundle
            bundle.write(self.module, target)
        passes = ["-p", self.pipeline] if self.pipeline else []
        target_name = target.name if where == Path.cwd() else str(target)
        command = shlex.join(["fedcore", "opt", target_name, *passes, *self.options])
        head = _comment(f"{command}\n\n{_versions()}\n\n{shlex.join(['fedcore', *sys.argv[1:]])}\n\n{trace}")
        write_whole(path, f"{head}\n\n{self.text if self.module is None else self.module}")
        return path


def _traceback(error: Exception) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


def _comment(text: str) -> str:
    return "\n".join(f"// {line}".rstrip() for line in text.split("\n"))


def _versions() -> str:
    versions = [f"fedcore {__version__}, python {platform.python_version()} on {platform.platform()}"]
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return ", ".join(versions)
