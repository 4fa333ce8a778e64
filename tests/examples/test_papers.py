"""The gallery of papers: entries load, are short and stand in the docs with a picture; one runs at a small size."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import tensorflow as tf  # noqa: F401  before the projects, which load in this process

from fedcore.cli.configuration import read_configuration, sweep
from fedcore.cli.projects import load_project

ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "examples/papers"
NAMES = sorted(path.stem for path in PAPERS.glob("*.toml"))


@pytest.fixture(scope="module")
def reproduce():
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    pytest.importorskip("sklearn")
    sys.path.insert(0, str(PAPERS))  # as where the file runs as a script
    try:
        spec = importlib.util.spec_from_file_location("reproduce", PAPERS / "reproduce.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(PAPERS))


def test_each_entry_has_a_figure(reproduce):
    assert sorted(reproduce.figures.ENTRIES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_loads_with_the_first_and_last_settings_that_it_sweeps_over(reproduce, name, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = PAPERS / f"{name}.toml"
    settings = [
        s
        for options in reproduce.figures.ENTRIES[name].sweeps
        for s in sweep(read_configuration(path), options.split())
    ]
    for _, configuration in (settings[0], settings[-1]):
        project = load_project(PAPERS / configuration["program"], configuration)
        assert project.evaluation is not None


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_short(name):
    assert len([line for line in (PAPERS / f"{name}.py").read_text().splitlines() if line.strip()]) <= 40


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_the_picture_the_claim_and_the_command(name):
    page = (ROOT / "docs/gallery.md").read_text()
    (section,) = [part for part in re.split("^## ", page, flags=re.MULTILINE) if f"](gallery/{name}.png)" in part]
    assert f"python examples/papers/reproduce.py {name}" in section
    for word in ("**The paper.**", "**Here.**", "**Differs.**", "arXiv:"):
        assert word in section
    assert (ROOT / f"docs/gallery/{name}.png").stat().st_size <= 60_000


@pytest.mark.slow
def test_an_entry_runs_draws_and_leaves_finished_runs_as_they_are(reproduce, tmp_path):
    sweeps = [
        "run.rounds=1 run.clients_per_round=3 method.name=FedAvg,SCAFFOLD method.lr=0.1 data.epochs=1 stop.accuracy=0.0"
    ]
    picture = tmp_path / "pictures/scaffold.png"
    table = reproduce.reproduce("scaffold", tmp_path / "runs", picture, sweeps)
    assert list(table.columns) == ["epochs", "FedAvg", "SCAFFOLD"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/metrics.csv")}
    assert len(written) == 2
    again = reproduce.reproduce("scaffold", tmp_path / "runs", picture, sweeps)
    assert again.equals(table)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/metrics.csv")} == written
