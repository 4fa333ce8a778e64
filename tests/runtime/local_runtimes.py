"""Local runtimes for a `with` block."""

import contextlib
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
