"""Two modules, symbol by symbol, without the names that do not matter."""

import difflib
from collections.abc import Hashable, Iterator

import attrs

from fedcore.ir import Function, Module, Ref
from fedcore.ir.printer import print_value
from fedcore.ir.renaming import form_of


@attrs.frozen
class Comparison:
    """Lines of both modules with names by position, and whether the modules are equal.

    Args:
        changes: one sentence a difference of the modules' symbols.
        same_text: their texts are equal too.
    """

    equal: bool
    same_text: bool
    changes: list[str]
    left: list[str]
    right: list[str]

    def unified(self) -> Iterator[str]:
        lines = difflib.unified_diff(self.left, self.right, lineterm="", n=2)
        return (line for i, line in enumerate(lines) if i > 1)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(same | changed | gap, left, right), with two equal lines around each change."""
        matcher = difflib.SequenceMatcher(None, self.left, self.right, autojunk=False)
        for number, group in enumerate(matcher.get_grouped_opcodes(2)):
            if number:
                yield "gap", "…", "…"
            for tag, a, b, c, d in group:
                for i in range(max(b - a, d - c)):
                    old = self.left[a + i] if a + i < b else ""
                    new = self.right[c + i] if c + i < d else ""
                    yield "same" if tag == "equal" else "changed", old, new


def comparison(left: Module, right: Module) -> Comparison:
    forms = [_forms(m) for m in (left, right)]
    equal = left.stage == right.stage and forms[0][left.main.name] == forms[1][right.main.name]
    lines = [_lines(m) for m in (left, right)]
    return Comparison(equal, left == right, [] if equal else _changes(left, right, forms), *lines)


def _forms(module: Module) -> dict[str, Hashable]:
    """For each symbol what it is, names aside."""
    forms: dict[str, Hashable] = {
        g.name: ("graph", g.digest, g.type, tuple(sorted(g.attributes.items()))) for g in module.graphs
    }
    for function in module.functions:
        forms[function.name] = form_of(function, forms)
    return forms


def _changes(left: Module, right: Module, forms) -> list[str]:
    found = []
    if left.stage != right.stage:
        found.append(f"the first is {left.stage}, the second {right.stage}")
    if left.main.type != right.main.type:
        found.append(f"the type is {left.main.type} in the first, {right.main.type} in the second")
    for mine, others, module, which in (
        (forms[0], forms[1], left, "first"),
        (forms[1], forms[0], right, "second"),
    ):
        there = set(others.values())
        for name, form in mine.items():
            if form not in there and name != module.main.name:
                found.append(f"@{name} is in the {which} only")
    return found or ["the main functions differ"]


def _lines(module: Module) -> list[str]:
    """The module with bindings named by position and symbols by what they are."""
    names = {g.name: f"@graph:{g.digest[:12]}" for g in module.graphs}
    lines = [f"fedcore {module.stage}"]
    for number, function in enumerate(module.functions):
        names[function.name] = "@main" if function is module.main else f"@{number}"
        lines += _function(function, names)
    return lines


def _function(function: Function, names: dict[str, str]) -> list[str]:
    bound = {p.name: f"%{i}" for i, p in enumerate(function.parameters)}

    def operand(o) -> str:
        return bound[o.name] if isinstance(o, Ref) else names[o.name]

    where = "" if function.placement is None else f" at {function.placement}"
    parameters = ", ".join(f"{bound[p.name]}: {p.type}" for p in function.parameters)
    lines = ["", f"{names[function.name]}({parameters}) -> {function.result_type}{where}{_attributes(function)}"]
    for op in function.operations:
        text = f"{op.kind}({', '.join(map(operand, op.operands))}) : {op.type}{_attributes(op)}"
        bound[op.name] = f"%{len(bound)}"
        lines.append(f"  {bound[op.name]} = {text}")
    return [*lines, f"  return {operand(function.result)}"]


def _attributes(node) -> str:
    given = ", ".join(f"{key}={print_value(value)}" for key, value in sorted(node.attributes.items()))
    return f" {{{given}}}" if given else ""
