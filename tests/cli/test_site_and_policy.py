"""`fedcore site log`, `site key`, `policy check` and `policy sign`: what the owner of data sees without a network."""

import json
import sys
from pathlib import Path

import pytest
import tensorflow as tf  # noqa: F401  where it is loaded, commands run in this process
from click.testing import CliRunner

from fedcore.cli import main
from fedcore.deployment.site_log import SiteLog

PROGRAM = """
import fedcore as fc

@fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
def plain(values):
    return fc.federated_sum(values)

@fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
def masked(values):
    return fc.federated_secure_sum(values, 100)

def build():
    return masked

def build_wrong(rounds=3):
    raise ValueError("no model")

@fc.tf_computation(fc.SequenceType("int32"))
def total(ages):
    return ages.reduce(0, lambda x, y: x + y)

@fc.federated_computation(fc.FederatedType(fc.SequenceType("int32"), fc.CLIENTS))
def rows(ages):
    return fc.federated_secure_sum(fc.federated_map(total, ages), 1000)
"""


@pytest.fixture
def fedcore(tmp_path, monkeypatch):
    """Runs a command in a directory with a program and two policies; the result is its text."""
    (tmp_path / "owned_sums.py").write_text(PROGRAM)
    (tmp_path / "policy.toml").write_text("clients = 3\n")
    (tmp_path / "signed.toml").write_text('aggregated = false\nsigners = ["reviewer.pub"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, arguments, prog_name="fedcore")
        assert result.exit_code == code, result.output
        return result.output

    return run


def test_a_refused_plan_is_shown_with_rule_and_line(fedcore):
    text = fedcore("policy", "check", "owned_sums:plain", "policy.toml", code=1)

    assert "rule aggregated: owned_sums.py:6: values : int32 leaves outside of a secure sum" in text
    assert text.endswith(": 1 refusals\n")


def test_an_accepted_plan_is_shown_by_its_digest(fedcore):
    assert fedcore("policy", "check", "owned_sums:masked", "policy.toml").endswith(": accepted\n")


def test_a_function_without_arguments_stands_for_the_computation_that_it_returns(fedcore):
    assert fedcore("policy", "check", "owned_sums:build", "policy.toml") == fedcore(
        "policy", "check", "owned_sums:masked", "policy.toml"
    )
    text = fedcore("policy", "check", "owned_sums:build_wrong", "policy.toml", code=1)
    assert text.startswith("fedcore: build_wrong fails: ValueError: no model")


def test_the_columns_of_an_element_are_those_of_site_toml(fedcore):
    Path("policy.toml").write_text('clients = 3\ncolumns = ["age"]\n')
    site = 'kit = "kit"\npolicy = "policy.toml"\n[data]\nfile = "table.csv"\nelements = "age"\n'
    Path("site.toml").write_text(site)

    assert fedcore("policy", "check", "owned_sums:rows", "site.toml").endswith(": accepted\n")
    text = fedcore("policy", "check", "owned_sums:rows", "policy.toml", code=1)
    assert "rule columns: " in text
    assert "note: the columns of an element stand in site.toml" in text


def test_a_plan_is_accepted_once_a_reviewer_has_signed_it(fedcore):
    fedcore("site", "key", "reviewer.pem")
    fedcore("policy", "check", "owned_sums:plain", "signed.toml", "--save", "plan.fed", code=1)

    fedcore("policy", "sign", "plan.fed", "reviewer.pem")

    assert fedcore("policy", "check", "plan.fed", "signed.toml").endswith(": accepted\n")


def test_a_plan_that_is_not_there_and_a_folder_that_is_not_there_are_named(fedcore):
    assert "no file 'none.fed'" in fedcore("policy", "check", "none.fed", "policy.toml", code=2)
    command = ("policy", "check", "owned_sums:masked", "policy.toml", "--save", "no/such.fed")
    assert "cannot write no/such.fed: No such file" in fedcore(*command, code=2)


def test_a_damaged_signature_and_a_file_that_is_no_key_are_named(fedcore):
    fedcore("site", "key", "reviewer.pem")
    fedcore("policy", "check", "owned_sums:plain", "signed.toml", "--save", "plan.fed", code=1)
    assert "policy.toml is no Ed25519 key" in fedcore("policy", "sign", "plan.fed", "policy.toml", code=1)
    Path("plan.fed.sig").write_text("torn")
    assert "plan.fed.sig is no signature" in fedcore("policy", "check", "plan.fed", "signed.toml", code=1)


def test_a_key_is_its_owners_and_is_not_overwritten(fedcore):
    public = fedcore("site", "key", "key.pem").strip()

    assert len(bytes.fromhex(public)) == 32
    assert Path("key.pem").stat().st_mode & 0o077 == 0
    assert "is there already" in fedcore("site", "key", "key.pem", code=2)


def test_a_key_is_not_written_over_a_public_key_or_into_no_folder(fedcore):
    Path("north.pub").write_text("of another key")

    assert "north.pub is there already" in fedcore("site", "key", "north.pem", code=2)
    assert "south.pub is the name of the public key" in fedcore("site", "key", "south.pub", code=2)
    assert "keys is no folder" in fedcore("site", "key", "keys/north.pem", code=2)
    assert not Path("north.pem").exists()
    assert Path("north.pub").read_text() == "of another key"


def test_the_log_of_a_site_says_what_left(fedcore):
    log = SiteLog(Path("site.log"))
    log.write("ran", plan="0" * 64, clients=3, bits=64, seconds=0.1, sent=["total : int64"], masked=True)
    log.write("refused", plan="1" * 64, rule="bits", why="train.py:3: a client sends 65 bits; at most 64 may leave")

    text = fedcore("site", "log", "site.log")

    assert "64 bits of 3 clients, 0.1 s: total : int64" in text
    assert "rule bits: train.py:3" in text
    assert text.endswith("1 runs; 64 bits have left, 1 refusals\n")
    assert [line["what"] for line in json.loads(fedcore("site", "log", "site.log", "--format", "json"))] == [
        "ran",
        "refused",
    ]
