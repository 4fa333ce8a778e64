"""The stage pass `pack-accumulators`: loop variables that a step only adds to."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Block, Node, Region, Value, building
from fedcore.graphs.dataflow.rewriting import RegionCopy
from fedcore.graphs.dataflow.stage_passes import stage_pass

Group: TypeAlias = dict[int, Value]
"""Number of a loop variable -> the value that a step adds to it."""


@stage_pass("pack-accumulators", grows=True)
def pack_accumulators(region: Region) -> Region:
    """Carries accumulators of a loop, vectors of one dtype and length, as the columns of one matrix.

        %0, %1 = scan(%n, %loss, %hits) {
          body(%i, %l, %h):
            %2 = AddV2(%l, %x) : float32[32]
            %3 = AddV2(%y, %h) : float32[32]
            return %2, %3
        }
    becomes
        %4 = Pack([%loss, %hits]) : float32[32,2] {axis=-1}
        %5 = scan(%n, %4) {
          body(%i, %t):
            %6 = Pack([%x, %y]) : float32[32,2] {axis=-1}
            %7 = AddV2(%t, %6) : float32[32,2]
            return %7
        }
        %0, %1 = Unpack(%5) : float32[32], float32[32] {num=2, axis=-1}

    An accumulator is a loop variable that a step adds a value to and reads for nothing else, such as a metric. Each
    loop variable costs TensorFlow six operations an iteration. Variables whose inactive rows the step itself leaves
    unchanged stay.
    """
    uses = _count_uses(region)
    groups = {scan: scan_groups for scan in _scans(region) if (scan_groups := _group_accumulators(scan, uses))}
    return _Packing(groups).of(region) if groups else region


def _count_uses(region: Region) -> Counter[Value]:
    """Value -> how often nodes and results of a region, and of the regions in it, read it."""
    uses = Counter(region.results)
    for node in region.nodes:
        uses.update((*node.inputs, *node.after))
        for inner in node.regions:
            uses.update(_count_uses(inner))
    return uses


def _scans(region: Region) -> Iterator[Node]:
    """The scans of a region and of the regions in it."""
    for node in region.nodes:
        if node.op == "scan":
            yield node
        for inner in node.regions:
            yield from _scans(inner)


def _group_accumulators(scan: Node, uses: Counter[Value]) -> list[Group]:
    """The groups of two or more accumulators of a scan that have one dtype and length.

    Args:
        uses: value -> how often it is read, as `_count_uses` has it.
    """
    (body,) = scan.regions
    _number, *variables = body.arguments  # of the iteration, and the loop variables
    candidates = len(variables) - scan["kept_by_step"]  # the last ones, whose inactive rows the step keeps, stay
    groups: dict[object, Group] = {}
    for i, (variable, total) in enumerate(zip(variables[:candidates], body.results, strict=False)):
        is_vector = variable.shape.rank == 1 and variable.shape.is_fully_defined()
        addend = _addend(total, variable) if is_vector and uses[variable] == uses[total] == 1 else None
        if addend is not None:
            groups.setdefault((variable.dtype, variable.shape[0]), {})[i] = addend
    return [group for group in groups.values() if len(group) > 1]


def _addend(total: Value, variable: Value) -> Value | None:
    """The value t if `total` is `variable + t`; else None."""
    node = ops.computed_by(total, "AddV2")
    if node is None or node.after or total.shape != variable.shape:
        return None
    x, y = node.inputs
    return y if x is variable else x if y is variable else None


class _Packing(RegionCopy):
    """A copy whose scans carry each group of accumulators as one loop variable, before the others."""

    def __init__(self, groups: dict[Node, list[Group]]) -> None:
        super().__init__()
        self._groups = groups
        bodies = [(scan.regions[0], group) for scan, scan_groups in groups.items() for group in scan_groups]
        self._sums = {body.results[i].node for body, group in bodies for i in group}

    def is_left_out(self, node: Node) -> bool:
        """The sums of accumulators have no copies."""
        return node in self._sums

    def add(self, node: Node, block: Block, inputs: Sequence[Value], regions: Sequence[Region]) -> Sequence[Value]:
        """Adds the copy of a node. A scan with accumulators gets a matrix for each group, then the single variables.

        Returns:
            The values in the place of its results, in their order: columns of the matrices, or single variables.
        """
        if node not in self._groups:
            return super().add(node, block, inputs, regions)
        groups, (body,), (count, *initial) = self._groups[node], regions, inputs
        packed = {i for group in groups for i in group}
        single = [i for i in range(len(initial)) if i not in packed]
        matrices = [ops.stack([initial[i] for i in group], -1) for group in groups]
        start = [*matrices, *(initial[i] for i in single)]
        types = [(v.dtype, v.shape) for v in start]
        packed_body = self._pack_body(body, groups, single, types)
        outputs = block.add("scan", [count, *start], node.attributes, types, [packed_body])
        results = dict(zip(single, outputs[len(groups) :], strict=True))
        for group, matrix in zip(groups, outputs[: len(groups)], strict=True):
            results.update(zip(group, ops.unstack(matrix, axis=-1), strict=True))
        return [results[i] for i in range(len(initial))]

    def _pack_body(self, body: Region, groups: list[Group], single: list[int], types: Sequence[tuple]) -> Region:
        """The body of a scan that carries matrices of accumulators, then the single loop variables.

        Args:
            body: copy of the body without the sums of accumulators.
            single: numbers of the single loop variables.
            types: dtype and shape of each loop variable.
        """
        number, *variables = body.arguments
        block = number.block
        block.ordered_behind = ()
        matrices = [block.argument(*type_) for type_ in types[: len(groups)]]
        with building(block):
            sums = [m + self._stack_addends(group, m.shape[0]) for m, group in zip(matrices, groups, strict=True)]
        active = body.results[len(variables) :]
        results = (*sums, *(body.results[i] for i in single), *active)
        return Region((number, *matrices, *(variables[i] for i in single)), tuple(block.nodes), results)

    def _stack_addends(self, group: Group, length: int) -> Value:
        """The matrix whose columns are the addends of a group of accumulators; a scalar is added to each entry."""
        addends = [self._values.get(t, t) for t in group.values()]
        return ops.stack([t if t.shape == [length] else ops.broadcast_to(t, [length]) for t in addends], -1)
