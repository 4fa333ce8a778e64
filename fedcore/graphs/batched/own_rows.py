"""Products whose bits are a client's own, whatever the other clients of its group are.

Kernels choose their order of additions by the sizes of a product. On AVX-512 a row of a product has the same bits
beside any number of other rows; elsewhere it has not. A plan's attribute `products` says what its stages do about that:

    (none)  the rows of all clients of a group are one product, padded to the group's longest batch
    each    a product has the rows of one client: those of its batch, padded to the batch size of its data set, or
            those of all its batches
    tiles   as `each`, but batches of few rows that are multiplied with a shared matrix are joined, in tiles of a
            multiple of 48 rows: up to 192, the number of rows and the place of a row decide nothing on AVX2

Example: 8 clients with batches of 20 rows are one tile of 192, the last 32 rows of which are zeros. On AVX2, a core
multiplies 20 rows at 33, 192 rows at 68 GFLOP/s.
"""

import attrs
import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value

JOINED, EACH, TILES = "", "each", "tiles"
"""Values of the plan's attribute `products`; without it, the rows of all clients are joined."""

TILE_ROWS = 48
"""Rows of the smallest tile: a multiple of the rows that kernels for AVX2 (24, 6) and AVX-512 (48) compute at once."""

MAX_TILE_ROWS = 192
"""From 288 rows on, the bits of products with wide matrices depended on the number of rows."""

MIN_OWN_ROWS = 64
"""Rows of the smallest batch that is multiplied by itself as fast as in a tile."""


@attrs.frozen(eq=False)
class OwnRows:
    """The rows of the clients of a group that products have.

    Args:
        products: the attribute of the plan.
        of_clients: int64 [K]: the rows of all batches of a client.
        of_batch: rows of a padded batch.
    """

    products: str
    of_clients: Value
    of_batch: int


def product_with_shared(products: str, x: Value, matrix: Value, *, transposed: bool = False) -> Value:
    """x @ matrix, or x @ matrix^T, for each client: [K, rows, m].

    Args:
        products: the attribute of the plan.
        x: [K, rows, n].
        matrix: of all clients, [n, m], or transposed [m, n].
    """
    in_tiles = products == TILES and x.dtype == tf.float32 and x.shape.is_fully_defined()
    if in_tiles and 0 < x.shape[1] < MIN_OWN_ROWS:
        return _in_tiles(x, matrix, transposed=transposed)
    if products:
        of_each = (x[k : k + 1] for k in range(x.shape[0]))
        return ops.concat([ops.operation("BatchMatMulV2", own, matrix, adj_y=transposed) for own in of_each], 0)
    return ops.operation("BatchMatMulV2", x, matrix[None], adj_y=transposed)


def _in_tiles(x: Value, matrix: Value, *, transposed: bool) -> Value:
    clients, rows, n = x.shape
    count = clients * rows
    tiles = -(-count // MAX_TILE_ROWS)
    size = -(-count // (tiles * TILE_ROWS)) * TILE_ROWS
    flat = ops.reshape(x, [count, n])
    parts = [flat[begin : begin + size] for begin in range(0, count, size)]
    missing = len(parts) * size - count
    if missing:
        parts[-1] = ops.pad(parts[-1], [[0, missing], [0, 0]])
    found = [ops.operation("MatMul", part, matrix, transpose_b=transposed) for part in parts]
    whole = found[0] if len(found) == 1 else ops.concat(found, 0)
    return ops.reshape(whole[:count] if missing else whole, [clients, rows, whole.shape[1]])


def own_rows_of(x: Value, rows: Value) -> list[Value]:
    """The first rows of each client, [rows, n].

    Args:
        x: [K, R, n], with K and n static.
        rows: int64 [K], the number of rows of each client.
    """
    clients, _, n = x.shape
    whole = ops.shape(x, tf.int64)[1]
    begins = ops.pad(whole * ops.range_(clients, dtype=tf.int64)[:, None], [[0, 0], [0, 1]])
    sizes = ops.stack([ops.minimum(rows, whole), ops.fill([clients], ops.constant(n, tf.int64))], 1)
    flat = ops.reshape(x, [-1, n])
    of_each = zip(ops.unstack(begins, clients), ops.unstack(sizes, clients), strict=True)
    found = [ops.operation("Slice", flat, begin, size) for begin, size in of_each]
    for part in found:
        part.set_shape([None, n])
    return found
