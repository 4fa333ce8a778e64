"""The lines that examples/keras_script.diff changes make a Keras script train at clients, and score as it does."""

import re
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "examples/keras_script.py").read_text()
HUNKS = re.split(r"^@@.*\n", (ROOT / "examples/keras_script.diff").read_text(), flags=re.MULTILINE)[1:]


def patched(script: str) -> str:
    for hunk in HUNKS:
        lines = hunk.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
        assert script.count(old) == 1
        script = script.replace(old, new)
    return script


def run(script: str, **options) -> float:
    namespace = {"__name__": "script"}
    exec(compile(script, "keras_script.py", "exec"), namespace)
    return namespace["main"](**options)


def test_twelve_lines_of_64_change_at_most():
    changes = [
        sum(line.startswith(sign) and line.strip() != sign for line in "".join(HUNKS).splitlines()) for sign in "+-"
    ]
    assert len(SCRIPT.splitlines()) == 64
    assert max(changes) <= 12


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation", "ignore:unclosed file")
def test_the_changed_script_trains_as_the_script_does(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    alone, federated = run(SCRIPT, epochs=8), run(patched(SCRIPT), epochs=16)
    assert federated > 0.8 < alone
    assert {path.name for path in tmp_path.iterdir()} == {"digits.csv", "digits.keras"}
    assert len((tmp_path / "digits.csv").read_text().splitlines()) == 17
