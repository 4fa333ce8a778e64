"""The Python blocks of docs/client-stages.md run; its texts are what they make. `--update-goldens` writes the texts."""

import linecache
import re
import textwrap
from pathlib import Path

import pytest

from fedcore.graphs.dataflow.stage_passes import DEFAULT_STAGE_PIPELINE
from fedcore.testing.regions import node_count

PAGE = Path(__file__).parents[2] / "docs" / "client-stages.md"


@pytest.fixture
def stage(monkeypatch):
    """The regions that the page's program makes."""
    source = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    name = str(PAGE.with_suffix(".py"))  # AutoGraph reads a function's source
    monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
    names = {"__name__": "client_stages"}
    exec(compile(source, name, "exec"), names)
    return names["stage"]


def loop_over_steps(text: str) -> str:
    """The innermost loop of a region's text."""
    lines = text.splitlines()
    begin = max(i for i, line in enumerate(lines) if " = scan(" in line)
    margin = len(lines[begin]) - len(lines[begin].lstrip())
    end = next(i for i in range(begin, len(lines)) if lines[i] == " " * margin + "}")
    return textwrap.dedent("\n".join(lines[begin : end + 1])) + "\n"


def without_sources(text: str) -> str:
    """A region's text without the code of each node: on this page all are of one function."""
    return re.sub(r"(   // |; )docs/client-stages\.py:\d+.*$", "", text, flags=re.MULTILINE)


def texts_of(stage) -> dict[str, str]:
    """The content of each generated block of the page, by its heading."""
    regions = [(each.pass_, each.region) for each in stage.log]
    printed = [without_sources(stage.text(each.function, each.region)) for each in stage.log]
    counts = [f"{f'after {name}' if name else 'as built':<12} {node_count(region)}" for name, region in regions]
    return {
        "schedule": f"{stage.schedule}\n",
        "region as built": loop_over_steps(printed[0]),
        "region after all": loop_over_steps(printed[-1]),
        "counts": "\n".join(counts) + "\n",
    }


def test_the_texts_are_those_of_the_program(stage, update_goldens):
    page = PAGE.read_text()
    for heading, text in texts_of(stage).items():
        block = re.search(rf"^```{heading}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        assert block, heading
        if update_goldens:
            page = page[: block.start(1)] + text + page[block.end(1) :]
        else:
            assert block[1] == text
    if update_goldens:
        PAGE.write_text(page)


def test_the_passes_are_named_in_order():
    (names,) = re.findall(r"→ stage passes +region to region: (.*)", PAGE.read_text())
    assert names.split(", ") == list(DEFAULT_STAGE_PIPELINE)
