"""Products whose number of rows the other clients of a group do not decide."""

import numpy as np
import pytest
import tensorflow as tf
from run_region import run_region

from fedcore.compiler.host_target import host_target
from fedcore.graphs.batched.batching_policy import ISAS_OF_EQUAL_TILES
from fedcore.graphs.batched.known_inputs import KnownInput, KnownInputs
from fedcore.graphs.batched.own_rows import EACH, JOINED, TILES, own_rows_of, product_with_shared
from fedcore.graphs.batched.row_layouts import RowsInOrder
from fedcore.graphs.dataflow import operations as ops


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("products", [JOINED, EACH, TILES])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("clients", "rows"), [(2, 0), (2, 1), (3, 20), (8, 24), (9, 63), (2, 64)])
def test_products_with_a_shared_matrix(products, dtype, clients, rows):
    x, matrix = normal(clients, rows, 30).astype(dtype), normal(30, 7).astype(dtype)
    for given, transposed in ((matrix, False), (matrix.T, True)):
        found = product_with_shared(products, tf.constant(x), tf.constant(given), transposed=transposed)
        np.testing.assert_allclose(found, x @ matrix, atol=1e-5)


@pytest.mark.skipif(host_target().isa not in ISAS_OF_EQUAL_TILES, reason="plans for this processor have no tiles")
@pytest.mark.parametrize("columns", [3, 10, 200, 512])
@pytest.mark.parametrize("rows", [1, 5, 20, 50])
def test_neither_the_place_nor_the_number_of_clients_decides_the_bits_of_a_tile(rows, columns):
    x, matrix = tf.constant(normal(32, rows, 784), tf.float32), tf.constant(normal(784, columns), tf.float32)
    whole = product_with_shared(TILES, x, matrix).numpy()
    for clients in (2, 3, 8, 17):
        for first in (0, 1, 13):
            part = product_with_shared(TILES, x[first : first + clients], matrix).numpy()
            assert part.tobytes() == whole[first : first + clients].tobytes(), (clients, first)


def group_of(x, counts, batch_rows) -> RowsInOrder:
    """A group whose clients have the first rows of x [clients, rows, n]."""
    steps = np.arange(0, x.shape[1], batch_rows)
    sizes = ops.constant(np.clip(np.array(counts)[:, None] - steps, 0, batch_rows), tf.int64)
    begins = ops.constant([0, x.shape[0] * x.shape[1]], tf.int64)
    return RowsInOrder((ops.constant(x),), begins, sizes, batch_rows)


@pytest.mark.parametrize("batch_rows", [2, 8])
def test_products_of_the_rows_of_each_client_are_those_of_all_rows(batch_rows):
    whole, counts = 3 * batch_rows, [3 * batch_rows - 1, batch_rows, 0, 1]
    x, matrix = normal(4, whole, 9).astype("f"), normal(9, 5).astype("f")
    rows = tf.constant(counts, tf.int64)
    assert [int(part.shape[0]) for part in own_rows_of(tf.constant(x), rows)] == counts

    def products(own_products: bool):
        def body(matrix):
            known = KnownInputs(group_of(x, counts, batch_rows), ops.current_block(), None, own_products)
            numbers = [ops.constant(s, tf.int64) for s in range(3)]
            steps = [known.product_of_step(KnownInput(0), matrix, s, batch_rows) for s in numbers]
            return [known.row_products(KnownInput(0)), ops.concat(steps, 1)]

        return run_region(body, matrix)

    of_rows, with_matrix = products(False)
    numbers = [np.minimum(np.arange(whole), max(count, 1) - 1) for count in counts]  # the last row stands in
    own = np.stack([of_client[i] for of_client, i in zip(x, numbers, strict=True)])
    own[2] = 0  # has no rows
    np.testing.assert_allclose(with_matrix, x @ matrix, atol=1e-5)
    found, with_matrix = products(True)
    is_own = np.arange(whole) < np.array(counts)[:, None]
    np.testing.assert_allclose(found, of_rows * is_own[:, :, None] * is_own[:, None], atol=1e-5)
    np.testing.assert_allclose(with_matrix, own @ matrix, atol=1e-5)
