"""The recorded bits of results, and how a change of one bit is found."""

import json
import pathlib

import numpy as np
import pytest
from click.testing import CliRunner

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def bits(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import bits

    return bits


@pytest.fixture
def run(bits):
    """Runs the command for one configuration; returns its exit status and fingerprint."""

    def invoke(*options) -> tuple[int, dict]:
        result = CliRunner().invoke(bits.main, ["--only", "sums", "--format", "json", *map(str, options)])
        (fingerprint,) = json.loads(result.stdout)
        return result.exit_code, fingerprint

    return invoke


def change_one_bit(path: pathlib.Path) -> None:
    with np.load(path) as arrays:
        changed = dict(arrays)
    changed["result/0"].view(np.uint32)[7] ^= 1
    np.savez(path, **changed)


def test_a_comparison_finds_a_changed_bit(run, tmp_path):
    status, recorded = run("--save", tmp_path)
    assert (status, recorded["outcome"]) == (0, None)
    status, equal = run("--compare", tmp_path)
    assert (status, equal["outcome"], equal["sha256"]) == (0, "equal", recorded["sha256"])
    change_one_bit(tmp_path / "sums.npz")
    status, different = run("--compare", tmp_path, "--reference")
    assert (status, different["outcome"], different["sha256"]) == (1, "different", recorded["sha256"])
    assert 0 < different["distance"] < 1e-7
    assert 0 < different["from_reference"] < 1e-5
    assert 0 < different["recorded_from_reference"] < 1e-5


def test_results_that_were_not_recorded_are_no_success(run, tmp_path):
    status, fingerprint = run("--compare", tmp_path)
    assert (status, fingerprint["outcome"]) == (1, "not recorded")


def test_distances_tell_what_is_not_finite_or_has_another_shape(bits):
    one, nan = np.array([1.0, -2.0]), np.array([np.nan, -2.0])
    assert bits.relative_distance(one, one + 1) == 0.5
    assert bits.relative_distance(nan, nan) == 0.0
    assert bits.relative_distance(one, nan) == bits.relative_distance(nan, one) == np.inf
    assert bits.relative_distance(one, one[:1]) == np.inf
    assert bits.largest_distance({"a": one}, {"b": one}) == np.inf


def test_a_name_that_no_configuration_has_is_refused(bits):
    result = CliRunner().invoke(bits.main, ["--only", "nothing"])
    assert result.exit_code == 2
    assert "no configuration is named nothing" in result.stderr
