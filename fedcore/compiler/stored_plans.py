"""Compiled plans on disk, off unless `FEDCORE_CACHE` names a directory."""

import hashlib
import importlib.metadata
import os
from pathlib import Path

from fedcore.compiler.pipeline import DEFAULT_PIPELINE
from fedcore.errors import FedcoreError
from fedcore.ir import Module, bundle, verify

_MADE_WITH = ("tensorflow", "keras", "numpy")


class StoredPlans:
    """The plans of traced modules, a bundle each.

    Guarantees:
      - A plan is found again only for the same module, pipeline and versions of fedcore and TensorFlow.
      - A file that is damaged, is no plan, or holds operations that `fc.load` refuses, is as if it were not there; the
        next plan is written over it. So programs that print are compiled in every process.
      - A crash, or another process that writes the same plan, leaves a whole file.
      - A directory that cannot be written costs the cache, not the call.
    """

    def __init__(self, directory: str | os.PathLike):
        self.directory = Path(directory)

    def get(self, digest: str, pipeline: str = DEFAULT_PIPELINE) -> Module | None:
        from fedcore.graphs.allowed import check_graphs  # brings TensorFlow in

        try:
            plan = verify(bundle.read(self._path(digest, pipeline)))
            check_graphs(plan, trusted=False)
        except (OSError, FedcoreError):
            return None
        return plan if plan.stage == "planned" else None

    def put(self, digest: str, plan: Module, pipeline: str = DEFAULT_PIPELINE) -> None:
        path = self._path(digest, pipeline)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(bundle.to_bytes(plan))
            partial.replace(path)
        except OSError:
            return

    def _path(self, digest: str, pipeline: str) -> Path:
        key = "\n".join([digest, pipeline, *_versions()])
        return self.directory / f"{hashlib.sha256(key.encode()).hexdigest()}.fed"


def _versions() -> list[str]:
    from fedcore import __version__

    found = [f"fedcore {__version__}"]
    for name in _MADE_WITH:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:  # built from source, without metadata
            found.append(f"{name} unknown")
    return found


def stored_plans() -> StoredPlans | None:
    """The cache that `FEDCORE_CACHE` names."""
    directory = os.environ.get("FEDCORE_CACHE")
    return StoredPlans(directory) if directory else None
