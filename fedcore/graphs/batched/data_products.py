"""Products of rows of the clients' data, for all groups of a call, as one tensor that a runtime may keep.

No weight decides the products of a first layer's inputs with those of earlier steps (`known_inputs`), so they are not
computed in the function of a call: another function computes them from the packed columns, and as long as these are
kept for the next round, so are they.

In:  columns [rows, …], `rows` and `sizes` of packed clients whose rows are in order.
Out: float32 [entries]: the products [K, later, earlier] of each group, one after the other.
"""

from collections.abc import Sequence

import attrs
import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.batched.batched_sequence import Window
from fedcore.graphs.batched.client_contribution import PARALLEL_GROUPS, reserve_list, traced, written
from fedcore.graphs.batched.known_inputs import KnownInput, earlier_rows, products_of_rows
from fedcore.graphs.graphdef.grappler import without_function_optimisation


@attrs.define(eq=False)
class GivenProducts:
    """The products of all groups, in the graph of a call.

    Args:
        products: float32 [entries].
        rows: int64 [groups + 1], the row where each group begins, and the end.
        width: lanes of a group.
        batch_rows: rows of a padded batch.
        of: the input whose products they are: the first one that is asked for.
    """

    products: tf.Tensor
    rows: tf.Tensor
    width: int
    batch_rows: int
    of: KnownInput | None = None
    _counts: tf.Tensor = attrs.field(init=False)
    _ends: tf.Tensor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        of_lane = (self.rows[1:] - self.rows[:-1]) // self.width
        later, earlier = earlier_rows(of_lane, self.batch_rows)
        self._counts = tf.stack([later, earlier], 1)
        self._ends = tf.cumsum(self.width * later * earlier)

    def of_group(self, first_lane: tf.Tensor) -> "ProductsOfGroup":
        return ProductsOfGroup(self, first_lane)


@attrs.frozen(eq=False)
class ProductsOfGroup:
    """The products of one group."""

    all: GivenProducts
    first_lane: tf.Tensor

    def get(self, of: KnownInput, batch_rows: int) -> tf.Tensor | None:
        """[K, later, earlier]; None if the products are those of another input."""
        given = self.all
        given.of = given.of or of
        if given.of != of or given.batch_rows != batch_rows:
            return None
        group = self.first_lane // given.width
        counts, end = tf.gather(given._counts, group), tf.gather(given._ends, group)
        begin = end - given.width * counts[0] * counts[1]
        shape = tf.concat([tf.constant([given.width], tf.int64), counts], 0)
        products = tf.reshape(Window(begin, end - begin).of(given.products), shape)
        products.set_shape([given.width, None, None])
        return products


def data_products(
    of: KnownInput, specs: Sequence[tf.TensorSpec], width: int, batch_rows: int, products: str, name: str
) -> tf.types.experimental.ConcreteFunction:
    """The function (columns, rows, sizes) -> products of all groups.

    Args:
        of: the input, as it is computed from the columns.
        specs: of the columns, of `rows` and of `sizes`.
        width: lanes of a group.
        batch_rows: rows of a padded batch.
        products: the plan's attribute, see `own_rows`.
        name: of the function.
    """

    def body(*tensors):
        *columns, rows, sizes = tensors

        def group(first_lane: tf.Tensor) -> list[tf.Tensor]:
            begin, end = tf.unstack(tf.gather(rows, first_lane // width + tf.range(2, dtype=tf.int64)))
            window = Window(begin, end - begin)
            of_group = [tf.reshape(window.of(c), [width, -1, *c.shape[1:]]) for c in columns]
            own = tf.reduce_sum(Window(first_lane, width).of(sizes), axis=1) if products else None
            return [tf.reshape(products_of_rows(of.of(of_group), batch_rows, own), [-1])]

        count = tf.size(rows, tf.int64) - 1
        list_ = reserve_list(tf.cast(count, tf.int32), [-1], tf.float32)
        (filled,) = written(traced(group), count, [(list_, 0)], width, parallel_iterations=PARALLEL_GROUPS)
        joined, _ = tf.raw_ops.TensorListConcatV2(
            input_handle=filled,
            element_shape=[-1],
            leading_dims=tf.zeros([0], tf.int64),
            element_dtype=tf.float32,
        )
        return [joined]

    with without_function_optimisation(), private_api.quick_operations():
        return private_api.unordered_function(body, specs, name=name)
