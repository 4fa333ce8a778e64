"""Golden files: a title, `// RUN: passes`, a module or region, `// ==>`, and what it becomes."""

import difflib
import os
import re
from pathlib import Path

from fedcore.compiler import compile_module, parse_pipeline
from fedcore.errors import InvalidValue
from fedcore.ir import parse_module, verify
from fedcore.testing.laws import LawBroken
from fedcore.whole_files import write_whole

ARROW = "// ==>\n"
UPDATE = "FEDCORE_UPDATE_GOLDENS"
"""The variable of the environment that has golden files rewritten."""

REGION = ".region"

_RUN = re.compile(r"// RUN: (.+)")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def check_golden(path: str | Path, *, update: bool | None = None) -> None:
    """Checks that a golden file shows what its passes do.

    The file has a title as a comment, `// RUN:` with passes as for `fedcore opt -p`, a program, `// ==>`, and what the
    program becomes. A `.region` file has a region and stage passes, any other one a module and passes on modules.

    Args:
        update: write what the program becomes into the file. Default: whether FEDCORE_UPDATE_GOLDENS is set, to
            anything but 0.
    Raises:
        LawBroken: it becomes something else; shows the lines that differ.
        InvalidValue: the file has no `// RUN:`.
        ParseError: the program does not parse.
    Example:
        >>> fc.testing.check_golden('goldens/drop_maximum.fed')
    """
    path = Path(path)
    text = path.read_text()
    head, _, want = text.partition(ARROW)
    run = _RUN.search(head)
    if run is None:
        raise InvalidValue(f"{path} has no line `// RUN: PASSES`, such as `// RUN: cse,dce`")
    result = (_rewritten_region if path.suffix == REGION else _compiled_module)(head, run[1])
    if update if update is not None else os.environ.get(UPDATE, "0") not in ("", "0"):
        if head + ARROW + result != text:
            write_whole(path, head + ARROW + result)
        return
    if result != want:
        lines = difflib.unified_diff(want.splitlines(), result.splitlines(), "the file", "now", lineterm="", n=2)
        diff = "\n".join(lines)
        raise LawBroken(
            f"{path} shows what {run[1]} does", f"{diff}\nfix: {UPDATE}=1 rewrites the file, if that is right"
        )


def _rewritten_region(head: str, passes: str) -> str:
    from fedcore.graphs.dataflow.stage_passes import get_stage_pass
    from fedcore.graphs.dataflow.text_parser import parse_regions

    texts = []
    for parsed in parse_regions(head):
        region = parsed.region
        for stage_pass, options in parse_pipeline(passes, get_stage_pass):
            region = stage_pass.run(region, **options)
        texts.append(parsed.print(region))
    return "\n".join(texts)


def _compiled_module(head: str, passes: str) -> str:
    """The text with graphs without their digests, which change with TensorFlow's version."""
    return _DIGEST.sub("sha256:…", str(compile_module(verify(parse_module(head)), passes)))
