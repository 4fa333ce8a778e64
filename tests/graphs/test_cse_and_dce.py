"""The stage passes `cse` and `dce`: which nodes are merged and removed, and which stay."""

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Region, new_region
from fedcore.graphs.dataflow.node_content import MOST_COMPARED
from fedcore.graphs.dataflow.passes.cse import cse
from fedcore.graphs.dataflow.passes.dce import dce
from fedcore.graphs.dataflow.text_parser import parse_region


def operations_of(region: Region) -> list[str]:
    return [node.op for node in region.nodes]


# --- cse ---


def test_equal_nodes_are_merged_one_after_the_other():
    region = parse_region("""region(%x: float32) {
  %0 = Neg(%x) : float32
  %1 = Neg(%x) : float32
  %2 = Exp(%0) : float32
  %3 = Exp(%1) : float32
  return %2, %3
}""")
    after = cse(region)
    assert operations_of(after) == ["Neg", "Exp"]
    assert after.results[0] is after.results[1]
    assert cse(after) is after


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Const() : float32 {value=0.0}", "Const() : float32 {value=-0.0}"),
        ("Const() : float32 {value=1.0}", "Const() : float64 {value=1.0}"),
        ("Cast(%x) : float32 {DstT=float32}", "Cast(%x) : float32 {DstT=float32, Truncate=true}"),
        ("Sub(%x, %y) : float64", "Sub(%y, %x) : float64"),
        ("RandomUniform(%n) : float32[?] {dtype=float32}", "RandomUniform(%n) : float32[?] {dtype=float32}"),
        ("Reshape(%z, %n) : float32[?]", "Reshape(%z, %n) : float32[3]"),  # the second one's shape is better known
    ],
)
def test_nodes_that_differ_are_not_merged(first, second):
    region = parse_region(f"""region(%x: float64, %y: float64, %z: float32[3], %n: int32[1]) {{
  %0 = {first}
  %1 = {second}
  return %0, %1
}}""")
    assert cse(region) is region


def test_a_node_of_a_loop_is_not_merged_with_one_around_it():
    region = parse_region("""region(%n: int64, %x: float32) {
  %0 = Neg(%x) : float32
  %1 = scan(%n, %0) : float32 (%2: int64, %3: float32) {
    %4 = Neg(%x) : float32
    %5 = AddV2(%3, %4) : float32
    return %5
  }
  return %1
}""")
    assert cse(region) is region


def test_nodes_that_wait_for_other_values_are_not_merged():
    region = parse_region("""region(%x: float32, %y: float32) {
  %0 = Neg(%x) : float32
  %1 = Neg(%x) : float32 after %y
  return %0, %1
}""")
    assert cse(region) is region


def test_large_constants_are_merged_if_they_are_one_array():
    array = np.zeros(MOST_COMPARED + 1, np.float32)

    def constants(*arrays):
        return new_region(
            [],
            lambda: [
                ops.current_block().add(
                    "Const", (), {"value": a, "dtype": tf.float32}, [(tf.float32, tf.TensorShape(a.shape))]
                )[0]
                for a in arrays
            ],
        )

    assert len(cse(constants(array, array)).nodes) == 1
    assert len(cse(constants(array, array.copy())).nodes) == 2
    assert len(cse(constants(array[1:], array[1:].copy())).nodes) == 1


# --- dce ---


def test_a_node_that_only_dead_nodes_read_is_removed():
    region = parse_region("""region(%x: float32) {
  %0 = Neg(%x) : float32
  %1 = Exp(%x) : float32
  %2 = Log(%1) : float32
  return %0
}""")
    after = dce(region)
    assert operations_of(after) == ["Neg"]
    assert dce(after) is after


def test_dce_keeps_what_a_loop_reads():
    region = parse_region("""region(%x: float32) {
  %0 = Neg(%x) : float32
  %1 = Exp(%x) : float32
  %2 = Const() : int64 {value=2}
  %3 = scan(%2, %x) : float32 (%4: int64, %5: float32) {
    %6 = AddV2(%5, %0) : float32
    %7 = AddV2(%5, %1) : float32
    return %6
  }
  return %3
}""")
    after = dce(region)
    assert operations_of(after) == ["Neg", "Const", "scan"]
    assert operations_of(after.nodes[-1].regions[0]) == ["AddV2"]


def test_a_loop_whose_results_nothing_reads_is_removed():
    region = parse_region("""region(%n: int64, %x: float32) {
  %0 = scan(%n, %x) : float32 (%1: int64, %2: float32) {
    %3 = Neg(%2) : float32
    return %3
  }
  return %x
}""")
    assert dce(region).nodes == ()


def test_a_loop_with_effects_stays():
    region = parse_region("""region(%n: int64, %shape: int32[1], %x: float32) {
  %0 = scan(%n, %x) : float32 (%1: int64, %2: float32) {
    %3 = RandomUniform(%shape) : float32[?] {dtype=float32}
    %4 = Neg(%2) : float32
    return %4
  }
  return %x
}""")
    assert dce(region) is region


def test_a_value_that_another_node_waits_for_stays():
    region = parse_region("""region(%x: float32) {
  %0 = Exp(%x) : float32
  %1 = Neg(%x) : float32 after %0
  return %1
}""")
    assert dce(region) is region
