"""The type of options that name what a command writes."""

from typing import Any

import click


class OutputPath(click.Path):
    """A path that is not empty: the empty one, as of an unset shell variable, would be the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("", b""):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)
