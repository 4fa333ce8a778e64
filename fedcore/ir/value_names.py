"""Names of values for people: in reports, and in the types of a plan.

Bindings have no names, so that two traces of one program are equal.
"""

from fedcore.ir.module import Function, Operation, Ref
from fedcore.types import FederatedType, StructType, Type


class ValueNames:
    """Names of the parameters and bindings of one function: `%3 = item(%state) {index=0}` may be `weights`."""

    def __init__(self, function: Function) -> None:
        self._made = {op.name: op for op in function.operations}
        self._types = function.types()
        self._names: dict[str, str | None] = {p.name: p.name for p in function.parameters}

    def of(self, name: str) -> str | None:
        """Name of the parameter, struct element or called function that gives a value.

        A value that another operation computes is named after its first operand.

        Returns:
            None for a value that is computed from constants alone. `trainable[2]` for an element without a name of a
            named element: the weights of a model are such a tuple.
        """
        way = []
        while name not in self._names:
            way.append(name)
            op = self._made[name]
            operands = [o.name for o in op.operands if isinstance(o, Ref)]
            own = self._own_name(op)
            if own is not None or not operands:
                self._names[name] = own
            else:
                name = operands[0]
        value_name = self._names[name]
        self._names.update(dict.fromkeys(way, value_name))
        return value_name

    def _own_name(self, op: Operation) -> str | None:
        if op.kind == "item":
            return self._element(op) or self._indexed(op)
        return op.operands[0].name if op.kind in ("call", "run") else None

    def _indexed(self, item: Operation) -> str | None:
        op = self._made.get(item.operands[0].name)
        name = self._element(op) if op is not None and op.kind == "item" else None
        return None if name is None else f"{name}[{item.attributes['index']}]"

    def _element(self, item: Operation) -> str | None:
        return _struct(self._types[item.operands[0].name]).names[item.attributes["index"]]

    def distinct(self, values: list[str], unnamed: str | None) -> dict[str, str | None]:
        """Names of several values, numbered where they repeat, so that they can name the elements of a struct.

        The second `trainable[2]` is `trainable_1[2]`.

        Args:
            unnamed: name that is replaced by None.
        """
        names: dict[str, str | None] = {}
        last_numbers: dict[str, int] = {}  # with the last number that was tried
        for value in values:
            stem = self.of(value)
            if stem is None or stem == unnamed:
                names[value] = None
                continue
            name, (element, *index) = stem, stem.partition("[")
            while name in last_numbers:
                last_numbers[stem] += 1
                name = "".join((f"{element}_{last_numbers[stem]}", *index))
            last_numbers[name] = 0
            names[value] = name
        return names


def _struct(type_: Type) -> StructType:
    struct = type_.member if isinstance(type_, FederatedType) else type_
    assert isinstance(struct, StructType)
    return struct
