"""The error where a network's engine is not installed."""

import contextlib
from collections.abc import Iterator

from fedcore.errors import FedcoreError


@contextlib.contextmanager
def engine_installed(extra: str = "nvflare") -> Iterator[None]:
    """Makes an import of an engine that fails in the `with` block a FedcoreError with the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise FedcoreError(f"{error.name} is not installed: pip install 'fedcore[{extra}]'") from error
