import attrs

from fedcore.compiler.inlining import Inliner
from fedcore.compiler.passes.inline import inline
from fedcore.compiler.pipeline import compiler_pass
from fedcore.compiler.steps import Steps
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.ir import Builder, Module, ModuleBuilder, Operation
from fedcore.ir.operations import lookup
from fedcore.types import fits

MAX_TURNS = 200  # more than types are deep, since a lowering may descend by one level in each turn


@compiler_pass("lower-intrinsics")
def lower_intrinsics(module: Module) -> Module:
    """Replaces derived intrinsics by their lowerings, until only core operations are left.

    Functions that the lowerings call are inlined, and unused functions are dropped.

    Raises:
        FedcoreError: a lowering makes its own operation, directly or by others, without end.
    """
    turns = 0
    while (derived := _find_derived(module)) is not None:
        turns += 1
        if turns > MAX_TURNS:
            at = f" ({derived.location})" if derived.location else ""
            raise FedcoreError(
                f"the lowering of {derived.kind}{at} does not end: after {MAX_TURNS} turns it makes it again"
            )
        target = ModuleBuilder(module.stage)
        _Lowering(module, target).add_main(module)
        module = target.build()
    module = inline(module)
    return attrs.evolve(module, stage="lowered") if module.stage == "traced" else module


def _find_derived(module: Module) -> Operation | None:
    return next((op for f in module.functions for op in f.operations if lookup(op.kind).lowered_by), None)


class _Lowering(Inliner):
    """Rebuilds functions with the result of a lowering in place of each derived operation."""

    def _operation(self, builder: Builder, op: Operation, values: list) -> Steps:
        declared = lookup(op.kind)
        if declared.lowered_by is None:
            return (yield super()._operation(builder, op, values))
        attributes = dict(op.attributes)
        salt = attributes.pop("salt", None)
        operands = []
        for value in values:
            operands.append((yield self._materialized(builder, value)))
        with builder, builder.lowering(op):
            builder.salt_prefix = None if salt is None else f"{salt}."
            try:
                lowered = declared.lowered_by(*operands, **attributes)
            except TypeMismatch as error:
                at = f" at {op.location}" if op.location else ""
                raise TypeMismatch(f"{error}\n  in the lowering of {op.kind}{at}") from error
            if lowered is None:
                raise FedcoreError(f"the lowering of {op.kind} returns None; it returns a value of type {op.type}")
            result = builder.value(lowered)
            builder.salt_prefix = None
        if not fits(result.type, op.type):
            raise FedcoreError(f"the lowering of {op.kind} gives {result.type}, but its signature says {op.type}")
        return result
