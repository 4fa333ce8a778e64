import re
import signal

import pytest

from fedcore.ir import parse_module

pytestmark = pytest.mark.slow


def test_two_rounds_print_their_figures_and_write_their_files(fedcore, tmp_path):
    ran = fedcore("demo", "--rounds", "2", "--out", "result")
    assert (ran.code, ran.err) == (0, "")
    assert (
        len(
            re.findall(r"^ +[12]/2 +\d+\.\d{4} +[01]\.\d{3} +[01]\.\d{3} +\d+ +\d+\.\d\d Mibit$", ran.out, re.MULTILINE)
        )
        == 2
    )
    assert re.search(r"^test accuracy  [01]\.\d{3} on \d+ digits that no client has$", ran.out, re.MULTILINE)
    assert re.search(
        r"^graph calls    \d+ server, \d+ blocks, \d+ merges in the last round of 10 clients$", ran.out, re.MULTILINE
    )
    png, fed = tmp_path / "result/accuracy.png", tmp_path / "result/round.fed"
    assert str(png.relative_to(tmp_path)) in ran.out
    assert str(fed.relative_to(tmp_path)) in ran.out
    assert png.read_bytes().startswith(b"\x89PNG")
    assert parse_module(fed.read_text()).stage == "planned"


def test_the_default_demo_learns(fedcore):
    ran = fedcore("demo", "--seed", "3")
    accuracy = float(re.search(r"^test accuracy  (\S+)", ran.out, re.MULTILINE)[1])
    assert accuracy >= 0.95


def test_a_seed_fixes_every_figure(fedcore):
    first, again = (fedcore("demo", "--rounds", "3", "--seed", "7") for _ in range(2))
    assert figures(first.out) == figures(again.out) != figures(fedcore("demo", "--rounds", "3", "--seed", "8").out)


def figures(out: str) -> list[str]:
    return re.findall(r"^ +\d+/3 +(\S+ +\S+ +\S+)", out, re.MULTILINE)


def test_interrupting_ends_with_one_line(start):
    with start("demo", "--rounds", "100000") as process:
        for _ in range(4):  # two lines of heading, two rounds
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"fedcore: stopped by Ctrl-C\n")


def test_in_the_background_ctrl_c_is_ignored_and_sigterm_ends_with_one_line(start):
    with start("demo", "--rounds", "100000", sigint="SIG_IGN") as process:
        for _ in range(4):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert re.match(rb" +3/100000 ", process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, b"fedcore: stopped by SIGTERM\n")


def test_a_folder_that_cannot_be_made_is_a_usage_error(fedcore, tmp_path):
    (tmp_path / "taken").write_text("")
    assert fedcore("demo", "--out", "taken/inside").code == 2
