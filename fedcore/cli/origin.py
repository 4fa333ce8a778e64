"""The origin of a run: digests of its files, versions, the commit, and the command that repeats it.

Only the commit covers imported files: following imports would record TensorFlow too.
"""

import hashlib
import importlib.metadata
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from fedcore.errors import InvalidValue
from fedcore.ir.regular_files import read_regular_file

_PACKAGES = ("fedcore", "tensorflow", "keras", "numpy")
_TIMEOUT_S = 10
_MAX_FILE_BYTES = 2**24


def origin_of(configuration: Path, program: Path, options: tuple[str, ...], runtime_name: str) -> dict[str, Any]:
    """The origin of a run that begins now.

    Types: {configuration, program: {file, sha256}; versions: {package: version}; commit: text or None; command: text}.

    Args:
        configuration: the TOML file.
        options: those of `--set` of this run.
        runtime_name: that of `--runtime`.
    """
    sets = [word for option in options for word in ("--set", option)]
    runtime = [] if runtime_name == "local" else ["--runtime", runtime_name]
    return {
        "configuration": _file(configuration),
        "program": _file(program),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "commit": _commit(configuration.resolve().parent),
        "command": shlex.join(["fedcore", "train", str(configuration), *sets, *runtime]),
    }


def with_rounds(origin: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The origin of a run that trains up to another round than it began with."""
    command = re.sub(r" --set run\.rounds=\S+", "", origin["command"])
    return {**origin, "command": f"{command} --set run.rounds={rounds}"}


def changes_since(origin: dict[str, Any], program: Path) -> list[str]:
    """The differences between a run's origin and now, a line each."""
    recorded, now = origin["program"]["sha256"], _file(program)["sha256"]
    lines = [] if recorded == now else [f"{program.name} has changed since: {_short(recorded)} then, {_short(now)} now"]
    for name in _PACKAGES:
        recorded, present = origin["versions"].get(name, "unknown"), importlib.metadata.version(name)
        if present != recorded:
            lines.append(f"{name} was {recorded}, and is {present}")
    return lines


def _short(digest: str | None) -> str:
    """A digest for a line of text; None is that of a missing file."""
    return "no file" if digest is None else f"sha256:{digest[:12]}…"


def _file(path: Path) -> dict[str, str | None]:
    """{file, sha256} of a file; the digest is None if it cannot be read."""
    try:  # a directory of runs may be from elsewhere, and name any path
        digest = hashlib.sha256(read_regular_file(path, _MAX_FILE_BYTES)).hexdigest()
    except (OSError, InvalidValue, ValueError):
        digest = None
    return {"file": path.name, "sha256": digest}


def _commit(directory: Path) -> str | None:
    """The commit of the repository that the directory is in, with `+changes` if files differ from it; None if none."""

    def git(*words: str) -> str | None:
        try:
            process = subprocess.run(
                ["git", *words], cwd=directory, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return process.stdout.strip() if process.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    return f"{commit}+changes" if commit and git("status", "--porcelain") else commit
