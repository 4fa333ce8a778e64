"""Replaces two products that a loop's body adds by one product.

In:  the body of a loop with x W + h R, where no iteration changes W and R, as in a recurrent layer.
Out: a body with [x h] [W; R]; the matrices are joined once, before the loop.

A product with few rows of W runs far below the processor's speed: x [4, 20, 8] with W [4, 8, 512] takes half of the
time of h [4, 20, 128] with R [4, 128, 512], which has 16 times as many operations.
"""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Block, Node, Region, Value
from fedcore.graphs.dataflow.rewriting import RegionCopy

MAX_ROWS = 32
"""Rows of the smaller matrix, at most; with 64 the two products are as fast."""


@attrs.frozen
class _SumOfProducts:
    """Two products that an operation of a loop's body adds.

    Args:
        node: the operation that adds them.
        left: the left operands of the products.
        right: positions of the loop variables that are the right operands.
        dtype: of the operands.
    """

    node: Node
    left: tuple[Value, Value]
    right: tuple[int, int]
    dtype: tf.DType


def join_products(
    evaluation: BatchedEvaluation, loop_body: Region, condition: Region, values: Sequence[BatchedValue]
) -> tuple[Region, Region, list[BatchedValue]]:
    """The body and the condition of a loop, and its initial values, with sums of two products replaced by one product.

    Each joined matrix [W; R] is one more loop variable, which the body returns unchanged.

    Args:
        values: the initial loop variables.
    """
    joined_values, matrices, sums = list(values), list[Value](), dict[Node, tuple[_SumOfProducts, Value]]()
    for sum_ in _sums_of_products(loop_body):
        operands = [values[i] for i in sum_.right]
        if _is_faster_joined(evaluation, operands):
            joined_values.append(_join_rows(evaluation, operands, sum_.dtype))
            matrices.append(Value(sum_.dtype, tf.TensorShape(None), loop_body.arguments[0].block))
            sums[sum_.node] = sum_, matrices[-1]
    if not sums:
        return loop_body, condition, joined_values
    body = _JoinedSums(sums).of(loop_body)
    body = Region((*body.arguments, *matrices), body.nodes, (*body.results, *matrices))
    return body, attrs.evolve(condition, arguments=(*condition.arguments, *matrices)), joined_values


def _sums_of_products(loop_body: Region) -> list[_SumOfProducts]:
    """The operations of a body that add two products with matrices that no iteration changes."""
    unchanged = {a: i for i, a in enumerate(loop_body.arguments) if loop_body.results[i] is a}
    sums = []
    for node in loop_body.nodes:
        products = [v.node for v in node.inputs] if node.op in ("AddV2", "AddN") else []
        if len(products) != 2 or products[0] is products[1]:
            continue
        a, b = products
        if a is not None and b is not None and _is_product(a, unchanged) and _is_product(b, unchanged):
            rights = unchanged[a.inputs[1]], unchanged[b.inputs[1]]
            sums.append(_SumOfProducts(node, (a.inputs[0], b.inputs[0]), rights, a["T"]))
    return sums


def _is_product(node: Node, unchanged: dict[Value, int]) -> bool:
    """Whether a node multiplies with an unchanged loop variable, without transposing an operand."""
    transposed = node.get("transpose_a") or node.get("transpose_b")
    return node.op == "MatMul" and not transposed and node.inputs[1] in unchanged


def _is_faster_joined(evaluation: BatchedEvaluation, matrices: list[BatchedValue]) -> bool:
    """Whether one product with the joined matrix takes less time than two: one matrix has few rows (`MAX_ROWS`).

    Matrices that cannot be joined do not gain: low-rank or padded ones, or one of all clients and one of each client.
    """
    if any(x.low_rank is not None or x.padded_axis is not None or x.tensor is None for x in matrices):
        return False
    shapes = [evaluation.shape(x) for x in matrices]
    if not all(s.is_fully_defined() for s in shapes) or matrices[0].batched != matrices[1].batched:
        return False
    return min(s[0] for s in shapes) <= MAX_ROWS


def _join_rows(evaluation: BatchedEvaluation, matrices: list[BatchedValue], dtype: tf.DType) -> BatchedValue:
    """The matrices below each other, [W; R], by the batching rule of ConcatV2."""
    axis = BatchedValue.from_known(KnownValue.from_constant(np.int32(0)))
    attributes = {"N": 2, "T": dtype, "Tidx": tf.int32}
    (joined_matrix,) = evaluation.evaluate(Node("ConcatV2", (), attributes), [*matrices, axis])
    return joined_matrix


class _JoinedSums(RegionCopy):
    """A copy with one product in the place of each sum of two.

    The two products stay for nodes that read their shapes; without other users they are not executed.
    """

    def __init__(self, sums: Mapping[Node, tuple[_SumOfProducts, Value]]) -> None:
        """Takes the sums by the node that adds, each with the joined matrix."""
        super().__init__()
        self._sums = sums

    def add(self, node: Node, block: Block, inputs: Sequence[Value], regions: Sequence[Region]) -> Sequence[Value]:
        if node not in self._sums:
            return super().add(node, block, inputs, regions)
        self.is_changed = True
        sum_, matrix = self._sums[node]
        rows = ops.operation("ConcatV2", [self._values[v] for v in sum_.left], ops.constant(1))
        return [ops.operation("MatMul", rows, matrix)]
