"""CONTRIBUTING's commands are those of the Makefile."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_hooks_run_what_lint_runs():
    hooks = re.findall(r"entry: \.venv/bin/(.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    (recipe,) = re.findall(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    lint = re.findall(r"\$\(BIN\)/([^|{\n]*)", recipe)
    assert [hook.replace(" --force-exclude", "") for hook in hooks] == [c.replace(" --quiet", "").strip() for c in lint]


def test_the_targets_are_in_the_makefile():
    targets = re.findall(r"\bmake ([a-z-]+)`?", (ROOT / "CONTRIBUTING.md").read_text())
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


def test_the_places_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:fedcore|tests|docs)/[\w/.]*)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
