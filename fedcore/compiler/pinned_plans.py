"""Plans that `fedcore tune` wrote, each for one program."""

import os
from collections.abc import Iterable
from pathlib import Path

import attrs

from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.ir import Module, bundle, verify
from fedcore.types import explain, fits

PROGRAM = "program"
"""The attribute of a plan's main function that names the traced program by its digest."""


def pinned(plan: Module, program: str) -> Module:
    """The plan with the digest of the traced program that it is for."""
    main = attrs.evolve(plan.main, attributes={**plan.main.attributes, PROGRAM: program})
    return attrs.evolve(plan, functions=(*plan.functions[:-1], main))


class PinnedPlans:
    """Plans by the programs that they are for.

    Guarantees:
      - A program runs by its pinned plan or by the compiler's, never by one that was made for another program.
    """

    def __init__(self, plans: Iterable[tuple[str, Module]]):
        """`plans`: each with the name of where it comes from, for messages."""
        self._plans: dict[str, tuple[str, Module]] = {}
        for source, plan in plans:
            self._plans[_program_of(source, plan)] = (source, plan)

    @classmethod
    def read(cls, path: str | os.PathLike, *, trusted: bool = False) -> "PinnedPlans":
        """The plans of a `.fed` file, or of all that a directory holds.

        Args:
            trusted: their graphs may hold any operation.
        Raises:
            FedcoreError: there is none, or a file is no pinned plan, or its graphs hold what a file may not.
        """
        path = Path(path)
        files = sorted(path.glob("*.fed")) if path.is_dir() else [path]
        if not files:
            raise FedcoreError(f"{path} holds no .fed file; fedcore tune writes pinned plans")
        return cls((str(file), _read(file, trusted=trusted)) for file in files)

    def get(self, module: Module) -> Module | None:
        """The plan for a traced module.

        Raises:
            TypeMismatch: the plan says that it is for the module, but has another type.
        """
        found = self._plans.get(module.digest())
        if found is None:
            return None
        source, plan = found
        have, want = plan.main.type, module.main.type
        if not (fits(have, want) and fits(want, have)):
            raise TypeMismatch(explain(f"{source}: the plan does not fit its program", have, want))
        return plan

    def note(self, module: Module) -> str | None:
        """What to tell a user who pinned a plan for what the module was before."""
        if module.digest() in self._plans:
            return None
        name = module.main.name
        sources = [source for source, plan in self._plans.values() if plan.main.name == name]
        if not sources:
            return None
        return f"the plan of @{name} in {sources[0]} is for another program: run fedcore tune again"


def _read(file: Path, *, trusted: bool) -> Module:
    try:
        module = verify(bundle.read(file))
        if module.graphs:
            from fedcore.graphs.graphdef.allow_list import check_graphs  # brings TensorFlow in

            check_graphs(module, trusted=trusted, advice="name it by fc.use(plans=..., trusted=True)")
    except OSError as error:
        raise FedcoreError(f"cannot read {file}: {error.strerror}") from None
    except FedcoreError as error:
        raise FedcoreError(f"{file}: {error}") from None
    return module


def _program_of(source: str, plan: Module) -> str:
    program = plan.main.attributes.get(PROGRAM)
    if plan.stage != "planned" or not isinstance(program, str):
        raise FedcoreError(f"{source} is no pinned plan but a {plan.stage} module; fedcore tune writes pinned plans")
    return program
