"""Moves products that only add to a loop variable out of the loop, where one product computes those of all iterations.

In:  the body of a loop, such as the gradient of a recurrent layer, with dz [rows, m] in each iteration.
Out: a body that collects the operands in lists instead, and the products of all iterations behind the loop.

Letters: K clients, B rows of a batch, T iterations (such as time steps), n and m columns.

    sums       kernel_gradient += h^T dz         one product H^T dZ, with H [K, B * T, n] and dZ [K, B * T, m]
    elements   dx[t] += dz W^T                   one product dZ W^T, whose rows are the elements of the list dx
    row sums   bias_gradient += sum of dz's rows  one sum of all rows

A sum reads and writes [K, n, m] in each iteration; an element with few columns runs far below the processor's speed.
The rows of H and dZ are ordered by example, then by iteration: padded examples stand behind all others, so that the
bits of a client depend neither on their number nor on the other clients.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.batched.aligned_reductions import reduce_aligned
from fedcore.graphs.batched.batched_value import BatchedValue, ListElements, Padding
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, Region, Value, outer_values

MOST_PACKED = 64
"""Most elements of a list that are read one by one and packed; a longer list is stacked and transposed."""

MIN_RANK = 16
"""Least rank at which the factors of a matrix have as many entries as the matrix, for sums behind the loop.

The rows of a batch do not decide: its padded size depends on other clients, and the decision changes bits.
"""


@attrs.frozen
class Addend:
    """A value that each iteration adds to a loop variable.

    Args:
        variable: position of the loop variable.
        x: the operand in the body; of a product the left one.
        nodes: the operations that compute the new value of the variable; they move behind the loop.
    """

    variable: int
    x: Value
    nodes: tuple[Node, ...] = attrs.field(default=(), kw_only=True)

    @property
    def operands(self) -> tuple[Value, ...]:
        """The tensors of an iteration that are needed behind the loop."""
        return (self.x,)


@attrs.frozen
class ProductSum(Addend):
    """x^T y, [n, m], such as the gradient of a kernel, of x [B, n] and y [B, m]."""

    y: Value

    @property
    def operands(self) -> tuple[Value, ...]:
        return self.x, self.y


@attrs.frozen
class ProductElements(Addend):
    """x @ matrix, which is added to one element of a list.

    Args:
        matrix: the right operand, a value around the loop.
        transposed: whether the matrix is transposed.
        index: the number of the element in the list.
    """

    matrix: Value
    transposed: bool
    index: Value


@attrs.frozen
class RowSum(Addend):
    """The sum of the rows of x, which a product behind the loop reads too, such as the gradient of a bias."""


def match_products(condition: Region, loop_body: Region) -> "ProductsBehindLoop":
    """The products of a loop's body that can be computed behind the loop: those that only add to a loop variable.

    Nothing else in the loop may read that variable. Whether moving them gains anything is decided by `select_fitting`.

    Args:
        condition, loop_body: the regions of the loop.
    """
    unread = [i for i, argument in enumerate(condition.arguments) if not condition.uses[argument]]
    matches = [_match_product(loop_body, i) for i in unread]
    kinds = ProductSum, ProductElements, RowSum  # products that collect an operand stand before sums that reuse it
    return ProductsBehindLoop(tuple(match for kind in kinds for match in matches if isinstance(match, kind)))


def _match_product(loop_body: Region, variable: int) -> Addend | None:
    """The product that the body adds to a loop variable; None if the variable or the product has another use.

    Args:
        variable: position of the loop variable.
    """
    path: list[Node] = []  # gets the operations from the old value to the new one, which move with the product
    addend = _match_addend(loop_body, variable, path)
    match = None if addend is None else _match_addend_product(loop_body, variable, addend, path)
    nodes = tuple(dict.fromkeys(path))
    moving = [loop_body.arguments[variable], *(v for node in nodes for v in node.outputs)]
    uses = collections.Counter([*(v for node in nodes for v in node.inputs), loop_body.results[variable]])
    has_other_use = any(loop_body.uses[v] > uses[v] for v in moving)
    return None if match is None or has_other_use else attrs.evolve(match, nodes=nodes)


def _match_addend(loop_body: Region, variable: int, path: list[Node]) -> Node | None:
    """The node whose result is added to a loop variable; None if it is of no type that may move behind the loop.

    Args:
        variable: position of the loop variable.
        path: gets the operations between that node and the new value of the variable.
    """
    old_value, new_value = loop_body.arguments[variable], loop_body.results[variable]
    total = _find_producer(new_value, ("AddN", "AddV2"), path)
    if total is None or len(total.inputs) != 2:
        return None
    addends = [v for v in total.inputs if _skip_identities(v, path) is not old_value]
    if len(addends) != 1:
        return None
    return _find_producer(addends[0], ("MatMul", "TensorListSetItem", "BiasAddGrad"), path)


def _match_addend_product(loop_body: Region, variable: int, addend: Node, path: list[Node]) -> Addend | None:
    """The product that an added node computes; None if its attributes or operands do not fit.

    Args:
        variable: position of the loop variable.
        addend: the node whose result is added to it.
        path: gets the operations that compute the element of a list.
    """
    if addend.op == "MatMul" and addend.get("transpose_a") and not addend.get("transpose_b"):
        return ProductSum(variable, addend.inputs[0], addend.inputs[1])
    if addend.op == "TensorListSetItem":
        reserved = _find_producer(addend.inputs[0], ("TensorListReserve",), path)
        product = _find_producer(addend.inputs[2], ("MatMul",), path)
        if reserved and product and not product.get("transpose_a") and product.inputs[1] in outer_values(loop_body):
            x, matrix = product.inputs
            return ProductElements(variable, x, matrix, bool(product.get("transpose_b")), addend.inputs[1])
    if addend.op == "BiasAddGrad" and addend.get("data_format", b"NHWC") == b"NHWC":
        return RowSum(variable, addend.inputs[0])
    return None


def _skip_identities(value: Value, path: list[Node]) -> Value:
    """The value that a chain of Identity operations passes on; appends these to `path`."""
    while value.node is not None and value.node.op == "Identity":
        path.append(value.node)
        (value,) = value.node.inputs
    return value


def _find_producer(value: Value, ops: tuple[str, ...], path: list[Node]) -> Node | None:
    """The node that computes a value, behind Identity operations, if its type is in `ops`; appends them to `path`."""
    node = _skip_identities(value, path).node
    if node is None or node.op not in ops:
        return None
    path.append(node)
    return node


@attrs.frozen
class ProductsBehindLoop:
    """The products of a loop that are computed behind it, instead of in each iteration.

    Args:
        products: sums first, then elements, then row sums.
    """

    products: tuple[Addend, ...]

    @property
    def sums(self) -> list[ProductSum]:
        return [p for p in self.products if isinstance(p, ProductSum)]

    @property
    def elements(self) -> list[ProductElements]:
        return [p for p in self.products if isinstance(p, ProductElements)]

    @property
    def row_sums(self) -> list[RowSum]:
        return [p for p in self.products if isinstance(p, RowSum)]

    @property
    def operands(self) -> list[Value]:
        """The operands of the products in the body, each once; the loop collects them in lists."""
        return list(dict.fromkeys([v for p in self.products for v in p.operands]))

    @property
    def indices(self) -> list[Value]:
        """The numbers of the list elements to which products are added, each once; the loop collects them too."""
        return list(dict.fromkeys(p.index for p in self.elements))

    @property
    def variables(self) -> set[int]:
        """The positions of the loop variables to which they add."""
        return {p.variable for p in self.products}

    def remove_from(self, condition: Region, loop_body: Region) -> tuple[Region, Region]:
        """The condition and the body of a loop without these products and their loop variables.

        Behind its loop variables the body returns the operands and the indices of the products.
        """
        removed = {node for p in self.products for node in p.nodes}
        carried = [i for i in range(len(loop_body.arguments)) if i not in self.variables]
        nodes = tuple(node for node in loop_body.nodes if node not in removed)
        results = [loop_body.results[i] for i in carried]
        return (
            attrs.evolve(condition, arguments=tuple(condition.arguments[i] for i in carried)),
            Region(tuple(loop_body.arguments[i] for i in carried), nodes, (*results, *self.operands, *self.indices)),
        )

    def select_fitting(
        self, evaluation: BatchedEvaluation, operand_values: Sequence[BatchedValue], outer: Mapping[Value, BatchedValue]
    ) -> "ProductsBehindLoop":
        """The products that can be computed behind the loop and gain by it.

        A sum gains if its matrix is large (`MIN_RANK`). Every other product gains if an operand of it is collected for
        such a sum. Operands that are one tensor are collected once.

        Args:
            operand_values: the operands and indices that the body without the products returns, in one iteration.
            outer: the values around the loop.
        """
        value_of = dict(zip([*self.operands, *self.indices], operand_values, strict=True))
        # Several operands of the body may be one tensor here; the first of them represents the others.
        first_with_tensor: dict[int, Value] = {}
        representative = {x: first_with_tensor.setdefault(id(value_of[x].tensor), x) for x in self.operands}
        fitting = {x for x in self.operands if _is_row_matrix(value_of[x])}
        sums = [
            attrs.evolve(s, x=representative[s.x], y=representative[s.y])
            for s in self.sums
            if {s.x, s.y} <= fitting and value_of[s.x].padded_axis == value_of[s.y].padded_axis
        ]
        gaining = [s for s in sums if _break_even_rank(evaluation, value_of[s.x], value_of[s.y]) >= MIN_RANK]
        collected = {x for s in gaining for x in s.operands}
        elements = [
            attrs.evolve(p, x=representative[p.x])
            for p in self.elements
            if representative[p.x] in collected
            and value_of[p.index].client_invariant
            and outer[p.matrix].low_rank is None
        ]
        row_sums = [attrs.evolve(r, x=representative[r.x]) for r in self.row_sums if representative[r.x] in collected]
        moved_sums = [s for s in sums if s in gaining or collected & {s.x, s.y}]
        return ProductsBehindLoop((*moved_sums, *elements, *row_sums))

    def tensors_to_collect(self, evaluation: BatchedEvaluation, operand_values: Sequence[BatchedValue]) -> list[Value]:
        """The operands of an iteration, [K, B, …], and the indices, as the loop appends them to lists.

        Padded rows of an operand become zeros, so that they add nothing. First operands of sums only are left as they
        are: they are finite wherever the client's results are finite, so their product with zero is zero.

        Args:
            operand_values: as for `select_fitting`.
        """
        with_zero_padding = {*(s.y for s in self.sums), *(p.x for p in self.elements), *(r.x for r in self.row_sums)}
        rows = [
            evaluation.masked(v) if x in with_zero_padding or v.padding is Padding.UNKNOWN else evaluation.tensor(v)
            for x, v in zip(self.operands, operand_values, strict=False)  # behind the operands stand the indices
        ]
        return [*rows, *(evaluation.tensor(v) for v in operand_values[len(rows) :])]

    def results(
        self,
        evaluation: BatchedEvaluation,
        lists: Iterable[Value],
        operand_values: Sequence[BatchedValue],
        state: Sequence[BatchedValue],
        outer: Mapping[Value, BatchedValue],
        trip_count: int | None,
    ) -> dict[int, BatchedValue]:
        """Loop variable -> its value behind the loop: the initial value plus the products of all iterations.

        Args:
            lists: for each operand and index, a TensorList of its tensors in all iterations.
            operand_values: as for `select_fitting`.
            state: the loop variables before the loop.
            outer: the values around the loop.
            trip_count: T, the number of iterations; None if it is not known.
        """
        collected = [*self.operands, *self.indices]
        stacks = {}  # of each operand [K, B, T, n], of each index [T]
        for x, handle, v in zip(collected, lists, operand_values, strict=True):
            if v.batched:  # an operand; an index is one number for all clients
                shape = [evaluation.clients, *evaluation.shape(v)]
                stacks[x] = _stack(handle, shape, v.tensor.dtype, trip_count)
            else:
                stacks[x] = ops.operation("TensorListStack", handle, [], element_dtype=v.tensor.dtype)
        rows = {x: _by_example(stacks[x]) for x in self.operands}
        results = {}
        for s in self.sums:
            total = ops.operation("BatchMatMulV2", rows[s.x], rows[s.y], adj_x=True)
            results[s.variable] = BatchedValue(evaluation.with_client_axis(state[s.variable]) + total, True)
        for r in self.row_sums:
            operand = operand_values[self.operands.index(r.x)]
            results[r.variable] = _sum_rows(evaluation, stacks[r.x], operand, state[r.variable])
        for p in self.elements:
            element = operand_values[self.operands.index(p.x)]
            matrix = evaluation.with_client_axis(outer[p.matrix])
            count = ops.operation("TensorListLength", evaluation.tensor(state[p.variable]))
            products = self._list_of_products(evaluation, p, matrix, count, rows[p.x], stacks[p.index], element)
            sum_of_lists = Node("AddN", (), {"N": 2, "T": tf.variant})
            (results[p.variable],) = evaluation.evaluate(sum_of_lists, [state[p.variable], products])
        return results

    def _list_of_products(
        self,
        evaluation: BatchedEvaluation,
        product: ProductElements,
        matrix: Value,
        count: Value,
        rows: Value,
        indices: Value,
        x: BatchedValue,
    ) -> BatchedValue:
        """A list as long as the loop variable's; element i is the sum of x_t @ matrix over the iterations t of index i.

        One product computes the summands of all iterations, and a segment sum puts them into their places.

        Args:
            matrix: [K, n, m], or [K, m, n] where the product transposes it.
            count: elements of the list.
            rows: the x_t of all iterations, [K, B * T, n].
            indices: the index of each iteration, [T].
            x: the x_t of one iteration, [K, B, n].
        """
        row_products = ops.operation("BatchMatMulV2", rows, matrix, adj_y=product.transposed)  # [K, B * T, m]
        shape = [evaluation.clients, int(evaluation.shape(x)[0]), int(row_products.shape[2])]  # of an element
        summands = ops.transpose(ops.reshape(row_products, [*shape[:2], -1, shape[2]]), [2, 0, 1, 3])  # [T, K, B, m]
        elements = ops.unsorted_segment_sum(summands, indices, count)
        # Padded rows of x_t are zeros, as `tensors_to_collect` made them, so those of the elements are too.
        element = attrs.evolve(x, tensor=ops.ensure_shape(elements[0], shape), padding=Padding.ZEROS)
        return attrs.evolve(
            element,
            tensor=ops.operation("TensorListFromTensor", elements, shape),
            form=ListElements(evaluation.known_shape(element), are_stored=True),
        )


def _sum_rows(
    evaluation: BatchedEvaluation, stack: Value, operand: BatchedValue, initial: BatchedValue
) -> BatchedValue:
    """The initial value plus the sum of all rows of all iterations, such as the gradient of a bias: [K, m].

    Iterations are added up for each example first, so that padded examples, which are zeros, stand behind all others.
    The rule of BiasAddGrad then adds up the examples, in an order that padding does not change.

    Args:
        stack: the operands of all iterations, [K, B, T, m].
        operand: of one iteration; its padded axis is that of the stack.
        initial: the loop variable before the loop.
    """
    example_sums = reduce_aligned(ops.reduce_sum, stack, [2])  # [K, B, m]
    by_row = BatchedValue(example_sums, True, operand.padded_axis, padding=Padding.ZEROS)
    (total,) = evaluation.evaluate(Node("BiasAddGrad", (), {"T": example_sums.dtype}), [by_row])
    initial_tensor = evaluation.with_client_axis(initial)
    return BatchedValue(initial_tensor + evaluation.tensor(total), True)


def _is_row_matrix(value: BatchedValue) -> bool:
    """Whether an operand is a matrix [B, n] of each client, of static shape, without a batch in its columns."""
    if not value.batched or value.padded_axis not in (0, None) or value.entries_per_row != 1:
        return False
    return value.tensor.shape.rank == 3 and value.tensor.shape.is_fully_defined()


def _break_even_rank(evaluation: BatchedEvaluation, x: BatchedValue, y: BatchedValue) -> int:
    """The rank at which the factors of x^T y, [n, m], have as many entries as the matrix: n m / (n + m)."""
    n, m = (int(evaluation.shape(v)[1]) for v in (x, y))
    return n * m // (n + m)


def _stack(handle: Value, shape: list, dtype: tf.DType, trip_count: int | None) -> Value:
    """The elements [K, B, n] of a TensorList as one tensor [K, B, T, n].

    Args:
        trip_count: T; None if it is not known.
    """
    if trip_count is not None and 0 < trip_count <= MOST_PACKED:
        elements = [
            ops.operation("TensorListGetItem", handle, ops.constant(i), shape, element_dtype=dtype)
            for i in range(trip_count)
        ]
        for element in elements:
            element.set_shape(shape)
        return ops.stack(elements, 2)
    stack = ops.operation("TensorListStack", handle, shape, element_dtype=dtype)
    stack.set_shape([None, *shape])
    return ops.transpose(stack, [1, 2, 0, 3])


def _by_example(stack: Value) -> Value:
    """[K, B, T, n] -> [K, B * T, n]: rows ordered by example, then by iteration."""
    clients, _, _, size = stack.shape
    return ops.reshape(stack, [clients, -1, size])
