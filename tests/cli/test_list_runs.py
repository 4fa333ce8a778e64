"""`fedcore list`: states, rounds to a target, the groups of a diagram."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf  # noqa: F401  where it is loaded, commands run in this process
from click.testing import CliRunner

import fedcore as fc
from fedcore.cli import main
from fedcore.cli.run_groups import group_runs
from fedcore.cli.runs import next_directory, read_run
from fedcore.program.run_directory import write_run_state


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / "runs"


@pytest.fixture
def fedcore():
    def run(*arguments: str, code: int = 0):
        ran = CliRunner().invoke(main, arguments, prog_name="fedcore")
        assert ran.exit_code == code, ran.output
        return json.loads(ran.stdout) if "json" in arguments else ran.output

    return run


def test_runs_are_numbered_beyond_999(tmp_path):
    assert next_directory(tmp_path / "none", {}).name == "001"
    for name in ("002-lr=0.1", "999", "1000-lr=0.1", "20260101_notes"):
        (tmp_path / name).mkdir()
    assert next_directory(tmp_path, {"lr": 0.3}).name == "1001-lr=0.3"


def write(runs: Path, name: str, accuracies=(), state=None, rounds=3, **settings) -> None:
    directory = runs / name
    directory.mkdir(parents=True)
    seed = settings.pop("seed", 1)
    configuration = {"program": "p.py", "run": {"rounds": rounds, "seed": seed}, "optimizer": settings}
    (directory / "config.json").write_text(json.dumps({"program": "../p.py", "set": {}, "config": configuration}))
    if accuracies:
        rows = [f"{n},{a},100,100" for n, a in enumerate(accuracies, 1)]
        (directory / "metrics.csv").write_text("\n".join(["round,accuracy,broadcast_bits,aggregate_bits", *rows, ""]))
    if state is not None:
        write_run_state(directory, state)


def test_runs_have_states_and_rounds_to_a_target(runs, fedcore):
    write(runs, "001", [0.5, 0.9, 0.8], "finished")
    write(runs, "002", [0.5, 0.6], "stopped")
    write(runs, "003", [0.95], "running")  # nobody has its lock
    write(runs, "004")
    write(runs, "005", [0.5, 0.6], "finished", rounds=9)  # more rounds were asked for since
    write(runs, "006", [0.5])  # of a version that wrote no state
    text = fedcore("list", "--target", "accuracy=0.9")
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["run", "rounds", "state", "to", "accuracy=0.9", "accuracy"]
    assert [line[1:] for line in lines[1:]] == [
        ["3/3", "finished", "2", "0.8"],
        ["2/3", "stopped", "-", "0.6"],
        ["1/3", "broken", "1", "0.95"],
        ["0/3", "not", "begun", "-"],
        ["2/9", "stopped", "-", "0.6"],
        ["1/3", "unknown", "-", "0.5"],
    ]
    listed = fedcore("list", "--target", "accuracy=0.9", "--format", "json")["runs"]
    assert [run["state"] for run in listed][:3] == ["finished", "stopped", "broken"]
    assert [run["rounds_to"] for run in listed][:3] == [2, None, 1]
    assert "rounds_to" not in fedcore("list", "--format", "json")["runs"][0]


@pytest.mark.parametrize(
    ("target", "code", "says"),
    [
        ("accuracy", 2, "'accuracy' is not METRIC=VALUE, such as val_accuracy=0.97"),
        ("accuracy=nan", 2, "is not METRIC=VALUE"),
        (
            "auc=0.5",
            1,
            "no training has auc; they have round, accuracy, broadcast_bits, aggregate_bits\n  fix: --target",
        ),
    ],
)
def test_a_target_that_cannot_be_is_refused(runs, fedcore, target, code, says):
    write(runs, "001", [0.5])
    assert says in fedcore("list", "--target", target, code=code)


def groups(runs: Path) -> dict[str, int]:
    read = [read_run(path.parent) for path in sorted(runs.glob("*/config.json"))]
    return {label: len(group) for label, group in group_runs(read).items()}


def test_runs_are_named_by_the_settings_in_which_they_differ(runs):
    for seed in (1, 2):
        for rate in (0.1, 0.25):
            write(runs, f"{seed}{rate}", [0.5], seed=seed, lr=rate, momentum=0.9)
    assert groups(runs) == {"lr=0.1": 2, "lr=0.25": 2}


def test_runs_of_one_setting_are_counted_or_have_their_name(runs):
    write(runs, "001", [0.5])
    assert groups(runs) == {"001": 1}
    write(runs, "002", [0.5], seed=2)
    assert groups(runs) == {"2 runs": 2}


def test_settings_that_control_a_run_are_no_part_of_its_name(runs):
    for number, rate in enumerate((0.1, 0.2)):
        write(runs, f"00{number}", [0.5], rounds=3 + number, lr=rate)
        path = runs / f"00{number}" / "config.json"
        content = json.loads(path.read_text())
        content["config"]["run"] |= {"checkpoint_every": 1 + number, "retries": number, "client_states": f"{number}.db"}
        path.write_text(json.dumps(content))
    assert groups(runs) == {"lr=0.1": 1, "lr=0.2": 1}


def test_runs_are_drawn_over_the_seconds_of_their_checkpoints(runs, fedcore):
    pytest.importorskip("matplotlib")
    write(runs, "001", [0.5, 0.6, 0.7])
    arguments = ("list", "--plot", "curves.png", "--over", "seconds")
    assert "runs/001 has no checkpoint, which alone has the seconds of rounds: --over rounds" in fedcore(
        *arguments, code=1
    )
    manager = fc.program.FileProgramStateManager(runs / "001" / "checkpoints")
    asyncio.run(manager.save({"seconds": np.array([0.5, 0.25])}, 2))
    assert "wrote curves.png" in fedcore(*arguments)
    history = read_run(runs / "001").history(is_timed=True)
    assert history.seconds == [0.5, 0.25]
    assert history["accuracy"] == [0.5, 0.6]


def test_long_labels_are_cut_and_stay_different(runs):
    write(runs, "001", [0.5], text="x" * 100)
    write(runs, "002", [0.5], text="x" * 101)
    assert groups(runs) == {f"text={'x' * 54}…": 1, "002": 1}


def test_runs_are_drawn_over_bits(runs, fedcore):
    pytest.importorskip("matplotlib")
    write(runs, "001", [0.5, 0.6], lr=0.1)
    write(runs, "002", [0.5, 0.6], lr=0.2)
    assert "wrote curves.png" in fedcore("list", "--plot", "curves.png", "--over", "bits")
    assert "no clock/time_s" in fedcore("list", "--plot", "curves.png", "--over", "time", code=1)
