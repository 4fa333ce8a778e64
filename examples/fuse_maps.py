"""A compiler pass in one file outside of fedcore: a client that maps twice in a row maps once.

A pass is a pure function from module to module. `check_pass` checks on generated programs that the meaning stays, that
no client computes more, and that a second run changes nothing.

    python examples/fuse_maps.py
    fedcore dump my_program.py:NAME -p mine,default --load examples/fuse_maps
"""

from collections import Counter

import attrs

import fedcore as fc
from fedcore.compiler import compiler_pass
from fedcore.ir import Function, Module, Operation, Parameter, Ref, Symbol
from fedcore.types import Type, strip_placement

MAPS = ("federated_map", "federated_apply")


@compiler_pass("fuse-maps")
def fuse_maps(module: Module) -> Module:
    """Turns `map(g, map(f, x))` into `map(g.f, x)`.

    Only if the inner map has one user; otherwise clients would run `f` twice.
    """
    main, types = module.main, module.main.types()
    uses = Counter(o.name for op in main.operations for o in op.operands if isinstance(o, Ref))
    uses.update([main.result.name] if isinstance(main.result, Ref) else [])
    operations: dict[str, Operation] = {}
    compositions: list[Function] = []
    for op in main.operations:
        inner = operations.get(op.operands[1].name) if _is_map(op) else None
        if inner is not None and _is_map(inner) and uses[inner.name] == 1:
            composition = _compose(inner, op, types[inner.operands[1].name], f"{op.operands[0].name}_fused_{op.name}")
            compositions.append(composition)
            operands = (Symbol(composition.name), inner.operands[1])
            del operations[inner.name]
            op = Operation(op.name, op.kind, operands, op.type, location=op.location)
        operations[op.name] = op
    if not compositions:
        return module
    fused_main = attrs.evolve(main, operations=tuple(operations.values()))
    functions = [fused_main if function is main else function for function in module.functions]
    return attrs.evolve(module, functions=(*functions[:-1], *compositions, functions[-1]))


def _is_map(op: Operation) -> bool:
    return op.kind in MAPS and isinstance(op.operands[0], Symbol) and isinstance(op.operands[1], Ref)


def _compose(inner: Operation, outer: Operation, operand_type: Type, name: str) -> Function:
    """The function of one map after that of another.

    Its calls keep the salts of the maps, which decide the random numbers that a client draws.
    """
    argument, result = Parameter("x", strip_placement(operand_type)), strip_placement(outer.type)
    calls = (
        Operation("0", "call", (inner.operands[0], Ref("x")), strip_placement(inner.type), inner.attributes),
        Operation("1", "call", (outer.operands[0], Ref("0")), result, outer.attributes),
    )
    return Function(name, (argument,), calls, Ref("1"), result, location=outer.location)


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def mean_of_squares(readings):
    centred = fc.federated_map(lambda x: x - 20.0, readings)
    return fc.federated_mean(fc.federated_map(lambda x: x * x, centred))


def main():
    checked = fc.testing.check_pass("fuse-maps", before=["", "inline,lower-intrinsics,dce"])
    print(f"fuse-maps keeps the laws of a pass, in {checked.programs} programs, of which it changed {checked.changed}")
    fused = fuse_maps(mean_of_squares.module)
    print(fused)
    with fc.use(pipeline="fuse-maps,default"):
        print(f"the mean of the squares is {mean_of_squares([19.0, 22.0]):.2f}")
    return fused


if __name__ == "__main__":
    main()
