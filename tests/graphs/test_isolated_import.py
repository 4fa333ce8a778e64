"""`fc.load(..., isolated=True)`: graphs are checked and imported in a process that may die."""

import os
import subprocess
from pathlib import Path

import psutil
import pytest
import tensorflow as tf
import warm_processes
from elsewhere import module_of

import fedcore as fc
from fedcore.errors import FedcoreError
from fedcore.graphs.graphdef.validation import isolated_import
from fedcore.ir import bundle

pytestmark = pytest.mark.slow  # each starts a process with TensorFlow


def loops(x):
    return tf.while_loop(lambda y: y < 9, lambda y: (tf.cond(y > 3, lambda: y * 2, lambda: y + 1),), (x,))[0]


@pytest.fixture
def path(tmp_path):
    bundle.write(module_of(loops), tmp_path / "loops.fed")
    return tmp_path / "loops.fed"


@pytest.fixture
def forked(monkeypatch):
    """The child is a fork of the warm process: it runs the code of a child, and does not import TensorFlow anew."""

    def run(command, *, stdin, stdout, stderr, env, timeout):
        request = {"code": command[3], "arguments": command[4:]}
        ended = warm_processes.run(request, cwd=Path.cwd(), env=env, stdin=stdin.read(), timeout_s=timeout)
        stdout.write(ended.stdout)
        return subprocess.CompletedProcess(command, ended.returncode)

    monkeypatch.setattr(isolated_import.subprocess, "run", run)


def test_a_sound_file_comes_through(path):
    assert fc.load(path, isolated=True)(2) == fc.load(path)(2) == 16


@pytest.mark.usefixtures("forked")
def test_a_refused_file_is_refused_with_the_childs_words(tmp_path):
    bundle.write(module_of(lambda x: tf.strings.length(tf.io.read_file("secret.txt")) + x), tmp_path / "bad.fed")
    with pytest.raises(FedcoreError, match=r"ReadFile at 'n[0-9]+' in the graph: it reads or writes files"):
        fc.load(tmp_path / "bad.fed", isolated=True)


@pytest.mark.usefixtures("forked")
def test_an_operation_that_ends_the_process_when_it_is_imported_is_an_error_that_names_it(tmp_path, monkeypatch):
    # the allow list refuses it; a trusted file may hold it
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "fuzz"))
    import operations

    bundle.write(operations.with_main(operations.case("GatherV2", 1002)), tmp_path / "bad.fed")
    says = r"TensorFlow ends the process \(SIGABRT\) that imports the graphs at GatherV2 at 'tested' in graph @g"
    with pytest.raises(FedcoreError, match=says):
        fc.load(tmp_path / "bad.fed", isolated=True, trusted=True)


def test_a_child_without_time_is_an_error_and_is_gone(path, monkeypatch):
    monkeypatch.setattr(isolated_import, "MAX_SECONDS", 0)
    with pytest.raises(FedcoreError, match="importing the graphs takes too long"):
        fc.load(path, isolated=True)
    assert [c for c in psutil.Process(os.getpid()).children() if isolated_import._CHILD in c.cmdline()] == []


@pytest.mark.parametrize(
    ("code", "said", "says"),
    [
        (-6, ["at", "Conv at 'n' in graph @g"], r"ends the process \(SIGABRT\) that imports the graphs at Conv at 'n'"),
        (-11, None, r"ends the process \(SIGSEGV\) that imports the graphs$"),
        (1, ["ok", ""], r"\(exit code 1\)"),
        (0, ["at", "Add"], r"\(exit code 0\)"),
        (-24, ["at", "Fill at 'n'"], "takes too long at Fill at 'n'"),
        (0, ["wrong", "it is malformed"], "^it is malformed$"),
    ],
)
def test_the_parent_goes_on_only_if_the_child_says_so_and_ends_well(code, said, says):
    with pytest.raises(FedcoreError, match=says):
        isolated_import._raise_if_failed(code, [said] if said else [])
