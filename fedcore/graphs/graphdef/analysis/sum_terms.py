"""Detects sums that grow exponentially in TensorFlow's arithmetic optimiser.

The optimiser collects a tree of additions into one AddN. Where both operands of an addition are the same tensor, as in
`y = y + y`, the AddN lists that tensor twice, so each step of a chain doubles the AddN.
"""

import collections

from fedcore.errors import FedcoreError
from fedcore.graphs.dataflow.graph import Region, Value
from fedcore.graphs.graphdef.form.captured_graph import SourceGraph, captured_graph

_ADDITIONS = ("Add", "AddV2", "AddN")
_FEWEST = 1000
"""Terms that a sum may have whatever the number of nodes."""


def sums_explode(graph: SourceGraph, data: bytes) -> bool:
    """Whether a collected sum has more terms than a linear function of the number of nodes allows.

    A graph that is too large for a region is taken to have such a sum.
    """
    try:
        return any(map(_explodes, captured_graph(graph, data).regions()))
    except FedcoreError:
        return True


def _explodes(region: Region) -> bool:
    """Whether the optimiser would make an AddN of too many terms from the additions of a region.

    It collects an addition into another one only if nothing else reads its sum: all uses are reads of that node.
    """
    terms: dict[Value, int] = {}
    for node in region.nodes:
        if node.op in _ADDITIONS or node.op == "Identity":
            reads = collections.Counter(node.inputs)
            terms[node.outputs[0]] = sum(terms.get(v, 1) if region.uses[v] == reads[v] else 1 for v in node.inputs)
    return max(terms.values(), default=1) > 4 * len(region.nodes) + _FEWEST
