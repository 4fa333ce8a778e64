"""Inputs of layers that are known before a loop over training steps, since they depend on the clients' data only.

In:  a tensor of a step, [K, B, n], and the rows of the group's batches, [K, R, …].
Out: the tensor of all T steps, [K, R, n]. R is T * B, or less if the last batch has fewer rows.

The input of a model's first layer is the batch itself, reshaped or scaled. Its products with what all clients share,
and with the inputs of earlier steps, are then computed once before the loop, and no step reads or copies the inputs:

    x W    [T, K, B, m]  stored step after step; a client's last row stands in for missing ones
    x x^T  [K, R, R]     step s takes the rows s * B … (s + 1) * B - 1, and of these the columns 0 … s * B - 1; no step
                         takes a column of the last one, and the first one takes none, so batches of some rows leave
                         out both

The bits of such a product are those of one product for each step, as long as a batch has more than one row.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import attrs
import tensorflow as tf

from fedcore.graphs.batched.own_rows import own_rows_of
from fedcore.graphs.batched.row_layouts import RowLayout
from fedcore.graphs.batched.row_windows import Window, rows_from
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Block, Value, building

_EXACT = {"Mul": ops.multiply, "AddV2": ops.add, "Sub": ops.subtract, "RealDiv": ops.divide}
"""Operations that round once, so that the bits of an entry do not depend on the entries beside it."""

LEFT_OUT_ROWS = 8
"""Rows of the smallest batch for which products that no step takes cost more than the copies that leave them out."""

MIN_ROWS = 2
"""Rows of the smallest batch whose products are computed before the loop; products with vectors have other kernels."""


@attrs.frozen
class _Step:
    """An operation on the way from the batch to the input of a layer.

    Args:
        op: its type.
        shape: of one row of the result.
        dtype: of the result.
        number: the other operand of a sum or a product.
        number_first: whether that is the first operand.
    """

    op: str
    shape: tuple[int, ...]
    dtype: tf.DType
    number: float | None = None
    number_first: bool = False

    def applied(self, x: Value) -> Value:
        """The result for rows [K, rows, …]."""
        if self.op == "Cast":
            return ops.cast(x, self.dtype)
        if self.op == "Reshape":
            return ops.reshape(x, [x.shape[0], -1 if x.shape[1] is None else x.shape[1], *self.shape])
        number = ops.constant(self.number, self.dtype)
        return _EXACT[self.op](number, x) if self.number_first else _EXACT[self.op](x, number)


@attrs.frozen
class KnownInput:
    """How the input of a layer is computed from a column of the data.

    Args:
        column: the number of the column.
        steps: operations, in order.
    """

    column: int
    steps: tuple[_Step, ...] = ()

    def of(self, columns: Sequence[Value]) -> Value:
        """The input in all steps, [K, R, n]; the columns are [K, R, …]."""
        x = columns[self.column]
        for step in self.steps:
            x = step.applied(x)
        return x


@attrs.frozen(eq=False)
class DataRows:
    """The rows of a call's clients in the data, one client after the other in the order of their indices.

    Args:
        columns: [rows, …]; there are no other rows.
        begins: int64 [lanes], the row where each lane's client begins.
    """

    columns: Sequence[Value]
    begins: Value

    def of(self, known: KnownInput, lanes: Value, counts: Value) -> Value:
        """The input [1, r, n] of the clients at lanes, whose rows stand side by side; a view where it can be one.

        Args:
            counts: int64, the number of rows of each of these lanes.
        """
        begins = ops.where(counts > 0, ops.gather(self.begins, lanes), ops.shape(self.columns[0], tf.int64)[0])
        window = Window(ops.reduce_min(begins), ops.reduce_sum(counts))
        return known.of([ops.expand_dims(window.of(c), 0) for c in self.columns])


def known_input(x: Value, elements: Sequence[Value]) -> KnownInput | None:
    """How a tensor [K, B, n] is computed from the columns of one step's elements; None if other values decide it."""
    steps: list[_Step] = []
    while True:
        column = next((i for i, t in enumerate(elements) if t is x), None)
        if column is not None:
            return KnownInput(column, tuple(reversed(steps)))
        found = _step(x)
        if found is None:
            return None
        x, step = found
        steps.extend([] if step is None else [step])


class Given(Protocol):
    """Products of the rows of a group, which are given to a graph."""

    def get(self, of: KnownInput, batch_rows: int) -> Value | None:
        """Those of an input, as of `products_of_rows`; None if they are not given."""


@attrs.frozen(eq=False)
class KnownInputs:
    """Products with the known inputs of a loop, computed before it, in the graph around it.

    Args:
        data: the packed rows of the clients of a group.
        graph: the graph that holds them.
        given: products that the function of the call is given; None if it is given none.
        has_own_products: a product has the rows of one client, see `own_rows`.
    """

    data: RowLayout
    block: Block
    given: "Given | None" = None
    has_own_products: bool = False
    _built: dict = attrs.field(factory=dict, init=False)

    @property
    def rows(self) -> Value:
        """int64, R."""
        return self._once("rows", lambda: self.data.row_count)

    def input(self, of: KnownInput) -> Value:
        """[K, R, n]."""
        return self._once(of, lambda: of.of(self._once("columns", self.data.all_columns)))

    def input_of(self, tensor: Value) -> KnownInput | None:
        """Which input in all steps a tensor is; None if it is none."""
        return next((of for of, built in self._built.items() if built is tensor and isinstance(of, KnownInput)), None)

    def product(self, of: KnownInput, matrix: Value, step: Value, rows: int) -> Value:
        """[K, B, m]: the product of a step's rows with a matrix that all clients share, [n, m]; B is `rows`."""
        of_steps = self._once((of, id(matrix)), lambda: self._products_by_step(of, matrix, rows))
        return ops.squeeze(Window(step, 1).of(of_steps), 0)

    def gram(self, of: KnownInput, step: Value, rows: int) -> Value:
        """[K, B, step * B]: the products of a step's rows with those of earlier steps; B is `rows`."""
        leaves_out = rows >= LEFT_OUT_ROWS
        products = self._once((of, "gram"), lambda: self._gram(of, rows))
        first = ops.maximum(step - 1, 0) if leaves_out else step
        return rows_from(products, first * rows, rows)[:, :, : step * rows]

    def products_of_rows(self, of: KnownInput, batch_rows: int) -> Value:
        """[K, later, earlier]: the products of rows with those of earlier batches, and with some that no step takes.

        The first batch has no earlier rows, and the last one no later ones. If there is one batch, all rows are
        multiplied with none. Products have zeros in the place of those of rows behind a client's end, if they have the
        rows of one client.
        """
        later, earlier = earlier_rows(self.rows, batch_rows)
        if not self.has_own_products:
            x = self.input(of)
            left, right = (x, x) if batch_rows < LEFT_OUT_ROWS else (x[:, self.rows - later :], x[:, :earlier])
            return ops.operation("BatchMatMulV2", left, right, adj_y=True)
        own = self.data.own_rows
        last, first = earlier_rows(own, batch_rows)
        none = ops.zeros_like(last)
        missing = ops.reshape(ops.stack([none, later - last, none, earlier - first], 1), [-1, 2, 2])
        found = []
        for x, of_later, of_earlier, of_both in zip(
            self._of_each(of), *(ops.unstack(t, self._clients) for t in (own - last, first, missing)), strict=True
        ):
            product = ops.operation("MatMul", x[of_later:], x[:of_earlier], transpose_b=True)
            found.append(ops.pad(product, of_both))
        return ops.stack(found)

    @property
    def _clients(self) -> int:
        return int(self.data.sizes.shape[0])

    def _of_each(self, of: KnownInput) -> list[Value]:
        """The input of each client, [own rows, n]."""
        each = self._once("columns of clients", self.data.columns_of_clients)
        if each is None:
            return own_rows_of(self.input(of), self.data.own_rows)
        return [ops.squeeze(of.of([ops.expand_dims(c, 0) for c in columns]), 0) for columns in each]

    def _products_by_step(self, of: KnownInput, matrix: Value, batch_rows: int) -> Value:
        """[T, K, B, m]; the last row of a client stands in for missing ones, or zeros, if it has none."""
        if self.has_own_products:
            products = [ops.operation("MatMul", x, matrix) for x in self._of_each(of)]
            products.append(ops.zeros([1, matrix.shape[1]]))
            flat, counts = ops.concat(products, 0), self.data.own_rows
        else:
            product = ops.operation("BatchMatMulV2", self.input(of), matrix[None])
            flat, counts = ops.reshape(product, [-1, matrix.shape[1]]), ops.fill([self._clients], self.rows)
        steps = -(-self.rows // batch_rows)
        of_step = ops.reshape(ops.range_(steps * batch_rows), [-1, 1, batch_rows])
        begins, last = ops.cumsum(counts, exclusive=True)[:, None], counts[:, None] - 1
        return ops.gather(
            flat, ops.where(last < 0, ops.shape(flat, tf.int64)[0] - 1, begins + ops.minimum(of_step, last))
        )

    def _gram(self, of: KnownInput, rows: int) -> Value:
        given = None if self.given is None else self.given.get(of, rows)
        return self.products_of_rows(of, rows) if given is None else given

    def _once(self, key: Hashable, build: Callable[[], Any]) -> Any:
        if key not in self._built:
            with building(self.block):
                self._built[key] = build()
        return self._built[key]


def earlier_rows(rows: Value, batch_rows: int) -> tuple[Value, Value]:
    """(number of rows that have earlier ones, number of rows that have later ones) of R rows in batches.

    Those of the first batch, and of the last one, if they are left out; if there is one batch, none has.
    """
    if batch_rows < LEFT_OUT_ROWS:
        return rows, rows
    earlier = ops.maximum(rows - 1, 0) // batch_rows * batch_rows
    return rows - ops.minimum(ops.constant(batch_rows, rows.dtype), earlier), earlier


@attrs.frozen(eq=False)
class StepInputs:
    """The known inputs in one step.

    Args:
        of: those of all steps.
        step: int64, the number of the step.
        elements: the columns of the step's elements, [K, B, …].
        shared: matrices that all clients share and that no step changes.
        lefts: id of a left factor -> the known input of earlier steps that it holds.
        multiplied: the other left factors that the step multiplies with known inputs, each with its input.
    """

    of: KnownInputs
    step: Value
    elements: Sequence[Value]
    shared: Sequence[Value]
    lefts: dict[int, KnownInput] = attrs.field(factory=dict, init=False)
    multiplied: list[tuple[Value, KnownInput]] = attrs.field(factory=list, init=False)
    _found: dict = attrs.field(factory=dict, init=False)

    @property
    def _rows(self) -> int:
        return int(self.elements[0].shape[1])

    def known(self, x: Value) -> KnownInput | None:
        if id(x) not in self._found:
            self._found[id(x)] = (known_input(x, self.elements), x)  # holds the tensor, so that its id stays in use
        return self._found[id(x)][0]

    def earlier(self, of: KnownInput) -> Value:
        """[K, step * B, n]: the inputs of the earlier steps."""
        return self.of.input(of)[:, : self.step * self._rows]

    def product(self, x: Value, matrix: Value) -> Value | None:
        """x @ matrix, if x is known and the matrix is among the shared ones."""
        known = self.known(x)
        if known is None or not any(matrix is m for m in self.shared):
            return None
        return self.of.product(known, matrix, self.step, self._rows)

    def present(self, of: KnownInput, rows: Value) -> Value:
        """The rows of the step that the input of all steps has; rows are [K, B, …]."""
        return rows[:, : self.of.rows - self.step * self._rows]

    def gram(self, x: Value, left: Value) -> Value | None:
        """x @ left^T, if x is known and the left factor holds the same input of earlier steps."""
        known = self.known(x)
        if known is None:
            return None
        if id(left) not in self.lefts:
            self.multiplied.append((left, known))
        if self.lefts.get(id(left)) != known:
            return None
        return self.of.gram(known, self.step, self._rows)


def _step(x: Value) -> tuple[Value, _Step | None] | None:
    """(operand, step) of the operation that computes a tensor; None if it is not one of a row by itself."""
    node, shape = x.node, x.shape
    if node is None:
        return None
    if node.op == "Identity":
        return node.inputs[0], None
    if shape.rank is None or shape.rank < 2 or None in shape[2:].as_list():
        return None
    of_row = tuple(shape[2:])
    if node.op == "Cast":
        return node.inputs[0], _Step("Cast", of_row, x.dtype)
    if node.op == "Reshape":
        before = node.inputs[0].shape
        same_rows = before.rank is not None and before.rank >= 2 and before[:2].as_list() == shape[:2].as_list()
        return (node.inputs[0], _Step("Reshape", of_row, x.dtype)) if same_rows and None not in shape[:2] else None
    if node.op not in _EXACT or not x.dtype.is_floating:
        return None
    for i, operand in enumerate(node.inputs):
        number = ops.static_value(operand)
        if number is not None and not operand.shape.rank:
            return node.inputs[1 - i], _Step(node.op, of_row, x.dtype, float(number), number_first=i == 0)
    return None
