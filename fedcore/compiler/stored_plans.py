"""On-disk cache of compiled plans; off unless `FEDCORE_CACHE` names a directory.

Decision 0073.
"""

import hashlib
import os
from pathlib import Path

import attrs

from fedcore.compiler.code_digest import code_digest
from fedcore.compiler.host_target import default_target
from fedcore.compiler.pinned_plans import PROGRAM, pin_plan
from fedcore.compiler.pipeline import DEFAULT_PIPELINE
from fedcore.errors import FedcoreError
from fedcore.ir import Module, bundle, verify
from fedcore.ir.source_table import graph_lines
from fedcore.types import fits


class StoredPlans:
    """Plans by traced module, pipeline, default target and code of the compiler; each is one bundle.

    Guarantees:
      - The key includes `code_digest`: a plan of other code is not found. Without a code digest, nothing is stored.
      - A plan holds its key, so a plan under the file name of another key is not used.
      - A file that is damaged, is not a plan, or holds operations that `fc.load` refuses, counts as missing and is
        overwritten. So programs that print are compiled in every process.
      - Writes are atomic: a crash or a concurrent writer of the same plan leaves a complete file.
      - Without write access to the directory, nothing is stored and no call fails.
    """

    def __init__(self, directory: str | os.PathLike) -> None:
        self.directory = Path(directory)

    def get(self, module: Module, pipeline: str = DEFAULT_PIPELINE) -> Module | None:
        """The stored plan of a traced module; None if there is none."""
        from fedcore.graphs.graphdef.validation.allow_list import check_graphs  # brings TensorFlow in

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
        """Stores the plan of a traced module."""
        key = _key(module, pipeline)
        if key is None:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            bundle.write(pin_plan(plan, key), self._path(key))
        except OSError:
            return

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}.fed"


def _key(module: Module, pipeline: str) -> str | None:
    """Digest of everything that determines the plan; None without a code digest."""
    code = code_digest()
    if code is None:
        return None
    lines = [line for graph in module.graphs for line in graph_lines(graph)]  # which errors of the plan show
    parts = [module.plan_key(), pipeline, str(default_target()), code, *lines]
    return hashlib.sha256("\n".join(parts).encode(errors="replace")).hexdigest()


def _plan_of(stored: Module, key: str, module: Module) -> Module | None:
    """The plan of a traced module as it was compiled, without its key; None if it is that of another program."""
    attributes = dict(stored.main.attributes)
    if stored.stage != "planned" or attributes.pop(PROGRAM, None) != key:
        return None
    have, want = stored.main.type, module.main.type
    if not (fits(have, want) and fits(want, have)):
        return None
    main = attrs.evolve(stored.main, attributes=attributes)
    plan = attrs.evolve(stored, functions=(*stored.functions[:-1], main))
    return plan.with_element_names(module.element_names)


def stored_plans() -> StoredPlans | None:
    """The cache in the directory that `FEDCORE_CACHE` names; None if it names none."""
    directory = os.environ.get("FEDCORE_CACHE")
    return StoredPlans(directory) if directory else None
