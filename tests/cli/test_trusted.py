"""Every verb that reads a file refuses graphs that `fc.load` refuses, unless it is told to trust the file."""

import pytest
import tensorflow as tf

import fedcore as fc

pytestmark = pytest.mark.slow  # imports TensorFlow


@pytest.fixture
def printing(tmp_path) -> str:
    @fc.tf_computation("float32")
    def shown(x):
        tf.print("seen", x)
        return x + 1.0

    fc.save(shown, tmp_path / "printing.fed")
    return "printing.fed"


@pytest.mark.parametrize(
    "line",
    [
        ("opt",),
        ("dump", "--stage", "traced"),
        ("run", "--arg", "1.0"),
        ("verify",),
        ("diff", "printing.fed"),
    ],
    ids=lambda line: line[0],
)
def test_a_graph_that_may_do_more_than_compute_is_refused_by_name(fedcore, printing, line):
    verb, *rest = line
    ran = fedcore(verb, printing, *rest)
    said = ran.out + ran.err
    assert ran.code == 1
    assert "printing.fed: graph @shown holds operations that a file from elsewhere may not" in said
    assert "PrintV2" in said
    assert "if you trust whoever wrote the file, add --trusted" in said
    assert "seen" not in said


def test_a_trusted_file_runs(fedcore, printing):
    ran = fedcore("run", printing, "--arg", "1.0", "--trusted")
    assert (ran.code, ran.out) == (0, "2.0\n")
    assert "seen 1" in ran.err


def test_a_trusted_file_goes_through_passes(fedcore, printing):
    ran = fedcore("opt", printing, "-p", "inline", "--trusted")
    assert ran.code == 0
    assert ran.out.startswith("fedcore 1 traced")
