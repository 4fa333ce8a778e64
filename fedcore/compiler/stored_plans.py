"""Compiled plans on disk, off unless `FEDCORE_CACHE` names a directory."""

import hashlib
import os
from pathlib import Path

import attrs

from fedcore.compiler.code_digest import code_digest
from fedcore.compiler.pinned_plans import PROGRAM
from fedcore.compiler.pipeline import DEFAULT_PIPELINE
from fedcore.errors import FedcoreError
from fedcore.ir import Module, bundle, verify
from fedcore.types import fits


class StoredPlans:
    """The plans of traced modules, a bundle each.

    Guarantees:
      - A plan is found again only for the same module and pipeline, and the same code of the compiler: fedcore's, that
        of the passes and operations of third parties, and the versions of the packages that these use. Where a third
        party's code cannot be told by its content, no plan is kept.
      - A plan names its program and compiler, so one that stands under another program's name is not used.
      - A file that is damaged, is no plan, or holds operations that `fc.load` refuses, is as if it were not there; the
        next plan is written over it. So programs that print are compiled in every process.
      - A crash, or another thread or process that writes the same plan, leaves a whole file.
      - A directory that cannot be written costs the cache, not the call.
    """

    def __init__(self, directory: str | os.PathLike):
        self.directory = Path(directory)

    def get(self, module: Module, pipeline: str = DEFAULT_PIPELINE) -> Module | None:
        from fedcore.graphs.graphdef.allow_list import check_graphs  # brings TensorFlow in

        key = _key(module, pipeline)
        if key is None:
            return None
        try:
            plan = verify(bundle.read(self._path(key)))
            check_graphs(plan, trusted=False)
        except (OSError, FedcoreError):
            return None
        return _plan_of(plan, key, module)

    def put(self, module: Module, plan: Module, pipeline: str = DEFAULT_PIPELINE) -> None:
        key = _key(module, pipeline)
        if key is None:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            bundle.write(_with_main(plan, {**plan.main.attributes, PROGRAM: key}), self._path(key))
        except OSError:
            return

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}.fed"


def _key(module: Module, pipeline: str) -> str | None:
    """Names everything that decides the plan."""
    code = code_digest()
    if code is None:
        return None
    return hashlib.sha256("\n".join([module.source_digest(), pipeline, code]).encode()).hexdigest()


def _plan_of(stored: Module, key: str, module: Module) -> Module | None:
    """The stored plan as the compiler gave it; None where it is of another program."""
    attributes = dict(stored.main.attributes)
    if stored.stage != "planned" or attributes.pop(PROGRAM, None) != key:
        return None
    have, want = stored.main.type, module.main.type
    return _with_main(stored, attributes) if fits(have, want) and fits(want, have) else None


def _with_main(plan: Module, attributes: dict) -> Module:
    main = attrs.evolve(plan.main, attributes=attributes)
    return attrs.evolve(plan, functions=(*plan.functions[:-1], main))


def stored_plans() -> StoredPlans | None:
    """The cache that `FEDCORE_CACHE` names."""
    directory = os.environ.get("FEDCORE_CACHE")
    return StoredPlans(directory) if directory else None
