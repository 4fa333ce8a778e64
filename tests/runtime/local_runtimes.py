"""Local runtimes for a `with` block, and ones that stay."""

import contextlib
import functools
from collections.abc import Iterator

import fedcore as fc
from fedcore.runtime import LocalRuntime


@contextlib.contextmanager
def local_runtime(**settings) -> Iterator[LocalRuntime]:
    """A local runtime that is in use in the `with` block, and closed at its end."""
    runtime = fc.runtime.local(**settings)
    try:
        with fc.use(runtime):
            yield runtime
    finally:
        runtime.close()


@functools.cache
def shared_runtime(**settings) -> LocalRuntime:
    """A local runtime that tests share, with what it has compiled; each kind of settings has one."""
    return fc.runtime.local(**settings)
