"""Numbers, texts and files that were made to end a command by an error of Python, to fill memory, or not to stop."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedcore.cli import main
from fedcore.cli.configuration import read_configuration, sweep
from fedcore.cli.runs import read_run
from fedcore.errors import FedcoreError

DIGITS = "9" * 5000
MIB = 2**20


def run(*arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(main, arguments, prog_name="fedcore")
    return ran.exit_code, ran.output


OPTIONS = {
    f"plan{{block_size={DIGITS}}}": "the option block_size of plan is auto or a number, 1 or more, not '999",
    f"plan{{vectorize={DIGITS}}}": "the option vectorize of plan is auto, false or a number, 2 or more, not '999",
    f"plan{{low_rank={DIGITS}}}": "the option low_rank of plan is auto or false, not '999",
    f"plan{{xla={DIGITS}}}": "the option xla of plan",
    f"plan{{target={DIGITS}}}": "a target is",
    "plan{block_size=1e400}": "the option block_size of plan is auto or a number, 1 or more, not '1e400'",
    "plan{block_size=²}": "the option block_size of plan is auto or a number, 1 or more, not '²'",
    "plan{block_size=\ud800}": "the option block_size of plan is auto or a number, 1 or more, not '\\ud800'",
    "plan{block_size=1\0}": "the option block_size of plan is auto or a number, 1 or more, not '1\\x00'",
}


@pytest.mark.parametrize(("passes", "message"), OPTIONS.items(), ids=range(len(OPTIONS)))
def test_an_option_of_a_pass_that_is_no_number_of_clients_is_an_error_of_the_program(mean_fed, passes, message):
    code, said = run("opt", str(mean_fed), "-p", passes)
    assert (code, message in said) == (1, True), said
    assert len(said) < 1000


def test_a_whole_number_of_a_pass_has_boundedly_many_digits(mean_fed):
    from fedcore.compiler import compiler_pass, parse_pipeline, pipeline

    @compiler_pass("count-nothing")
    def count_nothing(module, *, most: int = 1):
        """Counts nothing."""
        return module

    try:
        assert parse_pipeline("count-nothing{most=-12}")[0][1] == {"most": -12}
        with pytest.raises(FedcoreError, match="the option most of count-nothing is a whole number, not '999"):
            parse_pipeline(f"count-nothing{{most={DIGITS}}}")
    finally:
        del pipeline._passes._parts["count-nothing"]


ARGUMENTS = {
    "digits": f"[{DIGITS}]",
    "deep": "[" * 100_000,
    "a NUL": "[1.0\0]",
    "half a surrogate pair": '["\\ud800"]',
}


@pytest.mark.parametrize("text", ARGUMENTS.values(), ids=ARGUMENTS)
def test_an_argument_that_json_or_the_type_does_not_hold_is_an_error_with_a_message(mean_fed, text):
    code, said = run("run", str(mean_fed), "--arg", text)
    assert code in (1, 2)
    assert "inside fedcore" not in said


def test_an_argument_file_that_never_ends_is_not_read_for_ever(mean_fed, monkeypatch):
    monkeypatch.setattr("fedcore.cli.json_values.MAX_STREAM_BYTES", 1000)
    code, said = run("run", str(mean_fed), "--arg", "@/dev/zero")
    assert (code, "cannot read zero: it has more than 1000 bytes" in said) == (2, True), said


def test_arrays_that_take_memory_out_of_proportion_are_refused(mean_fed, tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", np.zeros(200 * MIB, np.uint8))
    tracemalloc.start()
    try:
        code, said = run("run", str(mean_fed), "--arg", f"@{tmp_path}/bomb.npz")
        assert tracemalloc.get_traced_memory()[1] < 80 * MIB
    finally:
        tracemalloc.stop()
    assert (code, "its arrays takes 209715328 bytes of memory" in said) == (2, True), said


CONFIGURATION = 'program = "model.py"\n[run]\nrounds = 1\n'
CONFIGURATIONS = {
    "digits": (f"[data]\nx = {DIGITS}", "Exceeds the limit"),
    "deep": (f"[data]\nx = {'[' * 5000}", "nest too deep|too deep|recursion"),
    "deep keys": (f"[data]\n{'.'.join(['a'] * 5000)} = 1", "its values nest too deep"),
    "too many rounds": (f"evaluate_every = {10**30}", "run.evaluate_every is a whole number of 64 bits"),
    "NUL": ("x = '\0'", "invalid character"),
    "too large": ("#" * 2 * MIB, "at most 1048576 are read"),
}


@pytest.mark.parametrize(("more", "message"), CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_configuration_that_is_none_is_an_error_with_a_message(tmp_path, more, message):
    (tmp_path / "train.toml").write_text(CONFIGURATION + more)
    with pytest.raises(FedcoreError, match=f"train.toml.*({message})"):
        read_configuration(tmp_path / "train.toml")


def test_a_configuration_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "train.toml")
    with pytest.raises(FedcoreError, match="is no regular file"):
        read_configuration(tmp_path / "train.toml")


@pytest.mark.parametrize("value", [DIGITS, "[" * 5000, "\udcff"], ids=["digits", "deep", "bytes that are no UTF-8"])
def test_a_setting_that_is_no_value_is_a_usage_error(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    Path("train.toml").write_text(CONFIGURATION)
    code, said = run("train", "train.toml", "--set", f"run.rounds={value}")
    assert (code, "Invalid value for --set" in said) == (2, True), said
    assert next(sweep({"run": {"rounds": 1}}, ["run.rounds=2"]))[0] == {"run.rounds": 2}


RUNS = {
    "deep": ("config.json", "[" * 100_000, "nest too deep"),
    "digits": ("config.json", f'{{"program": "m.py", "set": {{}}, "config": {DIGITS}}}', "Exceeds the limit"),
    "half a surrogate pair": (
        "config.json",
        '{"program": "m.py", "set": {"a": "\\ud800"}, "config": {"program": "m.py", "run": {"rounds": 1}}}',
        "config.json cannot be read: .*surrogates",
    ),
    "another kind": ("config.json", '{"program": "m.py", "set": {}, "config": []}', "config.json cannot be read"),
    "rows without rounds": ("metrics.csv", "loss\n0.5\n", "a row has no number of its round"),
    "rounds that are no number": ("metrics.csv", "round,loss\nmany,0.5\n", "a row has no number of its round"),
    "rounds without an end": ("metrics.csv", "round\ninf\n", "a row has no number of its round"),
    "digits of a round": ("metrics.csv", f"round\n{DIGITS}\n", "metrics.csv cannot be read: Exceeds the limit"),
    "more cells than columns": ("metrics.csv", "round\n1,2,3\n", None),
}


@pytest.mark.parametrize(("name", "content", "message"), RUNS.values(), ids=RUNS)
def test_a_training_whose_files_are_none_is_an_error_with_a_message(tmp_path, name, content, message):
    (tmp_path / "config.json").write_text(
        '{"program": "m.py", "set": {}, "config": {"program": "m.py", "run": {"rounds": 1}}}'
    )
    (tmp_path / name).write_text(content)
    if message is None:
        assert read_run(tmp_path).rounds_done == 1
        return
    with pytest.raises(FedcoreError, match=message):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "metrics.csv"])
def test_a_training_whose_files_are_pipes_is_not_waited_for(tmp_path, name):
    (tmp_path / "config.json").write_text(
        '{"program": "m.py", "set": {}, "config": {"program": "m.py", "run": {"rounds": 1}}}'
    )
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(FedcoreError, match="is no regular file"):
        read_run(tmp_path)
