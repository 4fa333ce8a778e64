"""Every public name below `fc`, as documents and type checkers must know it."""

import types
from collections.abc import Iterator

import fedcore as fc
from fedcore.compat.names import PLACES


def public_names(package: types.ModuleType = fc, path: str = "fc", seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The dotted names of a package and of the modules in it, such as `fc.learning.algorithms`; TFF's names too."""
    inner = path.removeprefix("fc").removeprefix(".")
    own = getattr(package, "__all__", None) or [n for n, value in vars(package).items() if is_own(package, n, value)]
    moved = (name.rpartition(".")[2] for name in PLACES if name.rpartition(".")[0] == inner)
    for name in sorted({*own, *moved}):
        value = getattr(package, name)
        yield f"{path}.{name}"
        if isinstance(value, types.ModuleType) and value.__name__ not in seen | {package.__name__}:
            yield from public_names(value, f"{path}.{name}", seen | {package.__name__})


def is_own(module: types.ModuleType, name: str, value: object) -> bool:
    """Whether a module without `__all__` defines a name, rather than imports it."""
    return not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
