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


def with_names(*layers: str) -> fc.Computation:
    computation = fc.federated_computation(lambda xs: fc.federated_sum(xs), fc.types.at_clients(["float32", "int32"]))
    return computation.with_element_names({"xs": layers})


def test_layers_that_differ_in_their_numbers_share_a_compilation_and_keep_their_names(monkeypatch):
    plans = context.PlanCache()
    plans.get(with_names("dense/kernel", "dense_1/kernel").module)
    monkeypatch.setattr(context, "compile_module", lambda *_: pytest.fail("it was compiled again"))
    numbered = with_names("dense_2/kernel", "dense_3/kernel").module
    plan = plans.get(numbered)
    assert plan.element_names == {"xs": ("dense_2/kernel", "dense_3/kernel")}
    assert plans.get(numbered) is plan
    assert plans.get(with_names("dense/kernel", "dense_1/kernel").module).element_names["xs"][0] == "dense/kernel"


def test_layers_of_other_names_are_compiled_apart():
    plans = context.PlanCache()
    for name in ("encoder", "decoder"):
        assert plans.get(with_names(f"{name}/kernel", "dense/kernel").module).element_names["xs"][0] == f"{name}/kernel"
    assert len(plans.cached()) == 2


def test_a_stored_plan_has_the_names_of_its_module(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_CACHE", str(tmp_path))
    context.PlanCache().get(with_names("dense/kernel", "dense/bias").module)
    monkeypatch.setattr(context, "compile_module", lambda *_: pytest.fail("it was compiled again"))
    plan = context.PlanCache().get(with_names("dense_7/kernel", "dense_7/bias").module)
    assert plan.element_names == {"xs": ("dense_7/kernel", "dense_7/bias")}
