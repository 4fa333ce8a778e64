"""Each `passes/*.fed` shows what a pipeline does to one tiny program; `--update-goldens` rewrites what it became."""

import re
from pathlib import Path

import pytest

import fedcore.intrinsics  # noqa: F401  declares the operations that the texts name
from fedcore.compiler import all_passes, compile_module
from fedcore.ir import parse_module, verify

from .test_forms import shown

FOLDER = Path(__file__).parent / "passes"
FILES = sorted(FOLDER.glob("*.fed"))
ARROW = "// ==>\n"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_program_becomes_what_its_file_shows(path, update_goldens):
    head, _, want = path.read_text().partition(ARROW)
    (pipeline,) = re.findall(r"// RUN: (.*)", head)
    became = shown(str(compile_module(verify(parse_module(head)), pipeline)))
    if update_goldens:
        path.write_text(head + ARROW + became)
        return
    assert became == want


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_golden_program_has_a_title(path):
    assert re.match(r"// [a-z].+\n// RUN: ", path.read_text())


def test_every_pass_is_shown():
    named = {
        name for path in FILES for name in re.findall(r"[a-z][a-z-]*", re.findall(r"// RUN: (.*)", path.read_text())[0])
    }
    assert named >= {p.name for p in all_passes()} - {"grappler", "hoist-relu-gradients"}  # they change graphs inside
