"""Two products of a loop's step that are added, as one product.

In:  the body of a loop with x W + h R, where no iteration changes W and R, as in a recurrent layer.
Out: a body with [x h] [W; R]; the matrices are joined once, before the loop.

A product with few rows of W runs far below the processor's speed: x [4, 20, 8] with W [4, 8, 512] takes half of the
time of h [4, 20, 128] with R [4, 128, 512], which has 16 times as many operations.
"""

from collections.abc import Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Body, Node, Ref

MAX_ROWS = 32
"""Rows of the smaller matrix, at most; with 64 the two products are as fast."""


@attrs.frozen
class _SumOfProducts:
    """Two products that an operation adds.

    Args:
        name: of the operation.
        left: the left operands of the products.
        right: positions of the loop variables that are the right operands.
        dtype: of the operands.
    """

    name: str
    left: tuple[Ref, Ref]
    right: tuple[int, int]
    dtype: tf.DType


def with_joined_products(
    evaluation: BatchedEvaluation, step: Body, test: Body, values: Sequence[BatchedValue]
) -> tuple[Body, Body, list[BatchedValue]]:
    """The body and the condition of a loop, and its initial values, with sums of products joined."""
    joined_values = list(values)
    for found in _sums_of_products(step):
        matrices = [values[i] for i in found.right]
        if not _gains(evaluation, matrices):
            continue
        joined_values.append(_rows_joined(evaluation, matrices, found.dtype))
        step = _replaced(step, found)
        test = attrs.evolve(test, arguments=(*test.arguments, step.arguments[-1]))
    return step, test, joined_values


def _sums_of_products(step: Body) -> list[_SumOfProducts]:
    position = {(a, 0): i for i, a in enumerate(step.arguments) if step.results[i] == (a, 0)}
    found = []
    for node in step.nodes:
        products = [step.by_name.get(name) for name, _ in node.inputs] if node.op in ("AddV2", "AddN") else []
        if len(products) != 2 or products[0] is products[1]:
            continue
        a, b = products
        if a is not None and b is not None and _is_product(a, position) and _is_product(b, position):
            rights = position[a.inputs[1]], position[b.inputs[1]]
            found.append(_SumOfProducts(node.name, (a.inputs[0], b.inputs[0]), rights, a["T"]))
    return found


def _is_product(node: Node, unchanged: dict[Ref, int]) -> bool:
    transposed = node.get("transpose_a") or node.get("transpose_b")
    return node.op == "MatMul" and not transposed and node.inputs[1] in unchanged


def _gains(evaluation: BatchedEvaluation, matrices: list[BatchedValue]) -> bool:
    if any(x.low_rank is not None or x.padded_axis is not None or x.tensor is None for x in matrices):
        return False
    shapes = [evaluation.shape(x) for x in matrices]
    if not all(s.is_fully_defined() for s in shapes) or matrices[0].batched != matrices[1].batched:
        return False
    return min(s[0] for s in shapes) <= MAX_ROWS


def _rows_joined(evaluation: BatchedEvaluation, matrices: list[BatchedValue], dtype: tf.DType) -> BatchedValue:
    axis = BatchedValue(None, known=KnownValue.of_constant(np.int32(0)))
    attributes = {"N": 2, "T": dtype, "Tidx": tf.int32}
    (joined,) = evaluation.evaluate(Node("joined", "ConcatV2", (), attributes), [*matrices, axis])
    return joined


def _replaced(step: Body, found: _SumOfProducts) -> Body:
    """The body with one product in the place of the sum; its last argument is the joined matrix.

    The two products stay for what reads their shapes; without other users they are not executed.
    """
    axis, rows, matrix = (f"{found.name}/{part}" for part in ("axis", "rows", "matrix"))
    proto = tf.make_tensor_proto(1, tf.int32)
    of_sum = [
        Node(axis, "Const", (), {"value": proto, "dtype": tf.int32}),
        Node(rows, "ConcatV2", (*found.left, (axis, 0)), {"N": 2, "T": found.dtype, "Tidx": tf.int32}),
        Node(found.name, "MatMul", ((rows, 0), (matrix, 0)), {"T": found.dtype}),
    ]
    nodes = [n for node in step.nodes for n in (of_sum if node.name == found.name else [node])]
    results = (*step.results, (matrix, 0))
    return attrs.evolve(step, arguments=(*step.arguments, matrix), nodes=tuple(nodes), results=results)
