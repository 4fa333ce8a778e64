"""The text of captured graphs, in the notation of `dataflow.text`."""

import re
from collections.abc import Hashable

from fedcore.errors import FedcoreError
from fedcore.graphs.dataflow.graph import Region, Value
from fedcore.graphs.dataflow.text import count_operations, print_region
from fedcore.graphs.dataflow.text_attributes import print_attributes, type_text
from fedcore.graphs.graphdef.form.captured_graph import captured_graph
from fedcore.ir.module import Graph, Module
from fedcore.ir.printer import symbol
from fedcore.types import SequenceType, leaves

MOST_PRINTED = 100
"""Operations of a graph that are printed unless a caller asks for more."""


def graph_regions(graph: Graph, data: bytes) -> dict[str, Region]:
    """The operations of a graph as a region under the graph's name, and those of the functions that operations name.

    Args:
        data: the graph's canonical bytes.
    Raises:
        FedcoreError: as `captured_graph`.
    """
    captured = captured_graph(graph, data)
    return {graph.name: captured.main} | {name.name: region for name, region in captured.named.items()}


def argument_names(graph: Graph, count: int) -> list[str]:
    """The names of a graph's arguments, made of the paths of its parameter's leaves; [] where two names are equal.

    A leaf `[0]` is `arg_0`, `x.y[0]` is `x_y_0`. A sequence is two arguments, such as `data` and `data_count`.

    Args:
        count: number of the graph's arguments; an argument behind those of the leaves is the seed.
    """
    names: list[str] = []
    for path, leaf in () if graph.type.parameter is None else leaves(graph.type.parameter):
        words = re.findall(r"[A-Za-z0-9]+", path)
        name = "_".join(words if words and not words[0].isdigit() else ["arg", *words])
        names += [name, f"{name}_count"] if isinstance(leaf, SequenceType) else [name]
    names += ["seed"] * (count - len(names))
    return names if len(set(names)) == len(names) else []


def keys_of_values(region: Region) -> list[tuple[Value, Hashable]]:
    """The values of a region in the order of its text, each with a key that is equal for values that may correspond.

    A value's key has its type, and the operation that computes it with its attributes.
    """
    keys: list[tuple[Value, Hashable]] = [(v, type_text(v)) for v in region.arguments]
    for node in region.nodes:
        attributes = tuple(print_attributes(node).items())
        keys += [(v, (node.op, i, type_text(v), attributes)) for i, v in enumerate(node.outputs)]
        for body in node.regions:
            keys += keys_of_values(body)
    return keys


def print_graph(module: Module, graph: Graph, *, most_operations: int = MOST_PRINTED) -> str:
    """The text of the operations of a module's graph, below its name, their number and its digest.

    Where the module lacks the graph's bytes or they are none of a graph, the text is a comment that says so.

    Args:
        most_operations: the number of operations of a region after which the others are counted only.
    """
    try:
        regions = graph_regions(graph, module.blob(graph.digest))
    except FedcoreError as error:
        return f"// {symbol(graph.name)}: {str(error).splitlines()[0]}\n"
    count = sum(map(count_operations, regions.values()))
    texts = [f"// {symbol(graph.name)}: {count} operation{'s' * (count != 1)}, sha256:{graph.digest[:12]}\n"]
    for name, region in regions.items():
        names = argument_names(graph, len(region.arguments)) if name == graph.name else []
        texts.append(
            print_region(region, name=name, arguments=names, most_operations=most_operations, shows_sources=True)
        )
    return "".join(texts)
