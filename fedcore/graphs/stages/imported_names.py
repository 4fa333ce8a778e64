"""Sources of the nodes of imported graphs, by the names that they have in TensorFlow's errors and profiles.

A graph is imported under its name: the node `n3` of `@step` is `step/n3` there, or `step_1/n3` where it is imported
again. The node `n7` of the function that `n3` calls is `step/n3/n7`.
"""

import re

from fedcore.graphs.capture.graph_import import keys_on_path, scope
from fedcore.graphs.emission.source_names import source_in
from fedcore.ir.module import Graph, Module, NodeSource


def source_of_name(text: str, module: Module | None) -> NodeSource | None:
    """The source of the first node of a program that a text names; None if it names none.

    Args:
        module: the program; None if the names of emitted operations alone are looked for.
    """
    emitted = source_in(text)
    if emitted is not None or module is None:
        return emitted
    for graph in module.graphs if re.search(r"/n\d+", text) else ():
        for match in re.finditer(rf"\b{re.escape(scope(graph.name))}(?:_\d+)?((?:/n\d+)+)", text):
            source = _source(module, graph, match[1].split("/")[1:])
            if source is not None:
                return source
    return None


def _source(module: Module, graph: Graph, path: list[str]) -> NodeSource | None:
    """The source of a node of a graph, or of the innermost call around it that has one.

    Args:
        path: the node behind the calls of functions that it is in.
    """
    data = module.blobs.get(graph.digest)
    keys = [("", path[0])] if data is None else [*keys_on_path(graph, data, path)]
    return next((graph.sources[key] for key in reversed(keys) if key in graph.sources), None)
