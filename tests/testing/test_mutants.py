"""scripts/mutate.py makes mutants that differ in one place, and tells whether tests notice one."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = '''"""A module."""


def mean(values, weights):
    """The weighted mean."""
    if not len(values) == 2 or isinstance(values, str):
        raise ValueError("ä")
    total = sum(w + v for v, w in zip(values, weights))
    return divide(total, 1)
'''


@pytest.fixture
def mutate(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("mutate")


def test_each_mutant_differs_in_one_place(mutate):
    mutants = mutate.mutants_of("a.py", SOURCE)
    assert [(m.line, m.kind, m.after) for m in mutants] == [
        (6, "off by one", "(3)"),
        (6, "operator", "(len(values) != 2)"),
        (6, "operator", "(len(values) == 2)"),
        (6, "operator", "(not len(values) == 2 and isinstance(values, str))"),
        (7, "left out", "pass"),
        (8, "exchanged arguments", "(zip(weights, values))"),
        (8, "left out", "pass"),
        (8, "operator", "(w - v)"),
        (9, "exchanged arguments", "(divide(1, total))"),
        (9, "off by one", "(2)"),
    ]
    for m in mutants:
        ast.parse(m.source)
        assert m.source.count("\n") == SOURCE.count("\n")
        assert m.source.replace(m.after, m.before, 1) == SOURCE


def test_equal_seeds_draw_equal_mutants_of_all_kinds(mutate):
    first, second, other = (list(mutate.draw(("lru_cache", "aggregators"), 40, seed)) for seed in (1, 1, 2))
    assert first == second != other
    assert len({(m.path, m.line, m.after) for m in first}) == 40
    assert {m.kind for m in first} == {"operator", "off by one", "left out", "exchanged arguments"}


def test_a_mutant_is_noticed_where_a_test_fails(mutate, tmp_path):
    (tmp_path / "fedcore" / "room").mkdir(parents=True)
    (tmp_path / "tests" / "room").mkdir(parents=True)
    source = "def twice(x):\n    y = 0\n    return x + x + y\n"
    (tmp_path / "fedcore/room/parts.py").write_text(source)
    (tmp_path / "tests/room/test_parts.py").write_text(
        "import pathlib\n\n\ndef test_twice():\n    scope = {}\n"
        "    exec(pathlib.Path('fedcore/room/parts.py').read_text(), scope)\n    assert scope['twice'](2) == 4\n"
    )
    mutants = mutate.mutants_of("fedcore/room/parts.py", source)
    outcomes = {m.after: mutate.is_noticed(m, tmp_path) for m in mutants}
    assert outcomes == {"(1)": True, "pass": True, "(x + x - y)": False, "(x - x)": True}
    assert (tmp_path / "fedcore/room/parts.py").read_text() == source


def test_tests_that_share_names_with_a_module_and_its_users_come_first(mutate, tmp_path):
    files = {
        "fedcore/room/parts.py": "def halve(): ...\n",
        "fedcore/room/users.py": "from fedcore.room.parts import halve\n\n\ndef quarter(): ...\n",
        "tests/room/test_others.py": "other\n",
        "tests/room/test_quarters.py": "quarter\n",
        "tests/other_room/test_halves.py": "halve\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    nearest, others = mutate.tests_of("fedcore/room/parts.py", tmp_path)
    assert [Path(f).name for f in nearest] == ["test_halves.py", "test_quarters.py"]
    assert [Path(f).name for f in others] == ["test_others.py"]


def test_near_runs_the_nearest_tests_only(mutate, tmp_path):
    (tmp_path / "fedcore" / "room").mkdir(parents=True)
    (tmp_path / "tests" / "room").mkdir(parents=True)
    source = "def twice(x):\n    y = 2 * x\n    return y\n"
    (tmp_path / "fedcore/room/parts.py").write_text(source)
    (tmp_path / "tests/room/test_parts.py").write_text("def test_twice():\n    pass\n")
    (tmp_path / "tests/room/test_others.py").write_text("def test_something():\n    assert False\n")
    (mutant, *_) = mutate.mutants_of("fedcore/room/parts.py", source)
    assert mutate.is_noticed(mutant, tmp_path)
    assert not mutate.is_noticed(mutant, tmp_path, near=True)
