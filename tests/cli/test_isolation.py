"""Commands that read files run in a child: whatever a file does to it, the command ends with a code and a message."""

import functools
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from command_line import MEAN, plain_environment, run_fedcore

FUZZ = str(Path(__file__).parents[1] / "fuzz")


@pytest.fixture
def fedcore(tmp_path):
    """Runs `python -m fedcore ...` in `tmp_path`, from nothing: a command forks before it imports TensorFlow."""
    return functools.partial(run_fedcore, tmp_path, cold=True)


@pytest.mark.slow
def test_a_graph_that_ends_the_process_is_an_error_that_names_file_and_operation(fedcore, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FUZZ)
    import operations

    from fedcore.ir import bundle

    bundle.write(operations.with_main(operations.case("GatherV2", 1002)), tmp_path / "bad.fed")
    ran = fedcore("run", "--trusted", "bad.fed", "--arg", '["a"]', "--arg", "1")  # without, the operation is refused
    assert ran.code == 1
    at = "(SIGABRT) when it imports GatherV2 at 'tested' in graph @g"
    assert f"bad.fed: TensorFlow ends the process {at}" in ran.err
    assert "Check failed: rank >= 0" in ran.err
    assert "Traceback" not in ran.err


@pytest.fixture
def waiting(tmp_path):
    """A command that waits for its standard input, and its child."""
    command = subprocess.Popen(
        [sys.executable, "-m", "fedcore", "opt", "-"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=plain_environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # also where tests run under nohup
    )
    parent = psutil.Process(command.pid)
    while command.poll() is None and not parent.children():
        pass
    (child,) = parent.children()
    yield command, child
    command.kill()
    command.communicate()


def ended(command: subprocess.Popen) -> bytes:
    """What it wrote on standard error; its standard input stays open until it ends."""
    command.wait(timeout=60)
    return command.stderr.read()


def test_ctrl_c_that_reaches_the_parent_alone_ends_the_child_too(waiting):
    command, child = waiting
    command.send_signal(signal.SIGINT)
    assert ended(command) == b"fedcore: stopped by Ctrl-C\n"
    assert command.returncode == 130
    assert not child.is_running()


def test_sigterm_ends_the_child_and_then_the_parent(waiting):
    command, child = waiting
    command.terminate()
    assert ended(command) == b"fedcore: stopped by SIGTERM\n"
    assert command.returncode == 143
    assert not child.is_running()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child that its parent is gone")
def test_no_child_outlives_a_parent_that_is_killed(waiting):
    command, child = waiting
    command.kill()
    command.wait(timeout=60)
    assert psutil.wait_procs([child], timeout=60)[1] == []


def test_a_child_that_is_killed_is_an_error_of_the_file(waiting):
    command, child = waiting
    child.kill()
    said = ended(command)
    assert command.returncode == 1
    assert said == b"fedcore: <stdin>: the process that read it was killed; it may have run out of memory\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fn @" + '"' + "x" * 100_000, "bad.fed:2:4: unexpected `@`"),
        (
            f"fn @f(%x: int32{'*' * 99}) -> int32{'*' * 99} {{\n  return %x\n}}\n",
            "bad.fed: types nest at most 100 deep",
        ),
        ("fn @f(%x: int32[" + "1," * 300 + "1]) -> int32 {\n  return %x\n}\n", "a tensor has at most 254 dimensions"),
    ],
)
def test_text_that_asks_for_too_much_is_the_users_error(fedcore, tmp_path, text, says):
    (tmp_path / "bad.fed").write_text("fedcore 1 traced\n" + text)
    ran = fedcore("opt", "bad.fed")
    assert ran.code == 1
    assert says in ran.err


def test_a_device_without_end_is_refused(fedcore):
    ran = fedcore("verify", "/dev/zero")
    assert ran.code == 1
    assert "/dev/zero has more than" in ran.out


def test_a_sound_file_is_read_from_standard_input(fedcore):
    ran = fedcore("opt", "-", stdin=MEAN.encode())
    assert ran.code == 0
    assert ran.out == MEAN


CALLERS = {
    "that catches SystemExit": """
        try:
            main(["verify", "mean.fed"])
        except SystemExit as end:
            print("code", end.code)
    """,
    "without click's handling": """
        print("code", main(["verify", "mean.fed"], standalone_mode=False) or 0)
    """,
    "with a runner of click": """
        print("code", CliRunner().invoke(main, ["verify", "mean.fed"]).exit_code)
    """,
    "of one command": """
        print("code", CliRunner().invoke(load_verb("verify"), ["mean.fed"], obj=Work()).exit_code)
    """,
    "with other streams": """
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            main(["verify", "mean.fed"])
        assert out.getvalue().startswith("mean.fed: "), out.getvalue()
        print("code 0")
    """,
}


@pytest.mark.parametrize("caller", CALLERS)
def test_the_code_of_a_caller_goes_on_once(python, mean_fed, caller):
    imports = (
        "import contextlib, io\n"
        "from click.testing import CliRunner\n"
        "from fedcore.cli import main\n"
        "from fedcore.cli.verbs import load_verb\n"
        "from fedcore.cli.reproducer import Work\n"
    )
    printed = python(imports + textwrap.dedent(CALLERS[caller]))
    assert printed.count("code 0") == 1
    assert printed.endswith("code 0\n")


def test_exceptions_of_a_command_reach_a_caller_that_asks_for_them(python, mean_fed):
    program = (
        "import click, fedcore.cli\n"
        "try:\n"
        "    fedcore.cli.main(['dump', 'nothing.fed'], standalone_mode=False)\n"
        "except click.BadParameter as error:\n"
        "    print('refused', error.message)\n"
    )
    said = "refused no file 'nothing.fed'; a computation in a Python module is written MODULE:NAME\n"
    assert python(program) == said
