"""The stage pass `cse`: equal nodes of a block."""

from collections.abc import Hashable, Sequence

from fedcore.graphs.dataflow.effects import has_effect
from fedcore.graphs.dataflow.graph import Block, Node, Region, Value
from fedcore.graphs.dataflow.node_content import content_key
from fedcore.graphs.dataflow.rewriting import RegionCopy
from fedcore.graphs.dataflow.stage_passes import stage_pass


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
    """A copy in which the first of equal nodes of a block stands in the place of the later ones."""

    def __init__(self) -> None:
        super().__init__()
        self._outputs: dict[tuple, Sequence[Value]] = {}  # key of a node, see `add` -> results of its copy
        self._contents: dict[int, Hashable] = {}  # id of attributes, which equal nodes mostly share -> their key

    def add(self, node: Node, block: Block, inputs: Sequence[Value], regions: Sequence[Region]) -> Sequence[Value]:
        """The results of an equal node of the block, if there is one; else those of the copied node.

        Nodes are equal if they have one operation, equal attributes, and the same operands and control dependencies. A
        node whose results have better known shapes than those of the earlier one stays.
        """
        if regions or has_effect(node.op):
            return super().add(node, block, inputs, regions)
        waits = tuple(map(id, block.ordered_behind))
        key = (id(block), node.op, self._content(node), *map(id, inputs), waits)
        outputs = self._outputs.get(key)
        if outputs is not None and _has_types_of(outputs, node):
            self.is_changed = True
            return outputs
        self._outputs[key] = outputs = super().add(node, block, inputs, regions)
        return outputs

    def _content(self, node: Node) -> Hashable:
        """The key of a node's attributes; computed once for attributes that nodes share, but for large constants."""
        if node.op == "Const":
            return content_key(node)
        key = id(node.attributes)
        if key not in self._contents:
            self._contents[key] = content_key(node)
        return self._contents[key]


def _has_types_of(outputs: Sequence[Value], node: Node) -> bool:
    """Whether earlier results have the dtypes and static shapes of a node's results, so that they can replace them."""
    return all(a.dtype == b.dtype and a.shape == b.shape for a, b in zip(outputs, node.outputs, strict=True))
