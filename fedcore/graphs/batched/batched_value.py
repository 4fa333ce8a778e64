"""One value of a graph for K clients at once, and the table of rules that compute with it.

A client's batch may be shorter than the common one. Its missing rows are there all the same (copies of a real row) and
are computed with; what reduces over the batch masks them. Sizes that a graph reads off a batch are therefore two
things: the number of padded rows where they shape a tensor, the client's own number where they are data.
"""

import enum
from collections.abc import Callable, Iterable

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError


class NoBatchingRule(FedcoreError):
    """A graph that cannot run for several clients at once.

    Args:
        op: the operation without a rule for what it is used with.
        why: what of its use has no rule.
    """

    def __init__(self, op: str, why: str):
        self.op = op
        self.why = why
        super().__init__(f"{op} is not vectorised over clients: {why}")

    def __reduce__(self):
        return type(self), (self.op, self.why)


@attrs.frozen(eq=False)
class Known:
    """A small value known while the graph is built: once for each of three sizes of the batch.

    Args:
        values: the value at the padded size, then at two other sizes; the same array where it does not depend on it.
        polynomial: made of the size by moving, adding and multiplying only, so that three sizes tell all of it.
    """

    values: tuple[np.ndarray, np.ndarray, np.ndarray]
    polynomial: bool = True

    @property
    def constant(self) -> bool:
        return self.values[0] is self.values[1]

    @classmethod
    def of(cls, values, *, polynomial: bool = True) -> "Known":
        """Three values that are alike are a constant, if they are polynomials; `n > 0` only looks like one."""
        first, second, third = values
        if polynomial and np.array_equal(first, second) and np.array_equal(first, third):
            return cls((first, first, first))
        return cls((first, second, third), polynomial)

    def same(self, other: "Known | None") -> bool:
        if other is None or self.polynomial != other.polynomial:
            return False
        return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(self.values, other.values, strict=True))

    @classmethod
    def always(cls, value) -> "Known":
        array = np.asarray(value)
        return cls((array, array, array))

    def affine(self, probes: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray] | None:
        """(a, b) where the value is a * size + b for every size; None if it is not of that form."""
        if not self.polynomial:
            return None
        first, second, third = (np.asarray(v, np.float64) for v in self.values)
        slope = (second - first) / (probes[1] - probes[0])
        start = first - slope * probes[0]
        fits = np.array_equal(slope * probes[2] + start, third) and np.array_equal(slope, np.round(slope))
        return (slope, start) if fits else None


class Padding(enum.Enum):
    """What the rows are that a client's batch lacks, and that are there and computed with all the same."""

    UNKNOWN = enum.auto()
    COPIES = enum.auto()
    """Copies of rows of the client's own data, or made of such rows one by one: finite where its work is."""
    ZEROS = enum.auto()


@attrs.frozen(eq=False)
class BatchedValue:
    """A value for all clients.

    Args:
        tensor: None where it is built from `known` once it is needed as data.
        stacked: the leading axis is the client; else the value is the same for all of them.
        ragged: the client's axis (the leading one not counted) that is the batch, padded; None if no axis is.
        times: how many entries of that axis one row of the batch has.
        known: the value at build time, if it is small and made of constants and shapes.
        padding: of the axis that is the batch.
        element: for a list of tensors the shape of a client's element; `stacked` and `ragged` are of its elements.
        filled: for a list, that it may hold elements already.
        content: for a list, what is known of every element; shapes go through lists from a loop to its gradient.
        missing: why the tensor cannot be computed; the value may still shape tensors.
    """

    tensor: tf.Tensor
    stacked: bool = False
    padded_axis: int | None = None
    times: int = 1
    known: Known | None = None
    padding: Padding = Padding.UNKNOWN
    element: Known | None = None
    filled: bool = False
    content: Known | None = None
    missing: NoBatchingRule | None = None

    @property
    def plain(self) -> bool:
        """The same for all clients, padding and all."""
        return not self.stacked and self.padded_axis is None and (self.known is None or self.known.constant)

    def like(
        self, tensor: tf.Tensor, *, padding: Padding | None = None, element: Known | None = None
    ) -> "BatchedValue":
        """Another tensor with the same axes, its rows made one by one."""
        padding = padding or row_by_row([self])
        return BatchedValue(
            tensor, self.stacked, self.padded_axis, self.times, padding=padding, element=element, filled=self.filled
        )


def shared(tensor: tf.Tensor) -> BatchedValue:
    """A value that is the same for all clients."""
    return BatchedValue(tensor)


def stacked(tensor: tf.Tensor, padded_axis: int | None = None) -> BatchedValue:
    """A value per client along the leading axis; `ragged` is its batch axis, the leading one not counted."""
    return BatchedValue(tensor, True, padded_axis, padding=Padding.UNKNOWN if padded_axis is None else Padding.COPIES)


def row_by_row(lanes: Iterable[BatchedValue]) -> Padding:
    """The padding of what is made of rows that belong together, one by one."""
    copies = all(x.padding is Padding.COPIES for x in lanes if x.padded_axis is not None)
    return Padding.COPIES if copies else Padding.UNKNOWN


def multiplied(lanes: Iterable[BatchedValue]) -> Padding:
    """The padding of products of rows that belong together: zero times what is finite is zero."""
    batches = [x for x in lanes if x.padded_axis is not None]
    found = {x.padding for x in batches}
    return Padding.ZEROS if Padding.ZEROS in found and Padding.UNKNOWN not in found else row_by_row(batches)


batching_rules: dict[str, Callable] = {}


def batching_rule(*ops: str):
    """Registers (call, node, *lanes) -> a lane, or a list of lanes, for operations."""

    def register(fn):
        for op in ops:
            if op in batching_rules:
                raise ValueError(f"{op} has two rules")
            batching_rules[op] = fn
        return fn

    return register
