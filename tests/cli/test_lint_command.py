import json

import pytest

PROGRAM = """import fedcore as fc

READINGS = fc.FederatedType("float32", fc.CLIENTS)


@fc.federated_computation(READINGS)
def cut(readings):
    return fc.federated_sum(fc.cast(readings, "int32"))


@fc.federated_computation(READINGS)
def clean(readings):
    return fc.federated_mean(readings)
"""
FOUND = """\
program.py:8: lossy-cast: readings is cast from float32 to int32 before it is sent: fractions are cut off, towards 0
  return fc.federated_sum(fc.cast(readings, "int32"))
  fix: round first, as in tf.cast(tf.round(x), tf.int32); tf.floor, where fractions are not wanted
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)


def test_findings_have_line_source_and_fix_and_make_the_exit_code_1(fedcore, program):
    ran = fedcore("lint", "program:cut")
    assert (ran.code, ran.out) == (1, FOUND)


def test_a_module_is_all_of_its_computations(fedcore, program):
    ran = fedcore("lint", "program")
    assert (ran.code, ran.out) == (1, FOUND)
    ran = fedcore("lint", "program", "--without", "lossy-cast")
    assert (ran.code, ran.out) == (0, "no findings in 2 computations\n")


def test_json_has_the_parts_of_a_finding(fedcore, program):
    (finding,) = json.loads(fedcore("lint", "program", "--format", "json").out)
    assert (finding["target"], finding["check"], finding["line"]) == ("program:cut", "lossy-cast", 8)
    assert finding["problem"].startswith("readings is cast")
    assert finding["fix"].startswith("round first")
    assert fedcore("lint", "program:clean", "--format", "json").out == "[]\n"


def test_a_file_is_a_target_and_a_plan_is_refused(fedcore, program, tmp_path):
    (tmp_path / "cut.fed").write_text(fedcore("dump", "program:cut", "--stage", "lowered").out)
    ran = fedcore("lint", "cut.fed")
    assert (ran.code, ran.out.splitlines()) == (1, [FOUND.splitlines()[0], FOUND.splitlines()[2]])
    (tmp_path / "plan.fed").write_text(fedcore("dump", "program:clean", "--stage", "planned").out)
    ran = fedcore("lint", "plan.fed")
    assert ran.code == 1
    assert "lint a traced or a lowered module" in ran.err


def test_an_unknown_check_and_a_module_without_computations_are_usage_errors(fedcore, tmp_path):
    (tmp_path / "empty.py").write_text("import fedcore as fc\n")
    ran = fedcore("lint", "empty", "--without", "nothing")
    assert ran.code == 2
    assert "no check is called 'nothing'" in ran.err
    ran = fedcore("lint", "empty")
    assert ran.code == 2
    assert "empty has no federated computations with declared types: name one, empty:NAME" in ran.err


def test_checks_of_a_loaded_module_run_and_are_listed(fedcore, program, tmp_path):
    (tmp_path / "checks.py").write_text(
        "from fedcore.compiler.lint import Finding, lint_check\n\n\n"
        '@lint_check("named-total")\n'
        "def named_total(program):\n"
        '    """Sums that are not called total."""\n'
        '    yield Finding("it is no total", "def total", program.module.main.location)\n'
    )
    ran = fedcore("lint", "program:clean", "--load", "checks")
    assert ran.code == 1
    assert "named-total: it is no total" in ran.out
    assert "named-total       Sums that are not called total." in fedcore("lint", "--list", "--load", "checks").out
