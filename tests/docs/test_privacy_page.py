"""The code of docs/privacy.md runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"


def test_the_code_of_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {})
