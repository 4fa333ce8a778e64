import math

import attrs

from fedcore.compiler.pipeline import compiler_pass
from fedcore.ir import Function, Module, Operation, Ref
from fedcore.types import TensorType, Type, is_static, leaves, member_of


@compiler_pass("plan")
def plan(module: Module) -> Module:
    """Writes down how each client stage runs and what each crossing costs, by shape rules only.

    Strategy `loop`: clients run one after the other inside a block, each a loop over its tensors. A block of 2
    halves the calls and the merges and still leaves enough of them to keep every worker busy.
    """
    if module.stage != "planned":
        return module
    main = module.main
    folded = {str(op.operands[1].name): op for op in main.operations if op.kind == "fold"}
    collected = {str(op.operands[0].name) for op in main.operations if op.kind == "collect"}
    functions = [_with_strategy(f) if f.name in folded or f.name in collected else f for f in module.functions[:-1]]
    stages = {f.name: f for f in functions}
    by_name = {op.name: op for op in main.operations}
    operations = tuple(_with_bits(op, by_name, stages) for op in main.operations)
    planned = attrs.evolve(module, functions=(*functions, attrs.evolve(main, operations=operations)))
    return module if planned == module else planned


def _with_strategy(stage: Function) -> Function:
    if "strategy" in stage.attributes:
        return stage
    return attrs.evolve(stage, attributes={"strategy": "loop", "block": 2})


def _with_bits(op: Operation, by_name: dict[str, Operation], stages: dict[str, Function]) -> Operation:
    if op.kind == "broadcast":
        bits = size_bits([member_of(op.type)])
    elif op.kind == "merge":
        bits = size_bits(_sent_in(_fold_of(op, by_name), stages))
    else:
        return op
    return op if bits is None else attrs.evolve(op, attributes={**op.attributes, "bits": bits})


def _fold_of(op: Operation, by_name: dict[str, Operation]) -> Operation:
    source = by_name[op.operands[1].name]
    return by_name[source.operands[0].name] if source.kind == "item" else source


def _sent_in(fold: Operation, stages: dict[str, Function]) -> list[Type]:
    return sent_types(stages[fold.operands[1].name], keeps=bool(fold.attributes.get("keeps")))


def sent_types(stage: Function, *, keeps: bool = False) -> list[Type]:
    """What one client hands to the fold: values of its own that meet the partial.

    With `keeps`, the stage's result pairs the partial with what stays at the client.
    """
    dependent = {stage.parameters[0].name}
    types = stage.types()
    sent: dict[str, Type] = {}
    constant = {op.name for op in stage.operations if not op.operands}
    result = stage.result.name  # the next partial
    for op in stage.operations:
        names = [o.name for o in op.operands if isinstance(o, Ref)]
        if keeps and stage.result == Ref(op.name):
            result, names = names[0], names[:1]
        if dependent.intersection(names):
            dependent.add(op.name)
            sent.update({n: types[n] for n in names if n not in dependent and n not in constant})
    if result not in dependent and result not in constant:
        sent[result] = types[result]  # the client's value takes the partial's place
    return list(sent.values())


def size_bits(types: list[Type]) -> int | None:
    """The size of values of the types; None where a dimension, a string or a sequence leaves it open."""
    total = 0
    for type_ in types:
        for _, leaf in leaves(type_):
            if not isinstance(leaf, TensorType) or not is_static(leaf.shape) or leaf.dtype.bits is None:
                return None
            total += leaf.dtype.bits * math.prod(leaf.shape)
    return total
