"""Every recipe of docs/extending.md runs, in order; README names each."""

import linecache
import re
from pathlib import Path

import pytest

from fedcore.compiler import all_passes, pipeline
from fedcore.graphs.batched import batched_value
from fedcore.graphs.stages import kernels
from fedcore.ir import registry

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
RECIPES = [
    "intrinsic",
    "core operation",
    "pass",
    "runtime",
    "executor of clients",
    "aggregator",
    "optimizer",
    "algorithm",
    "dataset",
]


@pytest.fixture
def forgotten():
    """Operations, passes, kernels and batching rules that the page declares are forgotten after it."""
    all_passes()  # built-in passes are declared when first needed; they stay
    tables = [registry._registry, pipeline._registry, kernels.kernels, batched_value.batching_rules]
    before = [dict(table) for table in tables]
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)


def test_every_recipe_runs(monkeypatch, forgotten):
    source = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    name = str(PAGE.with_suffix(".py"))  # AutoGraph reads a function's source
    monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
    exec(compile(source, name, "exec"), {"__name__": "extending"})


def test_there_is_a_recipe_for_each_kind_of_part():
    titles = re.findall(r"^## An? (.*)$", PAGE.read_text(), re.MULTILINE)
    assert titles == RECIPES
    for title, recipe in zip(titles, re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:], strict=True):
        assert "```python" in recipe, title


def test_the_readme_leads_to_each_recipe():
    section = (ROOT / "README.md").read_text().partition("## Extending it")[2]
    for recipe in RECIPES:
        assert f"docs/extending.md#a{'n' if recipe[0] in 'aeiou' else ''}-{recipe.replace(' ', '-')})" in section
