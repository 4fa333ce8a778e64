"""The texts of docs/client-stages.md are those of its program. `--update-goldens` writes them."""

import re
import runpy
import textwrap
from pathlib import Path

import pytest

from fedcore.graphs.dataflow.stage_passes import DEFAULT_STAGE_PIPELINE
from fedcore.testing.regions import node_count

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "client-stages.md"


@pytest.fixture(scope="module")
def stage():
    """The regions that the page's program makes."""
    return runpy.run_path(str(ROOT / "examples/client_stage.py"))["stage"]


def loop_over_steps(text: str) -> str:
    """The innermost loop of a region's text."""
    lines = text.splitlines()
    begin = max(i for i, line in enumerate(lines) if " = scan(" in line)
    margin = len(lines[begin]) - len(lines[begin].lstrip())
    end = next(i for i in range(begin, len(lines)) if lines[i] == " " * margin + "}")
    return textwrap.dedent("\n".join(lines[begin : end + 1])) + "\n"


def without_sources(text: str) -> str:
    """A region's text without the code of each node: on this page all are of one function."""
    return re.sub(r"(   // |; )[\w/.]*client_stage\.py:\d+.*$", "", text, flags=re.MULTILINE)


def loops_of(stage) -> dict[str, str]:
    """The content of each file of the page, by its name."""
    printed = [without_sources(stage.text(each.function, each.region)) for each in stage.log]
    return {"as_built": loop_over_steps(printed[0]), "after_all_passes": loop_over_steps(printed[-1])}


def texts_of(stage) -> dict[str, str]:
    """The content of each generated block of the page, by its heading."""
    regions = [(each.pass_, each.region) for each in stage.log]
    counts = [f"{f'after {name}' if name else 'as built':<12} {node_count(region)}" for name, region in regions]
    return {"schedule": f"{stage.schedule}\n", "counts": "\n".join(counts) + "\n"}


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


def test_the_loops_are_those_of_the_program(stage, update_goldens):
    for name, text in loops_of(stage).items():
        file = PAGE.with_suffix("") / f"{name}.region"
        assert f"<!-- site: client-stages/{file.name} -->" in PAGE.read_text()
        if update_goldens:
            file.write_text(text)
        assert file.read_text() == text


def test_the_passes_are_named_in_order():
    (names,) = re.findall(r"→ stage passes +region to region: (.*)", PAGE.read_text())
    assert names.split(", ") == list(DEFAULT_STAGE_PIPELINE)
