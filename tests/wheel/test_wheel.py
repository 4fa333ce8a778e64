"""The wheel, installed in an environment that has no source of fedcore, does what README promises."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import fedcore as fc

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def run(*command, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(command, cwd=cwd, env=environment, text=True, capture_output=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A fresh environment with the wheel; the packages that it needs are those of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env/bin/python"
    install = ["install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check", wheel]
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=folder)
    needed = sysconfig.get_path("purelib")
    (site_packages,) = (folder / "env").glob("lib/python*/site-packages")
    (site_packages / "needed.pth").write_text(f"import site; site.addsitedir({needed!r})\n")
    return folder / "env"


DEMO = """
import pathlib, runpy, sys
assert pathlib.Path(fc.__file__).is_relative_to(sys.prefix), fc.__file__
sys.argv = ["fedcore", "demo", "--rounds", "2", "--out", "demo"]
runpy.run_path(sys.prefix + "/bin/fedcore", run_name="__main__")
"""


def test_readmes_program_and_the_demo_run_in_a_process(environment, tmp_path):
    program = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    lines = run(environment / "bin/python", "-c", program + DEMO, cwd=tmp_path).splitlines()
    assert [line.split()[0] for line in lines[:20]] == [str(number) for number in range(20)]
    assert any("accuracy" in line for line in lines[20:])
    assert list((tmp_path / "demo").iterdir())


def test_the_command_is_there(environment, tmp_path):
    assert run(environment / "bin/fedcore", "--version", cwd=tmp_path).strip().endswith(fc.__version__)


def test_type_checkers_find_the_wheels_types(environment):
    (package,) = environment.glob("lib/python*/site-packages/fedcore")
    assert (package / "py.typed").exists()
