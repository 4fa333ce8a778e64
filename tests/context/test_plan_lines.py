"""Equal programs of different files share bits, not lines."""

import pytest

import fedcore as fc
from fedcore import context
from fedcore.cli.recorded import read_recorded

PROGRAM = """
@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def total(xs):
    return fc.federated_sum(xs)
"""


def program_of(file: str):
    names = {"fc": fc}
    exec(compile(PROGRAM, file, "exec"), names)
    return names["total"]


@pytest.fixture
def two():
    return program_of("first.py"), program_of("second.py")


def test_plans_of_equal_programs_name_their_own_lines(two):
    first, second = two
    assert first.digest == second.digest
    assert 'loc("first.py":4)' in first.to_text("planned")
    assert 'loc("second.py":4)' in second.to_text("planned")
    assert "second.py" not in first.to_text("planned")


def test_stored_plans_of_equal_programs_name_their_own_lines(two, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_CACHE", str(tmp_path))
    for computation, file in zip(two, ("first.py", "second.py"), strict=True):
        plan = context.PlanCache().get(computation.module)
        assert {op.location.file for op in plan.main.operations} == {file}


def test_the_report_of_equal_programs_shows_each_with_its_own_lines(two, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path))
    for computation in two:
        computation([1.0])
    shown = [c.plan for c in read_recorded(tmp_path).computations]
    assert ["first.py" in shown[0], "second.py" in shown[0]] == [True, False]
    assert ["first.py" in shown[1], "second.py" in shown[1]] == [False, True]


def test_a_program_traced_again_at_its_lines_has_one_plan():
    assert program_of("same.py").to_module("planned") is program_of("same.py").to_module("planned")
