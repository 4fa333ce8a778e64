"""Standard streams that are closed or that cannot be written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import plain_environment

FULL = Path("/dev/full")  # a device on which no space is left
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


def run(shell: str, tmp_path) -> tuple[int, str]:
    """The exit code of a shell command, in which `fedcore` is the command, and what it wrote to stderr."""
    line = f'fedcore() {{ "{sys.executable}" -m fedcore "$@"; }}; {shell}'
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, env=plain_environment(), timeout=300, text=True
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["opt mean.fed", "opt --list", "verify mean.fed", "--help", "opt --help"])
def test_output_that_cannot_be_written_is_told_in_a_line(mean_fed, tmp_path, command):
    full = (1, "fedcore: the output cannot be written: No space left on device\n")
    assert run(f"fedcore {command} > {FULL}", tmp_path) == full
    if command in ("opt mean.fed", "--help"):  # one that a child writes, and one without
        assert run(f"fedcore {command} > {FULL} 2>&1", tmp_path) == (1, "")
    assert os.listdir(tmp_path) == ["mean.fed"]  # no reproducer


@pytest.mark.parametrize(
    ("command", "code"), [("opt mean.fed", 0), ("--help", 0), ("opt nothing.fed", 2), ("verify wrong.fed", 1)]
)
def test_commands_end_with_their_exit_code_where_streams_are_closed(mean_fed, tmp_path, command, code):
    (tmp_path / "wrong.fed").write_text("fedcore 1 tr")
    for streams in (">&-", "2>&-", "<&- >&- 2>&-") if command == "opt mean.fed" else ("<&- >&- 2>&-",):
        assert run(f"fedcore {command} {streams}", tmp_path)[0] == code
    assert sorted(os.listdir(tmp_path)) == ["mean.fed", "wrong.fed"]
