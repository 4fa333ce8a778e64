"""Source files of the user that the locations of a module name.

Decision 0086.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fedcore.errors import FedcoreError, Location
from fedcore.ir.module import Module
from fedcore.ir.regular_files import read_regular_file

MAX_SOURCE_BYTES = 400_000


def sources_of(*modules: Module) -> dict[str, str]:
    """The text of each source file, by its name in the locations.

    Reads only files that this process traced, and only below the working directory or the directory of the main
    script. A location that was parsed from a file or a message is untrusted and opens no file.
    """
    paths = {
        location.file: location.path
        for module in modules
        for location in _locations(module)
        if location.path is not None
    }
    roots = _project_roots()
    texts = {name: _text(path, roots) for name, path in sorted(paths.items())}
    return {name: text for name, text in texts.items() if text is not None}


def _locations(module: Module) -> Iterator[Location]:
    for function in module.functions:
        locations = (function.location, *(op.location for op in function.operations))
        yield from (location for location in locations if location is not None)


def _project_roots() -> list[Path]:
    """The working directory and the directory of the main script, unless it is the root of the file system."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    roots = [Path.cwd(), *([Path(main).parent] if main else [])]
    return [root for root in (Path(os.path.realpath(r)) for r in roots) if root != root.parent]


def _text(path: str, roots: list[Path]) -> str | None:
    """The text of a file; None if it is below none of the roots, too large, unreadable or no text."""
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(root) for root in roots):
        return None
    try:
        text = read_regular_file(real, MAX_SOURCE_BYTES).decode()
    except (OSError, FedcoreError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text
