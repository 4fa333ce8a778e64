"""The stage pass `hoist`: computes a value where it is first known.

The pass copies a region, and in it the regions of its nodes; each region that is being copied has a `_Frame`. The
*depth* of a value is the number of regions around the one that holds it: 0 for the outermost. A node may leave the
regions between its own depth and the greatest depth of its operands, as far as each of these lets it.

Constants, and values that are computed of constants only, have no depth of their own: they are copied once a node reads
them, to where that node is.
"""

from collections.abc import Iterable, Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.dataflow.effects import has_effect
from fedcore.graphs.dataflow.graph import Block, Node, Region, Value, from_source
from fedcore.graphs.dataflow.stage_passes import stage_pass
from fedcore.graphs.dataflow.value_errors import raising_operands

_TOTAL = frozenset(
    {
        *("AddV2", "Sub", "Mul", "RealDiv", "DivNoNan", "Maximum", "Minimum", "Neg", "Abs", "Square", "Sqrt", "Rsqrt"),
        *("Exp", "Log", "Tanh", "Sigmoid", "Relu", "Softmax", "Cast", "Identity", "Select", "SelectV2"),
        *("Equal", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr", "LogicalNot"),
        *("Transpose", "Reshape", "ExpandDims", "Squeeze", "ConcatV2", "Pack", "BroadcastTo"),
        *("MatMul", "BatchMatMulV2", "Sum", "Mean", "Max", "Min"),
    }
)
"""Operations that cannot fail where the shapes of all operands are known."""

_COPIES = frozenset({"BroadcastTo", "Tile", "Fill"})
"""Operations that copy a small value to a large buffer. The next operation overwrites it, so each use needs a copy."""


@stage_pass("hoist", grows=True)
def hoist(region: Region) -> Region:
    """Moves nodes out of loops that do not change them, to the outermost region where their operands are known.

        %1 = scan(%n, %total, %rate) {
          body(%i, %t, %r):
            %2 = Exp(%r) : float32
            %3 = AddV2(%t, %2) : float32
            return %3, %r
        }
    becomes
        %2 = Exp(%rate) : float32
        %1 = scan(%n, %total) {
          body(%i, %t):
            %3 = AddV2(%t, %2) : float32
            return %3
        }

    A variable that a scan's body returns unchanged is not carried. What stays:

    - a node with effects, or with a control dependency, a node that runs regions, and one that makes a tensor list;
    - a node of a branch of a `cond`; of a loop, which may take no step, a node that might fail;
    - a node of a function that TensorFlow fuses or XLA compiles as a whole;
    - in a function, a copy of a small value (`BroadcastTo`, `Tile`, `Fill`): the next operation overwrites it, so that
      each call needs its own;
    - constants and what is computed of them only, unless a moved node reads them: TensorFlow folds them in the function
      where they are read. Out of a scan, which is lowered in place, what is computed of constants moves too.
    """
    hoisting = _Hoisting()
    hoisted = hoisting.copy(region)
    return hoisted if hoisting.is_changed else region


@attrs.define(eq=False)
class _Frame:
    """A region that is being copied.

    Args:
        op: of the node that runs it; empty for the outermost region.
        allows_leaving: whether nodes may move out of it.
        block: of the copy.
        constants: copied value -> its copy in this block, for values that depend on constants only.
    """

    op: str
    allows_leaving: bool
    block: Block
    constants: dict[Value, Value] = attrs.field(factory=dict)

    @property
    def is_in_place(self) -> bool:
        """Whether the region's operations are added to the TensorFlow graph around it."""
        return self.op in ("scan", "if") and self.allows_leaving


class _Hoisting:
    """Copies a region, and adds each node to the outermost region that it may move to.

    The depth of a value is the number of regions around the one that holds it. Constants, and values computed of them
    only, are copied once a node reads them, to where that node is.

    Attributes:
        is_changed: whether a node has moved, or a loop variable is gone.
    """

    def __init__(self) -> None:
        self.is_changed = False
        self._frames: list[_Frame] = []  # one for each region that is being copied, the outermost first
        self._values: dict[Value, Value] = {}  # value -> its copy
        self._depths: dict[Value, int] = {}  # copy -> its depth
        # Constant, or value of constants only -> the depth to which its copy may go; `_Frame.constants` has the copies.
        self._constant_depths: dict[Value, int] = {}

    def copy(self, region: Region) -> Region:
        """The copy of an outermost region, whose nodes have moved out of loops."""
        return self._copy_region(region, "", allows_leaving=False)

    def _copy_region(
        self, region: Region, op: str, *, allows_leaving: bool, replaced: dict[int, Value] | None = None
    ) -> Region:
        """The copy of a region.

        Args:
            op: of the node that runs it.
            allows_leaving: as in `_Frame`.
            replaced: number of an argument that the copy does not have -> the value in its place.
        """
        replaced = replaced or {}
        self._frames.append(_Frame(op, allows_leaving, Block(self._frames[-1].block if self._frames else None)))
        depth, block = len(self._frames) - 1, self._frames[-1].block
        for i, argument in enumerate(region.arguments):
            if i in replaced:
                self._values[argument] = replaced[i]
            else:
                self._values[argument] = copy = block.argument(argument.dtype, argument.shape)
                self._depths[copy] = depth
        for node in region.nodes:
            with from_source(node.source):
                self._copy_node(node, depth)
        results = [self._operand(v, depth) for v in region.results]
        self._frames.pop()
        return block.region(results)

    def _copy_node(self, node: Node, depth: int) -> None:
        """Copies a node of the region at a depth to where it may move.

        A node of constants only is not copied yet; its depth is noted. Out of loops that are lowered in place, it moves
        too.
        """
        if node.op == "scan":
            self._copy_scan(node, depth)
        elif node.regions:
            self._copy_node_with_regions(node, depth)
        elif self._is_constant(node):
            constant_depth = depth
            while node.op != "Const" and self._frames[constant_depth].is_in_place:
                constant_depth -= 1
            self._constant_depths.update(dict.fromkeys(node.outputs, constant_depth))
        else:
            self._add_copy(node, self._destination(node, depth))

    def _is_constant(self, node: Node) -> bool:
        """Whether a node may move, and is computed of constants only."""
        return not _is_fixed(node) and all(v in self._constant_depths for v in node.inputs)

    def _destination(self, node: Node, depth: int) -> int:
        """The depth to which a node moves: right outside of the outermost loop that it can leave, or its own depth.

        It cannot move further out than the innermost of its operands. It leaves a branch or a function only together
        with a loop around it.
        """
        destination = depth
        if _is_fixed(node):
            return depth
        operand_depth = max(self._depths[self._values[v]] for v in node.inputs if v not in self._constant_depths)
        while depth > operand_depth and self._may_leave(node, self._frames[depth]):
            depth -= 1
            if self._frames[depth + 1].op in ("scan", "while"):
                destination = depth
        return destination

    def _may_leave(self, node: Node, frame: _Frame) -> bool:
        """Whether a node may move out of a region.

        A loop may take no step, so nodes leave a `while` only if they cannot fail, and a `scan`, for whose steps all
        shapes fit, only if they raise on no value but constants. Copies of small values leave only regions that are
        lowered in place: a function of TensorFlow overwrites its own copy.
        """
        if frame.op == "while" and not _cannot_fail(node):
            return False
        raising = raising_operands(node.op, node.inputs)
        if frame.op == "scan" and any(node.inputs[i] not in self._constant_depths for i in raising):
            return False
        return frame.is_in_place or (frame.allows_leaving and node.op not in _COPIES)

    def _add_copy(self, node: Node, depth: int, regions: Sequence[Region] = ()) -> None:
        """Adds the copy of a node to the region at a depth.

        Args:
            regions: copies of the regions that it runs.
        """
        block = self._frames[depth].block
        self.is_changed |= depth < len(self._frames) - 1
        block.ordered_behind = tuple(self._operand(v, depth) for v in node.after)
        inputs = [self._operand(v, depth) for v in node.inputs]
        outputs = block.add(node.op, inputs, node.attributes, [(v.dtype, v.shape) for v in node.outputs], regions)
        self._note_copies(node.outputs, outputs, depth)

    def _note_copies(self, values: Iterable[Value], copies: Iterable[Value], depth: int) -> None:
        """Notes the copies of values, and the depth of copies that have none yet. Initial values of a scan, which stand
        in the place of results, have one.
        """
        for value, copy in zip(values, copies, strict=True):
            self._values[value] = copy
            self._depths.setdefault(copy, depth)

    def _operand(self, value: Value, depth: int) -> Value:
        """The copy of a value that a node at a depth reads.

        A value of constants only is copied here, to the depth where it may be, or to the reader if that is further out.
        """
        if value not in self._constant_depths:
            return self._values[value]
        constant_depth = self._constant_depths[value]
        frame = self._frames[min(constant_depth, depth)]
        if value not in frame.constants:
            node = value.node
            assert node is not None  # no argument depends on constants only
            inputs = [self._operand(v, min(constant_depth, depth)) for v in node.inputs]
            frame.block.ordered_behind = ()
            outputs = frame.block.add(node.op, inputs, node.attributes, [(v.dtype, v.shape) for v in node.outputs])
            frame.constants.update(zip(node.outputs, outputs, strict=True))
        return frame.constants[value]

    def _copy_scan(self, node: Node, depth: int) -> None:
        """Copies a scan without the loop variables that its body returns unchanged.

        In the body, their initial values stand in the place of the arguments.
        """
        (body,) = node.regions
        count, *initial = (self._operand(v, depth) for v in node.inputs)
        changes = _changing_variables(body)
        self.is_changed |= not all(changes)
        replaced = {i: v for i, (v, c) in enumerate(zip(initial, changes, strict=True), 1) if not c}
        for value in replaced.values():
            self._depths.setdefault(value, depth)
        copy = self._copy_region(body, "scan", allows_leaving=True, replaced=replaced)
        results = [r for r, c in zip(copy.results, changes, strict=False) if c] + list(copy.results[len(changes) :])
        kept_by_step = sum(changes[len(changes) - node["kept_by_step"] :])  # the changing ones of the last variables
        changing_initial = [v for v, c in zip(initial, changes, strict=True) if c]
        types = [(v.dtype, v.shape) for v, c in zip(node.outputs, changes, strict=True) if c]
        block = self._frames[depth].block
        block.ordered_behind = tuple(self._operand(v, depth) for v in node.after)
        region = attrs.evolve(copy, results=tuple(results))
        outputs = block.add(
            "scan", [count, *changing_initial], {**node.attributes, "kept_by_step": kept_by_step}, types, [region]
        )
        changing_outputs = iter(outputs)
        final_values = [next(changing_outputs) if c else v for v, c in zip(initial, changes, strict=True)]
        self._note_copies(node.outputs, final_values, depth)

    def _copy_node_with_regions(self, node: Node, depth: int) -> None:
        """Copies a node, other than a scan, that runs regions.

        Nodes may leave a `while`, the region of a `computed_if`, and an `unordered` call (`control_flow.call`); they
        leave neither side of a `cond`, nor other calls.
        """
        allows_leaving = node.op == "while" or (len(node.regions) == 1 and node.get("kind", "unordered") == "unordered")
        regions = [self._copy_region(region, node.op, allows_leaving=allows_leaving) for region in node.regions]
        self._add_copy(node, depth, regions)


def _changing_variables(body: Region) -> list[bool]:
    """For each loop variable of a scan whether its body returns another value for it.

    All are taken to change if none does, since a scan has results.
    """
    pairs = zip(body.arguments[1:], body.results, strict=False)  # behind the results may stand `active`
    changes = [argument is not result for argument, result in pairs]
    return changes if any(changes) else [True] * len(changes)


def _is_fixed(node: Node) -> bool:
    """Whether a node has to stay where it is: it has effects, a control dependency, or a tensor list as a result."""
    is_list = any(v.dtype == tf.variant for v in node.outputs)
    return is_list or bool(node.after) or has_effect(node.op)


def _cannot_fail(node: Node) -> bool:
    """Whether a node may be computed though the loop that holds it takes no step."""
    return node.op in _TOTAL and all(v.shape.is_fully_defined() for v in (*node.inputs, *node.outputs))
