"""Purity analysis: pure symbols, symbols that draw random numbers, and symbols with effects."""

from fedcore.ir.module import Function, Graph, Module, Symbol
from fedcore.ir.registry import lookup

_IMPURE = ("effects", "seeded", "stateful")
# Names of TensorFlow operations that draw random numbers, keep state, print or assert. A false match is harmless: it
# only prevents a merge.
_STATEFUL = (
    *(b"Multinomial", b"TruncatedNormal", b"VarHandle", b"Variable", b"StatefulPartitionedCall", b"Print", b"Assert"),
    *(b"PyFunc", b"Shuffle", b"Queue", b"Stack", b"TensorArray", b"HashTable", b"Iterator", b"FloatingPointSeed"),
    *(b"Rng", b"Bernoulli"),
)


def pure_symbols(module: Module) -> frozenset[str]:
    """Functions and graphs whose equal calls may be merged. A graph whose bytes are missing counts as impure."""
    return module.fact("pure symbols", _pure_symbols)


def _pure_symbols(module: Module) -> frozenset[str]:
    pure: set[str] = {g.name for g in module.graphs if _is_pure(module, g)}
    for function in module.functions:
        if symbols_of(function) <= pure:
            pure.add(function.name)
    return frozenset(pure)


def seeded_symbols(module: Module) -> frozenset[str]:
    """Functions and graphs that draw random numbers, themselves or through a symbol that they name."""
    return module.fact("seeded symbols", _seeded_symbols)


def _seeded_symbols(module: Module) -> frozenset[str]:
    seeded = {g.name for g in module.graphs if g.attributes.get("seeded")}
    for function in module.functions:
        if not seeded.isdisjoint(symbols_of(function)) or any(lookup(op.kind).draws for op in function.operations):
            seeded.add(function.name)
    return frozenset(seeded)


def effectful_symbols(module: Module) -> frozenset[str]:
    """Graphs that print or assert, and functions that reach such a graph."""
    return _symbols_with(module, "effects")


def stateful_symbols(module: Module) -> frozenset[str]:
    """Graphs that have variables or other resources, and functions that reach such a graph."""
    return _symbols_with(module, "stateful")


def _symbols_with(module: Module, attribute: str) -> frozenset[str]:
    """Graphs with an attribute, and functions that name such a graph, directly or through other functions."""
    names = {g.name for g in module.graphs if g.attributes.get(attribute)}
    for function in module.functions:
        if not names.isdisjoint(symbols_of(function)):
            names.add(function.name)
    return frozenset(names)


def symbols_of(function: Function) -> set[str]:
    """The names of the functions and graphs that a function has as operands or as its result."""
    operands = [function.result, *(o for op in function.operations for o in op.operands)]
    return {o.name for o in operands if isinstance(o, Symbol)}


def _is_pure(module: Module, graph: Graph) -> bool:
    if any(graph.attributes.get(key) for key in _IMPURE):
        return False
    return graph.digest in module.blobs and not _names_state(module.blobs[graph.digest])


def _names_state(data: bytes) -> bool:
    """Whether the bytes of a graph name an operation that draws random numbers, keeps state, prints or asserts."""
    # One search for each name: an alternation of a regular expression takes 30 times as long.
    return data.count(b"Random") > data.count(b"StatelessRandom") or any(name in data for name in _STATEFUL)
