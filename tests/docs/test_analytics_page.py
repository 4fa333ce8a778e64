"""The code of docs/analytics.md runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "analytics.md"


def test_the_code_of_the_page_runs():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(block, str(PAGE), "exec"), {})
