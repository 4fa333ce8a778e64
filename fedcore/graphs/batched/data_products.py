"""Products of rows of the clients' data, for all groups of a call, as one tensor that a runtime may keep.

The products of a first layer's inputs of all steps with one another (`known_inputs`) depend on the clients' data and on
no weight. So the function of a call does not compute them but takes them as an operand, `DataProducts`: a
function of their own computes them from the packed columns, and the runtime keeps them for the next round as long as it
keeps the columns.

In:  columns [rows, …], index and sizes of packed rows that are in order, see `row_layouts`.
Out: float32 [entries]: the products [K, R, R] of each group of K clients with R rows, one after the other.

Decision 0323.
"""

from collections.abc import Collection, Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.batched.client_contribution import PARALLEL_GROUPS, reserve_list, write_results
from fedcore.graphs.batched.known_inputs import KnownInput, KnownInputs
from fedcore.graphs.batched.row_layouts import RowLayout
from fedcore.graphs.batched.row_windows import Window
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import function_of_number
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.emission.region_function import realized_function


@attrs.define(eq=False)
class DataProducts:
    """The products of all groups, as an operand of the function of a call.

    Args:
        products: float32 [entries], the products [K, R, R] of each group, one after the other.
        data: packed rows of all clients of the call.
        width: lanes of a group.
        layer_input: the input whose products they are: the first one that a group asks for.
    """

    products: Value
    data: RowLayout
    width: int
    layer_input: KnownInput | None = None
    _rows: Value = attrs.field(init=False)
    _ends: Value = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Computes R of each group, and where its products end in the flat operand."""
        self._rows = self.data.rows_of_groups(self.width)
        self._ends = ops.cumsum(self.width * self._rows * self._rows)

    def products_of_group(self, first_lane: Value, layer_input: KnownInput) -> Value | None:
        """The products [K, R, R] of an input in the group that begins at a lane, int64.

        The first input that is asked for decides whose products the operand holds. None for any other input.
        """
        self.layer_input = self.layer_input or layer_input
        if self.layer_input != layer_input:
            return None
        group = first_lane // self.width
        rows, end = ops.gather(self._rows, group), ops.gather(self._ends, group)
        size = self.width * rows * rows
        products = ops.reshape(Window(end - size, size).of(self.products), [self.width, rows, rows])
        products.set_shape([self.width, None, None])
        return products


def data_products(
    call_products: DataProducts,
    specs: Sequence[tf.TensorSpec],
    *,
    has_own_products: bool,
    name: str,
    without: Collection[str] = (),
) -> tf.types.experimental.ConcreteFunction:
    """The function (columns, index, sizes) -> products of all groups, float32 [entries].

    Args:
        call_products: the operand of the function of a call, which has noted the input that its groups ask for.
        specs: of the columns, of the index and of the sizes.
        has_own_products: as in `KnownInputs`.
        name: of the function.
        without: names of stage passes that do not run.
    """

    layer_input = call_products.layer_input
    assert layer_input is not None  # a call whose groups have asked for nothing has no such function

    def body(*tensors: Value) -> list[Value]:
        """The products of all groups, which run one by one and leave theirs in a TensorList.

        Args:
            tensors: the columns, the index and the sizes of the packed rows.
        """
        *columns, index, sizes = tensors
        data = attrs.evolve(call_products.data, columns=tuple(columns), index=index, sizes=sizes)
        width = call_products.width

        def group(first_lane: Value) -> list[Value]:
            """The flat products of the group that begins at a lane."""
            group_rows = data.group(Window(first_lane, width), first_lane)
            inputs = KnownInputs(group_rows, ops.current_block(), None, has_own_products)
            return [ops.reshape(inputs.row_products(layer_input), [-1])]

        count = ops.shape(sizes, tf.int64)[0] // width
        reserved_list = reserve_list(ops.cast(count, tf.int32), [-1], tf.float32)
        (filled_list,) = write_results(
            function_of_number(group), count, [(reserved_list, 0)], width, parallel_iterations=PARALLEL_GROUPS
        )
        all_products, _ = ops.operation(
            "TensorListConcatV2", filled_list, [-1], ops.zeros([0], tf.int64), element_dtype=tf.float32
        )
        return [all_products]

    return realized_function(body, specs, name=name, without=without)
