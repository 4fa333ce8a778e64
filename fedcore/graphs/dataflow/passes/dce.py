"""The stage pass `dce`: nodes that no result needs."""

from fedcore.graphs.dataflow.effects import has_effect
from fedcore.graphs.dataflow.graph import Node, Region, Value
from fedcore.graphs.dataflow.rewriting import RegionCopy
from fedcore.graphs.dataflow.stage_passes import stage_pass


@stage_pass("dce")
def dce(region: Region) -> Region:
    """Removes nodes whose results nothing reads.

        %1 = Neg(%0) : float32
        %2 = Exp(%0) : float32      // read by nothing
        return %1
    becomes
        %1 = Neg(%0) : float32
        return %1

    Nodes with effects stay, and what they read.
    """
    dead: set[Node] = set()
    _note_dead(region, set(), dead)
    return _WithoutDead(dead).of(region) if dead else region


class _WithoutDead(RegionCopy):
    """A copy without the given dead nodes."""

    def __init__(self, dead: set[Node]) -> None:
        super().__init__()
        self._dead = dead

    def is_left_out(self, node: Node) -> bool:
        return node in self._dead


def _note_dead(region: Region, read: set[Value], dead: set[Node]) -> None:
    """Adds to `dead` the nodes of a region, and of the regions in it, that no result and no effect needs.

    Nodes are visited from the last to the first, so that all readers of a node are visited before it.

    Args:
        read: gets the values that live nodes and results read; has those that nodes behind this region read.
    """
    read.update(region.results)
    for node in reversed(region.nodes):
        if not read.isdisjoint(node.outputs) or _has_effect(node):
            read.update(node.inputs, node.after)
            for inner in node.regions:
                _note_dead(inner, read, dead)
        else:
            dead.add(node)


def _has_effect(node: Node) -> bool:
    """Whether a node has effects, by itself or by a node of the regions that it runs."""
    inside = (inner for region in node.regions for inner in region.nodes)
    return has_effect(node.op) if not node.regions else any(map(_has_effect, inside))
