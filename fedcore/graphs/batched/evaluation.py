"""Evaluates a graph for K clients at once: emits, operation by operation, a batched graph into the graph being built.

In:  a region and one `BatchedValue` for each argument. Out: one for each result.

Each operation is handled by the first of these that applies:

1. a constant is kept as a `KnownValue`, and emitted only if it is needed as a tensor;
2. an operation on known values is folded at build time (`known_values.fold`);
3. an operation on client-invariant operands is emitted as it is, once for all clients;
4. the batching rule of its type emits it for K clients; without one, `NoBatchingRule` is raised.

Example: `x @ w + b` with x [4, 20, 7] (padded axis 0), w [7, 3] shared and b [4, 3]. The rule of MatMul emits a batched
product [4, 20, 3] with padded axis 0. The rule of AddV2 reshapes b to [4, 1, 3] and adds.

Words: see `batched_value`.

Decision 0006.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError, brief
from fedcore.graphs.batched.aligned_reductions import MOST_AXES, packet_padding
from fedcore.graphs.batched.batched_value import (
    BatchedValue,
    KnownValue,
    NoBatchingRule,
    Padding,
    Presence,
    batching_rules,
    place_of_rule,
)
from fedcore.graphs.batched.changed_rows import ChangedRows
from fedcore.graphs.batched.known_values import MAX_ENTRIES, fold
from fedcore.graphs.batched.low_rank import low_rank_rules
from fedcore.graphs.batched.own_rows import JOINED
from fedcore.graphs.batched.value_guards import guard_operands
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.effects import has_effect
from fedcore.graphs.dataflow.graph import PASS_THROUGH, Node, Region, Value, from_source, outer_values
from fedcore.graphs.dataflow.op_signature import operand_names
from fedcore.graphs.graphdef.form.captured_graph import CapturedGraph
from fedcore.graphs.graphdef.form.checked_operations import emit

NO_VALUES: Mapping[Value, BatchedValue] = MappingProxyType({})

_ALWAYS_BY_RULE = frozenset({"while", "if", "StatelessCase", "Assert"})
"""Operations that are neither folded nor emitted as they are. Assert has an effect; its rule refuses what differs
between clients."""

_TENSOR_LISTS = frozenset(
    {
        *("TensorListReserve", "EmptyTensorList", "TensorListFromTensor"),
        *("TensorListPushBack", "TensorListPopBack", "TensorListSetItem"),
    }
)
"""Operations on lists that always take their batching rule: it records shape and known value of the elements."""

_MOST_AXES = {
    **dict.fromkeys(("StridedSlice", "Slice", "ReverseV2", "Pad", "PadV2", "SelectV2"), MOST_AXES),
    **dict.fromkeys(("ArgMax", "ArgMin"), 7),
    "MirrorPad": 5,
}
"""Axes that TensorFlow's kernel of an operation takes, at most."""


class BatchedEvaluation:
    """One evaluation of graphs for a group of K clients; batching rules compute with it.

    Guarantees:
      - Isolation: a graph with a variable, or another operation with side effects or state, is refused. It runs client
      by client, where variables start fresh.

    Args:
        clients: K, the size of the client axis.
        rows: the padded size of the batch; None if nothing is padded.
        sizes: int64 [K], number of rows in each client's batch; None if nothing is padded.
        occupied: the lanes with a client, whose results are used. Default: those with rows, where a
            batch is padded, else all.
        products: how a shared matrix is multiplied, see `own_rows`.
        assumed_finite: list to which the left factors are appended that are taken to be finite without a test;
            None: all factors are tested.
        graph: holds the functions that operations name; None for operations that name none.

    Attributes:
        sampled_sizes: the three batch sizes at which known values are sampled.
        low_rank_shapes: shapes (n, m) of the kernels that are kept low-rank; only a product of such a shape becomes
            a `LowRank`.
        table_shapes: shapes (V, m) of the tables whose changed rows are kept; only a sum of rows of such a shape
            becomes `ChangedRows`.
    """

    def __init__(
        self,
        clients: int,
        rows: int | None = None,
        sizes: Value | None = None,
        *,
        occupied: Presence | None = None,
        products: str = JOINED,
        assumed_finite: list[Value] | None = None,
        graph: CapturedGraph | None = None,
    ) -> None:
        """Starts without tensors: `_tensors` holds constants, masks and dense matrices that several rules ask for."""
        self.clients = clients
        self.graph = graph
        self.assumed_finite = assumed_finite
        self.products = products
        self.rows = rows
        self.sizes = sizes
        self._occupied = occupied if occupied is not None or sizes is None else lambda: sizes > 0
        self.sampled_sizes = (0, 0, 0) if rows is None else (rows, 2 * rows + 1, 3 * rows + 2)
        self.low_rank_shapes: set[tuple[int, int]] = set()
        self.table_shapes: set[tuple[int, int]] = set()
        self._tensors: dict = {}
        self._region: Region | None = None
        self._values: Mapping[Value, BatchedValue] = NO_VALUES

    def for_nested_graph(self, takes: Value | None = None) -> "BatchedEvaluation":
        """An evaluation for a nested function, which cannot use the cached constants and masks of this graph.

        Args:
            takes: bool [K], the clients that run the function, lanes without a client left out. Default: all.
        """
        sizes, occupied = self.sizes, self._occupied
        if takes is not None:
            sizes = None if sizes is None else ops.where(takes, sizes, ops.constant(0, sizes.dtype))
            occupied = functools.partial(ops.identity, takes)
        return BatchedEvaluation(
            self.clients, self.rows, sizes, occupied=occupied, products=self.products, graph=self.graph
        )

    # --- evaluation ---

    def run(
        self,
        region: Region,
        arguments: Sequence[BatchedValue],
        outer_values: Mapping[Value, BatchedValue] = NO_VALUES,
    ) -> list[BatchedValue]:
        """The results of a region for the arguments, operation by operation.

        Args:
            outer_values: those of the regions around it, as far as it reads them.
        Raises:
            NoBatchingRule: an operation other than Assert has effects or state, or one cannot be batched.
        """
        read = (*arguments, *outer_values.values())
        forms = [x.low_rank for x in read if x.low_rank is not None]
        self.table_shapes |= {form.shape for form in forms if isinstance(form, ChangedRows)}
        self.low_rank_shapes |= {form.shape for form in forms if not isinstance(form, ChangedRows)}
        values = {**outer_values, **dict(zip(region.arguments, arguments, strict=True))}
        for node in region.nodes:
            if has_effect(node.op) and node.op not in _ALWAYS_BY_RULE:
                raise NoBatchingRule(node.op, "it has effects or state, which clients would share")
        outer_state, (self._region, self._values) = (self._region, self._values), (region, values)
        for node in region.nodes:
            with from_source(node.source):
                results = self.evaluate(node, [values[v] for v in node.inputs])
            values.update(zip(node.outputs, results, strict=False))  # a rule may leave out results that nothing reads
        self._region, self._values = outer_state
        return [values[v] for v in region.results]

    @property
    def values(self) -> Mapping[Value, BatchedValue]:
        """The values that the region being evaluated has so far, and those around it."""
        return self._values

    def values_read_by(self, regions: Iterable[Region]) -> dict[Value, BatchedValue]:
        """The values around some regions that they read, as dense ones: the regions may have no rules for others."""
        read = dict.fromkeys(v for region in regions for v in outer_values(region))
        return {v: self._make_dense(self._values[v]) for v in read}

    def is_only_used_by(self, node: Node, op: str) -> bool:
        """Whether every user of a node's results is an operation of the given type.

        It is False for a result of the region being evaluated, whose users are not seen here.
        """
        region = self._region
        if region is None or not set(node.outputs).isdisjoint(region.results):
            return False
        return all(n.op == op for n in region.nodes if not set(node.outputs).isdisjoint(n.reads))

    def is_sole_user(self, node: Node, position: int) -> bool:
        """Whether nothing but this node reads an operand of it; False for a node that is in no region."""
        return self._region is not None and bool(node.inputs) and self._region.uses[node.inputs[position]] == 1

    def evaluate(self, node: Node, operands: list[BatchedValue]) -> list[BatchedValue]:
        """The results of one operation, by the first of the four ways that the module lists.

        Where arguments hold low-rank kernels, the low-rank rule of the operation is asked first: it returns None where
        it does not apply.

        Raises:
            NoBatchingRule: the operation cannot be batched.
        """
        if self.low_rank_shapes or self.table_shapes:
            low_rank_rule = low_rank_rules.get(node.op)
            low_rank_result = None if low_rank_rule is None else low_rank_rule(self, node, *operands)
            if low_rank_result is not None:
                return [low_rank_result]
            operands = [self._make_dense(x) for x in operands]
        if node.op in _ALWAYS_BY_RULE:
            return _rule_of(node)(self, node, *operands)
        if node.op == "Const":
            return [_constant_value(node)]
        if node.op == "NoOp":
            return []
        if node.op in PASS_THROUGH and operands[0].client_invariant:
            return operands
        folded = fold(node, operands, self.sampled_sizes)
        if folded is not None and all(k.is_constant or k.affine(self.sampled_sizes) for k in folded):
            return list(map(BatchedValue.from_known, folded))  # their tensors can be built on demand
        if all(x.client_invariant for x in operands) and node.op not in _TENSOR_LISTS:
            attributes = node.attributes if self.graph is None else self.graph.for_tensorflow(node.attributes)
            return [BatchedValue(t) for t in emit(node.op, [self.tensor(x) for x in operands], attributes)]
        try:
            results = self._apply_rule(node, operands)
        except NoBatchingRule:
            if folded is None:
                raise
            return list(map(BatchedValue.from_known, folded))  # still of use as shapes
        return results if folded is None else [attrs.evolve(x, form=k) for x, k in zip(results, folded, strict=True)]

    def _apply_rule(self, node: Node, operands: list[BatchedValue]) -> list[BatchedValue]:
        """The results of the batching rule of an operation.

        Raises:
            NoBatchingRule: there is no rule, an operand has too many axes, or TensorFlow refuses the shapes.
            FedcoreError: the rule returns anything but `BatchedValue`s; says where it is.
        """
        rule = _rule_of(node)
        max_axes = _MOST_AXES.get(node.op)
        if max_axes is not None and any(x.batched and self.rank(x) >= max_axes for x in operands):
            raise NoBatchingRule(node.op, f"TensorFlow's kernel takes no more than {max_axes} axes")
        guarded = guard_operands(self, node, tuple(operands))
        try:
            results = rule(self, node, *guarded)
        except NoBatchingRule as error:
            names = zip(operand_names(node.op, node.attributes), guarded, strict=True)
            operand = None if error.operand is None else next((n for n, x in names if x is error.operand), None)
            if operand is None:
                raise
            raise NoBatchingRule(error.op, f"{error.why}: `{operand}`") from None
        except (TypeError, ValueError) as error:  # raised by TensorFlow for shapes that the rule does not foresee
            raise NoBatchingRule(node.op, f"{error}") from error
        results = results if isinstance(results, list) else [results]
        for result in results:
            if not isinstance(result, BatchedValue) or not isinstance(result.tensor, Value | tf.Tensor | None):
                is_value = isinstance(result, BatchedValue)
                actual = f"a BatchedValue whose tensor is {brief(result.tensor)}" if is_value else brief(result)
                raise FedcoreError(
                    f"the batching rule of {node.op} ({place_of_rule(node.op)}) returns {actual}, not a BatchedValue "
                    "with a tensor\n  fix: return x.with_tensor(tensor), or a list of these for several results"
                )
        return results

    # --- values as tensors ---

    def tensor(self, value: BatchedValue) -> Value:
        """The tensor of a value, with a client axis if the value is batched.

        A known value has no tensor until one is asked for; it is then built once. A low-rank value becomes dense.

        Raises:
            NoBatchingRule: the value is known, and only of use as a shape: sums and products do not compute it.
        """
        if value.tensor is not None:
            return value.tensor
        if value.low_rank is not None:
            return self._make_dense(value).tensor
        known_value = value.known
        assert known_value is not None  # a value without a tensor is known: BatchedValue's invariant
        padded_sample = known_value.at_padded_size
        if padded_sample.dtype == object:  # texts: the bytes of the array are addresses, which are no key
            return ops.constant(padded_sample)
        # Equal samples are a constant, or agree at the three sampled sizes only (`KnownValue.from_samples`).
        samples = (v.tobytes() for v in known_value.samples)
        key = (known_value.is_constant, padded_sample.dtype.str, padded_sample.shape, *samples)
        if key not in self._tensors:
            self._tensors[key] = (
                ops.constant(padded_sample) if known_value.is_constant else self._emit_affine(known_value)
            )
        return self._tensors[key]

    def _make_dense(self, value: BatchedValue) -> BatchedValue:
        """The value with the matrix [K, n, m] in the place of its terms and factors; other values are returned as they
        are.

        For one client the matrix is [n, m] and shared. It is built once for each `LowRank`.
        """
        if value.low_rank is None:
            return value
        key = ("dense", id(value.low_rank))
        if key not in self._tensors:
            # The entry holds the factors too, so that the id stays in use.
            self._tensors[key] = (value.low_rank.dense(), value.low_rank)
        dense = self._tensors[key][0]
        return BatchedValue(dense[0]) if self.clients == 1 else BatchedValue(dense, True)

    def as_lane(self, value: BatchedValue) -> Value:
        """The tensor of a value without a client axis, with one of size 1: [1, …].

        `LowRank` needs it: its factors have a client axis also where one client is computed alone. Another call returns
        the same tensor, since `LowRank` takes factors to be equal only if they are one object.
        """
        tensor = self.tensor(value)
        key = ("lane", id(tensor))
        if key not in self._tensors:
            self._tensors[key] = (tensor[None], tensor)  # the entry holds the tensor, so that its id stays in use
        return self._tensors[key][0]

    def _emit_affine(self, known_value: KnownValue) -> Value:
        """The tensor a * sizes + b, [K, …], of a known value that is affine in the batch size.

        Slopes of 1 and offsets of 0 add no operation.
        """
        affine = known_value.affine(self.sampled_sizes)
        if affine is None:
            raise NoBatchingRule("a size", "it depends on the batch size by more than sums and products")
        assert self.sizes is not None  # the value depends on the batch size, so there is a batch
        slope, offset = affine
        dtype = tf.as_dtype(known_value.at_padded_size.dtype)
        key = ("sizes", dtype)
        if key not in self._tensors:
            self._tensors[key] = ops.cast(self.sizes, dtype)
        sizes = self._tensors[key]
        if slope.ndim:
            sizes = ops.reshape(sizes, [self.clients] + [1] * slope.ndim)
        if (slope != 1).any():
            sizes = sizes * ops.constant(slope.astype(dtype.as_numpy_dtype))
        if offset.any():
            sizes = sizes + ops.constant(offset.astype(dtype.as_numpy_dtype))
        return sizes

    def with_client_axis(self, value: BatchedValue) -> Value:
        """The tensor of a value, [K, …]; a shared tensor is broadcast along the client axis.

        The handle of a tensor list is returned as it is: one list serves all clients.
        """
        tensor = self.tensor(value)
        if value.batched or tensor.dtype == tf.variant:
            return tensor
        shape: ops.Sizes = ops.concat([[self.clients], ops.shape(tensor)], 0)
        if tensor.shape.is_fully_defined():
            shape = [self.clients, *tensor.shape]
        return ops.broadcast_to(tensor, shape)

    def shape(self, value: BatchedValue) -> tf.TensorShape:
        """The static shape of one client's value, with the padded size of the batch.

        Raises:
            NoBatchingRule: the number of axes is unknown.
        """
        if value.low_rank is not None:
            return tf.TensorShape(value.low_rank.shape)
        if value.tensor is None:
            assert value.known is not None  # as in `tensor`
            return tf.TensorShape(value.known.at_padded_size.shape)
        shape = value.tensor.shape[1:] if value.batched else value.tensor.shape
        if shape.rank is None:
            raise NoBatchingRule("a tensor", "its number of axes is unknown")
        return shape

    def rank(self, value: BatchedValue) -> int:
        """The number of axes of one client's value, the client axis not counted."""
        return len(self.shape(value))

    # --- operands that are known at build time ---

    def constant_operand(self, node: Node, value: BatchedValue) -> np.ndarray:
        """The array of an operand that has to be a constant for the operation to be batched, such as an axis or a
        padding.

        Raises:
            NoBatchingRule: the operand is not known, or depends on the batch size.
        """
        known_value = self.known_value(value)
        if known_value is None or not known_value.is_constant:
            raise NoBatchingRule(node.op, "an operand that has to be constant is not", value)
        return known_value.at_padded_size

    def axis_operand(self, node: Node, axis: BatchedValue, x: BatchedValue) -> int:
        """The axis of one client's x that a constant operand names; a negative number counts from the last axis.

        Raises:
            NoBatchingRule: the operand is no constant.
        """
        return int(self.constant_operand(node, axis)) % self.rank(x)

    def known_value(self, value: BatchedValue) -> KnownValue | None:
        """The known value of an operand; None if it is known only when the graph runs.

        A shared tensor that constants decide counts as known too.
        """
        if value.known is not None:
            return value.known
        if not value.client_invariant or value.tensor is None:
            return None
        static = ops.static_value(value.tensor)
        return None if static is None else KnownValue.from_constant(static)

    def has_zero_padding(self, value: BatchedValue) -> bool:
        """Whether the padded rows of a value are zeros.

        For a value without padded rows: whether the whole value is known to be zero, as it is after a broadcast along
        the batch.
        """
        if Padding.ZEROS in value.padding:
            return True
        known_value = None if value.padded_axis is not None else self.known_value(value)
        return known_value is not None and known_value.is_constant and not known_value.at_padded_size.any()

    def known_shape(self, value: BatchedValue) -> KnownValue | None:
        """The shape of one client's value at each of the three sampled batch sizes; None if it is not static.

        The padded axis is `entries_per_row` times the batch size, and the other axes are constant.
        """
        if value.tensor is not None and value.tensor.shape.rank is None:
            return None
        shape = self.shape(value)
        if not shape.is_fully_defined():
            return None
        samples = [np.asarray(shape.as_list(), np.int64) for _ in range(3)]
        if value.padded_axis is not None:
            for sample, size in zip(samples, self.sampled_sizes, strict=True):
                sample[value.padded_axis] = size * value.entries_per_row
        return KnownValue.from_samples(samples)

    def batch_axis(self, node: Node, shape: KnownValue) -> tuple[int | None, int]:
        """(the axis of a shape that is the batch, its entries per row of the batch); (None, 1) if no axis is.

        The batch axis is the one whose size differs between the samples of the shape.

        Raises:
            NoBatchingRule: several axes differ, or one whose size is no multiple of the batch size. Of a size that is
                no polynomial of the batch size, such as max(n, 3), samples do not tell what it is for other sizes.
        """
        if shape.is_constant:
            return None, 1
        if not shape.polynomial:
            raise NoBatchingRule(node.op, "a shape depends on the batch size by more than sums and products")
        first, second, third = (v.reshape(-1) for v in shape.samples)
        axes = np.nonzero((first != second) | (first != third))[0]
        if len(axes) != 1:
            raise NoBatchingRule(node.op, "a shape has the batch in several axes")
        (axis,) = axes
        entries_per_row = int(first[axis] // self.sampled_sizes[0])
        samples = zip((first, second, third), self.sampled_sizes, strict=True)
        if not all(v[axis] == entries_per_row * size for v, size in samples):
            raise NoBatchingRule(node.op, "an axis is neither the batch nor of constant size")
        return int(axis), entries_per_row

    # --- padded rows ---

    def mask(self, rank: int, axis: int, entries_per_row: int = 1) -> Value:
        """True for the entries of real rows, False for padding: bool [K, 1…, rows, 1…].

        Args:
            rank: number of axes of one client's value, the client axis not counted.
            axis: its padded axis.
            entries_per_row: entries along that axis for each row of the batch.
        """
        if self.sizes is None or self.rows is None:
            raise NoBatchingRule("a batch", "it has no sizes")
        key: tuple = ("mask", entries_per_row)
        if key not in self._tensors:
            lengths = self.sizes if entries_per_row == 1 else self.sizes * entries_per_row
            self._tensors[key] = ops.expand_dims(lengths, 1) > np.arange(self.rows * entries_per_row)
        shape = [self.clients] + [1] * rank
        shape[axis + 1] = self.rows * entries_per_row
        key = ("mask", entries_per_row, axis, rank)
        if key not in self._tensors:
            rows = self._tensors["mask", entries_per_row]
            self._tensors[key] = rows if shape == rows.shape else ops.reshape(rows, shape)
        return self._tensors[key]

    def present(self, value: BatchedValue) -> Value | None:
        """True for the entries that a client has, False for those that padding brings in; it broadcasts to the tensor.

        Padded rows that are copies count as entries of a client that has rows: what holds for its own rows holds for
        them. None: all entries are of clients.
        """
        is_row_by_row = value.padded_axis is not None and Padding.COPIES not in value.padding
        if not value.batched:  # a row that one client has is a row of the tensor that all share
            return ops.reduce_any(self._rows_of(value), 0) if is_row_by_row else None
        if is_row_by_row:
            return self._rows_of(value)
        if self._occupied is None:
            return None
        key = ("occupied", self.rank(value))
        if key not in self._tensors:
            self._tensors[key] = ops.reshape(self._occupied(), [self.clients] + [1] * self.rank(value))
        return self._tensors[key]

    def _rows_of(self, value: BatchedValue) -> Value:
        """The mask of the real rows of a value with a padded axis."""
        assert value.padded_axis is not None
        return self.mask(self.rank(value), value.padded_axis, value.entries_per_row)

    def masked(self, value: BatchedValue, fill: float = 0) -> Value:
        """The tensor of a value with `fill` in all padded rows; it has a client axis if there are padded rows.

        Rows that are known to be zeros are not written again. Equal calls return one tensor.
        """
        tensor = self.tensor(value)
        if value.padded_axis is None:
            return tensor
        if not fill and Padding.ZEROS in value.padding:
            return self.with_client_axis(value)
        key = ("masked", id(tensor), value.padded_axis, fill)
        if key not in self._tensors:
            # The entry holds the tensor too, so that its id stays in use.
            self._tensors[key] = (self._fill_padding(value, tensor, ops.constant(fill, tensor.dtype)), tensor)
        return self._tensors[key][0]

    def _fill_padding(self, value: BatchedValue, tensor: Value, fill: Value) -> Value:
        """The tensor with `fill` in its padded rows.

        Where the batch is the leading axis of a client's value, Select takes whole rows: SelectV2 broadcasts the mask,
        which is several times slower.
        """
        assert value.padded_axis is not None  # `masked` has returned values without padding
        if value.padded_axis or not value.batched or not tensor.shape.is_fully_defined():
            return ops.where(self.mask(self.rank(value), value.padded_axis, value.entries_per_row), tensor, fill)
        rows = self.mask(1, 0, value.entries_per_row)
        if self.rank(value) == 1:
            return ops.operation("Select", rows, tensor, ops.fill(tensor.shape, fill))
        rows, flat = ops.reshape(rows, [-1]), without_client_axis(tensor)
        return ops.reshape(ops.operation("Select", rows, flat, ops.fill(flat.shape, fill)), tensor.shape)

    # --- equal bits for every number of clients ---

    def apply_in_packets(self, fn: Callable, *tensors: Value) -> Value:
        """The result of an elementwise function of batched tensors of one shape, computed over whole vector registers.

        A kernel computes the remainder of a buffer with scalar instructions, which round differently. Without padding,
        the number K of clients would decide which client's values are in the remainder. The padding is cut off again.

        Args:
            fn: tensors of one shape -> a tensor of that shape; each entry is computed by itself.
        """
        shape = tensors[0].shape
        total = shape.num_elements()
        missing = packet_padding(total, tensors[0].dtype)
        if not missing:
            return fn(*tensors)
        flat = [ops.pad(ops.reshape(t, [-1]), [[0, missing]], constant_values=1) for t in tensors]
        result = fn(*flat)[:-missing]
        return ops.reshape(result, ops.shape(tensors[0]) if total is None else shape)

    def apply_rows_in_packets(self, fn: Callable, *tensors: Value) -> list[Value]:
        """The results of a function of rows, whose rows are padded to whole vector registers and cut off again.

        Args:
            fn: tensors with the rows as leading axis -> tensors with the rows as leading axis; each row is computed
                by itself.
            tensors: tensors with equally many rows.
        """
        missing = packet_padding(tensors[0].shape[0], tensors[0].dtype)
        if not missing:
            return fn(*tensors)
        padded = [ops.pad(t, [[0, missing]] + [[0, 0]] * (t.shape.rank - 1)) for t in tensors]
        return [t[:-missing] for t in fn(*padded)]


def _rule_of(node: Node) -> Callable:
    """The batching rule of an operation.

    Raises:
        NoBatchingRule: there is none.
    """
    if node.op not in batching_rules:
        raise NoBatchingRule(node.op, "the operation has no rule")
    return batching_rules[node.op]


def without_client_axis(tensor: Value) -> Value:
    """[K, rows, …] -> [K * rows, …]: the rows of all clients along one axis.

    If the tensor is a Reshape of such a tensor, that tensor is returned: TensorFlow fuses no operations across a
    Reshape.
    """
    node = ops.computed_by(tensor, "Reshape")
    source = tensor if node is None else node.inputs[0]
    clients, rows = tensor.shape[:2]
    shape = [-1 if rows is None else clients * rows, *tensor.shape[2:]]
    return source if source.shape == shape else ops.reshape(tensor, shape)


def _constant_value(node: Node) -> BatchedValue:
    """Value of a Const node: known at build time if it is small, else a tensor that all clients share.

    Texts are emitted at once, since nothing folds them.
    """
    value = node["value"]
    if value.size <= MAX_ENTRIES and node["dtype"] != tf.string:
        return BatchedValue.from_known(KnownValue.from_constant(value))
    (tensor,) = emit("Const", [], node.attributes)
    return BatchedValue(tensor)
