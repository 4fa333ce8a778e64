import json
import os
import re
import threading

import pytest

from fedcore.compiler import DEFAULT_PIPELINE
from fedcore.ir import parse_module

STEPS = """\
import fedcore as fc

@fc.federated_computation(fc.FederatedType(float, fc.CLIENTS))
def total(x):
    return fc.federated_sum(x)

class process:
    next = total
"""


def test_one_stage_in_a_pipe_is_the_file_byte_for_byte(fedcore, mean_fed):
    ran = fedcore("dump", "mean.fed", "--stage", "traced")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == mean_fed.read_text()


@pytest.mark.slow  # imports TensorFlow
def test_all_stages_stand_under_headings_and_each_parses(fedcore, mean_fed):
    ran = fedcore("dump", "mean.fed")
    texts = re.split(r"^// (?:traced|lowered|planned): .*\n", ran.out, flags=re.MULTILINE)
    assert texts[0] == ""
    assert [parse_module(text).stage for text in texts[1:]] == ["traced", "lowered", "planned"]
    assert ran.out.startswith("// traced: 4 operations, 1 function\n")


def test_after_prints_what_a_pass_left(fedcore, mean_fed):
    inlined, lowered = (fedcore("dump", "mean.fed", "--after", name) for name in ("inline", "lower-intrinsics"))
    assert parse_module(inlined.out).stage == "traced"
    assert parse_module(lowered.out).stage == "lowered"


@pytest.mark.parametrize("after", ["frob", "grappler", "dce:2"])
def test_after_an_unknown_pass_is_a_usage_error(fedcore, mean_fed, after):
    ran = fedcore("dump", "mean.fed", "--after", after)
    assert ran.code == 2
    assert f"{after!r} is no pass of inline," in ran.err


def test_a_stage_that_the_file_has_left_behind_is_a_usage_error(fedcore, mean_fed, tmp_path):
    (tmp_path / "lowered.fed").write_text(fedcore("dump", "mean.fed", "--stage", "lowered").out)
    ran = fedcore("dump", "lowered.fed", "--stage", "traced")
    assert ran.code == 2
    assert "lowered.fed is lowered: it holds no traced module" in ran.err


def test_after_a_pass_on_a_plan_is_a_usage_error(fedcore, mean_fed):
    fedcore("opt", "mean.fed", "-p", "inline,lower-intrinsics,inline,dce,partition", "-o", "plan.fed")
    ran = fedcore("dump", "plan.fed", "--after", "dce")
    assert ran.code == 2
    assert "plan.fed is planned: no pass is left to run" in ran.err


def test_colours_change_no_character(fedcore, mean_fed):
    ran = fedcore("dump", "mean.fed", "--stage", "traced", FORCE_COLOR="1")
    assert "\x1b[" in ran.out
    assert re.sub(r"\x1b\[[0-9;]*m", "", ran.out) == mean_fed.read_text()


def test_a_long_line_is_neither_wrapped_nor_cut_in_colours(fedcore, tmp_path):
    wide = "<" + ",".join(f"field_{i}=float32[{i}]" for i in range(1, 100)) + ">"
    text = (
        f"fedcore 1 traced\n\nfn @main(%x: {wide}) -> int32 {{\n  %0 = literal() : int32 {{value=1}}\n  return %0\n}}\n"
    )
    (tmp_path / "wide.fed").write_text(text)
    ran = fedcore("dump", "wide.fed", "--stage", "traced", FORCE_COLOR="1", COLUMNS="40")
    assert re.sub(r"\x1b\[[0-9;]*m", "", ran.out) == text


def test_json_holds_every_operation_with_its_line(fedcore, mean_fed):
    ran = fedcore("dump", "mean.fed", "--stage", "traced", "--format", "json")
    (module,) = json.loads(ran.out)["modules"]
    (function,) = module["functions"]
    assert [op["kind"] for op in function["operations"]] == [
        "federated_mean",
        "federated_sum",
        "federated_mean",
        "struct",
    ]
    assert function["operations"][0]["location"] == {"file": "sensors.py", "line": 13}
    assert function["operations"][0]["type"] == "float32@SERVER"


def test_dot_has_a_node_for_each_operation_and_an_arrow_for_each_operand(fedcore, mean_fed):
    ran = fedcore("dump", "mean.fed", "--stage", "traced", "--format", "dot")
    assert ran.out.startswith('digraph "traced" {\n')
    assert ran.out.endswith("}\n")
    assert '"main/1" [style=filled, fillcolor="#fde8e4", label="federated_sum\\nfloat32@SERVER"];' in ran.out
    assert '  "main/x" -> "main/1";\n' in ran.out
    assert ran.out.count(" -> ") == 6  # three uses of %x, two of the struct, the result


def test_neither_a_file_nor_a_name_is_a_usage_error(fedcore):
    ran = fedcore("dump", "nothing.fed")
    assert ran.code == 2
    assert "no file 'nothing.fed'; a computation in a Python module is written MODULE:NAME" in ran.err


def test_an_unknown_python_module_is_a_usage_error(fedcore):
    ran = fedcore("dump", "no_such_module:main")
    assert ran.code == 2
    assert "no module 'no_such_module' in the current directory or installed" in ran.err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("there.py", "'there.py' is a file; the module that it holds is named there"),
        ("package/inner.py", "'package/inner.py' is a file; the module that it holds is named inner in package"),
        ("../there", "'../there' is no name of a Python module, such as my_module or package.my_module"),
        ("", "'' is no name of a Python module"),
    ],
)
def test_a_module_is_named_and_not_its_file(fedcore, tmp_path, name, says):
    (tmp_path / "package").mkdir()
    for file in ("there.py", "package/inner.py"):
        (tmp_path / file).write_text("")
    for arguments in ((f"{name}:main",), ("there:main", "--load", name)):
        ran = fedcore("dump", *arguments)
        assert ran.code == 2
        assert says in ran.err


@pytest.mark.parametrize("verb", ["dump", "opt", "verify"])
def test_a_pipe_is_read_as_a_file_is(fedcore, tmp_path, mean_fed, verb):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(mean_fed.read_bytes()))
    writer.start()
    ran = fedcore(verb, "pipe")
    writer.join()
    assert (ran.code, ran.out) == (0, fedcore(verb, "mean.fed").out.replace("mean.fed", "pipe"))


def test_a_python_module_that_raises_shows_its_line_and_no_traceback(fedcore, tmp_path):
    (tmp_path / "broken.py").write_text("x = 1\nraise RuntimeError('no data here')\n")
    ran = fedcore("dump", "broken:x")
    assert ran.code == 1
    assert ran.err == (
        "fedcore: importing broken fails: RuntimeError: no data here\n"
        "  at broken.py:2: raise RuntimeError('no data here')\n"
    )


def test_what_is_no_computation_is_a_usage_error(fedcore, tmp_path):
    (tmp_path / "plain.py").write_text("x = 1\n")
    ran = fedcore("dump", "plain:x")
    assert ran.code == 2
    assert "plain:x is no computation but a int; it has no computations" in ran.err


@pytest.mark.slow  # imports TensorFlow
def test_a_computation_is_found_by_name_and_inside_a_process(fedcore, tmp_path):
    (tmp_path / "steps.py").write_text(STEPS)
    by_name, inside = fedcore("dump", "steps:total"), fedcore("dump", "steps:process.next")
    assert (by_name.code, by_name.err) == (0, "")
    assert 'federated_sum(%x) : float32@SERVER   loc("steps.py":5)' in by_name.out
    assert inside.out == by_name.out


@pytest.mark.slow  # imports TensorFlow
def test_naming_a_process_or_nothing_tells_what_there_is(fedcore, tmp_path):
    (tmp_path / "steps.py").write_text(STEPS)
    assert "steps:process holds computations: name steps:process.next" in fedcore("dump", "steps:process").err
    assert "steps has no totl; its computations: total" in fedcore("dump", "steps:totl").err


@pytest.mark.slow  # imports TensorFlow
def test_html_is_a_page_with_every_pass(fedcore, mean_fed):
    ran = fedcore("dump", "mean.fed", "--format", "html")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("<!doctype html>")
    assert all(f">{name}<i>" in ran.out for name in DEFAULT_PIPELINE.split(","))


@pytest.mark.slow  # imports TensorFlow
def test_html_opens_no_file_that_a_location_names(fedcore, mean_fed, tmp_path):
    (tmp_path / "sensors.py").write_text("top secret")
    os.mkfifo(tmp_path / "fifo.py")
    mean_fed.write_text(mean_fed.read_text().replace('"sensors.py":13', '"fifo.py":13'))
    ran = fedcore("dump", "mean.fed", "--format", "html")
    assert (ran.code, ran.err) == (0, "")
    assert "fifo.py:13" in ran.out
    assert "top secret" not in ran.out


def test_html_of_a_lowered_module_has_the_passes_that_are_left(fedcore, mean_fed):
    assert fedcore("opt", "mean.fed", "-p", "lowering", "-o", "lowered.fed").code == 0
    ran = fedcore("dump", "lowered.fed", "--format", "html")
    assert (ran.code, ran.err) == (0, "")
    assert "There is no plan" not in ran.out
    assert 'class="plan"' in ran.out
    assert "<button data-pass=" in ran.out
    assert "partition<i>" in ran.out


@pytest.mark.parametrize("option", [("--stage", "planned"), ("--after", "no-such-pass")])
def test_html_shows_all_stages_and_refuses_to_show_one(fedcore, mean_fed, option):
    ran = fedcore("dump", "mean.fed", "--format", "html", *option)
    assert (ran.code, ran.out) == (2, "")
    assert "--format html shows all stages and passes: --stage and --after exclude it" in ran.err


def test_passes_that_make_no_plan_have_no_planned_stage_to_print(fedcore, mean_fed):
    ran = fedcore("dump", "mean.fed", "-p", "inline", "--stage", "planned")
    assert (ran.code, ran.out) == (2, "")
    assert "Invalid value for -p: 'inline' leaves a traced module, no planned one" in ran.err


@pytest.mark.slow  # imports TensorFlow
def test_sizes_stand_behind_a_plan_that_still_parses(fedcore, mean_fed):
    ran = fedcore("dump", "mean.fed", "--stage", "planned", "--sizes")
    plan, sizes = ran.out.split("// sizes in bytes")
    assert parse_module(plan).stage == "planned"
    assert re.search(r"^//   sends    x +1 entries +4 bytes$", sizes, re.MULTILINE)
    assert parse_module(ran.out) == parse_module(plan)


def test_sizes_have_the_constants_of_graphs(fedcore, tmp_path):
    (tmp_path / "tables.py").write_text(
        "import fedcore as fc, numpy as np, tensorflow as tf\n"
        "table = np.arange(1000, dtype=np.float32)\n"
        "look_up = fc.tf_computation(lambda i: tf.gather(tf.constant(table), i), 'int32')\n"
        "total = fc.federated_computation(\n"
        "    lambda i: fc.federated_sum(fc.federated_map(look_up, i)), fc.types.at_clients('int32'))\n"
    )
    ran = fedcore("dump", "tables:total", "--stage", "planned", "--sizes")
    assert re.search(r"^//   constant @\S+ +1,000 entries +4,000 bytes$", ran.out, re.MULTILINE)


def test_sizes_of_another_stage_are_a_usage_error(fedcore, mean_fed):
    ran = fedcore("dump", "mean.fed", "--stage", "traced", "--sizes")
    assert ran.code == 2
    assert "--sizes belongs to --stage planned" in ran.err
