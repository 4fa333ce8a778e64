"""Sums of products over the iterations of a loop, as one product behind the loop.

In:  the body of a loop that adds x^T y to a matrix in each iteration, as gradients of recurrent layers do.
Out: a body that keeps x and y instead, and the sum of all their products.

    before     kernel_gradient += h^T dz                   each iteration reads and writes [K, n, m]
    after      keep h [K, B, n] and dz [K, B, m]           each iteration
               kernel_gradient + H^T dZ                    once, with H [K, B * T, n] and dZ [K, B * T, m]

The rows of H and dZ are ordered by example, then by iteration: padded examples stand behind all others, so that the
bits of a client depend neither on their number nor on the other clients.
"""

from collections.abc import Iterable, Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, Padding
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Body, Node, Ref


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


def product_sums(step: Body) -> list[ProductSum]:
    """The loop variables of a body that are sums of products, and are used for nothing else in it."""
    nodes = {node.name: node for node in step.nodes}
    users: dict[Ref, list[Node]] = {}
    for node in step.nodes:
        for ref in node.inputs:
            users.setdefault(ref, []).append(node)
    found = (_product_sum(step, i, nodes, users) for i in range(len(step.results)))
    return [s for s in found if s is not None]


def _product_sum(step: Body, variable: int, nodes: dict[str, Node], users: dict[Ref, list[Node]]) -> ProductSum | None:
    chain: list[str] = []

    def source(ref: Ref) -> Ref:
        """What a chain of Identity operations passes on; they have no other users."""
        while (node := nodes.get(ref[0])) is not None and node.op == "Identity" and len(users.get(ref, ())) <= 1:
            chain.append(node.name)
            ref = node.inputs[0]
        return ref

    before, after = (step.arguments[variable], 0), source(step.results[variable])
    total = nodes.get(after[0])
    if total is None or total.op not in ("AddN", "AddV2") or len(total.inputs) != 2:
        return None
    addends = [source(i) for i in total.inputs]
    others = [ref for ref in addends if ref != before]
    product = nodes.get(others[0][0]) if len(others) == 1 else None
    if product is None or product.op != "MatMul" or not product.get("transpose_a") or product.get("transpose_b"):
        return None
    chain.extend([total.name, product.name])
    inside = {before, after, (product.name, 0), *((name, 0) for name in chain)} - {step.results[variable]}
    used_elsewhere = any(node.name not in chain for ref in inside for node in users.get(ref, ()))
    returned = any(r in inside for i, r in enumerate(step.results) if i != variable)
    if used_elsewhere or returned or step.results.count(step.results[variable]) > 1:
        return None
    return ProductSum(variable, product.inputs[0], product.inputs[1], tuple(chain))


@attrs.frozen
class SummedBehindLoop:
    """The products of a loop that are summed behind it.

    Args:
        sums: of the loop.
    """

    sums: tuple[ProductSum, ...]

    @property
    def operands(self) -> list[Ref]:
        """The tensors of an iteration that are kept."""
        return list(dict.fromkeys(ref for s in self.sums for ref in (s.x, s.y)))

    def reduced(self, step: Body) -> Body:
        """The body without the sums; behind its results it returns the operands."""
        removed = {name for s in self.sums for name in s.nodes}
        unchanged = {s.variable: (step.arguments[s.variable], 0) for s in self.sums}
        results = [unchanged.get(i, r) for i, r in enumerate(step.results)]
        nodes = tuple(node for node in step.nodes if node.name not in removed)
        return attrs.evolve(step, nodes=nodes, results=(*results, *self.operands))

    def that_fit(self, evaluation: BatchedEvaluation, values: Sequence[BatchedValue]) -> "SummedBehindLoop":
        """Those that can be summed behind the loop and gain by it, by the operands of one iteration.

        A sum gains if its factors have fewer entries than the matrix, or if those of another sum with the same operand
        are kept anyway.
        """
        of = dict(zip(self.operands, values, strict=True))
        fitting = {ref for ref, value in of.items() if _fits(value)}
        sums = [s for s in self.sums if {s.x, s.y} <= fitting and of[s.x].padded_axis == of[s.y].padded_axis]
        small = [s for s in sums if _rank(evaluation, of[s.x], of[s.y]) >= int(evaluation.shape(of[s.x])[0])]
        kept = {ref for s in small for ref in (s.x, s.y)}
        return SummedBehindLoop(tuple(s for s in sums if s in small or kept & {s.x, s.y}))

    def rows(self, evaluation: BatchedEvaluation, values: Sequence[BatchedValue]) -> list[tf.Tensor]:
        """The operands of an iteration, [K, B, …]; padded rows of a product's second operand are zeros.

        Those of its first operand are finite wherever the client's results are finite.
        """
        second = {s.y for s in self.sums}
        return [
            evaluation.masked(v) if ref in second or v.padding is Padding.UNKNOWN else evaluation.tensor(v)
            for ref, v in zip(self.operands, values, strict=True)
        ]

    def totals(self, lists: Iterable[tf.Tensor], specs: Sequence[tf.TensorSpec]) -> dict[int, tf.Tensor]:
        """Loop variable -> the sum of its products, [K, n, m].

        Args:
            lists: TensorLists with the operands of all iterations.
            specs: of an operand.
        """
        stacked = dict(zip(self.operands, map(_stacked, lists, specs), strict=True))
        return {s.variable: tf.raw_ops.BatchMatMulV2(x=stacked[s.x], y=stacked[s.y], adj_x=True) for s in self.sums}


def _fits(value: BatchedValue) -> bool:
    if not value.batched or value.padded_axis not in (0, None) or value.entries_per_row != 1:
        return False
    return value.tensor.shape.rank == 3 and value.tensor.shape.is_fully_defined()


def _rank(evaluation: BatchedEvaluation, x: BatchedValue, y: BatchedValue) -> int:
    """The rank at which the factors of the matrix have as many entries as the matrix."""
    n, m = (int(evaluation.shape(v)[1]) for v in (x, y))
    return n * m // (n + m)


def _stacked(handle: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """[K, B * T, n] of a list of tensors [K, B, n]."""
    clients, rows, size = spec.shape
    stack = tf.raw_ops.TensorListStack(
        input_handle=handle, element_shape=[clients, rows, size], element_dtype=spec.dtype
    )
    stack.set_shape([None, clients, rows, size])
    return tf.reshape(tf.transpose(stack, [1, 2, 0, 3]), [clients, -1, size])
