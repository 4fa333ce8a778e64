"""Each `forms/*.fed` is a program at one stage of its compilation; `--update-goldens` rewrites it."""

import collections
import functools
import re
from pathlib import Path

import pytest

from .programs import PROGRAMS

FOLDER = Path(__file__).parent / "forms"
# Stages at the clients and crossings: what a change of the compiler must not add to.
SHAPES = {
    "fed_avg": {"run": 2, "broadcast": 1, "fold": 1, "merge": 1},
    "fed_eval": {"run": 2, "broadcast": 1, "fold": 1, "merge": 1},
    "fed_prox": {"run": 2, "broadcast": 1, "fold": 1, "merge": 1},
    "selected": {"run": 1, "broadcast": 2, "fold": 1, "merge": 1},
    "mean_and_variance": {"run": 2, "broadcast": 1, "fold": 2, "merge": 2},
}


@functools.cache
def computation(name: str):
    return PROGRAMS[name]()


def shown(text: str) -> str:
    """The text without digests of graphs, which change with TensorFlow's version, and lines of the library's files.

    An operation's location is shown where it differs from that of the line above.
    """
    text = re.sub(r'( in "[^"]*"):\d+', r"\1:…", re.sub(r"sha256:[0-9a-f]{64}", "sha256:…", text))
    lines, above = [], ""
    for line in text.split("\n"):
        body, _, location = line.partition("   loc(")
        if body.startswith("  %"):
            location = location or "none)"
            line = body if location == above else f"{body}   loc({location}"
        lines.append(line)
        above = location
    return "\n".join(lines)


@pytest.mark.parametrize("stage", ["traced", "lowered", "planned"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_the_form_that_its_file_shows(name, stage, update_goldens):
    path = FOLDER / f"{name}.{stage}.fed"
    text = shown(computation(name).to_text(stage))
    if update_goldens:
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_as_few_stages_as_it_needs(name):
    kinds = collections.Counter(op.kind for op in computation(name).to_module("planned").main.operations)
    assert {k: n for k, n in kinds.items() if k not in ("struct", "item")} == SHAPES[name]
