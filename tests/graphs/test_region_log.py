"""The log of regions: what stage passes made of them, and that logs end with their context."""

from fedcore.graphs.dataflow.region_log import final_regions, logged_regions, run_logged_passes
from fedcore.graphs.dataflow.stage_passes import stage_pass_results
from fedcore.graphs.dataflow.text import print_region
from fedcore.graphs.dataflow.text_parser import parse_region

TWICE = """region(%x: float32) {
  %0 = Neg(%x) : float32
  %1 = Neg(%x) : float32
  %2 = AddV2(%0, %1) : float32
  return %2
}"""


def test_a_region_is_logged_as_built_and_after_each_pass_that_changes_it():
    region = parse_region(TWICE)
    with logged_regions() as log:
        result = run_logged_passes("twice", region)
    assert [(entry.function, entry.pass_) for entry in log] == [("twice", None), ("twice", "cse")]
    assert log[0].region is region
    assert log[-1].region is result
    assert print_region(result) == print_region([after for _, after in stage_pass_results(region)][-1])


def test_a_pass_that_does_not_run_is_not_logged():
    region = parse_region(TWICE)
    with logged_regions() as log:
        assert run_logged_passes("twice", region, without={"cse"}) is region
    assert [entry.pass_ for entry in log] == [None]


def test_the_last_region_of_each_function_is_used():
    first, second = parse_region(TWICE), parse_region(TWICE)
    with logged_regions() as log:
        run_logged_passes("f", first)
        run_logged_passes("g", first, without={"cse"})
        latest = run_logged_passes("f", second)
    assert final_regions(log) == {"f": latest, "g": first}


def test_an_inner_log_does_not_reach_the_outer_one():
    with logged_regions() as outer:
        with logged_regions() as inner:
            run_logged_passes("twice", parse_region(TWICE))
        assert (len(outer), len(inner)) == (0, 2)
        run_logged_passes("twice", parse_region(TWICE))
        assert len(outer) == 2


def test_passes_run_without_a_log():
    assert len(run_logged_passes("twice", parse_region(TWICE)).nodes) == 2
