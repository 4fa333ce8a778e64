"""What editors and type checkers see of `fc`: every public name, and programs of users without a complaint."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.public_names import public_names

ROOT = Path(__file__).parents[2]
CHECKERS = {
    "mypy": ["mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")],
    "pyright": ["basedpyright", "--pythonpath", sys.executable],
}
"""Modules with their arguments. basedpyright is pyright with its Node in wheels; it takes pyright's settings."""


def readme_program() -> str:
    """README's federated averaging: its first two blocks."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return "".join(blocks[:2])


PROGRAMS = {
    "names": "import fedcore as fc\n" + "".join(f"reveal_type({name})\n" for name in public_names()),
    "readme": readme_program(),
    "misspelt": "import fedcore as fc\n\nfc.learning.algorithms.build_wieghted_fed_avg\n",
}


@pytest.fixture(scope="module", params=CHECKERS)
def output_lines(request, tmp_path_factory) -> list[str]:
    """What a checker says of the programs and the examples, in a single run."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    for name, text in PROGRAMS.items():
        (folder / f"{name}.py").write_text(text)
    module, *options = CHECKERS[request.param]
    pytest.importorskip(module)
    files = [*folder.glob("*.py"), *(ROOT / "examples").glob("*.py")]
    ended = subprocess.run([sys.executable, "-m", module, *options, *files], cwd=folder, text=True, capture_output=True)
    assert "error" in ended.stdout, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout.splitlines()


def test_every_public_name_has_a_type(output_lines):
    lines = [line for line in output_lines if "names.py:" in line]
    assert len(lines) >= len(PROGRAMS["names"].splitlines()) - 1
    assert [line for line in lines if re.search(r'[:-] error: |\bis "(?:Any|Unknown)"', line)] == []


def test_programs_of_users_have_no_errors(output_lines):
    errors = [line for line in output_lines if re.search("[:-] error: ", line)]
    assert [line for line in errors if "misspelt.py:" not in line] == []


def test_a_misspelt_name_is_an_error(output_lines):
    (line,) = [line for line in output_lines if "misspelt.py:" in line and "error: " in line]
    assert "build_wieghted_fed_avg" in line
