"""Names of values for people: in reports, and in the types of a plan.

Bindings have no names, so that two traces of one program are equal.
"""

from fedcore.ir.module import Function, Operation, Ref
from fedcore.types import StructType, member_of


class ValueNames:
    """Names of the parameters and bindings of one function: `%3 = item(%state) {index=0}` may be `weights`."""

    def __init__(self, function: Function) -> None:
        self._operations = {op.name: op for op in function.operations}
        self._types = function.types()
        self._names: dict[str, str | None] = {p.name: p.name for p in function.parameters}  # results of `of`

    def of(self, name: str) -> str | None:
        """Name of the parameter, struct element or called function that gives a value.

        A value that another operation computes is named after its first operand.

        Returns:
            None for a value that is computed from constants alone. `trainable[2]` for an element without a name of a
            named element: the weights of a model are such a tuple.
        """
        visited = []
        while name not in self._names:
            visited.append(name)
            op = self._operations[name]
            operands = [o.name for o in op.operands if isinstance(o, Ref)]
            name_from_op = self._name_from(op)
            if name_from_op is not None or not operands:
                self._names[name] = name_from_op
            else:
                name = operands[0]
        value_name = self._names[name]
        self._names.update(dict.fromkeys(visited, value_name))
        return value_name

    def _name_from(self, op: Operation) -> str | None:
        """The name that an operation itself gives its result, without the names of its operands; None if none."""
        if op.kind == "item":
            return self._element_name(op) or self._indexed_name(op)
        return op.operands[0].name if op.kind in ("call", "run") else None

    def _element_name(self, item: Operation) -> str | None:
        """The name that a struct's type gives the element that `item` takes."""
        struct = member_of(self._types[item.operands[0].name])
        assert isinstance(struct, StructType)
        return struct.names[item.attributes["index"]]

    def _indexed_name(self, item: Operation) -> str | None:
        """`trainable[2]` for an element of a struct that is itself the element `trainable` of a struct; else None."""
        op = self._operations.get(item.operands[0].name)
        name = self._element_name(op) if op is not None and op.kind == "item" else None
        return None if name is None else f"{name}[{item.attributes['index']}]"

    def distinct(self, values: list[str], unnamed: str | None) -> dict[str, str | None]:
        """Names of several values, numbered where they repeat, so that they can name the elements of a struct.

        The second `trainable[2]` is `trainable_1[2]`.

        Args:
            unnamed: name that is replaced by None.
        """
        names: dict[str, str | None] = {}
        last_numbers: dict[str, int] = {}  # the names in use, each with the last number that was tried in it
        for value in values:
            stem = self.of(value)
            if stem is None or stem == unnamed:
                names[value] = None
                continue
            name = stem
            element, bracket, index = stem.partition("[")  # `trainable`, `[` and `2]`
            while name in last_numbers:
                last_numbers[stem] += 1
                name = f"{element}_{last_numbers[stem]}{bracket}{index}"
            last_numbers[name] = 0
            names[value] = name
        return names
