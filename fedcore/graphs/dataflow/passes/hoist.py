"""The stage pass `hoist`: computes a value where it is first known."""

from collections.abc import Iterable, Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.dataflow.effects import has_effect
from fedcore.graphs.dataflow.graph import Block, Node, Region, Value
from fedcore.graphs.dataflow.stage_passes import stage_pass

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
"""Operations that make a large value of a small one, which the next operation overwrites in its buffer."""


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
    - a node of a branch that may not be taken; of a `while`, which may take no step, a node that might fail;
    - a node of a function that TensorFlow fuses or XLA compiles as a whole;
    - in a function, a value that is broadcast: the function of each group overwrites its own;
    - constants and what is computed of them only, unless a moved node reads them: TensorFlow folds them in the function
      where they are read. Out of a scan, which is lowered in place, they move too.
    """
    hoisting = _Hoisting()
    after = hoisting.of(region)
    return after if hoisting.is_changed else region


@attrs.define(eq=False)
class _Frame:
    """A region that is being copied.

    Args:
        op: of the node that runs it; empty for the outermost region.
        is_left: nodes may move out of it.
        constants: the copies in its block, by the copied value.
    """

    op: str
    is_left: bool
    block: Block
    constants: dict[Value, Value] = attrs.field(factory=dict)

    @property
    def is_in_place(self) -> bool:
        """Whether the region's operations are added to the TensorFlow graph around it."""
        return self.op in ("scan", "if") and self.is_left


class _Hoisting:
    """Copies a region; a value's depth is the number of regions around the one that holds it.

    Attributes:
        is_changed: a node has moved, or a loop variable is gone.
    """

    def __init__(self) -> None:
        self.is_changed = False
        self._frames: list[_Frame] = []
        self._values: dict[Value, Value] = {}
        self._depths: dict[Value, int] = {}  # of copies
        self._constant_depths: dict[Value, int] = {}  # of constants and what is computed of them only, not yet copied

    def of(self, region: Region) -> Region:
        return self._region(region, "", is_left=False)

    def _region(self, region: Region, op: str, *, is_left: bool, replaced: dict[int, Value] | None = None) -> Region:
        """The copy of a region.

        Args:
            replaced: number of an argument that the copy does not have -> the value in its place.
        """
        replaced = replaced or {}
        self._frames.append(_Frame(op, is_left, Block(self._frames[-1].block if self._frames else None)))
        depth, block = len(self._frames) - 1, self._frames[-1].block
        for i, argument in enumerate(region.arguments):
            if i in replaced:
                self._values[argument] = replaced[i]
            else:
                self._values[argument] = copy = block.argument(argument.dtype, argument.shape)
                self._depths[copy] = depth
        for node in region.nodes:
            self._node(node, depth)
        results = [self._operand(v, depth) for v in region.results]
        self._frames.pop()
        return block.region(results)

    def _node(self, node: Node, depth: int) -> None:
        if node.op == "scan":
            self._scan(node, depth)
        elif node.regions:
            self._runner(node, depth)
        elif self._is_constant(node):
            home = depth
            while node.op != "Const" and self._frames[home].is_in_place:
                home -= 1
            self._constant_depths.update(dict.fromkeys(node.outputs, home))
        else:
            self._add(node, self._destination(node, depth))

    def _is_constant(self, node: Node) -> bool:
        return not _is_fixed(node) and all(v in self._constant_depths for v in node.inputs)

    def _destination(self, node: Node, depth: int) -> int:
        """The depth to which a node moves: that right outside of a loop, or its own."""
        destination = depth
        if _is_fixed(node):
            return destination
        first = max(self._depths[self._values[v]] for v in node.inputs if v not in self._constant_depths)
        while depth > first and self._may_leave(node, self._frames[depth]):
            depth -= 1
            if self._frames[depth + 1].op in ("scan", "while"):
                destination = depth
        return destination

    @staticmethod
    def _may_leave(node: Node, frame: _Frame) -> bool:
        if frame.op == "while" and not _cannot_fail(node):
            return False
        return frame.is_in_place or (frame.is_left and node.op not in _COPIES)

    def _add(self, node: Node, depth: int, regions: Sequence[Region] = ()) -> None:
        """Adds a copy to the region at a depth."""
        block = self._frames[depth].block
        self.is_changed |= depth < len(self._frames) - 1
        block.ordered_behind = tuple(self._operand(v, depth) for v in node.after)
        inputs = [self._operand(v, depth) for v in node.inputs]
        outputs = block.add(node.op, inputs, node.attributes, [(v.dtype, v.shape) for v in node.outputs], regions)
        self._note(node.outputs, outputs, depth)

    def _note(self, values: Iterable[Value], copies: Iterable[Value], depth: int) -> None:
        for value, copy in zip(values, copies, strict=True):
            self._values[value] = copy
            self._depths.setdefault(copy, depth)  # a value in the place of a result may be from outside

    def _operand(self, value: Value, depth: int) -> Value:
        """The copy of a value that nodes at a depth read; a constant is copied to where it is, or to them."""
        if value not in self._constant_depths:
            return self._values[value]
        home = self._constant_depths[value]
        frame = self._frames[min(home, depth)]
        if value not in frame.constants:
            node = value.node
            assert node is not None
            inputs = [self._operand(v, min(home, depth)) for v in node.inputs]
            frame.block.ordered_behind = ()
            outputs = frame.block.add(node.op, inputs, node.attributes, [(v.dtype, v.shape) for v in node.outputs])
            frame.constants.update(zip(node.outputs, outputs, strict=True))
        return frame.constants[value]

    def _scan(self, node: Node, depth: int) -> None:
        """Copies a scan without the variables that its body returns unchanged, if another one is left."""
        (body,) = node.regions
        count, *initial = (self._operand(v, depth) for v in node.inputs)
        pairs = zip(body.arguments[1:], body.results, strict=False)
        changes = [argument is not result for argument, result in pairs]
        if not any(changes):
            changes = [True] * len(changes)
        self.is_changed |= not all(changes)
        replaced = {i: v for i, (v, c) in enumerate(zip(initial, changes, strict=True), 1) if not c}
        for value in replaced.values():
            self._depths.setdefault(value, depth)
        copy = self._region(body, "scan", is_left=True, replaced=replaced)
        results = [r for r, c in zip(copy.results, changes, strict=False) if c] + list(copy.results[len(changes) :])
        kept = sum(changes[len(changes) - node["kept_by_step"] :])
        carried = [v for v, c in zip(initial, changes, strict=True) if c]
        types = [(v.dtype, v.shape) for v, c in zip(node.outputs, changes, strict=True) if c]
        block = self._frames[depth].block
        block.ordered_behind = tuple(self._operand(v, depth) for v in node.after)
        region = attrs.evolve(copy, results=tuple(results))
        outputs = block.add("scan", [count, *carried], {**node.attributes, "kept_by_step": kept}, types, [region])
        changed = iter(outputs)
        self._note(node.outputs, [next(changed) if c else v for v, c in zip(initial, changes, strict=True)], depth)

    def _runner(self, node: Node, depth: int) -> None:
        """Copies a node that runs regions."""
        is_left = node.op == "while" or (len(node.regions) == 1 and node.get("kind", "unordered") == "unordered")
        regions = [self._region(region, node.op, is_left=is_left) for region in node.regions]
        self._add(node, depth, regions)


def _is_fixed(node: Node) -> bool:
    is_list = any(v.dtype == tf.variant for v in node.outputs)
    return is_list or bool(node.after) or has_effect(node.op)


def _cannot_fail(node: Node) -> bool:
    return node.op in _TOTAL and all(v.shape.is_fully_defined() for v in (*node.inputs, *node.outputs))
