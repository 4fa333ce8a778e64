"""What editors and type checkers see of `fc`: every public name, and programs of users without a complaint."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.public_names import public_names

ROOT = Path(__file__).parents[2]
PYRIGHT = shutil.which("pyright")


def readme_program() -> str:
    """README's federated averaging: its first two blocks."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return "".join(blocks[:2])


def mypy(*files: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", *files]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True).stdout


def pyright(*files: Path) -> str:
    command = [PYRIGHT or "", "--pythonpath", sys.executable, *files]
    return subprocess.run(command, cwd=files[0].parent, text=True, capture_output=True).stdout


CHECKERS = [
    mypy,
    pytest.param(pyright, marks=pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed")),
]


@pytest.mark.timeout(600)  # mypy has no cache unless `make lint` ran
@pytest.mark.parametrize("check", CHECKERS)
def test_every_public_name_has_a_type(check, tmp_path):
    program = tmp_path / "names.py"
    program.write_text("import fedcore as fc\n" + "".join(f"reveal_type({name})\n" for name in public_names()))
    output = check(program)
    assert re.findall(r'.*(?:[:-] error: |\bis "(?:Any|Unknown)").*', output) == []
    assert re.search(r"no issues|0 errors", output), output


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", CHECKERS)
def test_a_users_program_has_no_errors(check, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(readme_program())
    output = check(program, *sorted((ROOT / "examples").glob("*.py")))
    assert re.search(r"no issues|0 errors", output), output


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", CHECKERS)
def test_a_misspelt_name_is_an_error(check, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import fedcore as fc\n\nfc.learning.algorithms.build_wieghted_fed_avg\n")
    assert "build_wieghted_fed_avg" in check(program)
