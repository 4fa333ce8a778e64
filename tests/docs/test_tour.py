"""Every snippet of docs/tour.md runs, in order."""

import linecache
import re
from pathlib import Path

TOUR = Path(__file__).parents[2] / "docs" / "tour.md"


def test_every_snippet_of_the_tour_runs(monkeypatch):
    source = "\n".join(re.findall(r"```python\n(.*?)```", TOUR.read_text(), re.DOTALL))
    assert source.count("assert") >= 10
    name = str(TOUR.with_suffix(".py"))  # AutoGraph reads a function's source
    monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
    exec(compile(source, name, "exec"), {"__name__": "tour"})


def test_the_tour_has_ten_steps():
    assert re.findall(r"^\*\*(\d+)\.", TOUR.read_text(), re.MULTILINE) == [str(i) for i in range(1, 11)]
