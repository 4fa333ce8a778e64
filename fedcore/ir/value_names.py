"""Names of values for people: in reports, and in the types of a plan."""

from fedcore.ir.module import Function, Ref
from fedcore.types import FederatedType, StructType, Type


class ValueNames:
    """Names of the parameters and bindings of one function: `%3 = item(%state) {index=0}` may be `weights`."""

    def __init__(self, function: Function):
        self._made = {op.name: op for op in function.operations}
        self._types = function.types()

    def of(self, name: str) -> str | None:
        """Name of the parameter, struct element or called function that gives a value.

        A value that another operation computes is named after its first operand.

        Returns:
            None for a value that is computed from constants alone.
        """
        while name in self._made:
            op = self._made[name]
            if op.kind == "item":
                struct = _struct(self._types[op.operands[0].name])
                element = struct.names[op.attributes["index"]]
                if element is not None:
                    return element
            if op.kind in ("call", "run"):
                return op.operands[0].name
            operands = [o.name for o in op.operands if isinstance(o, Ref)]
            if not operands:
                return None
            name = operands[0]
        return name


def _struct(type_: Type) -> StructType:
    struct = type_.member if isinstance(type_, FederatedType) else type_
    assert isinstance(struct, StructType)
    return struct
