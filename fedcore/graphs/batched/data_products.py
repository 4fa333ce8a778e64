"""Products of rows of the clients' data, for all groups of a call, as one tensor that a runtime may keep.

No weight decides the products of a first layer's inputs with those of earlier steps (`known_inputs`), so they are not
computed in the function of a call: another function computes them from the packed columns, and as long as these are
kept for the next round, so are they.

In:  columns [rows, …], index and sizes of packed rows that are in order, see `row_layouts`.
Out: float32 [entries]: the products [K, later, earlier] of each group, one after the other.
"""

from collections.abc import Collection, Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.batched.client_contribution import PARALLEL_GROUPS, reserve_list, written
from fedcore.graphs.batched.known_inputs import KnownInput, KnownInputs, earlier_rows
from fedcore.graphs.batched.row_layouts import RowLayout
from fedcore.graphs.batched.row_windows import Window
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import function_of_number
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.emission.realize import realized_function


@attrs.define(eq=False)
class GivenProducts:
    """The products of all groups, in the graph of a call.

    Args:
        products: float32 [entries].
        data: packed rows of all clients of the call.
        width: lanes of a group.
        of: the input whose products they are: the first one that is asked for.
    """

    products: Value
    data: RowLayout
    width: int
    of: KnownInput | None = None
    _counts: Value = attrs.field(init=False)
    _ends: Value = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        later, earlier = earlier_rows(self.data.rows_of_groups(self.width), self.data.batch_rows)
        self._counts = ops.stack([later, earlier], 1)
        self._ends = ops.cumsum(self.width * later * earlier)

    def of_group(self, first_lane: Value) -> "ProductsOfGroup":
        return ProductsOfGroup(self, first_lane)


@attrs.frozen(eq=False)
class ProductsOfGroup:
    """The products of one group."""

    all: GivenProducts
    first_lane: Value

    def get(self, of: KnownInput, batch_rows: int) -> Value | None:
        """[K, later, earlier]; None if the products are those of another input."""
        given = self.all
        given.of = given.of or of
        if given.of != of or given.data.batch_rows != batch_rows:
            return None
        group = self.first_lane // given.width
        counts, end = ops.gather(given._counts, group), ops.gather(given._ends, group)
        begin = end - given.width * counts[0] * counts[1]
        shape = ops.concat([ops.constant([given.width], tf.int64), counts], 0)
        products = ops.reshape(Window(begin, end - begin).of(given.products), shape)
        products.set_shape([given.width, None, None])
        return products


def data_products(
    given: GivenProducts,
    specs: Sequence[tf.TensorSpec],
    *,
    has_own_products: bool,
    name: str,
    without: Collection[str] = (),
) -> tf.types.experimental.ConcreteFunction:
    """The function (columns, rows, sizes) -> products of all groups.

    Args:
        given: what the function of a call, whose graph is another one, has asked for.
        specs: of the columns, of the index and of the sizes.
        has_own_products: as in `KnownInputs`.
        name: of the function.
        without: names of stage passes that do not run.
    """

    of = given.of
    assert of is not None

    def body(*tensors):
        *columns, index, sizes = tensors
        data = attrs.evolve(given.data, columns=tuple(columns), index=index, sizes=sizes)
        width = given.width

        def group(first_lane: Value) -> list[Value]:
            of_group = data.group(Window(first_lane, width), first_lane)
            inputs = KnownInputs(of_group, ops.current_block(), None, has_own_products)
            return [ops.reshape(inputs.products_of_rows(of, data.batch_rows), [-1])]

        count = ops.shape(sizes, tf.int64)[0] // width
        list_ = reserve_list(ops.cast(count, tf.int32), [-1], tf.float32)
        (filled,) = written(function_of_number(group), count, [(list_, 0)], width, parallel_iterations=PARALLEL_GROUPS)
        joined, _ = ops.operation(
            "TensorListConcatV2", filled, [-1], ops.zeros([0], tf.int64), element_dtype=tf.float32
        )
        return [joined]

    return realized_function(body, specs, name=name, without=without)
