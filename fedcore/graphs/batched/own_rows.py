"""Matrix products in which a client's bits do not depend on the other clients of its group.

Kernels choose their order of additions by the sizes of a product. On AVX-512 a row of a product has the same bits
beside any number of other rows; elsewhere it has not. A plan's attribute `products` says what its stages do about that:

    (none)  the rows of all clients of a group are one product, padded to the group's longest batch
    each    a product has the rows of one client: those of its batch, padded to the batch size of its data set, or
            those of all its batches
    tiles   as `each`, but batches of few rows that are multiplied with a shared matrix are joined, in tiles of a
            multiple of 48 rows: up to 192, the number of rows and the place of a row decide nothing on AVX2

Example: 8 clients with batches of 20 rows are one tile of 192, the last 32 rows of which are zeros. On AVX2, a core
multiplies 20 rows at 33, 192 rows at 68 GFLOP/s.

Decision 0197.
"""

import math

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
    """The numbers of rows that the products of one client have.

    Args:
        products: the attribute of the plan.
        client_rows: int64 [K]: the rows of all batches of a client.
        batch_rows: rows of a padded batch.
    """

    products: str
    client_rows: Value
    batch_rows: int


def product_with_shared(products: str, x: Value, matrix: Value, *, transposed: bool = False) -> Value:
    """x @ matrix, or x @ matrix^T, for each client: [K, rows, m].

    Args:
        products: the attribute of the plan, which says how the rows of clients are joined; see the module.
        x: [K, rows, n].
        matrix: [n, m] of all clients, or [m, n] for a transposed product.
    """
    in_tiles = products == TILES and x.dtype == tf.float32 and x.shape.is_fully_defined()
    if in_tiles and 0 < x.shape[1] < MIN_OWN_ROWS:
        return _multiply_in_tiles(x, matrix, transposed=transposed)
    if products:
        client_rows = [x[k : k + 1] for k in range(x.shape[0])]
        return ops.concat([ops.operation("BatchMatMulV2", rows, matrix, adj_y=transposed) for rows in client_rows], 0)
    return ops.operation("BatchMatMulV2", x, matrix[None], adj_y=transposed)


def _multiply_in_tiles(x: Value, matrix: Value, *, transposed: bool) -> Value:
    """x @ matrix, or x @ matrix^T, [K, rows, m], with the rows of all clients side by side in tiles of equal size.

    A tile has a multiple of `TILE_ROWS` rows, for which kernels compute every row with the same instructions. The last
    tile is padded with zeros.

    Args:
        x: float32 [K, rows, n], of a static shape.
        matrix: [n, m], or [m, n] for a transposed product.
    """
    clients, rows, n = x.shape
    row_count = clients * rows
    tile_count = math.ceil(row_count / MAX_TILE_ROWS)
    tile_rows = math.ceil(row_count / (tile_count * TILE_ROWS)) * TILE_ROWS
    flat = ops.reshape(x, [row_count, n])
    tiles = [flat[begin : begin + tile_rows] for begin in range(0, row_count, tile_rows)]
    missing = len(tiles) * tile_rows - row_count
    if missing:
        tiles[-1] = ops.pad(tiles[-1], [[0, missing], [0, 0]])
    products = [ops.operation("MatMul", tile, matrix, transpose_b=transposed) for tile in tiles]
    row_products = products[0] if len(products) == 1 else ops.concat(products, 0)
    return ops.reshape(row_products[:row_count] if missing else row_products, [clients, rows, row_products.shape[1]])


def own_rows_of(x: Value, rows: Value) -> list[Value]:
    """The rows of each client without its padding, [own rows, n], as views of one tensor.

    Args:
        x: [K, R, n], with K and n static.
        rows: int64 [K], the number of rows that are the client's own; those behind them are padding.
    Returns:
        One tensor for each client, since their numbers of rows differ.
    """
    clients, _, n = x.shape
    padded_rows = ops.shape(x, tf.int64)[1]
    begins = ops.pad(padded_rows * ops.range_(clients, dtype=tf.int64)[:, None], [[0, 0], [0, 1]])
    sizes = ops.stack([ops.minimum(rows, padded_rows), ops.fill([clients], ops.constant(n, tf.int64))], 1)
    flat = ops.reshape(x, [-1, n])
    bounds = zip(ops.unstack(begins, clients), ops.unstack(sizes, clients), strict=True)
    own_rows = [ops.operation("Slice", flat, begin, size) for begin, size in bounds]
    for view in own_rows:
        view.set_shape([None, n])
    return own_rows
