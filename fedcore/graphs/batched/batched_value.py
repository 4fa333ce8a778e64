"""Values of a graph that is evaluated for K clients at once, and the registry of batching rules.

A `BatchedValue` stands for one tensor of the original graph. With K = 4 clients and batches of at most 20 rows:

    tensor of one client           tensor in the batched graph    BatchedValue
    weights [7], per client        [4, 7]                         batched=True
    learning rate [], shared       []                             batched=False
    batch [rows, 7], per client    [4, 20, 7]                     batched=True, padded_axis=0
    its transpose [7, rows]        [4, 7, 20]                     batched=True, padded_axis=1
    rows read as pairs [2*rows]    [4, 40]                        batched=True, padded_axis=0, entries_per_row=2
    shape of the batch [2]         none                           batched=True, form=([20, 7], [41, 7], [62, 7])

A batch with fewer rows is padded. Operations compute with the padded rows; reductions over the batch mask them. A size
that a graph reads from a batch therefore has two meanings: as the shape of a tensor it is the padded size, and as data
it is the client's own size. A `KnownValue` represents such a size at build time, as its values at three batch sizes.
"""

import enum
import functools
import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import attrs
import numpy as np
from numpy.typing import ArrayLike

from fedcore.errors import FedcoreError
from fedcore.graphs.batched.low_rank import LowRank
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value, building
from fedcore.ir.first_use import import_safely
from fedcore.ir.registry import note_declaration


class NoBatchingRule(FedcoreError):
    """A graph cannot be evaluated for several clients at once.

    Args:
        op: the operation that cannot be batched.
        why: the reason.
        operand: the operand that is the reason; None if it is no single one. A rule gives its value, whose name the
            message then has.
    """

    def __init__(self, op: str, why: str, operand: "BatchedValue | None" = None) -> None:
        self.op = op
        self.why = why
        self.operand = operand
        super().__init__(f"{op} is not vectorised over clients: {why}")

    def __reduce__(self) -> tuple:
        return type(self), (self.op, self.why)  # without the operand, a tensor of the graph being built


@attrs.frozen(eq=False)
class KnownValue:
    """A small value that is known at build time, sampled at three sizes of the batch.

    Args:
        samples: the value at the padded size and at two larger sizes (`BatchedEvaluation.sampled_sizes`). A constant
            holds the same array three times.
        polynomial: the value is a polynomial of the batch size, computed by moving, adding and multiplying only. Three
            samples then decide whether it is constant or affine.
    """

    samples: tuple[np.ndarray, np.ndarray, np.ndarray]
    polynomial: bool = True

    @property
    def at_padded_size(self) -> np.ndarray:
        """The value for a batch of the padded size; of a constant, the constant."""
        return self.samples[0]

    @property
    def is_constant(self) -> bool:
        """Whether the value is independent of the batch size: all three samples are one array."""
        return self.samples[0] is self.samples[1]

    @classmethod
    def from_constant(cls, value: ArrayLike) -> "KnownValue":
        """Known value of a number or an array that does not depend on the batch size."""
        array = np.asarray(value)
        return cls((array, array, array))

    @classmethod
    def from_samples(cls, samples: Iterable[np.ndarray], *, polynomial: bool = True) -> "KnownValue":
        """Known value of samples at the three sampled batch sizes.

        Equal samples make a constant only if they are polynomial: `n > 0` has equal samples too, and differs at n = 0.
        """
        first, second, third = samples
        if polynomial and np.array_equal(first, second) and np.array_equal(first, third):
            return cls((first, first, first))
        return cls((first, second, third), polynomial)

    def equals(self, other: "KnownValue | None") -> bool:
        """Whether two known values have the same samples and dtype, so that they agree at every batch size."""
        if other is None or self.polynomial != other.polynomial:
            return False
        return all(
            np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(self.samples, other.samples, strict=True)
        )

    def affine(self, sampled_sizes: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray] | None:
        """Coefficients (a, b) such that the value is a * size + b for every batch size; None if there are none.

        Two samples fix the line, and the third one tests it. An integer slope is required, since the value is
        used as a size: the padded axis has a whole number of entries for each row.

        Args:
            sampled_sizes: the three batch sizes at which the value was sampled.
        """
        if not self.polynomial:
            return None
        first, second, third = (np.asarray(v, np.float64) for v in self.samples)
        slope = (second - first) / (sampled_sizes[1] - sampled_sizes[0])
        offset = first - slope * sampled_sizes[0]
        is_affine = np.array_equal(slope * sampled_sizes[2] + offset, third) and np.array_equal(slope, np.round(slope))
        return (slope, offset) if is_affine else None


class Padding(enum.Flag):
    """Content of the padded rows of a batch: the claims that hold for it. Both hold if all rows are zeros."""

    UNKNOWN = 0
    COPIES = enum.auto()
    """Copies of the client's own rows, or results computed row by row from such copies. They are finite wherever the
    client's own results are finite.
    """
    ZEROS = enum.auto()


ANY_PADDING = Padding.COPIES | Padding.ZEROS
"""Padding of rows of zeros, and of a tensor list without elements."""


@attrs.frozen(eq=False)
class ListElements:
    """The known facts about the elements of a tensor list.

    Args:
        shape: of one client's element; None if it is not known.
        are_stored: the list may already hold elements.
        value: the known value that every element has; None if there is none. Loops pass shapes to their gradients
            through such lists.
    """

    shape: KnownValue | None = None
    are_stored: bool = False
    value: KnownValue | None = None

    def common_value(self, value: KnownValue | None) -> KnownValue | None:
        """The known value of all elements after another element is stored; None if they may differ.

        Args:
            value: the known value of that element; None if it is known only when the graph runs.
        """
        return value if value is None or not self.are_stored or value.equals(self.value) else None


@attrs.frozen(eq=False)
class BatchedValue:
    """A value for all clients of a group.

    Args:
        tensor: the tensor in the batched graph; None if it is built from `form` on demand.
        batched: the leading axis is the client axis. Otherwise all clients share the tensor.
        padded_axis: the axis of one client's value (client axis not counted) that is the padded batch; None if none is.
        entries_per_row: number of entries along the padded axis for each row of the batch.
        padding: content of the padded rows.
        form: what is known of the value beside its tensor, or in the place of a tensor. `KnownValue`: a small value
            that is computed from constants and shapes. `LowRank`: matrices as a sum of few terms, without a tensor.
            `ListElements`: of a tensor list, whose elements `batched`, `padded_axis` and `padding` describe.
    """

    tensor: Any  # Value | None; the type checker lets rules read it without a test for None
    batched: bool = False
    padded_axis: int | None = None
    entries_per_row: int = 1
    padding: Padding = Padding.UNKNOWN
    form: KnownValue | LowRank | ListElements | None = None

    @classmethod
    def from_known(cls, known: KnownValue) -> "BatchedValue":
        """Value that is known at build time; it has no tensor until one is asked for."""
        return cls(None, not known.is_constant, form=known)

    @property
    def known(self) -> KnownValue | None:
        """The value at build time; None if it is known only when the graph runs."""
        return self.form if isinstance(self.form, KnownValue) else None

    @property
    def low_rank(self) -> LowRank | None:
        """The matrices of all clients as a sum of few terms; None for other values."""
        return self.form if isinstance(self.form, LowRank) else None

    @property
    def elements(self) -> ListElements:
        """The known facts about the elements of a tensor list; none for other values."""
        return self.form if isinstance(self.form, ListElements) else ListElements()

    @property
    def client_invariant(self) -> bool:
        """Whether all clients share the value and it does not depend on the sizes of their batches.

        An operation on such values only is emitted once for all clients.
        """
        return not self.batched and self.padded_axis is None and (self.known is None or self.known.is_constant)

    def padded_axis_after_insertion(self, position: int) -> int | None:
        """The padded axis once one client's value has a further axis at a position."""
        return None if self.padded_axis is None else self.padded_axis + int(position <= self.padded_axis)

    def padded_axis_after_removal(self, *axes: int) -> int | None:
        """The padded axis once axes of one client's value, none of which is the batch, are gone."""
        return None if self.padded_axis is None else self.padded_axis - sum(a < self.padded_axis for a in axes)

    def with_tensor(self, tensor: Value, *, padding: Padding | None = None) -> "BatchedValue":
        """Value of another tensor with the batched and padded axes of this value.

        The elements of a tensor list keep the shape that is known of them, but no known value.

        Args:
            padding: content of the padded rows. Default: that of a result computed row by row from this value.
        """
        padding = rowwise_padding([self]) if padding is None else padding
        form = attrs.evolve(self.form, value=None) if isinstance(self.form, ListElements) else None
        return BatchedValue(tensor, self.batched, self.padded_axis, self.entries_per_row, padding, form)


def shared(tensor: Value) -> BatchedValue:
    """Value of a tensor that all clients share."""
    return BatchedValue(tensor)


def batched(tensor: Value, padded_axis: int | None = None) -> BatchedValue:
    """Value of a tensor with a client axis; padded rows, if there is a padded axis, are copies of own rows."""
    return BatchedValue(tensor, True, padded_axis, padding=Padding.UNKNOWN if padded_axis is None else Padding.COPIES)


def broadcast_to_clients(value: BatchedValue, clients: int) -> Value:
    """The tensor of a value, [K, …]; a tensor that all clients share is repeated for each of them.

    Args:
        clients: K, the size of the client axis.
    """
    if value.low_rank is not None:
        return value.low_rank.dense()
    if value.batched:
        return value.tensor
    with building(value.tensor.block):  # outside of a loop, if the tensor is from outside
        return ops.broadcast_to(value.tensor, [clients, *value.tensor.shape])


def rowwise_padding(values: Iterable[BatchedValue]) -> Padding:
    """Padding of a result whose rows are computed from the corresponding rows of the operands."""
    return common_padding(values) & Padding.COPIES


def common_padding(values: Iterable[BatchedValue]) -> Padding:
    """Padding of a result that holds rows of the operands; nothing is claimed of values without a padded axis."""
    paddings = [x.padding for x in values if x.padded_axis is not None]
    return functools.reduce(operator.and_, paddings) if paddings else Padding.UNKNOWN


def product_padding(values: Iterable[BatchedValue]) -> Padding:
    """Padding of a row-by-row product, such as x * y or x @ w.

    Its padded rows are zeros if those of one operand are, and those of the others finite: zero times a finite number is
    zero. Copies of real rows count as finite, see `Padding.COPIES`.
    """
    batches = [x for x in values if x.padded_axis is not None]
    paddings = [x.padding for x in batches]
    is_zero = any(Padding.ZEROS in p for p in paddings) and Padding.UNKNOWN not in paddings
    return rowwise_padding(batches) | (Padding.ZEROS if is_zero else Padding.UNKNOWN)


Presence: TypeAlias = Callable[[], Value]
"""Builds bool [K], the lanes whose results are used, where a rule asks for it: the others have no client."""

Rule = TypeVar("Rule", bound=Callable[..., BatchedValue | list[BatchedValue]])

batching_rules: dict[str, Callable] = {}
"""Batching rule of each TensorFlow operation type."""


_BUILT_IN = "fedcore.graphs.batched.batching_rules"


def batching_rule(*ops: str) -> Callable[[Rule], Rule]:
    """Registers a batching rule for TensorFlow operation types.

    A rule takes (evaluation: BatchedEvaluation, node: Node, *operands: BatchedValue). It returns a BatchedValue, or a
    list of them where the operation has several results. A rule that does not support its operands raises
    `NoBatchingRule`; the stage then runs client by client.

    A rule that is registered again, as in a notebook's cell, replaces the earlier one of its module.

    Raises:
        FedcoreError: another module has a rule for an operation; says where.
    """

    def register(fn: Rule) -> Rule:
        """Adds the function to `batching_rules` for each of the operation types.

        The built-in rules are imported first, so that a third party that declares one of their types is refused,
        whatever the order of imports.
        """
        is_built_in = fn.__module__.startswith(_BUILT_IN)
        if not is_built_in:
            import_safely(_BUILT_IN)
        for op in ops:
            registered = batching_rules.get(op)
            if registered is not None and (is_built_in or registered.__module__ != fn.__module__):
                raise FedcoreError(f"{op} has a batching rule already: {place_of_rule(op)}")
        batching_rules.update(dict.fromkeys(ops, fn))
        if not is_built_in:  # compiling imports the built-in ones, which makes no plan stale
            note_declaration(ops[0])
        return fn

    return register


def place_of_rule(op: str) -> str:
    """Module and line of an operation's batching rule; the module only, if the rule is no Python function."""
    rule = batching_rules[op]
    code = getattr(inspect.unwrap(rule), "__code__", None)
    return rule.__module__ if code is None else f"{rule.__module__}, line {code.co_firstlineno}"
