"""The operations of graphs on the command line: `dump --graphs`, `diff`, and the page."""

import json
import re

import pytest

PROGRAM = """\
import tensorflow as tf

import fedcore as fc


def build(function):
    celsius = fc.tf_computation(function, "float32")

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def mean_of(readings):
        return fc.federated_mean(fc.federated_map(celsius, readings))

    return mean_of


def to_celsius(fahrenheit):
    return (fahrenheit - 32.0) / 1.8


mean = build(to_celsius)


def to_celsius(fahrenheit):
    return tf.cast(tf.cast(fahrenheit - 32.0, tf.float16), tf.float32) / 1.8


half_mean = build(to_celsius)


def to_celsius(fahrenheit):
    return tf.cast(tf.cast(fahrenheit - 32.0, tf.bfloat16), tf.float32) / 1.8


bfloat_mean = build(to_celsius)


def kelvin(fahrenheit):
    return (fahrenheit - 32.0) / 1.8 + 273.15


kelvin_mean = build(kelvin)


def choose(x):
    return tf.switch_case(tf.cast(x, tf.int32), [lambda: x, lambda: -x])


chosen = build(choose)


def choose(x):
    return tf.switch_case(tf.cast(x, tf.int32), [lambda: x, lambda: tf.abs(x)])


chosen_otherwise = build(choose)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("graphs")
    (path / "sensors.py").write_text(PROGRAM)
    return path


def test_dump_prints_the_operations_of_each_graph_behind_its_module(folder, fedcore_in):
    module = fedcore_in(folder, "dump", "sensors:mean", "--stage", "traced").out
    ran = fedcore_in(folder, "dump", "sensors:mean", "--stage", "traced", "--graphs", "--operations", "4")
    (digest,) = re.findall("sha256:([0-9a-f]{12})", module)
    assert ran.out == module + (
        f"\n// @to_celsius: 6 operations, sha256:{digest}\n"
        "region @to_celsius(%arg: float32) {\n"
        "  %0 = Const() : float32 {value=32.0}   // sensors.py:17 sub/y\n"
        "  %1 = Sub(%arg, %0) : float32   // sensors.py:17 sub\n"
        "  %2 = Const() : float32 {value=1.8}   // sensors.py:17 truediv/y\n"
        "  %3 = RealDiv(%1, %2) : float32   // sensors.py:17 truediv\n"
        "  // 2 more operations\n"
        "  return %5\n"
        "}\n"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--graphs", "--format", "json"], "--graphs belongs to modules as text"),
        (["--graphs", "--stage", "batched"], "--graphs belongs to modules as text"),
        (["--operations", "3"], "--operations belongs to --graphs"),
    ],
)
def test_options_that_do_not_go_together_are_a_usage_error(folder, fedcore_in, options, says):
    ran = fedcore_in(folder, "dump", "sensors:mean", *options)
    assert ran.code == 2
    assert says in ran.err


def test_another_cast_in_a_function_is_two_lines(folder, fedcore_in):
    ran = fedcore_in(folder, "diff", "sensors:half_mean", "sensors:bfloat_mean")
    assert ran.code == 1
    assert (
        ran.out
        == """\
--- sensors:half_mean
+++ sensors:bfloat_mean
@@ -4,5 +4,5 @@ @to_celsius
   %1 = Const() : float32 {value=32.0}
   %2 = Sub(%arg, %1) : float32
-  %3 = Cast(%2) : float16 {DstT=float16}
+  %3 = Cast(%2) : bfloat16 {DstT=bfloat16}
   %4 = Cast(%3) : float32 {DstT=float32}
   %5 = Const() : float32 {value=1.8}
// operations 2 -> 2
"""
    )


def test_operations_that_are_added_mark_themselves_and_their_use_alone(folder, fedcore_in):
    for stage in ("traced", "planned"):
        ran = fedcore_in(folder, "diff", "sensors:mean", "sensors:half_mean", "--stage", stage)
        marked = [line for line in ran.out.splitlines()[2:] if line[0] in "+-"]
        assert marked == [
            "+  %2+1 = Cast(%2) : float16 {DstT=float16}",
            "+  %2+2 = Cast(%2+1) : float32 {DstT=float32}",
            "-  %4 = RealDiv(%2, %3) : float32",
            "+  %4 = RealDiv(%2+2, %3) : float32",
        ]


def test_a_branch_that_is_another_is_a_difference_of_its_own_lines(folder, fedcore_in):
    ran = fedcore_in(folder, "diff", "sensors:chosen", "sensors:chosen_otherwise")
    assert [line for line in ran.out.splitlines()[2:] if line[0] in "@+-"] == [
        "@@ -14,5 +14,5 @@ @choose_f1",
        "-  %1 = Neg(%0) : float32[...]",
        "+  %1 = Abs(%0) : float32[...]",
    ]


def test_graphs_with_other_names_are_compared_by_their_types(folder, fedcore_in):
    ran = fedcore_in(folder, "diff", "sensors:mean", "sensors:kelvin_mean", "--format", "json")
    assert json.loads(ran.out) == {"equal": False, "changes": ["the operations of the graph @to_celsius differ"]}


def test_a_click_on_a_graph_of_the_page_opens_its_operations(folder, fedcore_in):
    page = fedcore_in(folder, "dump", "sensors:mean", "--format", "html").out
    link = re.search(r'<a class="graph" href="#" data-file="(\w+)"><s class="symbol">@to_celsius</s></a>, ', page)
    assert link is not None
    digest = link[1]
    pane = page[page.index(f'data-source="{digest}"') :]
    assert f"<figcaption>@to_celsius: 6 operations, sha256:{digest[:12]}<" in pane
    assert '<s class="kind">RealDiv</s>' in pane[: pane.index("</figure>")]


def test_a_recording_has_the_operations_of_its_graphs(folder, fedcore_in):
    ran = fedcore_in(folder, "run", "sensors:mean", "--arg", "[68.0, 66.2]", FEDCORE_TRACE="trace")
    assert ran.code == 0, ran.err
    (record,) = (json.loads(path.read_text()) for path in (folder / "trace").glob("module-*.json"))
    assert any("RealDiv(" in text for text in record["graphs"].values())
