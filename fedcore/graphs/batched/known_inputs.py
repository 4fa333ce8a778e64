"""Inputs of layers that are known before a loop over training steps, since they depend on the clients' data only.

In:  a tensor of a step, [K, B, n], for K clients with batches of B rows, and the rows of all their batches, [K, R, …].
Out: the tensor of all T steps, [K, R, n]. R is T * B, or less if the last batch has fewer rows.

The input of a model's first layer is the batch itself, reshaped or scaled. Its products with what all clients share,
and with the inputs of earlier steps, are then computed once before the loop, and no step reads or copies the inputs:

    x W    [T, K, B, m]  stored step after step; a client's last row stands in for missing ones
    x x^T  [K, R, R]     step s takes the rows s * B … (s + 1) * B - 1, and of these the columns 0 … s * B - 1

The bits of such a product are those of one product for each step, as long as a batch has more than one row.

Decisions 0182 and 0323.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import attrs
import tensorflow as tf

from fedcore.graphs.batched.own_rows import own_rows_of
from fedcore.graphs.batched.row_layouts import RowLayout
from fedcore.graphs.batched.row_windows import Window, rows_from
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Block, Value, building

_EXACT = {"Mul": ops.multiply, "AddV2": ops.add, "Sub": ops.subtract, "RealDiv": ops.divide}
"""Operations that round once, so that the bits of an entry do not depend on the entries beside it."""

MIN_ROWS = 2
"""Rows of the smallest batch whose products are computed before the loop; products with vectors have other kernels."""


@attrs.frozen
class _RowOperation:
    """An operation on the way from the batch to the input of a layer; it computes each row by itself.

    Args:
        op: the type of the operation.
        shape: of one row of the result.
        dtype: of the result.
        number: the other operand of a sum or a product.
        number_first: whether that number is the first operand.
    """

    op: str
    shape: tuple[int, ...]
    dtype: tf.DType
    number: float | None = None
    number_first: bool = False

    def apply(self, x: Value) -> Value:
        """The result for rows [K, rows, …] of all clients."""
        if self.op == "Cast":
            return ops.cast(x, self.dtype)
        if self.op == "Reshape":
            return ops.reshape(x, [x.shape[0], -1 if x.shape[1] is None else x.shape[1], *self.shape])
        assert self.number is not None  # of a sum or a product
        number = ops.constant(self.number, self.dtype)
        return _EXACT[self.op](number, x) if self.number_first else _EXACT[self.op](x, number)


@attrs.frozen
class KnownInput:
    """How the input of a layer is computed from a column of the clients' data.

    Args:
        column: number of the column among the leaves of a batch.
        operations: applied one after the other to the column.
    """

    column: int
    operations: tuple[_RowOperation, ...] = ()

    def compute(self, columns: Sequence[Value]) -> Value:
        """The input [K, R, n] for the R rows of all steps, from the columns [K, R, …]."""
        x = columns[self.column]
        for operation in self.operations:
            x = operation.apply(x)
        return x


def match_known_input(x: Value, elements: Sequence[Value]) -> KnownInput | None:
    """How a tensor is computed from the data of one training step; None if anything else decides it, such as a weight.

    Args:
        x: [K, B, n], the input of a layer in the step.
        elements: the columns of the step's batch, [K, B, …].
    """
    operations: list[_RowOperation] = []
    while True:
        column = next((i for i, t in enumerate(elements) if t is x), None)
        if column is not None:
            return KnownInput(column, tuple(reversed(operations)))
        operand_and_operation = _row_operation(x)
        if operand_and_operation is None:
            return None
        x, operation = operand_and_operation
        operations.extend([] if operation is None else [operation])


ProductSource: TypeAlias = Callable[[KnownInput], Value | None]
"""Products of the rows of a group that another function has computed, and that the graph takes as an operand: input ->
what `KnownInputs.row_products` computes; None if the operand has no products of the input.
"""


@attrs.frozen(eq=False)
class KnownInputs:
    """Products with the known inputs of a loop over training steps, computed once in the graph around the loop.

    Letters: K clients; R rows in all batches of a client; B rows in one batch; n columns of the input.

    Args:
        data: the packed rows of the clients of a group.
        block: the graph that holds the products.
        product_source: products that the function of the call takes as an operand; None if it takes none.
        has_own_products: a product has the rows of one client, see `own_rows`.
    """

    data: RowLayout
    block: Block
    product_source: ProductSource | None = None
    has_own_products: bool = False
    _built: dict = attrs.field(factory=dict, init=False)

    @property
    def rows(self) -> Value:
        """int64, R: the number of rows in all batches of a client, padded to that of the longest client."""
        return self._build_once("rows", lambda: self.data.row_count)

    def input_of_all_steps(self, layer_input: KnownInput) -> Value:
        """The input for the rows of all steps, [K, R, n]."""
        return self._build_once(
            layer_input, lambda: layer_input.compute(self._build_once("columns", self.data.all_columns))
        )

    def product_of_step(self, layer_input: KnownInput, matrix: Value, step: Value, rows: int) -> Value:
        """The product of one step's rows with a matrix that all clients share: [K, B, m].

        Args:
            matrix: [n, m].
            step: int64, the number of the step.
            rows: B.
        """
        products = self._build_once(
            (layer_input, id(matrix)), lambda: self._products_by_step(layer_input, matrix, rows)
        )
        return ops.squeeze(Window(step, 1).of(products), 0)

    def gram_of_step(self, layer_input: KnownInput, step: Value, rows: int) -> Value:
        """The products of one step's rows with the rows of all earlier steps: [K, B, step * B].

        Args:
            step: int64, the number of the step.
            rows: B.
        """
        products = self._build_once((layer_input, "gram"), lambda: self._source_products(layer_input))
        return rows_from(products, step * rows, rows)[:, :, : step * rows]

    def row_products(self, layer_input: KnownInput) -> Value:
        """Products of all rows of a client with one another: [K, R, R].

        With `has_own_products`, each client's product is computed by itself, and zeros stand behind its own rows.
        """
        if not self.has_own_products:
            x = self.input_of_all_steps(layer_input)
            return ops.operation("BatchMatMulV2", x, x, adj_y=True)
        products = []
        inputs = self._inputs_by_client(layer_input)
        for x, missing in zip(inputs, ops.unstack(self.rows - self.data.own_rows, self._clients), strict=True):
            product = ops.operation("MatMul", x, x, transpose_b=True)
            products.append(ops.pad(product, [[0, missing], [0, missing]]))
        return ops.stack(products)

    @property
    def _clients(self) -> int:
        """K, the number of clients of the group."""
        return int(self.data.sizes.shape[0])

    def _inputs_by_client(self, layer_input: KnownInput) -> list[Value]:
        """The input of each client, [own rows, n], without the rows that pad it to the longest client."""
        return own_rows_of(self.input_of_all_steps(layer_input), self.data.own_rows)

    def _products_by_step(self, layer_input: KnownInput, matrix: Value, batch_rows: int) -> Value:
        """The products of all rows with a matrix, step after step: [T, K, B, m] for T steps.

        The products of all rows are computed first, one client after the other, and then gathered. Rows that a client
        does not have are copies of its last row, or zeros if the client has no row.

        Args:
            matrix: [n, m], shared by all clients.
            batch_rows: B.
        """
        if self.has_own_products:
            products = [ops.operation("MatMul", x, matrix) for x in self._inputs_by_client(layer_input)]
            products.append(ops.zeros([1, matrix.shape[1]]))  # for clients without rows
            row_products, counts = ops.concat(products, 0), self.data.own_rows
        else:
            product = ops.operation("BatchMatMulV2", self.input_of_all_steps(layer_input), matrix[None])
            row_products, counts = ops.reshape(product, [-1, matrix.shape[1]]), ops.fill([self._clients], self.rows)
        steps = -(-self.rows // batch_rows)
        row_numbers = ops.reshape(ops.range_(steps * batch_rows), [-1, 1, batch_rows])  # of a client: [T, 1, B]
        begins, last = ops.cumsum(counts, exclusive=True)[:, None], counts[:, None] - 1  # [K, 1]
        zero_row = ops.shape(row_products, tf.int64)[0] - 1
        positions = ops.where(last < 0, zero_row, begins + ops.minimum(row_numbers, last))  # [T, K, B]
        return ops.gather(row_products, positions)

    def _source_products(self, layer_input: KnownInput) -> Value:
        """The products of the rows: an operand of the call if it has them, else computed here."""
        operand = None if self.product_source is None else self.product_source(layer_input)
        return self.row_products(layer_input) if operand is None else operand

    def _build_once(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """The value of a key; at its first use `build` adds its operations to the graph around the loop."""
        if key not in self._built:
            with building(self.block):
                self._built[key] = build()
        return self._built[key]


@attrs.frozen(eq=False)
class StepInputs:
    """The known inputs in one training step: looks up products that were computed before the loop.

    Args:
        all_steps: the products of all steps.
        step: int64, the number of the step.
        elements: the columns of the step's batch, [K, B, …].
        shared: matrices that all clients share and that no step changes.
        input_of_left: id of a left factor -> the known input of earlier steps that it holds.
    """

    all_steps: KnownInputs
    step: Value
    elements: Sequence[Value]
    shared: Sequence[Value]
    input_of_left: dict[int, KnownInput] = attrs.field(factory=dict, init=False)
    _inputs_by_id: dict = attrs.field(factory=dict, init=False)

    @property
    def _batch_rows(self) -> int:
        """B, the rows of a padded batch."""
        return int(self.elements[0].shape[1])

    def find_input(self, x: Value) -> KnownInput | None:
        """The known input that a tensor [K, B, n] of the step is; None if it is none."""
        if id(x) not in self._inputs_by_id:
            self._inputs_by_id[id(x)] = (match_known_input(x, self.elements), x)  # holds x, so that its id stays in use
        return self._inputs_by_id[id(x)][0]

    def earlier_inputs(self, layer_input: KnownInput) -> Value:
        """The input for the rows of all earlier steps, [K, step * B, n]."""
        return self.all_steps.input_of_all_steps(layer_input)[:, : self.step * self._batch_rows]

    def product(self, x: Value, matrix: Value) -> Value | None:
        """x @ matrix [K, B, m] from before the loop; None unless x is a known input and no step changes the matrix."""
        layer_input = self.find_input(x)
        if layer_input is None or not any(matrix is m for m in self.shared):
            return None
        return self.all_steps.product_of_step(layer_input, matrix, self.step, self._batch_rows)

    def cut_to_input(self, rows: Value) -> Value:
        """The rows [K, B, …] of the step, without those behind row R: the last batch may reach beyond all rows."""
        return rows[:, : self.all_steps.rows - self.step * self._batch_rows]

    def gram(self, x: Value, left: Value) -> Value | None:
        """x @ left^T [K, B, step * B] from before the loop; None unless the left factor holds the known input x of
        earlier steps.
        """
        layer_input = self.find_input(x)
        if layer_input is None or self.input_of_left.get(id(left)) != layer_input:
            return None
        return self.all_steps.gram_of_step(layer_input, self.step, self._batch_rows)


def _row_operation(x: Value) -> tuple[Value, _RowOperation | None] | None:
    """(operand, operation) of the node that computes a tensor [K, B, …]; None if a row may depend on other rows.

    Recognised are a Cast, a Reshape that keeps the two leading axes, and arithmetic with a constant number that rounds
    once (`_EXACT`). The operation is None for an Identity, which changes nothing.
    """
    node, shape = x.node, x.shape
    if node is None:
        return None
    if node.op == "Identity":
        return node.inputs[0], None
    if shape.rank is None or shape.rank < 2 or None in shape[2:].as_list():
        return None
    row_shape = tuple(shape[2:])
    if node.op == "Cast":
        return node.inputs[0], _RowOperation("Cast", row_shape, x.dtype)
    if node.op == "Reshape":
        operand_shape = node.inputs[0].shape
        if operand_shape.rank is None or operand_shape.rank < 2 or None in shape[:2]:
            return None
        if operand_shape[:2].as_list() != shape[:2].as_list():
            return None
        return node.inputs[0], _RowOperation("Reshape", row_shape, x.dtype)
    if node.op not in _EXACT or not x.dtype.is_floating:
        return None
    for i, operand in enumerate(node.inputs):
        number = ops.static_value(operand)
        if number is not None and not operand.shape.rank:
            return node.inputs[1 - i], _RowOperation(node.op, row_shape, x.dtype, float(number), number_first=i == 0)
    return None
