"""The products of a call's rows, computed by a function of their own, are those that its groups would compute."""

import numpy as np
import pytest
import tensorflow as tf
from run_region import run_region

from fedcore.graphs.batched.data_products import DataProducts, data_products
from fedcore.graphs.batched.known_inputs import KnownInput, KnownInputs, match_known_input
from fedcore.graphs.batched.row_layouts import RowsInOrder
from fedcore.graphs.batched.row_windows import Window
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import new_region

WIDTH, N = 2, 5


class Call:
    """Four clients in groups of two, with these rows in batches of `batch`."""

    def __init__(self, counts, batch: int):
        self.counts, self.batch = counts, batch
        steps = -(-max(counts) // batch)
        self.sizes = np.clip(np.array(counts)[:, None] - batch * np.arange(steps), 0, batch)
        rng = np.random.default_rng(0)
        self.of_clients = [rng.normal(size=(n, N)).astype("f") for n in counts]
        groups = [counts[i : i + WIDTH] for i in range(0, len(counts), WIDTH)]
        lanes = [max(g) for g in groups for _ in g]
        missing = [n - len(x) for x, n in zip(self.of_clients, lanes, strict=True)]
        padded = zip(self.of_clients, missing, strict=True)
        self.columns = np.concatenate([np.pad(x, [[0, n], [0, 0]]) for x, n in padded])
        self.index = np.cumsum([0, *(max(g) * WIDTH for g in groups)])

    @property
    def arrays(self):
        return self.columns, self.index, self.sizes

    def data(self, columns, index, sizes) -> RowsInOrder:
        return RowsInOrder((columns,), index, sizes, self.batch)


CALLS = [(counts, batch, own) for counts, batch in (([6, 5, 3, 1], 2), ([24, 9, 8, 2], 8)) for own in (False, True)]


def of_call(call: Call, own: bool, of: KnownInput) -> np.ndarray:
    """All products, by the function of their own."""
    functions = []

    def body(*tensors):
        given = DataProducts(ops.placeholder(tf.float32, [None]), call.data(*tensors), WIDTH)
        given.products_of_group(ops.constant(0, tf.int64), of)
        specs = [tf.TensorSpec([None, *a.shape[1:]], a.dtype) for a in call.arrays]
        functions.append(data_products(given, specs, has_own_products=own, name="products"))
        return []

    new_region([(a.dtype, [None, *a.shape[1:]]) for a in call.arrays], body)
    return functions[0](*map(tf.constant, call.arrays))[0].numpy()


def of_group(call: Call, own: bool, of: KnownInput, first: int, products: np.ndarray) -> list[np.ndarray]:
    """The products of a group: those that it is given, and those that it computes."""

    def body(columns, index, sizes, products):
        data, first_lane = call.data(columns, index, sizes), ops.constant(first, tf.int64)
        inputs = KnownInputs(data.group(Window(first_lane, WIDTH), first_lane), ops.current_block(), None, own)
        given = DataProducts(products, data, WIDTH).products_of_group(first_lane, of)
        return [given, inputs.row_products(of)]

    return run_region(body, *call.arrays, products)


@pytest.mark.parametrize(("counts", "batch", "own"), CALLS)
def test_a_group_is_given_the_products_that_it_would_compute(counts, batch, own):
    call = Call(counts, batch)
    products = of_call(call, own, KnownInput(0))
    for first in range(0, len(counts), WIDTH):
        given, computed = of_group(call, own, KnownInput(0), first, products)
        assert given.tobytes() == computed.tobytes()
        assert given.shape == computed.shape


@pytest.mark.parametrize(("counts", "batch", "own"), CALLS)
def test_the_products_of_a_client_are_those_of_its_rows(counts, batch, own):
    call = Call(counts, batch)
    products = of_call(call, own, KnownInput(0))
    for first in range(0, len(counts), WIDTH):
        given, _ = of_group(call, own, KnownInput(0), first, products)
        for lane, x in enumerate(call.of_clients[first : first + WIDTH]):
            np.testing.assert_allclose(given[lane, : len(x), : len(x)], x @ x.T, rtol=1e-5, atol=1e-5)


def test_products_are_those_of_an_input_that_is_computed_from_the_rows():
    call = Call([6, 5, 3, 1], 2)
    found = []

    def body(x):
        found.append(match_known_input(x * 3.0, [x]))
        return []

    new_region([(tf.float32, [WIDTH, 2, N])], body)
    plain, tripled = (of_call(call, False, of) for of in (KnownInput(0), found[0]))
    np.testing.assert_allclose(tripled, 9 * plain, rtol=1e-5, atol=1e-5)


def test_only_the_products_of_the_first_input_that_is_asked_for_are_given():
    call = Call([6, 5, 3, 1], 2)

    def body(*tensors):
        given = DataProducts(ops.placeholder(tf.float32, [None]), call.data(*tensors), WIDTH)
        first_lanes = [ops.constant(i, tf.int64) for i in (2, 0)]
        assert given.layer_input is None
        assert given.products_of_group(first_lanes[0], KnownInput(1)) is not None
        assert given.layer_input == KnownInput(1)
        assert given.products_of_group(first_lanes[0], KnownInput(0)) is None
        assert given.products_of_group(first_lanes[1], KnownInput(1)) is not None
        return []

    new_region([(a.dtype, a.shape) for a in call.arrays], body)
