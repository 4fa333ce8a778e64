"""Plans that `fedcore tune` wrote, each for one program.

Decision 0021.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import attrs

from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.ir import Module, bundle, verify
from fedcore.types import explain, fits

PROGRAM = "program"
"""Attribute of a plan's main function: the digest of the traced program."""


def pin_plan(plan: Module, program: str) -> Module:
    """The plan with the digest of its traced program as an attribute."""
    main = attrs.evolve(plan.main, attributes={**plan.main.attributes, PROGRAM: program})
    return attrs.evolve(plan, functions=(*plan.functions[:-1], main))


class PinnedPlans:
    """Pinned plans by program.

    Guarantees:
      - A program never gets a plan that was made for another program.

    Args:
        plans: pairs of a source, for messages, and a plan.
    Raises:
        FedcoreError: a plan is not pinned, or two different plans are pinned for one program.
    """

    def __init__(self, plans: Iterable[tuple[str, Module]]) -> None:
        self._plans: dict[str, tuple[str, Module]] = {}  # by digest of the traced program
        for source, plan in plans:
            other_source, other = self._plans.setdefault(_program_of(source, plan), (source, plan))
            if other != plan:
                raise FedcoreError(
                    f"two plans of one program, @{plan.main.name}: which one is to run?\n  {other_source}\n  {source}\n"
                    "  fix: leave one of them in the directory"
                )

    @classmethod
    def read(cls, path: str | os.PathLike, *, trusted: bool = False) -> "PinnedPlans":
        """The plans of a `.fed` file, or of all `.fed` files in a directory.

        Args:
            trusted: the graphs may hold any operation.
        Raises:
            FedcoreError: there is no file, a file is not a pinned plan, its graphs hold operations that are not
                allowed, or two files have different plans of one program.
            TypeMismatch: `path` is no path.
        """
        if not isinstance(path, str | os.PathLike):
            raise TypeMismatch(f"plans is the path of a pinned plan or of a directory of them, not {brief(path)}")
        path = Path(path)
        files = sorted(path.glob("*.fed")) if path.is_dir() else [path]
        if not files:
            raise FedcoreError(f"{path} holds no .fed file; fedcore tune writes pinned plans")
        return cls((str(file), _read(file, trusted=trusted)) for file in files)

    def get(self, module: Module) -> Module | None:
        """The plan for a traced module.

        Raises:
            TypeMismatch: the plan names the module's digest, but has another type.
        """
        entry = self._plans.get(module.digest())
        if entry is None:
            return None
        source, plan = entry
        have, want = plan.main.type, module.main.type
        if not (fits(have, want) and fits(want, have)):
            raise TypeMismatch(explain(f"{source}: the plan does not fit its program", have, want))
        return plan

    def note(self, module: Module) -> str | None:
        """Warning about a plan that is pinned for an earlier version of the module, by the name of main; else None."""
        if module.digest() in self._plans:
            return None
        name = module.main.name
        sources = [source for source, plan in self._plans.values() if plan.main.name == name]
        if not sources:
            return None
        return f"the plan of @{name} in {sources[0]} is for another program: run fedcore tune again"


def _read(file: Path, *, trusted: bool) -> Module:
    """The verified module of a file; errors name the file."""
    try:
        module = verify(bundle.read(file))
        if module.graphs:
            from fedcore.graphs.graphdef.validation.allow_list import check_graphs  # brings TensorFlow in

            check_graphs(module, trusted=trusted, advice="name it by fc.use(plans=..., trusted=True)")
    except OSError as error:
        raise FedcoreError(f"cannot read {file}: {error.strerror}") from None
    except FedcoreError as error:
        raise FedcoreError(f"{file}: {error}") from None
    return module


def _program_of(source: str, plan: Module) -> str:
    """The digest of the traced program for which a plan is pinned."""
    program = plan.main.attributes.get(PROGRAM)
    if plan.stage != "planned" or not isinstance(program, str):
        raise FedcoreError(f"{source} is no pinned plan but a {plan.stage} module; fedcore tune writes pinned plans")
    return program
