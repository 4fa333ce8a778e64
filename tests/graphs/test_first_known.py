"""When values are first known, and whether they are per client."""

import tensorflow as tf
from hypothesis import given, settings

from fedcore.graphs.dataflow.first_known import Known, first_known, notes
from fedcore.graphs.dataflow.text import print_region
from fedcore.graphs.dataflow.text_parser import parse_region
from fedcore.testing.regions import ARGUMENTS, regions

TEXT = """region(%rate: float32, %x: float32[3,2]) {
  %0 = Const() : float32 {value=2.0}
  %1 = Mul(%rate, %0) : float32   // broadcast
  %2 = Const() : int64 {value=5}
  %3, %4, %5 = scan(%2, %x, %rate, %1) : float32[3,2], float32, float32 \
(%6: int64, %7: float32[3,2], %8: float32, %9: float32) {   // data
    %10 = Cast(%6) : float32 {DstT=float32}   // step
    %11 = Mul(%8, %1) : float32   // broadcast
    %12 = Mul(%x, %11) : float32[3,2]   // data
    %13 = AddV2(%7, %12) : float32[3,2]   // step, per client
    %14 = AddV2(%9, %10) : float32   // step
    %15 = scan(%6, %14) : float32 (%16: int64, %17: float32) {   // step
      %18 = AddV2(%17, %14) : float32   // step
      %19 = Neg(%14) : float32   // outer step
      %20 = Mul(%18, %19) : float32   // step
      return %20
    }
    return %13, %8, %15
  }
  return %3, %4, %5
}
"""


def of_text(text, known):
    region = parse_region(text)
    return region, first_known(region, known)


def test_facts_beside_values():
    region, _ = of_text(TEXT, [Known.BROADCAST, Known.DATA])
    of_values = notes(region, [Known.BROADCAST, Known.DATA])
    assert print_region(region, arguments=["rate", "x"], notes=of_values) == TEXT


def test_results_of_a_loop_are_known_when_what_it_reads_is():
    region, facts = of_text(TEXT, [Known.BROADCAST, Known.DATA])
    assert [facts[v].known for v in region.results] == [Known.DATA, Known.BROADCAST, Known.BROADCAST]
    assert [facts[v].is_per_client for v in region.results] == [True, False, False]


def test_the_number_of_iterations_decides_when_results_are_known():
    text = """region(%n: int64, %x: float32) {
      %0 = scan(%n, %x) : float32 (%1: int64, %2: float32) {
        %3 = Neg(%2) : float32
        return %3
      }
      return %0
    }"""
    region, facts = of_text(text, [Known.DATA, Known.BROADCAST])
    assert facts[region.results[0]].known == Known.DATA


def test_a_variable_that_takes_another_ones_value_gets_its_facts():
    text = """region(%n: int64, %x: float32, %y: float32) {
      %0, %1 = scan(%n, %x, %y) : float32, float32 (%2: int64, %3: float32, %4: float32) {
        %5 = Neg(%4) : float32
        return %5, %4
      }
      return %0, %1
    }"""
    region, facts = of_text(text, [Known.BROADCAST, Known.BROADCAST, Known.DATA])
    assert [facts[v].is_per_client for v in region.results] == [True, True]
    body = region.nodes[0].regions[0]
    assert [facts[v].known for v in body.arguments] == [Known.STEP, Known.STEP, Known.DATA]


def test_rows_that_are_not_active_make_a_variable_per_client():
    text = """region(%n: int64, %x: float32[2], %active: bool[2]) {
      %0 = scan(%n, %x) : float32[2] {has_active=true} (%1: int64, %2: float32[2]) {
        %3 = Neg(%2) : float32[2]
        return %3, %active
      }
      return %0
    }"""
    region, facts = of_text(text, [Known.BROADCAST, Known.BROADCAST, Known.DATA])
    assert facts[region.results[0]].is_per_client


def test_the_test_of_a_loop_decides_when_its_results_are_known():
    text = """region(%x: float32, %limit: float32) {
      %0 = while(%x) : float32 (%1: float32) {
        %2 = Less(%1, %limit) : bool
        return %2
      } (%3: float32) {
        %4 = AddV2(%3, %3) : float32
        return %4
      }
      return %0
    }"""
    region, facts = of_text(text, [Known.BROADCAST, Known.DATA])
    assert facts[region.results[0]].known == Known.DATA


def test_a_condition_makes_both_results_its_own():
    text = """region(%flag: bool, %x: float32) {
      %0 = if(%flag) : float32 () {
        return %x
      } () {
        %1 = Neg(%x) : float32
        return %1
      }
      %2 = if(%flag, %x, %x) : float32 (%3: float32) {
        %4 = Neg(%3) : float32
        return %4
      }
      return %0, %2
    }"""
    region, facts = of_text(text, [Known.DATA, Known.BROADCAST])
    assert [facts[v].known for v in region.results] == [Known.DATA, Known.DATA]


def test_a_shape_that_is_known_is_static():
    text = """region(%x: float32[2,3]) {
      %0 = Shape(%x) : int32[2]
      return %0
    }"""
    region, facts = of_text(text, [Known.DATA])
    assert facts[region.results[0]].known == Known.STATIC


@settings(max_examples=30)
@given(regions())
def test_a_value_is_known_no_earlier_than_its_operands(region):
    facts = first_known(region, [a.known for a in ARGUMENTS])

    def check(part):
        for node in part.nodes:
            for inner in node.regions:
                check(inner)
            for value in node.outputs:
                if not node.regions and facts[value].known:
                    assert facts[value].source == max((facts[v].source for v in node.inputs), default=0)
                    assert facts[value].loops >= max((facts[v].loops for v in node.inputs), default=0)

    check(region)
    assert all(facts[v].loops == 0 for v in region.results)
    assert tf.float32 in {v.dtype for v in facts}
