"""Every recipe of docs/extending.md runs; README names each."""

import re
from pathlib import Path

import pytest
import warm_processes

from scripts.site.insertions import insert

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
PROGRAMS = sorted((ROOT / "examples" / "recipes").glob("*.py"))
RECIPES = [
    "intrinsic",
    "core operation",
    "pass",
    "check of the linter",
    "rewrite of a client stage",
    "runtime",
    "executor of clients",
    "aggregator",
    "encoder",
    "metric",
    "optimizer",
    "algorithm",
    "algorithm whose clients keep a state",
    "dataset",
    "analysis",
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_every_recipe_runs(program):
    warm_processes.python({"file": str(program)})  # in a process of its own, which ends with what it declared


def test_the_page_shows_every_recipe():
    assert sorted(re.findall(r"<!-- site: \.\./examples/recipes/(\w+)\.py -->", PAGE.read_text())) == [
        file.stem for file in PROGRAMS
    ]


def test_there_is_a_recipe_for_each_kind_of_part():
    text = insert(PAGE.read_text(), PAGE)
    titles = re.findall(r"^## An? (.*)$", text, re.MULTILINE)
    assert titles == RECIPES
    for title, recipe in zip(titles, re.split(r"^## ", text, flags=re.MULTILINE)[1:], strict=True):
        assert "```python" in recipe, title


def test_the_readme_leads_to_each_recipe():
    section = (ROOT / "README.md").read_text().partition("## Extending it")[2]
    for recipe in RECIPES:
        assert f"docs/extending.md#a{'n' if recipe[0] in 'aeiou' else ''}-{recipe.replace(' ', '-')})" in section
