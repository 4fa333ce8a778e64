"""The stage pass `cse`: equal nodes of a block."""

from collections.abc import Sequence

from fedcore.graphs.dataflow.effects import has_effect
from fedcore.graphs.dataflow.graph import Block, Node, Region, Value
from fedcore.graphs.dataflow.rewriting import RegionCopy
from fedcore.graphs.dataflow.shape_inference import hashable
from fedcore.graphs.dataflow.stage_passes import stage_pass

MOST_COMPARED = 1 << 12
"""Entries of the largest constant that is compared with others; larger ones are equal if they are one array."""


@stage_pass("cse")
def cse(region: Region) -> Region:
    """Merges equal nodes of a block, constants too, into the first of them.

        %1 = Neg(%0) : float32
        %2 = Neg(%0) : float32
        %3 = AddV2(%1, %2) : float32
    becomes
        %1 = Neg(%0) : float32
        %3 = AddV2(%1, %1) : float32

    Nodes of a region in it are not merged with nodes around it: a function would get a constant as an operand.
    """
    return _Merging().of(region)


class _Merging(RegionCopy):
    """A copy in which an equal node of the block stands in the place of a later one."""

    def __init__(self) -> None:
        super().__init__()
        self._nodes: dict[tuple, Sequence[Value]] = {}
        self._attributes: dict[int, tuple] = {}  # nodes of equal attributes mostly share the mapping

    def add(self, node: Node, block: Block, inputs: Sequence[Value], regions: Sequence[Region]) -> Sequence[Value]:
        """The results of an equal node of the block, if there is one; else those of the copied node.

        Nodes are equal if they have one operation, equal attributes, and the same operands and control dependencies. A
        node whose results have better known shapes than those of the earlier one stays.
        """
        if regions or has_effect(node.op):
            return super().add(node, block, inputs, regions)
        key = (id(block), node.op, self._content(node), *map(id, inputs), -1, *map(id, block.ordered_behind))
        outputs = self._nodes.get(key)
        if outputs is not None and _has_types_of(outputs, node):
            self.is_changed = True
            return outputs
        self._nodes[key] = outputs = super().add(node, block, inputs, regions)
        return outputs

    def _content(self, node: Node) -> object:
        """A key of a node's attributes: equal for equal attributes. A large constant is keyed by its array's
        identity.
        """
        if node.op == "Const":
            array = node["value"]
            if array.size > MOST_COMPARED or array.dtype == object:
                return id(array)
            return node["dtype"], array.shape, array.tobytes()
        key = id(node.attributes)
        if key not in self._attributes:
            self._attributes[key] = tuple((k, hashable(v)) for k, v in sorted(node.attributes.items()))
        return self._attributes[key]


def _has_types_of(outputs: Sequence[Value], node: Node) -> bool:
    """Whether earlier results have the dtypes and static shapes of a node's results, so that they can replace them."""
    return all(a.dtype == b.dtype and a.shape == b.shape for a, b in zip(outputs, node.outputs, strict=True))
