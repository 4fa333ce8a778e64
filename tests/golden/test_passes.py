"""Each `passes/*.fed` shows what a pipeline does to one tiny program; `--update-goldens` rewrites what it became."""

import re
from pathlib import Path

import pytest

import fedcore.intrinsics  # noqa: F401  declares the operations that the texts name
from fedcore.compiler import all_passes
from fedcore.testing import check_golden

FOLDER = Path(__file__).parent / "passes"
FILES = sorted(FOLDER.glob("*.fed"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_program_becomes_what_its_file_shows(path, update_goldens):
    check_golden(path, update=update_goldens)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_golden_program_has_a_title(path):
    assert re.match(r"// [a-z].+\n// RUN: ", path.read_text())


def test_every_pass_is_shown():
    named = {
        name for path in FILES for name in re.findall(r"[a-z][a-z-]*", re.findall(r"// RUN: (.*)", path.read_text())[0])
    }
    assert named >= {p.name for p in all_passes()} - {"grappler", "hoist-relu-gradients"}  # they change graphs inside
