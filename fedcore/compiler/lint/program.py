"""A program under the linter, at each stage of compilation, with the graphs that its clients and its server call."""

import functools
import re
from collections.abc import Hashable, Iterator

import attrs

from fedcore.compiler.pipeline import LOWERING, compile_module
from fedcore.errors import FedcoreError, Location
from fedcore.intrinsics.planned import fold_of
from fedcore.ir import Function, Graph, Module, Operation, Symbol
from fedcore.types import CLIENTS, Placement


@attrs.frozen
class GraphCall:
    """A graph where an operation of a stage names it.

    Args:
        placement: where the stage runs.
        location: the line of the operation.
    """

    graph: Graph
    placement: Placement
    location: Location | None


@attrs.frozen
class ClientFold:
    """A fold over clients and the merge of its partials.

    Args:
        broadcasts: the names of the operands that are broadcasts.
    """

    fold: Operation
    merge: Operation
    stage: Function
    broadcasts: frozenset[str]


class Program:
    """A module under the linter.

    Guarantees:
      - `module` is traced or lowered.
      - Compiles to each stage once, when a check asks for it.
    """

    def __init__(self, module: Module) -> None:
        self._numbers: dict[Hashable, int] = {}
        if module.stage == "planned":
            raise FedcoreError("a planned module has fused graphs, without lines: lint a traced or a lowered module")
        self.module = module

    @functools.cached_property
    def stages(self) -> Module:
        """The plan before its graphs are fused, so that each operation has the line of the user."""
        lowering = f"{LOWERING}," if self.module.stage == "traced" else ""
        return compile_module(self.module, f"{lowering}partition,dead-leaf-elimination")

    @functools.cached_property
    def plan(self) -> Module:
        """The plan that the default pipeline makes."""
        return compile_module(self.stages, "fuse,hoist-relu-gradients,plan")

    def plan_of(self, stage: Function) -> Function:
        """A client stage of `stages` as it stands in the plan, with its strategy."""
        return self.plan.function(stage.name)

    def number(self, key: Hashable) -> int:
        """The number of a key, equal for equal keys; keys that hold numbers in place of keys stay short."""
        return self._numbers.setdefault(key, len(self._numbers))

    @functools.cached_property
    def folds(self) -> list[ClientFold]:
        """The folds of `stages` whose results reach the server."""
        by_name = {op.name: op for op in self.stages.main.operations}
        folds = [(fold_of(op, by_name), op) for op in by_name.values() if op.kind == "merge"]
        types = self.stages.main.types()
        return [
            ClientFold(
                fold,
                merge,
                self.stages.function(fold.operands[1].name),
                frozenset(o.name for o in fold.operands[2:] if getattr(types[o.name], "all_equal", False)),
            )
            for fold, merge in folds
        ]

    @functools.cached_property
    def graph_calls(self) -> list[GraphCall]:
        """The graphs that the stages of `stages` call, themselves or by functions that they name."""
        return [call for stage in self.stages.stages() for call in self.graph_calls_of(stage)]

    def graph_calls_of(self, stage: Function) -> Iterator[GraphCall]:
        """The graphs that one stage calls, itself or by functions; a function that is named twice is visited once."""
        visited, waiting = {stage.name}, [stage]
        while waiting:
            for op in waiting.pop().operations:
                for name in (o.name for o in op.operands if isinstance(o, Symbol)):
                    callee = self.stages[name]
                    if isinstance(callee, Graph):
                        yield GraphCall(callee, stage.placement or CLIENTS, op.location)
                    elif name not in visited:
                        visited.add(name)
                        waiting.append(callee)


def user_name(label: str) -> str:
    """The label of a value without the binding that tells it from others of its name: `x` for `x (%3)`."""
    return re.sub(r" \(%[^)]*\)$", "", label)
