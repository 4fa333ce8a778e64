"""Products of a loop's iterations that nothing in the loop reads, computed at once behind the loop.

In:  the body of a loop, such as the gradient of a recurrent layer, with dz [rows, m] in each iteration.
Out: a body that keeps the operands instead, and the products of all iterations.

    sums       kernel_gradient += h^T dz         one product H^T dZ, with H [K, B * T, n] and dZ [K, B * T, m]
    elements   dx[t] += dz W^T                   one product dZ W^T, whose rows are the elements of the list dx
    row sums   bias_gradient += sum of dz's rows  one sum of all rows

A sum reads and writes [K, n, m] in each iteration; an element with few columns runs far below the processor's speed.
The rows of H and dZ are ordered by example, then by iteration: padded examples stand behind all others, so that the
bits of a client depend neither on their number nor on the other clients.
"""

from collections.abc import Iterable, Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.batched.aligned_reductions import reduce_aligned
from fedcore.graphs.batched.batched_value import BatchedValue, Padding
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.graphdef.parsed_graph import Body, Node, Ref

MOST_PACKED = 64
"""Tensors of a list that are put into place one by one, at most; a stack is transposed, which is one more copy."""

MIN_RANK = 16
"""Least rank at which the factors of a matrix have as many entries as the matrix, for sums behind the loop.

The rows of a batch do not decide: its padded size depends on other clients, and the decision changes bits.
"""


@attrs.frozen
class ProductSum:
    """A loop variable to which each iteration adds x^T y.

    Args:
        variable: its position.
        x, y: the operands.
        nodes: names of the operations that compute the new value.
    """

    variable: int
    x: Ref
    y: Ref
    nodes: tuple[str, ...]

    @property
    def operands(self) -> tuple[Ref, ...]:
        return self.x, self.y


@attrs.frozen
class ProductElements:
    """A loop variable, a list, to one element of which each iteration adds x @ matrix.

    Args:
        variable: its position.
        x: the left operand.
        matrix: position of the loop variable that is the right operand, which no iteration changes.
        transposed: whether the matrix is transposed.
        index: the number of the element.
        nodes: names of the operations that compute the new list.
    """

    variable: int
    x: Ref
    matrix: int
    transposed: bool
    index: Ref
    nodes: tuple[str, ...]

    @property
    def operands(self) -> tuple[Ref, ...]:
        return (self.x,)


@attrs.frozen
class RowSum:
    """A loop variable to which each iteration adds the sum of the rows of x.

    Args:
        variable: its position.
        x: the operand, which a product behind the loop reads too.
        nodes: names of the operations that compute the new value.
    """

    variable: int
    x: Ref
    nodes: tuple[str, ...]

    @property
    def operands(self) -> tuple[Ref, ...]:
        return (self.x,)


def products_behind(step: Body) -> "ProductsBehindLoop":
    """The loop variables of a body that only collect products, and are used for nothing else in it."""
    users: dict[Ref, list[str]] = {}
    for node in step.nodes:
        for ref in node.inputs:
            users.setdefault(ref, []).append(node.name)
    found = [_collected(step, i, users) for i in range(len(step.arguments))]
    return ProductsBehindLoop(
        tuple(f for f in found if isinstance(f, ProductSum)),
        tuple(f for f in found if isinstance(f, ProductElements)),
        tuple(f for f in found if isinstance(f, RowSum)),
    )


def _collected(step: Body, variable: int, users: dict[Ref, list[str]]) -> ProductSum | ProductElements | RowSum | None:
    chain: list[str] = []

    def source(ref: Ref) -> Ref:
        """What Identity operations pass on."""
        while (node := step.by_name.get(ref[0])) is not None and node.op == "Identity":
            chain.append(node.name)
            ref = node.inputs[0]
        return ref

    def made_by(ref: Ref, *ops: str) -> Node | None:
        node = step.by_name.get(source(ref)[0])
        if node is None or node.op not in ops:
            return None
        chain.append(node.name)
        return node

    before, after = (step.arguments[variable], 0), step.results[variable]
    total = made_by(after, "AddN", "AddV2")
    if total is None or len(total.inputs) != 2:
        return None
    added = [ref for ref in total.inputs if source(ref) != before]
    made = made_by(added[0], "MatMul", "TensorListSetItem", "BiasAddGrad") if len(added) == 1 else None
    if made is None:
        return None
    found: ProductSum | ProductElements | RowSum | None = None
    if made.op == "MatMul" and made.get("transpose_a") and not made.get("transpose_b"):
        found = ProductSum(variable, made.inputs[0], made.inputs[1], ())
    elif made.op == "TensorListSetItem":
        reserved, product = made_by(made.inputs[0], "TensorListReserve"), made_by(made.inputs[2], "MatMul")
        unchanged = {(a, 0): i for i, a in enumerate(step.arguments) if step.results[i] == (a, 0)}
        if reserved and product and not product.get("transpose_a") and product.inputs[1] in unchanged:
            matrix, transposed = unchanged[product.inputs[1]], bool(product.get("transpose_b"))
            found = ProductElements(variable, product.inputs[0], matrix, transposed, made.inputs[1], ())
    elif made.op == "BiasAddGrad" and made.get("data_format", b"NHWC") == b"NHWC":
        found = RowSum(variable, made.inputs[0], ())
    inside = {before, *((name, 0) for name in chain)}
    elsewhere = any(user not in chain for ref in inside for user in users.get(ref, ()))
    returned = any(r in inside for i, r in enumerate(step.results) if i != variable)
    return None if found is None or elsewhere or returned else attrs.evolve(found, nodes=tuple(chain))


@attrs.frozen
class ProductsBehindLoop:
    """The products of a loop that are computed behind it."""

    sums: tuple[ProductSum, ...]
    elements: tuple[ProductElements, ...] = ()
    row_sums: tuple[RowSum, ...] = ()

    @property
    def products(self) -> list[ProductSum | ProductElements | RowSum]:
        return [*self.sums, *self.elements, *self.row_sums]

    @property
    def operands(self) -> list[Ref]:
        """The tensors of an iteration that are kept: operands of products, then the numbers of elements."""
        return list(dict.fromkeys([r for p in self.products for r in p.operands]))

    @property
    def indices(self) -> list[Ref]:
        return list(dict.fromkeys(p.index for p in self.elements))

    def reduced(self, step: Body) -> Body:
        """The body without these products; behind its results it returns the operands and the indices."""
        removed = {name for p in self.products for name in p.nodes}
        collected = {p.variable for p in self.products}
        results = [(a, 0) if i in collected else step.results[i] for i, a in enumerate(step.arguments)]
        nodes = tuple(node for node in step.nodes if node.name not in removed)
        return attrs.evolve(step, nodes=nodes, results=(*results, *self.operands, *self.indices))

    def that_fit(
        self, evaluation: BatchedEvaluation, others: Sequence[BatchedValue], state: Sequence[BatchedValue]
    ) -> "ProductsBehindLoop":
        """Those that can be computed behind the loop and gain by it.

        A sum gains if its matrix is large (`MIN_RANK`), every other product if its operand is kept anyway.

        Args:
            others: what the reduced body returns behind its loop variables, in one iteration.
            state: the loop variables.
        """
        of = dict(zip([*self.operands, *self.indices], others, strict=True))
        same: dict[int, Ref] = {}
        first = {ref: same.setdefault(id(of[ref].tensor), ref) for ref in self.operands}
        fitting = {ref for ref in self.operands if _fits(of[ref])}
        sums = [
            attrs.evolve(s, x=first[s.x], y=first[s.y])
            for s in self.sums
            if {s.x, s.y} <= fitting and of[s.x].padded_axis == of[s.y].padded_axis
        ]
        gaining = [s for s in sums if _rank(evaluation, of[s.x], of[s.y]) >= MIN_RANK]
        kept = {ref for s in gaining for ref in s.operands}
        elements = [
            attrs.evolve(p, x=first[p.x])
            for p in self.elements
            if first[p.x] in kept and of[p.index].client_invariant and state[p.matrix].low_rank is None
        ]
        row_sums = [attrs.evolve(r, x=first[r.x]) for r in self.row_sums if first[r.x] in kept]
        return ProductsBehindLoop(
            tuple(s for s in sums if s in gaining or kept & {s.x, s.y}), tuple(elements), tuple(row_sums)
        )

    def kept(self, evaluation: BatchedEvaluation, others: Sequence[BatchedValue]) -> list[Value]:
        """The operands of an iteration, [K, B, …], and the indices.

        Padded rows are zeros, but those of operands that are first in sums only: they are finite wherever the client's
        results are finite.
        """
        zeros = {*(s.y for s in self.sums), *(p.x for p in self.elements), *(r.x for r in self.row_sums)}
        rows = [
            evaluation.masked(v) if ref in zeros or v.padding is Padding.UNKNOWN else evaluation.tensor(v)
            for ref, v in zip(self.operands, others, strict=False)
        ]
        return [*rows, *(evaluation.tensor(v) for v in others[len(rows) :])]

    def results(
        self,
        evaluation: BatchedEvaluation,
        lists: Iterable[Value],
        others: Sequence[BatchedValue],
        state: Sequence[BatchedValue],
        trips: int | None,
    ) -> dict[int, BatchedValue]:
        """Loop variable -> its value behind the loop.

        Args:
            lists: TensorLists of the tensors of `kept` of all iterations.
            others: as for `that_fit`.
            state: the loop variables.
            trips: the number of iterations; None if it is not known.
        """
        refs = [*self.operands, *self.indices]
        stacks = {
            ref: _stack(handle, [evaluation.clients, *evaluation.shape(v)], v.tensor.dtype, trips)
            if v.batched
            else ops.operation("TensorListStack", handle, [], element_dtype=v.tensor.dtype)
            for ref, handle, v in zip(refs, lists, others, strict=True)
        }
        rows = {ref: _by_example(stacks[ref]) for ref in self.operands}
        found = {}
        for s in self.sums:
            total = ops.operation("BatchMatMulV2", rows[s.x], rows[s.y], adj_x=True)
            found[s.variable] = BatchedValue(evaluation.with_client_axis(state[s.variable]) + total, True)
        for r in self.row_sums:
            like = others[self.operands.index(r.x)]
            of_examples = reduce_aligned(ops.reduce_sum, stacks[r.x], [2])
            by_row = BatchedValue(of_examples, True, like.padded_axis, padding=Padding.ZEROS)
            (total,) = evaluation.evaluate(Node("", "BiasAddGrad", (), {"T": of_examples.dtype}), [by_row])
            before = evaluation.with_client_axis(state[r.variable])
            found[r.variable] = BatchedValue(before + evaluation.tensor(total), True)
        for p in self.elements:
            element = others[self.operands.index(p.x)]
            added = self._list_of_products(evaluation, p, rows[p.x], stacks[p.index], element, state)
            sum_of_lists = Node("", "AddN", (), {"N": 2, "T": tf.variant})
            (found[p.variable],) = evaluation.evaluate(sum_of_lists, [state[p.variable], added])
        return found

    def _list_of_products(
        self,
        evaluation: BatchedEvaluation,
        product: ProductElements,
        rows: Value,
        indices: Value,
        operand: BatchedValue,
        state: Sequence[BatchedValue],
    ) -> BatchedValue:
        """The list whose elements are sums of the products of the iterations that have their index.

        Args:
            rows: the left operands of all iterations, [K, B * T, n].
            indices: [T].
            operand: the left operand of one iteration.
        """
        matrix = evaluation.with_client_axis(state[product.matrix])
        of_rows = ops.operation("BatchMatMulV2", rows, matrix, adj_y=product.transposed)
        shape = [evaluation.clients, int(evaluation.shape(operand)[0]), int(of_rows.shape[2])]
        by_iteration = ops.transpose(ops.reshape(of_rows, [*shape[:2], -1, shape[2]]), [2, 0, 1, 3])
        count = ops.operation("TensorListLength", evaluation.tensor(state[product.variable]))
        elements = ops.unsorted_segment_sum(by_iteration, indices, count)
        handle = ops.operation("TensorListFromTensor", elements, shape)
        element = attrs.evolve(operand, tensor=ops.ensure_shape(elements[0], shape), padding=Padding.ZEROS)
        known = evaluation.known_shape(element)
        return attrs.evolve(element, tensor=handle, element_shape=known, has_elements=True)


def _fits(value: BatchedValue) -> bool:
    if not value.batched or value.padded_axis not in (0, None) or value.entries_per_row != 1:
        return False
    return value.tensor.shape.rank == 3 and value.tensor.shape.is_fully_defined()


def _rank(evaluation: BatchedEvaluation, x: BatchedValue, y: BatchedValue) -> int:
    """The rank at which the factors of the matrix have as many entries as the matrix."""
    n, m = (int(evaluation.shape(v)[1]) for v in (x, y))
    return n * m // (n + m)


def _stack(handle: Value, shape: list, dtype: tf.DType, trips: int | None) -> Value:
    """[K, B, T, n] of the elements [K, B, n] of a TensorList."""
    if trips is not None and 0 < trips <= MOST_PACKED:
        elements = [
            ops.operation("TensorListGetItem", handle, ops.constant(i), shape, element_dtype=dtype)
            for i in range(trips)
        ]
        for element in elements:
            element.set_shape(shape)
        return ops.stack(elements, 2)
    stack = ops.operation("TensorListStack", handle, shape, element_dtype=dtype)
    stack.set_shape([None, *shape])
    return ops.transpose(stack, [1, 2, 0, 3])


def _by_example(stack: Value) -> Value:
    """[K, B, T, n] -> [K, B * T, n]."""
    clients, _, _, size = stack.shape
    return ops.reshape(stack, [clients, -1, size])
