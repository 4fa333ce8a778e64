"""`ModuleBuilder`: assembles functions and graphs into a module."""

import re

import attrs

from fedcore.ir.module import Function, Graph, Module, Ref, Symbol
from fedcore.types import FunctionType


class ModuleBuilder:
    """Collects the functions and graphs of one module under unique names, without duplicates."""

    def __init__(self, stage: str = "traced"):
        self.stage = stage
        self.graphs: list[Graph] = []
        self.functions: list[Function] = []
        self.blobs: dict[str, bytes] = {}
        self._types: dict[str, FunctionType] = {}
        self._reserved: str | None = None
        self._by_content: dict[object, str] = {}
        self._tried: dict[str, int] = {}  # highest number in use, by stem
        self._drawing: set[str] = set()

    def reserve(self, name: str) -> None:
        """Reserves a name for the main function, which is added last."""
        self._reserved = name

    def release(self) -> None:
        """Releases the reserved name, before the main function is added."""
        self._reserved = None

    def unique(self, name: str) -> str:
        stem = re.sub(r"[^A-Za-z0-9_]+", "", name) or "fn"
        candidate, n = stem, 0
        if stem in self._types:
            n = self._tried.get(stem, 0)
            candidate = f"{stem}_{n}" if n else stem
        while candidate in self._types or candidate == self._reserved:
            n += 1
            candidate = f"{stem}_{n}"
        self._tried[stem] = n
        return candidate

    def add(self, node: Function | Graph) -> str:
        """Adds a function or graph unless an equal one is there; returns its unique name."""
        content = _content(node)
        if content in self._by_content:
            return self._by_content[content]
        name = self.unique(node.name)
        self._types[name] = node.type
        self._by_content[content] = name
        if _draws(node):
            self._drawing.add(name)
        if isinstance(node, Graph):
            self.graphs.append(attrs.evolve(node, name=name))
        else:
            self.functions.append(attrs.evolve(node, name=name))
        return name

    def link(self, module: Module) -> str:
        """Adds all symbols of another module; returns the name of its main function.

        If main only calls a graph on its parameters, the graph is added alone and stands for it.
        """
        renamed: dict[str, str] = {}
        self.blobs.update(module.blobs)
        graph = _only_graph(module)
        if graph is not None:
            return self.add(graph)
        for graph in module.graphs:
            renamed[graph.name] = self.add(graph)
        for function in module.functions:
            renamed[function.name] = self.add(rename_symbols(function, renamed))
        return renamed[module.main.name]

    def type_of(self, name: str) -> FunctionType:
        return self._types[name]

    def draws(self, name: str) -> bool:
        """Whether the symbol draws random numbers."""
        return name in self._drawing

    def build(self) -> Module:
        return Module(self.stage, tuple(self.graphs), tuple(self.functions), self.blobs)


def _content(node: Function | Graph) -> object:
    """Key that is equal for nodes that differ in their names only.

    Attribute values are hashed too, since `Operation` leaves them out and many functions differ in nothing else.
    """
    operations = node.operations if isinstance(node, Function) else ()
    values = [value for op in operations for value in op.attributes.values()]
    return tuple(map(_hash, values)), attrs.evolve(node, name="")


def _hash(value: object) -> int:
    try:
        return hash(value)
    except TypeError:  # an invalid attribute, which the verifier reports
        return 0


def _draws(node: Function | Graph) -> bool:
    if isinstance(node, Graph):
        return bool(node.attributes.get("seeded"))
    return any("salt" in op.attributes for op in node.operations)


def _only_graph(module: Module) -> Graph | None:
    main = module.main
    if len(module.graphs) != 1 or len(main.operations) != 1 or main.operations[0].kind != "call":
        return None
    (op,) = main.operations
    passed_on = op.operands == (Symbol(module.graphs[0].name), *(Ref(p.name) for p in main.parameters))
    return module.graphs[0] if passed_on and main.result == Ref(op.name) else None


def rename_symbols(function: Function, names: dict[str, str]) -> Function:
    """The function with its symbols renamed by `names`."""

    def renamed(operand):
        return Symbol(names.get(operand.name, operand.name)) if isinstance(operand, Symbol) else operand

    operations = tuple(
        attrs.evolve(op, operands=tuple(map(renamed, op.operands)))
        if any(isinstance(o, Symbol) for o in op.operands)
        else op
        for op in function.operations
    )
    return attrs.evolve(function, operations=operations, result=renamed(function.result))
