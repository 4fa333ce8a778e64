"""The code of docs/your-data.md runs."""

import importlib.util
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "your-data.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    has_huggingface = importlib.util.find_spec("datasets") is not None
    blocks = [block for block in BLOCKS if has_huggingface or "import datasets" not in block]
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("['a', 'b'] {'age': TensorSpec(shape=(), dtype=tf.float32")
    assert "['ann', 'bob'] ['cat', 'dog']" in lines


def test_the_table_names_what_there_is():
    import fedcore as fc

    table = PAGE.read_text().partition("\n## ")[0]
    names = set(re.findall(r"`(?:[^`]*? )?(from_\w+|image_folders|split_over_clients|\w+ClientData)\(", table))
    assert len(names) >= 8
    assert [name for name in names if not hasattr(fc.simulation.datasets, name)] == []
