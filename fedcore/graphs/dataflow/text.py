"""The text of a region, in the notation of the IR; `text_parser` reads it.

    region(%0: float32[4,20,7], %1: float32[?,3]) {
      %2 = Const() : float32 {value=1.0}
      %3 = BatchMatMulV2(%0, %1) : float32[4,20,3]
      %4 = ConcatV2([%3, %3], %2) : float32[8,20,3]   // data, per client
      %5, %6 = scan(%n, %4, %2) : float32[8,20,3], float32 (%7: int64, %8: float32[8,20,3], %9: float32) {
        return %8, %9
      }
      return %5
    }

Operands of a list stand in brackets. `?` is an unknown size, `[...]` an unknown rank. A constant of equal entries has
one of them; a large one has its digest, and parsing needs a table of such arrays. Attributes are left out that are
defaults or follow from operands. Values before which a node may not run stand behind `after`.
"""

from collections.abc import Iterable, Mapping

from fedcore.graphs.dataflow.graph import REGIONS, Node, Region, Value
from fedcore.graphs.dataflow.op_signature import signature
from fedcore.graphs.dataflow.text_attributes import print_attributes, type_text
from fedcore.ir.printer import reference, symbol

COMMENT = "   // "


def print_region(
    region: Region,
    *,
    name: str | None = None,
    arguments: Iterable[str] = (),
    notes: Mapping[Value, str] | None = None,
    most_operations: int | None = None,
    names: Mapping[Value, str] | None = None,
    shows_sources: bool = False,
) -> str:
    """The text of a region.

    Args:
        name: of the region; parsing gives it back.
        arguments: names of the first arguments; others have numbers.
        notes: a comment for each value that has one, such as `first_known.notes`.
        most_operations: the number of operations after which the others of each region are counted in a comment. None:
            all are printed. Only a whole text can be parsed.
        names: the names of values that get no number.
        shows_sources: the comment of a node has the user's code that it comes from.
    """
    printer = _Printer(notes or {}, most_operations, names or {}, shows_sources=shows_sources)
    return printer.print(region, name, list(arguments))


def count_operations(region: Region) -> int:
    """The number of operations of a region, with those of the regions that they run."""
    return sum(1 + sum(map(count_operations, node.regions)) for node in region.nodes)


class _Printer:
    """Prints one region; values are numbered in the order of the text."""

    def __init__(
        self,
        notes: Mapping[Value, str],
        most_operations: int | None,
        names: Mapping[Value, str],
        *,
        shows_sources: bool,
    ) -> None:
        """Arguments are those of `print_region`; `names` are the fixed names."""
        self._shows_sources = shows_sources
        self._notes = notes
        self._fixed_names = names
        self._names: dict[Value, str] = {}
        self._count = 0
        self._operations_left = most_operations

    def print(self, region: Region, name: str | None, arguments: list[str]) -> str:
        """The text of the outermost region.

        Args:
            name: None if it has none.
            arguments: names of its first arguments.
        """
        self._names.update(zip(region.arguments, map(reference, arguments), strict=False))
        head = "region" if name is None else f"region {symbol(name)}"
        return "\n".join([f"{head}{self._print_arguments(region)} {{", *self._print_body(region, "  "), "}"]) + "\n"

    def _new_name(self, value: Value) -> str:
        """Names a value by its fixed name, or by the next number; returns the name."""
        self._names[value] = self._fixed_names.get(value, f"%{self._count}")
        self._count += 1
        return self._names[value]

    def _print_arguments(self, region: Region) -> str:
        """The arguments of a region with their types, in parentheses."""
        names = [self._names[v] if v in self._names else self._new_name(v) for v in region.arguments]
        return f"({', '.join(f'{n}: {type_text(v)}' for n, v in zip(names, region.arguments, strict=True))})"

    def _print_body(self, region: Region, margin: str) -> Iterable[str]:
        """The lines of a region's nodes and of its results.

        Once `most_operations` are printed, the others of each region are only counted; their values are numbered too.
        """
        hidden = 0
        for node in region.nodes:
            if self._operations_left == 0:
                hidden += 1 + sum(map(count_operations, node.regions))
                for _ in self._print_node(node, margin):  # numbers its values; the lines are not printed
                    pass
                continue
            if self._operations_left is not None:
                self._operations_left -= 1
            yield from self._print_node(node, margin)
        if hidden:
            yield f"{margin}{COMMENT.lstrip()}{hidden} more operation{'s' * (hidden != 1)}"
        yield f"{margin}return {', '.join(self._names[v] for v in region.results)}".rstrip()

    def _print_node(self, node: Node, margin: str) -> Iterable[str]:
        """The lines of a node, with those of the regions that it runs.

            %results = Op(%operands) : types after %values {attributes}   // notes

        Args:
            margin: spaces before each line.
        """
        operands = self._print_operands(node)
        names = [self._new_name(v) for v in node.outputs]
        text = f"{', '.join(names)} = " if names else ""
        text += f"{node.op}({operands})"
        text += f" : {', '.join(map(type_text, node.outputs))}" if names else ""
        text += f" after {', '.join(self._names[v] for v in node.after)}" if node.after else ""
        attributes = print_attributes(node)
        text += f" {{{', '.join(f'{k}={v}' for k, v in attributes.items())}}}" if attributes else ""
        facts = [self._notes[v] for v in node.outputs if self._notes.get(v)][:1]
        facts += [str(node.source)] if self._shows_sources and node.source is not None else []
        note = f"{COMMENT}{'; '.join(facts)}" if facts else ""
        if not node.regions:
            yield f"{margin}{text}{note}"
            return
        opening = f"{margin}{text} "
        for region in node.regions:
            outer = dict(self._names)
            for value in region.arguments:  # a region that several nodes run is printed for each, with new names
                self._names.pop(value, None)
            yield f"{opening}{self._print_arguments(region)} {{{note}"
            yield from self._print_body(region, margin + "  ")
            self._names, opening, note = outer, f"{margin}}} ", ""
        yield f"{margin}}}"

    def _print_operands(self, node: Node) -> str:
        """The names of a node's operands; those of a list stand in brackets."""
        names = [self._names[v] for v in node.inputs]
        if node.op in REGIONS:
            return ", ".join(names)
        operands = signature(node.op).by_operand(names, node.attributes)
        return ", ".join(f"[{', '.join(part)}]" if isinstance(part, list) else part for part in operands)
