"""Values, nodes and regions of a dataflow graph, and the block to which operations are added.

    Value   one tensor: dtype, shape, and the node that computes it, or none for an argument
    Node    one operation: its operands, attributes, and the regions that it runs
    Region  arguments, nodes in an order that computes operands first, and results
    Block   a region while it is built

A region may read values of the regions around it. TensorFlow's operations keep their names. Four more have regions:

    scan(count, *initial)    body (step, *variables) -> variables, maybe `active` (`control_flow.scan`); `count` times
    while(*initial)          test (*variables) -> bool, body (*variables) -> variables
    if(condition)            then () -> results, otherwise () -> results; only the one that is taken runs
    call(*operands)          body (*operands) -> results, as a function of its own

Example: `x @ w + 1` for four clients.

    region(%x: float32[4,20,7], %w: float32[7,3]) {
      %0 = Const() : float32 {value=1.0}
      %1 = BatchMatMulV2(%x, %w) : float32[4,20,3]
      %2 = AddV2(%1, %0) : float32[4,20,3]
      return %2
    }
"""

import collections
import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, Never, Optional, TypeAlias

import attrs
import numpy as np
import tensorflow as tf

from fedcore.context_values import set_inside
from fedcore.ir.module import NodeSource

StaticShape: TypeAlias = tf.TensorShape | Sequence[int | None] | None
"""Sizes as far as they are known while the graph is built; None: of an unknown rank."""

ValueType: TypeAlias = tuple[tf.DType, tf.TensorShape]
"""Dtype and static shape of a value."""

REGIONS = {"scan": 1, "while": 2, "if": 2, "call": 1}
"""Operations that are not TensorFlow's, with the number of their regions."""

PASS_THROUGH = ("Identity", "StopGradient", "PreventGradient", "Snapshot")
"""Operations whose result equals their operand."""

_SHAPE_OPERATIONS = frozenset({"Shape", "Size", "Rank"})
"""Operations whose result may be static though their operand is not: the operand's shape decides it."""

OPERATORS: dict[str, Callable] = {}
"""Symbol of a Python operator, such as `+` or `neg` -> the function that adds its node. Filled by `operations`, which
imports this module."""


@attrs.define(eq=False, repr=False)
class Value:
    """A tensor of a dataflow graph.

    Args:
        dtype: of its entries.
        shape: as far as it is known; `set_shape` narrows it while the graph is built.
        block: where it is computed.
        node: the operation that computes it; None for an argument of a region.
        may_be_static: whether no argument decides it, other than by its shape. Of other values `static_value` does
            not look for an array.
        static: the array that it is for all arguments; None until `constant_values.static_value` has found it.
    """

    dtype: tf.DType
    shape: tf.TensorShape
    block: "Block"
    node: Optional["Node"] = None
    may_be_static: bool = False
    static: np.ndarray | None = attrs.field(default=None, init=False)

    def set_shape(self, shape: StaticShape) -> None:
        """Narrows the static shape by what a caller knows of it."""
        self.shape = self.shape.merge_with(shape)

    def __repr__(self) -> str:
        source = "argument" if self.node is None else self.node.op
        return f"<value {self.dtype.name}{self.shape} of {source}>"

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no truth value while the graph is built")

    def __iter__(self) -> Never:
        raise TypeError(f"{self!r} cannot be iterated over: use `unstack`")

    def __eq__(self, other: object) -> bool:
        """Identity of values, so that they can be keys; a comparison with a number is refused, which would be False
        silently.
        """
        if isinstance(other, int | float | np.ndarray | np.generic):
            raise TypeError(f"{self!r} is compared with {other!r} while the graph is built: use `equal`")
        return self is other

    __hash__ = object.__hash__

    def __add__(self, other: "Operand") -> "Value":
        return OPERATORS["+"](self, other)

    def __radd__(self, other: "Operand") -> "Value":
        return OPERATORS["+"](other, self)

    def __sub__(self, other: "Operand") -> "Value":
        return OPERATORS["-"](self, other)

    def __rsub__(self, other: "Operand") -> "Value":
        return OPERATORS["-"](other, self)

    def __mul__(self, other: "Operand") -> "Value":
        return OPERATORS["*"](self, other)

    def __rmul__(self, other: "Operand") -> "Value":
        return OPERATORS["*"](other, self)

    def __truediv__(self, other: "Operand") -> "Value":
        return OPERATORS["/"](self, other)

    def __rtruediv__(self, other: "Operand") -> "Value":
        return OPERATORS["/"](other, self)

    def __floordiv__(self, other: "Operand") -> "Value":
        return OPERATORS["//"](self, other)

    def __rfloordiv__(self, other: "Operand") -> "Value":
        return OPERATORS["//"](other, self)

    def __mod__(self, other: "Operand") -> "Value":
        return OPERATORS["%"](self, other)

    def __neg__(self) -> "Value":
        return OPERATORS["neg"](self)

    def __invert__(self) -> "Value":
        return OPERATORS["~"](self)

    def __and__(self, other: "Operand") -> "Value":
        return OPERATORS["&"](self, other)

    def __or__(self, other: "Operand") -> "Value":
        return OPERATORS["|"](self, other)

    def __xor__(self, other: "Operand") -> "Value":
        return OPERATORS["^"](self, other)

    def __lt__(self, other: "Operand") -> "Value":
        return OPERATORS["<"](self, other)

    def __le__(self, other: "Operand") -> "Value":
        return OPERATORS["<="](self, other)

    def __gt__(self, other: "Operand") -> "Value":
        return OPERATORS[">"](self, other)

    def __ge__(self, other: "Operand") -> "Value":
        return OPERATORS[">="](self, other)

    def __getitem__(self, index: "Index") -> "Value":
        return OPERATORS["[]"](self, index)


Operand: TypeAlias = Value | np.ndarray | np.generic | float | int | bool | Sequence
"""A tensor for an operation: a value, or a number, an array or a list that becomes a constant."""

Index: TypeAlias = int | Value | slice | EllipsisType | tuple | None
"""Entries between the brackets of `value[…]`."""


@attrs.frozen(eq=False, repr=False)
class Node:
    """An operation.

    Args:
        op: TensorFlow's name of the operation, or a name of `REGIONS`.
        inputs: its operands.
        attributes: those that are not the defaults, and dtypes that the operands do not tell.
        regions: the regions that it runs.
        after: control dependencies: values that have to be computed before it, though it does not read them.
        source: the user's code that it comes from; None if it is not known.
        outputs: its results.
    """

    op: str
    inputs: tuple[Value, ...]
    attributes: Mapping[str, Any] = attrs.field(factory=dict)
    regions: tuple["Region", ...] = ()
    after: tuple[Value, ...] = ()
    source: NodeSource | None = None
    outputs: tuple[Value, ...] = attrs.field(default=(), init=False)

    def __getitem__(self, attribute: str) -> Any:
        return self.attributes[attribute]

    def get(self, attribute: str, default: Any = None) -> Any:
        return self.attributes.get(attribute, default)

    @property
    def reads(self) -> tuple[Value, ...]:
        """The operands, and the values around it that its regions read."""
        return (*self.inputs, *(v for region in self.regions for v in outer_values(region)))

    def __repr__(self) -> str:
        return f"<node {self.op}>"


@attrs.frozen(eq=False)
class Region:
    """A part of a graph that a node runs, or a whole graph.

    Args:
        arguments: values without a node.
        nodes: an operand is computed before it is read.
        results: values of this region or of one around it.
    """

    arguments: tuple[Value, ...]
    nodes: tuple[Node, ...]
    results: tuple[Value, ...]

    @functools.cached_property
    def uses(self) -> collections.Counter[Value]:
        """How often the region's nodes and results read each value."""
        return collections.Counter([*(v for node in self.nodes for v in node.reads), *self.results])


def outer_values(region: Region) -> list[Value]:
    """The values of the regions around a region that it reads, each once."""
    inner_values = {*region.arguments, *(v for node in region.nodes for v in node.outputs)}
    read_values = dict.fromkeys([*(v for node in region.nodes for v in node.reads), *region.results])
    return [v for v in read_values if v not in inner_values]


def origin(value: Value) -> Value:
    """The value behind a chain of Identity operations: their first operand; the value itself if it is none's result."""
    while value.node is not None and value.node.op == "Identity":
        (value,) = value.node.inputs
    return value


@attrs.define(eq=False)
class Block:
    """A region while it is built. Threads and tasks build blocks of their own.

    Args:
        parent: the block around it, whose values its nodes may read.
        arguments, nodes: of the region.
        constants: content of a constant -> the value that later nodes read in the place of an equal constant.
        ordered_behind: the control dependencies (`Node.after`) of the nodes that are added next.
        read_once: the values of this block whose originals are read once; only of a copy that patterns are matched in.
    """

    parent: Optional["Block"] = None
    arguments: list[Value] = attrs.field(factory=list)
    nodes: list[Node] = attrs.field(factory=list)
    constants: dict[object, Value] = attrs.field(factory=dict)
    ordered_behind: tuple[Value, ...] = ()
    read_once: set[Value] = attrs.field(factory=set)

    def argument(self, dtype: tf.DType, shape: StaticShape) -> Value:
        """Adds an argument to the region, and returns it."""
        value = Value(tf.as_dtype(dtype), tf.TensorShape(shape), self)
        self.arguments.append(value)
        return value

    def add(
        self,
        op: str,
        inputs: Sequence[Value],
        attributes: Mapping[str, Any],
        types: Sequence[ValueType],
        regions: Sequence[Region] = (),
    ) -> tuple[Value, ...]:
        """Adds a node, and returns its results.

        Args:
            op, inputs, attributes, regions: as in `Node`.
            types: dtype and shape of each result.
        """
        node = Node(op, tuple(inputs), attributes, tuple(regions), self.ordered_behind, _source.get())
        may_be_static = op in _SHAPE_OPERATIONS or (not regions and all(v.may_be_static for v in inputs))
        outputs = tuple(Value(dtype, shape, self, node, may_be_static) for dtype, shape in types)
        object.__setattr__(node, "outputs", outputs)
        self.nodes.append(node)
        return outputs

    def adopt(self, draft: "Block") -> None:
        """Moves the nodes and constants of a draft to this block.

        A draft is a block that was built inside this one, so that its caller sees the nodes before it decides whether
        to have them. A draft that is not adopted is dropped.
        """
        for node in draft.nodes:
            for output in node.outputs:
                output.block = self
        self.nodes.extend(draft.nodes)
        self.constants.update(draft.constants)

    def region(self, results: Sequence[Value]) -> Region:
        """The region that returns these values."""
        return Region(tuple(self.arguments), tuple(self.nodes), tuple(results))


_source: contextvars.ContextVar[NodeSource | None] = contextvars.ContextVar("fedcore_node_source", default=None)


class _FromSource:
    """The context manager of `from_source`.

    A class, since one of `contextlib.contextmanager` takes ten times as long, and each node of each copy opens one.
    """

    __slots__ = ("_source", "_token")

    def __init__(self, source: NodeSource | None) -> None:
        self._source = source

    def __enter__(self) -> None:
        self._token = None if self._source is None else _source.set(self._source)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _source.reset(self._token)


def from_source(source: NodeSource | None) -> contextlib.AbstractContextManager[None]:
    """Context in which new nodes come from this code of the user; None: from that of the context around it."""
    return _FromSource(source)


_block: contextvars.ContextVar[Block | None] = contextvars.ContextVar("fedcore_dataflow_block", default=None)


def active_block() -> Block | None:
    """The block to which this thread or task adds nodes; None where none is built."""
    return _block.get()


def building(block: Block) -> contextlib.AbstractContextManager[Block]:
    """Context in which nodes are added to the block."""
    return set_inside(_block, block)


def no_block() -> contextlib.AbstractContextManager:
    """Context in which no graph is built: the functions of `operations` are then TensorFlow's own."""
    return set_inside(_block, None)


@contextlib.contextmanager
def ordered_behind(*values: Value) -> Iterator[None]:
    """Context in which nodes of the active block get control dependencies: they run once the values are computed."""
    block = active_block()
    assert block is not None  # only nodes of a block have such dependencies
    previous_values, block.ordered_behind = block.ordered_behind, values
    try:
        yield
    finally:
        block.ordered_behind = previous_values


def new_region(types: Sequence[tuple[tf.DType, StaticShape]], body: Callable[..., Sequence[Value]]) -> Region:
    """The region that a Python function of values builds; it may read values of the active block.

    Args:
        types: dtype and shape of each argument.
        body: arguments -> results.
    """
    block = Block(active_block())
    arguments = [block.argument(dtype, shape) for dtype, shape in types]
    with building(block):
        results = body(*arguments)
    return block.region(results)


def _refuse_conversion(value: Value, *_: Any, **__: Any) -> Never:
    """Refuses a value as an argument of a TensorFlow function, and names the functions that take it."""
    raise TypeError(f"{value!r} is no tensor: use the functions of fedcore.graphs.dataflow.operations")


tf.register_tensor_conversion_function(Value, _refuse_conversion)
