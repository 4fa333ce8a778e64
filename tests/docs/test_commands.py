"""Every command that the pages show runs, and prints what they show of it."""

import re
import runpy
import shlex
import sys
import types
from pathlib import Path

import click
import pytest
import tensorflow as tf  # noqa: F401  where it is loaded, commands run in this process
from click.testing import CliRunner

import fedcore as fc
from fedcore.cli import main
from fedcore.cli.verbs import load_verb

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a command line of a page in a directory of its own, in this process; gives all that it prints."""
    monkeypatch.chdir(tmp_path)
    modules = set(sys.modules)

    def command(line: str) -> str:
        words = shlex.split(line, comments=True)
        words = words[: next((i for i, word in enumerate(words) if word in ("|", ">", "2>&1")), len(words))]
        with monkeypatch.context() as patch:
            while "=" in words[0]:
                patch.setenv(*words.pop(0).split("="))
            program, *arguments = words
            if program == "python":
                runpy.run_path(arguments[0], run_name="__main__")
                return "".join(capsys.readouterr())
            assert program == "fedcore"
            ran = CliRunner().invoke(main, arguments, prog_name="fedcore")
        assert ran.exit_code in ((0, 1) if arguments[0] == "diff" else (0,)), f"{line}\n{ran.output}"
        return ran.output

    yield command
    for name in set(sys.modules) - modules:
        if name in ("sensors", "sensors2", "sums", "train"):
            del sys.modules[name]


def test_finding_your_way(run):
    page = (ROOT / "docs/finding-your-way.md").read_text()
    blocks = re.findall(r"^```\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    program, *sessions = [block for block in blocks if block.startswith((" 1  ", "$ "))]
    sensors = re.sub(r"^ ?\d+(  |$)", "", program, flags=re.MULTILINE)
    Path("sensors.py").write_text(sensors)
    Path("sensors2.py").write_text(sensors.replace("/ 1.8", "* 0.55"))
    ran = []
    for session in sessions:
        for line, shown in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", session, re.MULTILINE):
            printed = run(line.replace("\\\n", " "))
            ran.append(shlex.split(line)[:2])
            if re.search(" (dump|opt|lint|diff|show-values) |--help", line):  # the others print times and process ids
                missing = [text for text in shown.splitlines() if text != "…" and text.strip() not in printed]
                assert not missing, f"{line} prints\n{printed}"
    assert [words for words in ran if words[0] == "fedcore"] == [
        ["fedcore", word]
        for word in (
            *(
                "--help",
                "dump",
                "opt",
                "opt",
                "lint",
                "lint",
                "dump",
                "diff",
                *(3 * ["dump"]),
                "report",
                "report",
                "dump",
                "show-values",
            ),
            *("tune", "run"),
        )
    ]


def test_secure_aggregation(run):
    page = (ROOT / "docs/secure-aggregation.md").read_text()
    Path("sums.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    for line, shown in re.findall(r"^\$ (.*)\n((?:(?!```).*\n)*)", page, re.MULTILINE):
        printed = run(line)
        assert not [text for text in shown.splitlines() if text != "…" and text.strip() not in printed], printed
    shown = re.search(r"```\n(sums:total_and_largest.*?)```", page, re.DOTALL)[1]
    ran = CliRunner().invoke(main, ["verify", "--secure", "sums:total_and_largest"], prog_name="fedcore")
    assert (ran.exit_code, ran.output) == (1, shown)


def test_the_readme(run, monkeypatch):
    page = (ROOT / "README.md").read_text()
    program = re.search(r"```python\n(import fedcore as fc.*?)```", page, re.DOTALL)[1]
    train = types.ModuleType("train")
    exec(compile(program.replace("range(20)", "range(2)"), "train.py", "exec"), vars(train))
    assert train.metrics["client_work"]["train"]["num_examples"] > 0
    program = re.search(r"```python\n(history = .*?)```", page, re.DOTALL)[1]
    exec(compile(program.replace("rounds=20", "rounds=1"), "train.py", "exec"), vars(train))
    assert Path("run/curves.png").exists()
    monkeypatch.setitem(sys.modules, "train", train)

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def mean(xs):
        return fc.federated_mean(xs)

    for name in ("mean", "before", "after"):
        fc.save(mean, f"{name}.fed")
    commands = re.findall(r"^    (fedcore (?:dump|opt|diff|run) .*)$", page, re.MULTILINE)
    printed = [run(line) for line in commands]
    assert [shlex.split(line)[1] for line in commands] == ["dump", "dump", "opt", "dump", "diff", "run"]
    assert "19.75" in printed[-1]


def test_the_page_about_training_types_commands_that_there_are():
    page = (ROOT / "docs/training.md").read_text()
    typed = [shlex.split(line) for line in re.findall(r"^\$ fedcore (.*)$", page, re.MULTILINE)]
    verbs = ["new", "train", "list", "resume", "eval", "train", "train", "list", "sweep", "list"]
    assert [words[0] for words in typed] == verbs
    for verb, *arguments in typed:
        command = load_verb(verb)
        command.make_parser(click.Context(command)).parse_args(arguments)


def test_the_callback_of_the_page_about_training_ends_a_training():
    page = (ROOT / "docs/training.md").read_text()
    names: dict = {"fc": fc}
    exec(re.search(r"```python\n(class StopAtRises.*?)```", page, re.DOTALL)[1], names)
    callback = names["StopAtRises"]()
    callback.training = types.SimpleNamespace(stop_training=False)
    for round_number, loss in enumerate([3.0, 4.0, 2.0, 3.0, 5.0], 1):
        assert not callback.training.stop_training
        callback.on_round_end(round_number, {"loss": loss})
    assert callback.training.stop_training
    again = names["StopAtRises"]()
    again.set_state(callback.get_state())
    assert again.rises == 3
