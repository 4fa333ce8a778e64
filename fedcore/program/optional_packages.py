"""Packages that are installed with an extra of fedcore."""

import importlib
import importlib.util
from types import ModuleType

from fedcore.errors import InvalidValue


def is_installed(module: str) -> bool:
    """Whether a package is installed. A folder of its name, such as one of a training, is no package."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def optional_package(module: str, wanted_by: str, *, extra: str) -> ModuleType:
    """Imports a module.

    Raises:
        InvalidValue: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module.split(".")[0]:
            raise
        raise InvalidValue(
            f"{wanted_by} needs {missing.name}, which is not installed\n  fix: pip install 'fedcore[{extra}]'"
        ) from None
