"""Directories of trainings and recordings from elsewhere: they are data, whatever their files name."""

import asyncio
import json
import os

import numpy as np
import pytest
from click.testing import CliRunner

from fedcore.cli import main
from fedcore.program import FileProgramStateManager
from fedcore.program.state_files import _manifest


@pytest.fixture
def foreign(tmp_path):
    """A run directory from elsewhere, with a checkpoint; writes config.json with a program and a command."""
    run = tmp_path / "runs" / "001"
    run.mkdir(parents=True)
    state = {"round": np.int32(1), "weights": np.zeros(100, np.float32), "surroundings": {"numpy": "1.0"}}
    asyncio.run(FileProgramStateManager(run / "checkpoints").save(state, 1))
    (run / "metrics.csv").write_text("round,loss\n1,0.5\n")

    def write(program="m.py", command="fedcore train"):
        file = {"file": "m.py", "sha256": "0" * 64}
        origin = {"configuration": file, "program": file, "commit": None, "versions": {}, "command": command}
        config = {"program": "m.py", "run": {"rounds": 1}}
        (run / "config.json").write_text(
            json.dumps({"program": program, "set": {}, "config": config, "origin": origin})
        )
        return run

    write()
    return write


def command(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments], prog_name="fedcore")


def test_a_run_from_elsewhere_is_shown_with_its_checkpoints(foreign):
    result = command("show", foreign())

    assert result.exit_code == 0, result.output
    assert "whole" in result.output
    assert "numpy  1.0" in result.output


@pytest.mark.parametrize("program", ["/dev/zero", "pipe", "sparse"])
def test_a_program_that_is_no_file_of_a_program_is_not_read(foreign, tmp_path, program):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    path = program if program.startswith("/") else os.path.join("..", "..", program)

    result = command("show", foreign(program=path))

    assert result.exit_code == 0, result.output
    assert "no file now" in result.output


@pytest.mark.parametrize("name", ["config.json", "metrics.csv", "checkpoints/program_state_1.json", "checkpoints"])
def test_a_link_that_leads_out_of_a_run_is_not_followed(foreign, tmp_path, name):
    run = foreign()
    outside = tmp_path / "outside"
    (run / name).rename(outside)
    (run / name).symlink_to(outside)

    result = command("show", run)

    assert "is a link that leads out of" in result.output
    assert "whole" not in result.output


def test_a_checkpoint_of_holes_is_not_read(foreign):
    run = foreign()
    tensors = run / "checkpoints" / "program_state_1.safetensors"
    manifest = run / "checkpoints" / "program_state_1.json"
    with tensors.open("r+b") as file:
        file.truncate(2**40)
    content = json.loads(manifest.read_text())["content"]
    content["tensors"]["bytes"] = 2**40
    manifest.write_bytes(_manifest(content))

    result = command("show", run)

    assert f"has {2**40} bytes, but" in result.output


def test_a_checkpoint_of_another_version_is_a_row_beside_the_others(foreign):
    run = foreign()
    manager = FileProgramStateManager(run / "checkpoints")
    asyncio.run(manager.save({"round": np.int32(2)}, 2))
    manifest = run / "checkpoints" / "program_state_2.json"
    content = json.loads(manifest.read_text())["content"]
    manifest.write_bytes(_manifest(content | {"format": 99}))

    result = command("show", run)

    assert result.exit_code == 0, result.output
    assert "bytes, whole" in result.output
    assert "bytes, the program state has format 99; this version of fedcore reads" in result.output
    assert "numpy  1.0" in result.output


def test_a_checkpoint_that_is_longer_than_its_manifest_says_is_not_read(foreign):
    run = foreign()
    with (run / "checkpoints" / "program_state_1.safetensors").open("ab") as file:
        file.write(b"\0" * 100)

    assert "are read" in command("show", run).output


def test_a_run_behind_a_link_out_of_the_directory_is_listed_as_damaged(foreign, tmp_path):
    run = foreign()
    outside = tmp_path / "outside"
    run.rename(outside)
    run.symlink_to(outside)

    result = command("list", tmp_path / "runs")

    assert result.exit_code == 1
    assert "is a link that leads out of" in result.output


def test_texts_of_a_run_are_shown_without_control_characters(foreign):
    run = foreign(command="fedcore\x1b[2J train")
    (run / "metrics.csv").write_text("round,lo\x1b[2Jss\n1,0.5\n")

    for result in (command("show", run), command("list", run.parent)):
        assert result.exit_code == 0, result.output
        assert "\x1b[2J" not in result.output
    assert "\\u001b[2J" in command("show", run).output


@pytest.mark.parametrize("verb", ["show", "list"])
def test_no_verb_that_reads_a_run_imports_its_program(foreign, tmp_path, verb):
    run = foreign(program="../../m.py")
    (tmp_path / "m.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")

    command(verb, run if verb == "show" else run.parent)

    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("verb", ["eval", "resume"])
def test_a_verb_that_imports_the_program_of_a_run_says_so(verb):
    assert "runs the Python program that the directory's config.json names" in " ".join(
        command(verb, "--help").output.split()
    )


def test_a_recording_that_is_a_link_out_of_the_directory_is_not_read(tmp_path):
    (tmp_path / "trace").mkdir()
    (tmp_path / "outside").write_text("{}")
    (tmp_path / "trace" / "call-1.json").symlink_to(tmp_path / "outside")

    assert "is a link that leads out of" in command("report", tmp_path / "trace").output
