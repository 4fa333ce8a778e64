"""A pass, and which points of the pipeline have something for it to change."""

import itertools

import attrs

import fedcore as fc
from fedcore.compiler import compiler_pass, run_passes
from fedcore.ir import Module, Ref


@compiler_pass("drop-maximum")
def drop_maximum(module: Module) -> Module:
    """Replaces `maximum(x, x)` by `x`."""

    def simplified(function):
        operations: list = []
        same: dict = {}
        for op in function.operations:
            op = attrs.evolve(op, operands=tuple(same.get(operand, operand) for operand in op.operands))
            if op.kind == "maximum" and op.operands[0] == op.operands[1]:
                same[Ref(op.name)] = op.operands[0]
            else:
                operations.append(op)
        result = same.get(function.result, function.result)
        return attrs.evolve(function, operations=tuple(operations), result=result)

    functions = tuple(map(simplified, module.functions))
    return module if functions == module.functions else attrs.evolve(module, functions=functions)


PROGRAM = """fedcore 1 traced

fn @main(%x: float32) -> float32 {
  %0 = maximum(%x, %x) : float32
  return %0
}
"""
checked = fc.testing.check_pass(drop_maximum, cases=[PROGRAM], programs=5)
assert "maximum" in checked.changed_operations


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def total(readings):
    return fc.federated_map(lambda x: fc.maximum(x, x), fc.federated_sum(readings))


with fc.use(pipeline="lowering,drop-maximum,planning"):
    assert total([1.0, 2.0]) == 3.0
assert "maximum" not in str(drop_maximum(total.to_module("lowered")))


def passes_that_change(module, pipeline):
    steps = itertools.pairwise([(None, module), *run_passes(module, pipeline)])
    return [one.name for (_, before), (one, after) in steps if one and after is not before]


traced = total.to_module("traced")
after_partition = "lowering,partition,drop-maximum,dead-leaf-elimination,fuse,plan"
for pipeline in ("drop-maximum,default", "lowering,drop-maximum,planning", after_partition):
    assert "drop-maximum" in passes_that_change(traced, pipeline)
assert "drop-maximum" not in passes_that_change(traced, "default,drop-maximum")  # local operations are in graphs
