"""Every recipe of docs/extending.md runs, in order; README names each."""

import os
import re
from pathlib import Path

import warm_processes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
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


def test_every_recipe_runs(tmp_path):
    source = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    (tmp_path / "extending.py").write_text(source)  # in a process of its own, which ends with what it declared
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = warm_processes.run({"code": "import extending"}, cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr.decode()


def test_there_is_a_recipe_for_each_kind_of_part():
    titles = re.findall(r"^## An? (.*)$", PAGE.read_text(), re.MULTILINE)
    assert titles == RECIPES
    for title, recipe in zip(titles, re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:], strict=True):
        assert "```python" in recipe, title


def test_the_readme_leads_to_each_recipe():
    section = (ROOT / "README.md").read_text().partition("## Extending it")[2]
    for recipe in RECIPES:
        assert f"docs/extending.md#a{'n' if recipe[0] in 'aeiou' else ''}-{recipe.replace(' ', '-')})" in section
