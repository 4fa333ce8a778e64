"""Options that name a file that a command writes."""

from pathlib import Path
from typing import Any

import click

from fedcore.ir import Module, bundle


class OutputPath(click.Path):
    """A path that is not empty: the empty one, as of an unset shell variable, would be the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("", b""):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


def write_module(module: Module, path: str | Path, option: str) -> None:
    """Writes a module to the file that an option names.

    Raises:
        click.BadParameter: the file cannot be written.
    """
    try:
        bundle.write(module, path)
    except OSError as error:
        raise click.BadParameter(f"cannot write {path}: {error.strerror}", param_hint=option) from None
