"""Which kernels a training step keeps low-rank, by their shapes and by the operations of the step."""

import pytest
import tensorflow as tf

from fedcore.graphs.batched.low_rank_policy import (
    MIN_ENTRIES,
    MIN_ENTRIES_OF_ONE_STEP,
    ONE_STEP,
    break_even_rank,
    is_kept,
    low_rank_kernels,
)
from fedcore.graphs.frontend.function_tracing import trace_function
from fedcore.graphs.graphdef.form.captured_graph import captured_graph
from fedcore.types import StructType, TensorType

SHAPES = [(784, 200), (256, 64), (128, 128), (1024, 16), (8192, 2), (20000, 1), (100, 100), (64, 64), (10, 10)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_rank_is_the_largest_at_which_factors_have_no_more_entries_than_the_kernel(shape):
    n, m = shape
    rank = break_even_rank(shape)
    most = max(r for r in range(n * m) if r * (n + m) <= n * m)
    assert rank == (most if n * m >= MIN_ENTRIES and most > 1 else 0)


@pytest.mark.parametrize("shape", [None, (), (20000,), (3, 3, 64, 64), (None, 200), tf.TensorShape([200, None])])
def test_only_matrices_of_known_sizes_are_kept(shape):
    assert break_even_rank(shape) == 0
    assert not is_kept(shape, ONE_STEP)


def test_clients_of_one_step_keep_smaller_kernels():
    small = (64, MIN_ENTRIES_OF_ONE_STEP // 64)
    assert is_kept(small, ONE_STEP)
    assert not is_kept(small, 2)
    assert not is_kept((small[0], small[1] - 1), ONE_STEP)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [2, 51, 64, 500])
def test_a_plan_of_a_rank_keeps_kernels_of_at_least_that_rank(shape, rank):
    assert is_kept(shape, rank) == (break_even_rank(shape) >= rank)


N, M = 256, 64  # break-even rank 51
KERNEL, BATCH, RATE = ("float32", (N, M)), ("float32", (None, N)), ("float32", ())


def rank_of(step, carry, *others, shared=()) -> int:
    """The rank of a step (carry, *others) -> carry; `shared` are the positions of others that all clients share."""
    carry = StructType([(None, TensorType(*t)) for t in carry])
    parameters = [carry, *(TensorType(*t) for t in others)]
    graph = trace_function(step, StructType([(None, t) for t in parameters]), spread=True)
    return low_rank_kernels(captured_graph(graph, graph.data).main, carry, 0, [len(carry) + i for i in shared]).rank


def gradient(x, g):
    return tf.matmul(x, g, transpose_a=True)


GRADIENTS = ("float32", (None, M))

KEPT = {
    "descent": lambda c, x, g: (c[0] - 0.1 * gradient(x, g),),
    "decay": lambda c, x, g: (0.9 * c[0] + gradient(x, -g) / 3.0,),
    "by the number of rows": lambda c, x, g: (c[0] + tf.cast(tf.shape(x)[0], tf.float32) * gradient(x, g),),
    "two products": lambda c, x, g: (tf.add_n([c[0], gradient(x, g), gradient(2.0 * x, g)]),),
    "of a layer's result": lambda c, x, g: (c[0] - gradient(x, tf.nn.relu(x @ c[0]) - g),),
    "unchanged": lambda c, x, g: (tf.identity(c[0]),),
}
DENSE = {
    "square": lambda c, x, g: (c[0] - tf.square(gradient(x, g)),),
    "by a matrix": lambda c, x, g: (c[0] - gradient(x, g) * tf.ones([N, M]),),
    "norm": lambda c, x, g: (c[0] - gradient(x, g) / tf.norm(c[0]),),
    "product of kernels": lambda c, x, g: (c[0] @ gradient(c[0], c[0]),),
    "another matrix": lambda c, x, g: (c[0] - gradient(x, g) + tf.ones([N, M]),),
    "new": lambda c, x, g: (tf.zeros([N, M]),),
    "not transposed": lambda c, x, g: (c[0] + tf.transpose(tf.matmul(g, x, transpose_a=True)),),
}


@pytest.mark.parametrize("name", KEPT)
def test_sums_of_multiples_and_products_over_rows_keep_a_kernel(name):
    assert rank_of(KEPT[name], [KERNEL], BATCH, GRADIENTS) == break_even_rank((N, M))


@pytest.mark.parametrize("name", DENSE)
def test_a_step_that_needs_the_dense_matrix_keeps_no_kernel(name):
    assert rank_of(DENSE[name], [KERNEL], BATCH, GRADIENTS) == 0


def test_a_matrix_that_all_clients_share_may_be_added_and_one_of_each_client_may_not():
    def proximal(c, x, g, start):
        return (c[0] - 0.1 * (gradient(x, g) + 0.3 * (c[0] - start)),)

    assert rank_of(proximal, [KERNEL], BATCH, GRADIENTS, KERNEL, shared=[2]) == 51
    assert rank_of(proximal, [KERNEL], BATCH, GRADIENTS, KERNEL) == 0


def test_the_numbers_of_the_carry_may_scale():
    def momentum(c, x, g):
        velocity = c[2] * c[1] + gradient(x, g)
        return c[0] - 0.1 * velocity, velocity, c[2] * 0.5

    assert rank_of(momentum, [KERNEL, KERNEL, RATE], BATCH, GRADIENTS) == 51

    def by_client(c, x, g):
        return c[0] - c[1] * gradient(x, g), c[1]

    assert rank_of(by_client, [KERNEL, ("float32", (M,))], BATCH, GRADIENTS) == 0


def test_kernels_with_less_than_half_of_the_largest_rank_are_dense():
    def step(c, x, g, y, h):
        return c[0] - gradient(x, g), c[1] - gradient(y, h)

    small = [("float32", (None, 1024)), ("float32", (None, 16))]
    assert break_even_rank((1024, 16)) == 15
    kernels = [KERNEL, ("float32", (1024, 16))]
    assert rank_of(step, kernels, BATCH, GRADIENTS, *small) == 51
    assert rank_of(lambda c, *data: step((c[1], c[0]), *data)[::-1], kernels[::-1], BATCH, GRADIENTS, *small) == 51
    large = [("float32", (None, 128)), ("float32", (None, 128))]
    assert rank_of(step, [KERNEL, ("float32", (128, 128))], BATCH, GRADIENTS, *large) == 51


def test_kernels_of_other_dtypes_and_of_few_entries_are_dense():
    double = ("float64", (N, M)), ("float64", (None, N)), ("float64", (None, M))
    step = KEPT["descent"]
    assert rank_of(step, double[:1], *double[1:]) == 0
    assert rank_of(step, [("float32", (64, 64))], ("float32", (None, 64)), ("float32", (None, 64))) == ONE_STEP
    assert rank_of(step, [("float32", (8, 8))], ("float32", (None, 8)), ("float32", (None, 8))) == 0
