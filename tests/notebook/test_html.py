"""Objects as notebooks show them, and the magic `dump`."""

import pytest
import tensorflow as tf
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import fedcore as fc
from fedcore import context


@fc.federated_computation(fc.FederatedType(tf.float32, fc.CLIENTS))
def mean(values):
    return fc.federated_mean(values)


def test_each_object_shows_itself():
    assert mean._repr_html_().startswith("<div><code>mean : ({float32}@CLIENTS -&gt; float32@SERVER)</code>")
    assert fc.StructType([("x", fc.TensorType("int32"))])._repr_html_() == "<code>&lt;x=int32&gt;</code>"
    assert "federated_mean" in mean.to_module()._repr_html_()
    mean([1.0, 2.0])
    shown = context.last_report()._repr_html_()
    assert "<td>to the server</td><td>values</td><td>float32</td><td>2</td><td>64 bit</td>" in shown


def test_names_are_escaped():
    type_ = fc.StructType([("<script>", fc.TensorType("int32"))])
    assert "<script>" not in type_._repr_html_()

    @fc.federated_computation(fc.FederatedType(type_, fc.CLIENTS))
    def counts(values):
        return fc.federated_sum(values)

    assert "<script>" not in counts._repr_html_() + counts.to_module("planned")._repr_html_()


@pytest.fixture
def shell(monkeypatch):
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # IPython warns if it is another environment than this one
    shell = InteractiveShell.instance()
    shell.user_ns["mean"] = mean
    shell.run_line_magic("load_ext", "fedcore")
    yield shell
    shell.run_line_magic("unload_ext", "fedcore")
    assert "dump" not in shell.magics_manager.magics["line"]
    InteractiveShell.clear_instance()


@pytest.mark.parametrize("line", ["mean --stage planned", "--stage=planned mean"])
def test_dump_shows_the_wanted_stage(shell, line):
    with capture_output() as found:
        shell.run_line_magic("dump", line)
    (html,) = (output.data["text/html"] for output in found.outputs)
    assert "planned" in html
    assert "fold" in html


def test_a_cell_is_run_and_its_computations_are_shown(shell):
    with capture_output() as found:
        shell.run_cell_magic("dump", "", "import fedcore as fc\ntwice = fc.tf_computation(lambda x: 2 * x, 'int32')\n")
    assert ["twice" in output.data["text/html"] for output in found.outputs] == [True]
    assert shell.user_ns["twice"](3) == 6


def test_options_of_a_cell_that_are_not_understood_are_refused_before_it_runs(shell):
    with pytest.raises(fc.errors.FedcoreError, match="a cell takes --stage only, not --stages planned"):
        shell.run_cell_magic("dump", "--stages planned", "ran = True\n")
    assert "ran" not in shell.user_ns


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("mean --stage late", "--stage takes one of traced, lowered, planned"),
        ("", "name one computation"),
        ("fc", "fc is no computation"),
    ],
)
def test_what_cannot_be_shown_is_named(shell, line, says):
    shell.user_ns["fc"] = fc
    with pytest.raises(fc.errors.FedcoreError, match=says):
        shell.run_line_magic("dump", line)
