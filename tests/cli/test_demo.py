import os
import re
import signal

import pytest

from fedcore.ir import parse_module

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def short(tmp_path_factory, fedcore_in):
    """A demo of three rounds, and where it wrote."""
    directory = tmp_path_factory.mktemp("short")
    return fedcore_in(directory, "demo", "--rounds", "3", "--seed", "7", "--out", "result"), directory


@pytest.fixture(scope="module")
def learned(tmp_path_factory, fedcore_in):
    """The default demo of another seed."""
    return fedcore_in(tmp_path_factory.mktemp("learned"), "demo", "--seed", "3")


def test_rounds_print_their_figures_and_write_their_files(short):
    ran, directory = short
    assert (ran.code, ran.err) == (0, "")
    line = r"^ +[123]/3 +\d+\.\d{4} +[01]\.\d{3} +[01]\.\d{3} +\d+ +\d+\.\d\d Mibit$"
    assert len(re.findall(line, ran.out, re.MULTILINE)) == 3
    assert re.search(r"^test accuracy  [01]\.\d{3} on \d+ digits that no client has$", ran.out, re.MULTILINE)
    assert re.search(
        r"^graph calls    \d+ server, \d+ blocks, \d+ merges in the last round of 10 clients$", ran.out, re.MULTILINE
    )
    png, fed = directory / "result/accuracy.png", directory / "result/round.fed"
    assert str(png.relative_to(directory)) in ran.out
    assert str(fed.relative_to(directory)) in ran.out
    assert png.read_bytes().startswith(b"\x89PNG")
    assert parse_module(fed.read_text()).stage == "planned"


def test_the_default_demo_learns(learned):
    accuracy = float(re.search(r"^test accuracy  (\S+)", learned.out, re.MULTILINE)[1])
    assert accuracy >= 0.95


def test_a_seed_fixes_every_figure(fedcore, short, learned):
    again = fedcore("demo", "--rounds", "3", "--seed", "7")
    assert len(figures(again.out)) == 3
    assert figures(short[0].out) == figures(again.out) != figures(learned.out)[:3]


def figures(out: str) -> list[str]:
    return re.findall(r"^ +\d+/\d+ +(\S+ +\S+)", out, re.MULTILINE)


def test_interrupting_ends_with_one_line(start):
    with start("demo", "--rounds", "100000") as process:
        for _ in range(4):  # two lines of heading, two rounds
            process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        ended = process.wait()
    assert (ended.returncode, ended.stderr) == (130, b"fedcore: stopped by Ctrl-C\n")


def test_in_the_background_ctrl_c_is_ignored_and_sigterm_ends_with_one_line(start):
    with start("demo", "--rounds", "100000", sigint="SIG_IGN") as process:
        for _ in range(4):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        assert re.match(rb" +3/100000 ", process.stdout.readline())
        os.kill(process.pid, signal.SIGTERM)
        ended = process.wait()
    assert (ended.returncode, ended.stderr) == (143, b"fedcore: stopped by SIGTERM\n")


def test_a_folder_that_cannot_be_made_is_a_usage_error(fedcore, tmp_path):
    (tmp_path / "taken").write_text("")
    assert fedcore("demo", "--out", "taken/inside").code == 2


@pytest.mark.parametrize("arguments", [("new", ""), ("demo", "--out", ""), ("opt", "mean.fed", "-o", "")])
def test_an_empty_path_is_a_usage_error(fedcore, mean_fed, tmp_path, arguments):
    ran = fedcore(*arguments)
    assert ran.code == 2
    assert "the path is empty" in ran.err
    assert [p.name for p in tmp_path.iterdir()] == ["mean.fed"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator writes everywhere")
def test_a_folder_that_cannot_be_written_is_a_usage_error(fedcore, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    ran = fedcore("demo", "--out", "closed")
    assert ran.code == 2
    assert "cannot write closed: Permission denied" in ran.err
