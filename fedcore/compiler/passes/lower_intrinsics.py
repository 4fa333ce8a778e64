import attrs

from fedcore.compiler.inlining import Inliner
from fedcore.compiler.passes.inline import inline
from fedcore.compiler.pipeline import compiler_pass
from fedcore.compiler.steps import Steps
from fedcore.errors import FedcoreError
from fedcore.ir import Builder, Module, ModuleBuilder, Operation
from fedcore.ir.operations import lookup
from fedcore.types import fits


@compiler_pass("lower-intrinsics")
def lower_intrinsics(module: Module) -> Module:
    """Replaces derived intrinsics by their lowerings, until only core operations are left.

    Functions that the lowerings call are inlined, and unused functions are dropped.
    """
    while any(lookup(op.kind).lowered_by for f in module.functions for op in f.operations):
        target = ModuleBuilder(module.stage)
        _Lowering(module, target).add_main(module)
        module = target.build()
    module = inline(module)
    return module if module.stage == "lowered" else attrs.evolve(module, stage="lowered")


class _Lowering(Inliner):
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
            builder.salted = None if salt is None else f"{salt}."
            result = builder.value(declared.lowered_by(*operands, **attributes))
            builder.salted = None
        if not fits(result.type, op.type):
            raise FedcoreError(f"the lowering of {op.kind} gives {result.type}, but its signature says {op.type}")
        return result
