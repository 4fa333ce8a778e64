"""Replaces two products that a loop's body adds by one product.

In:  the body of a loop with x W + h R, where no iteration changes W and R, as in a recurrent layer.
Out: a body with [x h] [W; R]; the matrices are joined once, before the loop.

A product with few rows of W runs far below the processor's speed: x [4, 20, 8] with W [4, 8, 512] takes half of the
time of h [4, 20, 128] with R [4, 128, 512], which has 16 times as many operations.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, Region, Value, building
from fedcore.graphs.dataflow.rewriting import op, pattern, rewrite, var

MAX_ROWS = 32
"""Rows of the smaller matrix, at most; with 64 the two products are as fast."""


_PRODUCTS = tuple(op("MatMul", var(x), var(w), transpose_a=False, transpose_b=False) for x, w in ("xw", "hr"))


def join_products(
    evaluation: BatchedEvaluation, loop_body: Region, outer: Mapping[Value, BatchedValue]
) -> tuple[Region, dict[Value, BatchedValue]]:
    """The body of a loop with sums of two products replaced by one product, and the values around it that it reads.

    Each joined matrix [W; R] is one more value around the loop.

    Args:
        outer: the values around the loop.
    """
    outer, around = dict(outer), ops.current_block()

    @pattern(op("AddV2", *_PRODUCTS), op("AddN", *_PRODUCTS))
    def join(x: Value, w: Value, h: Value, r: Value) -> Value | None:
        """x W + h R becomes [x h] [W; R], where W and R are from around the loop.

        The two products stay for nodes that read their shapes; without other users they are not executed.
        """
        block = ops.current_block()
        is_one_product = x is h and w is r
        if block.parent is not around or is_one_product or not {w, r} <= outer.keys():
            return None
        operands = [outer[w], outer[r]]
        if not _is_faster_joined(evaluation, operands):
            return None
        matrix = Value(w.dtype, tf.TensorShape(None), around)
        with building(around):
            outer[matrix] = _join_rows(evaluation, operands, w.dtype)
        return ops.operation("MatMul", ops.operation("ConcatV2", [x, h], 1), matrix)

    return rewrite(loop_body, join), outer


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
