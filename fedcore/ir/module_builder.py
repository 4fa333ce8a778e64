"""`ModuleBuilder`: assembles functions and graphs into a module."""

import re

import attrs

from fedcore.ir.module import Function, Graph, Module, Operand, Ref, Symbol, Verified
from fedcore.types import FunctionType


@attrs.frozen(eq=False)
class _Symbols:
    """Symbols of a module without its main function.

    Args:
        nodes: the functions and graphs by name.
        by_content: the names by `_content`.
        drawing: the names of symbols that draw random numbers.
        are_unique: no two symbols have equal content, and a builder can give each symbol its name.
    """

    nodes: dict[str, Function | Graph]
    by_content: dict[object, str]
    drawing: frozenset[str]
    are_unique: bool

    @classmethod
    def of(cls, module: Module) -> "_Symbols":
        members: tuple[Function | Graph, ...] = (*module.graphs, *module.functions[:-1])
        nodes = {node.name: node for node in members}
        drawing = frozenset(name for name, node in nodes.items() if _draws(node))
        by_content = {_content(node): name for name, node in nodes.items()}
        return cls(nodes, by_content, drawing, len(by_content) == len(nodes) and all(map(_is_plain, nodes)))


class ModuleBuilder:
    """Collects the functions and graphs of one module under unique names, without duplicates.

    Args:
        stage: of the module, such as `traced`.
    Attributes:
        verified: what is known of the symbols that came from verified modules; None if none did.
    """

    def __init__(self, stage: str = "traced") -> None:
        self.stage = stage
        self.graphs: list[Graph] = []
        self.functions: list[Function] = []
        self.blobs: dict[str, bytes] = {}
        self.verified: Verified | None = None
        self._nodes: dict[str, Function | Graph] = {}
        self._types: dict[str, FunctionType] = {}
        self._reserved: str | None = None
        self._repeated: Function | Graph | None = None  # argument of the last `add`, if it equals an earlier symbol
        self._by_content: dict[object, str] = {}  # names by `_content`
        self._last_numbers: dict[str, int] = {}  # by stem, the last number that was tried behind it
        self._drawing: set[str] = set()

    def reserve(self, name: str) -> None:
        """Reserves a name for the main function, which is added last."""
        self._reserved = name

    def release(self) -> None:
        """Releases the reserved name, before the main function is added."""
        self._reserved = None

    def unique(self, name: str) -> str:
        """A name that no symbol has: the letters, digits and underscores of `name`, with a number behind if needed.

        It is not reserved: only `add` and `link` put names in use.
        """
        stem = re.sub(r"[^A-Za-z0-9_]+", "", name) or "fn"
        candidate, n = stem, 0
        if stem in self._types:
            n = self._last_numbers.get(stem, 0)
            candidate = f"{stem}_{n}" if n else stem
        while candidate in self._types or candidate == self._reserved:
            n += 1
            candidate = f"{stem}_{n}"
        self._last_numbers[stem] = n
        return candidate

    def add(self, node: Function | Graph) -> str:
        """Adds a function or graph unless an equal one is there; returns its unique name."""
        content = _content(node)
        if content in self._by_content:
            self._repeated = node
            return self._by_content[content]
        self._repeated = None
        name = self._append(node)
        self._by_content[content] = name
        return name

    def _append(self, node: Function | Graph) -> str:
        """Adds a function or graph, also if an equal one is there; returns its unique name."""
        name = self.unique(node.name)
        self._types[name] = node.type
        if _draws(node):
            self._drawing.add(name)
        if node.name != name:
            node = attrs.evolve(node, name=name)
        self._nodes[name] = node
        if isinstance(node, Graph):
            self.graphs.append(node)
        else:
            self.functions.append(node)
        return name

    def link(self, module: Module) -> str:
        """Adds all symbols of another module; returns the name of its main function.

        If main only calls a graph on its parameters, the graph is added alone and stands for it.
        """
        self.blobs.update(module.blobs)
        graph = _only_graph(module)
        if graph is not None:
            return self.add(graph)
        if self._adopt(module):
            return self._add_verified(module)
        renamed: dict[str, str] = {}
        for graph in module.graphs:
            renamed[graph.name] = self.add(graph)
        for function in module.functions:
            renamed[function.name] = self.add(rename_symbols(function, renamed))
        return renamed[module.main.name]

    def _adopt(self, module: Module) -> bool:
        """Adds the symbols of a verified module, except for main, under their own names, and returns True.

        Adds nothing and returns False if a symbol needs another name, or equals one that is here. It copies whole dicts
        and lists, so that computations that call one another thousands deep are traced in seconds.
        """
        verified = module.verified
        if verified is None or module.stage != self.stage:
            return False
        nodes: tuple[Function | Graph, ...] = (*module.graphs, *module.functions[:-1])
        if all(self._nodes.get(node.name) is node for node in nodes):
            return True
        symbols = module.fact("symbols without main", _Symbols.of)
        if not (
            symbols.are_unique
            and self._reserved not in symbols.nodes
            and self._nodes.keys().isdisjoint(symbols.nodes.keys())
            and self._by_content.keys().isdisjoint(symbols.by_content.keys())
        ):
            return False
        types = {**verified.types}
        del types[module.main.name]
        self.graphs += module.graphs
        self.functions += module.functions[:-1]
        self._nodes.update(symbols.nodes)
        self._types.update(types)
        self._by_content.update(symbols.by_content)
        self._drawing |= symbols.drawing
        self._extend_verified(attrs.evolve(verified, types=types))
        return True

    def _add_verified(self, module: Module) -> str:
        """Adds the main function of a verified module whose other symbols have their names here."""
        name = self.add(module.main)
        assert module.verified is not None
        type_ = module.verified.types[module.main.name]
        self._extend_verified(Verified({name: type_}, 0, module.verified.declarations))
        return name

    def _extend_verified(self, verified: Verified) -> None:
        """Adds what is known of further symbols to `verified`."""
        self.verified = verified if self.verified is None else self.verified.join(verified)

    def type_of(self, name: str) -> FunctionType:
        return self._types[name]

    def draws(self, name: str) -> bool:
        """Whether the symbol draws random numbers."""
        return name in self._drawing

    def build(self) -> Module:
        """The module whose main function is the one that was added last."""
        if isinstance(self._repeated, Function):  # main is last, so it is added also if an earlier function equals it
            self._append(self._repeated)
            self._repeated = None
        module = Module(self.stage, tuple(self.graphs), tuple(self.functions), self.blobs)
        if self.stage == "traced" and self.functions:
            module.fact("symbols without main", self._symbols)
        return module

    def _symbols(self, module: Module) -> _Symbols:
        """Symbols of the module, from contents that are computed already."""
        name = module.main.name
        nodes, by_content = self._nodes.copy(), self._by_content.copy()
        del nodes[name]
        if by_content[_content(module.main)] == name:
            del by_content[_content(module.main)]
        return _Symbols(nodes, by_content, frozenset(self._drawing - {name}), are_unique=True)


def _content(node: Function | Graph) -> object:
    """Key that is equal for nodes that differ in their names only.

    Attribute values are hashed too, since `Operation` leaves them out and many functions differ in nothing else.
    """
    operations = node.operations if isinstance(node, Function) else ()
    values = [value for op in operations for value in op.attributes.values()]
    return tuple(map(_hash, values)), attrs.evolve(node, name="")


def _is_plain(name: str) -> bool:
    """Whether `unique` leaves the name as it is."""
    return re.fullmatch(r"[A-Za-z0-9_]+", name) is not None


def _hash(value: object) -> int:
    try:
        return hash(value)
    except TypeError:  # an invalid attribute, which the verifier reports
        return 0


def _draws(node: Function | Graph) -> bool:
    """Whether a function or graph draws random numbers: a graph that takes a seed, or an operation with a salt."""
    if isinstance(node, Graph):
        return bool(node.attributes.get("seeded"))
    return any("salt" in op.attributes for op in node.operations)


def _only_graph(module: Module) -> Graph | None:
    """The graph of a module whose main function does nothing but call it on its parameters, in order."""
    main = module.main
    if len(module.graphs) != 1 or len(main.operations) != 1 or main.operations[0].kind != "call":
        return None
    (op,) = main.operations
    passed_on = op.operands == (Symbol(module.graphs[0].name), *(Ref(p.name) for p in main.parameters))
    return module.graphs[0] if passed_on and main.result == Ref(op.name) else None


def rename_symbols(function: Function, names: dict[str, str]) -> Function:
    """The function with its symbols renamed by `names`."""

    def rename_operand(operand: Operand) -> Operand:
        return Symbol(names.get(operand.name, operand.name)) if isinstance(operand, Symbol) else operand

    operands = [function.result, *(o for op in function.operations for o in op.operands)]
    if all(names.get(o.name, o.name) == o.name for o in operands if isinstance(o, Symbol)):
        return function
    operations = tuple(
        attrs.evolve(op, operands=tuple(map(rename_operand, op.operands)))
        if any(isinstance(o, Symbol) for o in op.operands)
        else op
        for op in function.operations
    )
    return attrs.evolve(function, operations=operations, result=rename_operand(function.result))
