"""The text of a region parses to a region of equal text and equal results."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from test_dataflow_operations import FLAGS, PROGRAMS, N, X

from fedcore.errors import ParseError
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import scan
from fedcore.graphs.dataflow.graph import new_region, ordered_behind
from fedcore.graphs.dataflow.text import print_region
from fedcore.graphs.dataflow.text_attributes import digest_of_array
from fedcore.graphs.dataflow.text_parser import parse_region, parse_regions
from fedcore.testing.regions import argument_values, regions, results_of

TEXT = """region(%0: float32[4,20,7], %1: float32[?,3]) {
  %2 = BatchMatMulV2(%0, %1) : float32[4,20,3]
  %3 = Const() : int32 {value=1}
  %4 = ConcatV2([%2, %2], %3) : float32[4,40,3]
  %5 = Const() : int64 {value=5}
  %6, %7 = scan(%5, %4, %0) : float32[4,40,3], float32[4,20,7] {has_active=true} \
(%8: int64, %9: float32[4,40,3], %10: float32[4,20,7]) {
    %11 = Const() : bool[4] {value=[true, false, true, true]}
    %12 = Neg(%9) : float32[4,40,3]
    return %12, %10, %11
  }
  return %6, %7
}
"""


@pytest.mark.parametrize("sizes", [0, 1], ids=["static", "unknown"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_parses_to_its_text_and_results(name, sizes):
    shapes = [(2, 3, 4), (2, 3), (2,)] if not sizes else [(2, None, 4), (None, 3), (2,)]
    types = [(a.dtype, shape) for a, shape in zip((X, N, FLAGS), shapes, strict=True)]
    region = new_region(types, lambda *values: list(map(ops.value, PROGRAMS[name](*values))))
    text = print_region(region)
    parsed = parse_region(text)
    assert print_region(parsed) == text
    if not sizes:
        for have, want in zip(results_of(parsed, (X, N, FLAGS)), results_of(region, (X, N, FLAGS)), strict=True):
            np.testing.assert_array_equal(have, want)


@settings(max_examples=30)
@given(regions())
def test_a_random_region_parses_to_its_text(region):
    text = print_region(region)
    assert print_region(parse_region(text)) == text


@settings(max_examples=12)
@given(regions())
def test_the_text_of_a_random_region_keeps_its_results(region):
    parsed = parse_region(print_region(region))
    inputs = argument_values(7)
    for have, want in zip(results_of(parsed, inputs), results_of(region, inputs), strict=True):
        np.testing.assert_array_equal(have, want)


def test_the_form_of_the_text():
    assert print_region(parse_region(TEXT)) == TEXT


def test_texts_of_other_bounds_have_another_digest():
    first, second = (np.array(texts, object) for texts in ([b"a\0", b"b"], [b"a", b"\0b"]))
    assert digest_of_array(first) != digest_of_array(second)


def test_names_and_comments_are_read():
    text = "region @work(%x: float32) {   // a comment\n  %y = Neg(%x) : float32   // data\n  return %y\n}\n"
    (parsed,) = parse_regions(text)
    assert parsed.name == "work"
    want = "region @work(%x: float32) {\n  %0 = Neg(%x) : float32   // data\n  return %0\n}\n"
    assert parsed.print(parsed.region) == want.replace("   // data", "")
    notes = {parsed.region.results[0]: "data"}
    assert print_region(parsed.region, name="work", arguments=["x"], notes=notes) == want


CONSTANTS = {
    "1.0": np.float32(1),
    "-0.0": np.zeros((2, 3), np.float32) * -1,
    "[0, 1, 2]": np.arange(3),
    "[[0.0, 1.0], [0.0, -1.0]]": np.array([1j, complex(0, -1)], np.complex64),
    "true": np.array([True, True]),
    '[b"a", b"\\xff"]': np.array([b"a", b"\xff"], object),
    "inf": np.array([np.inf], np.float16),
    "nan": np.array(np.nan, np.float64),
    "[]": np.zeros((0, 2), np.int32),
}


@pytest.mark.parametrize("text", CONSTANTS)
def test_constants_keep_their_bits(text):
    want = CONSTANTS[text]
    region = new_region([], lambda: [ops.constant(want)])
    printed = print_region(region)
    assert f"{{value={text}}}" in printed or f"{{value=[{text}]}}" in printed
    have = parse_region(printed).nodes[0]["value"]
    assert have.dtype == want.dtype
    assert have.shape == want.shape
    assert have.tolist() == want.tolist() if want.dtype == object else have.tobytes() == want.tobytes()


def test_a_large_constant_is_named_by_its_digest():
    table = np.arange(100, dtype=np.float32)
    region = new_region([], lambda: [ops.constant(table)])
    text = print_region(region)
    digest = digest_of_array(table)
    assert text == f"region() {{\n  %0 = Const() : float32[100] {{value=sha256:{digest}}}\n  return %0\n}}\n"
    with pytest.raises(ParseError, match=f"names a large constant by its digest sha256:{digest}, and no array"):
        parse_region(text)
    assert parse_region(text, {digest: table}).nodes[0]["value"] is table


def test_attributes_that_follow_are_left_out():
    region = new_region([(tf.float32, [2]), (tf.int64, [])], lambda x, n: [ops.add_n([x, x]), ops.cast(n, tf.float32)])
    assert [line.partition(" {")[2] for line in print_region(region).splitlines()[1:3]] == ["", "DstT=float32}"]


def test_nodes_behind_values_are_written():
    def program(x):
        with ordered_behind(x + 1.0):
            return [ops.identity(x)]

    text = print_region(new_region([(tf.float32, [])], program))
    assert "%3 = Identity(%0) : float32 after %2" in text
    assert print_region(parse_region(text)) == text


def test_a_region_of_two_nodes_is_written_for_each():
    from fedcore.graphs.dataflow.control_flow import function_of_number

    def program(x):
        add = function_of_number(lambda i: [x + ops.cast(i, tf.float32)])
        return scan(lambda i, t: ([t + add(i)[0] * add(i)[0]], None), ops.constant(2, tf.int64), [x])

    text = print_region(new_region([(tf.float32, [])], program))
    assert text.count("call(") == 2
    assert print_region(parse_region(text)) == text


MISTAKES = {
    "region() {\n return %0\n}": "`%0` is not computed before this line",
    "region(%0: float33) {\n return %0\n}": "`float33` is no dtype",
    "region(%0: float32) {\n %1 = Negg(%0) : float32\n return %1\n}": "TensorFlow has no operation Negg",
    "region(%0: float32) {\n %1 = Neg(%0, %0) : float32\n return %1\n}": "Neg has 1 operands, not 2",
    "region(%0: float32) {\n %1 = Neg(%0) : int32\n return %1\n}": (
        r"a result is written as int32\(\), but its operands give float32\(\)"
    ),
    "region(%0: float32) {\n %1 = Neg(%0)\n return %1\n}": "1 results have 0 types",
    "region(%0: float32) {\n %1 = Neg(%0) : float32 {fast=true}\n return %1\n}": "Neg has no attribute fast",
    "region(%0: int64) {\n %1 = scan(%0) : int64\n return %1\n}": "scan has 1 regions, not 0",
    "region(%0: bool) {\n %1 = call(%0) : bool {quick=true} (%2: bool) {\n return %2\n }\n return %1\n}": (
        "call has no attribute quick"
    ),
    "region() {\n %0 = Const() : float32 {value=b}\n return %0\n}": "the constant is none of its type",
    "region() {\n Const() {value=1}\n return\n}": "Const has no operands, one result, and the attribute value only",
    "region(%0: bool) {\n %1 = Const(%0) : bool {value=true}\n return %1\n}": "Const has no operands",
    "region(%0: bool) {\n %1 = Cast(%0) : int32\n return %1\n}": "Cast needs the attribute DstT",
    "region() {\n %0 = AddN([]) : float32\n return %0\n}": "AddN needs the attribute T",
    "region(%0: bool[2]) {\n %1 = Unpack(%0) : bool {num=2.5}\n return %1\n}": "num of Unpack is of the kind int",
    "region(%0: int32[2,2]) {\n %1 = MatMul(%0, %0) : int32[2,2] {transpose_a=3}\n return %1\n}": "is of the kind bool",
    "region(%0: float32[2], %1: float32[3]) {\n %2 = AddV2(%0, %1) : float32[2]\n return %2\n}": "must be equal",
    "region(%0: float32 {": "unexpected `{`",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_told_with_their_place(text):
    with pytest.raises(ParseError, match=MISTAKES[text]):
        parse_region(text)
