import attrs
import numpy as np

from fedcore.compiler.pipeline import compiler_pass
from fedcore.errors import FedcoreError
from fedcore.ir import Constant, Function, Module, Operation, Ref
from fedcore.ir.operations import LOCAL, lookup
from fedcore.types import TensorType

_NOT_FOLDED = ("literal", "struct", "item", "call", "bind")
_KINDS = "biuf"  # numpy's: bools, integers, unsigned integers and floats
_FLOATS = ("float32", "float64")


@compiler_pass("fold-constants")
def fold_constants(module: Module, *, max_elements: int = 16) -> Module:
    """Constant folding: evaluates operations on literals whose results have at most `max_elements` elements.

    Keeps the bits: does not fold calls of graphs, nor numbers that TensorFlow may round or flush differently (subnormal
    numbers, half precision, complex numbers, infinities and NaN).
    """
    if module.stage == "planned":
        return module
    functions = tuple(_fold_function(f, max_elements) for f in module.functions)
    return module if functions == module.functions else attrs.evolve(module, functions=functions)


def _fold_function(function: Function, max_elements: int) -> Function:
    literals: dict[str, Operation] = {}  # by name
    types = function.types()
    operations = []
    for op in function.operations:
        new_op = op
        operands = [literals[o.name] for o in op.operands if isinstance(o, Ref) and o.name in literals]
        is_foldable = op.operands and len(operands) == len(op.operands) and op.kind not in _NOT_FOLDED
        if is_foldable and lookup(op.kind).level == LOCAL:
            value = _fold_operation(op, operands, [types[o.name] for o in operands], max_elements)
            if value is not None:
                new_op = attrs.evolve(op, kind="literal", operands=(), attributes={"value": value})
        operations.append(new_op)
        if new_op.kind == "literal":
            literals[new_op.name] = new_op
    new = attrs.evolve(function, operations=tuple(operations))
    return function if new == function else new


def _fold_operation(op: Operation, operands: list[Operation], types: list, max_elements: int) -> Constant | None:
    """The result of an operation on literals; None if it is too large, or may have other bits on another machine.

    Args:
        operands: the literals; `types` has the types of all operands.
    """
    if not isinstance(op.type, TensorType):
        return None
    declared = lookup(op.kind)
    values = [o.attributes["value"].to_numpy() for o in operands]
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(declared.meaning(*values, **declared.variables(op, types)))
    except (FedcoreError, ArithmeticError):
        return None
    if result.size > max_elements or result.dtype.kind not in _KINDS or not all(map(_is_exact, [*values, result])):
        return None
    return Constant.of(result, op.type.dtype)


def _is_exact(array: np.ndarray) -> bool:
    """Whether the numbers have the same bits on every machine."""
    if array.dtype.kind != "f":
        return array.dtype.kind in _KINDS
    if array.dtype.name not in _FLOATS:
        return False
    tiny = np.finfo(array.dtype).tiny
    return bool(np.all(np.isfinite(array) & ((array == 0) | (np.abs(array) >= tiny))))
