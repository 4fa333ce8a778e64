"""The notebooks of the project run from their first cell to their last, and show what they say."""

from pathlib import Path

import nbclient
import nbformat
import pytest
from jupyter_client.manager import start_new_kernel

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all notebooks, so that TensorFlow is imported once; each notebook starts without names."""
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def outputs_of(name, kernel, tmp_path):
    """The outputs of a notebook's cells, as one text."""
    manager, client = kernel
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "a notebook is kept without outputs"
    runner = nbclient.NotebookClient(notebook, km=manager, timeout=100)
    runner.kc = client
    client.execute_interactive("%reset -f", timeout=60)
    for index, cell in enumerate(notebook.cells):
        runner.execute_cell(cell, index)
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown += [output.get("text", ""), *(f"{kind} {value}" for kind, value in output.get("data", {}).items())]
    return "\n".join(map(str, shown))


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("quick_start", ["round 10, seed", "trainable[0]", "val_accuracy", "image/png"]),
        ("your_own_algorithm", ["@CLIENTS", "[ 1.9", "float32[3]"]),
        ("looking_inside", ["fold", "merge", "strategy=", "to the server", "lowered"]),
    ],
)
def test_a_notebook_runs(name, texts, kernel, tmp_path):
    shown = outputs_of(name, kernel, tmp_path)
    for text in texts:
        assert text in shown
