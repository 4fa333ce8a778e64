"""Kernels that a loop carries low-rank are those of dense training; the form of the carry follows the step."""

import numpy as np
import pytest
import tensorflow as tf
from run_region import run_region

from fedcore.graphs.batched.batched_value import BatchedValue, batched, shared
from fedcore.graphs.batched.known_inputs import KnownInput, KnownInputs
from fedcore.graphs.batched.low_rank import LowRank, divide_by, multiply_by, negative
from fedcore.graphs.batched.low_rank_carry import LowRankCarry, low_rank_carry
from fedcore.graphs.batched.own_rows import EACH, OwnRows
from fedcore.graphs.batched.row_layouts import RowsInOrder
from fedcore.graphs.batched.schedule import PackedLayout
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import scan
from fedcore.graphs.dataflow.graph import new_region

K, B, N, M = 3, 2, 6, 4


def normal(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("f")


def product(x, g):
    """x^T g as what a batching rule makes of it, or the matrices."""
    if isinstance(x, np.ndarray):
        return np.einsum("krn,krm->knm", x, g)
    return LowRank((x.shape[2], g.shape[2]), K, factors=((x, g),))


def scaled(number, w):
    return number * w if isinstance(w, np.ndarray) else w.map_linear(multiply_by(ops.constant(np.float32(number))))


def plus(a, b):
    return a + b if isinstance(a, np.ndarray) else a.plus(b)


def minus(a, b):
    return a - b if isinstance(a, np.ndarray) else a.plus(b.map_linear(negative))


def halved(w):
    return w / 2 if isinstance(w, np.ndarray) else w.map_linear(divide_by(ops.constant(np.float32(2))))


# A step of two kernels: on matrices [K, N, M] in numpy, or on LowRanks in a region.


def descent(w, v, x, g):
    return minus(w, scaled(0.1, product(x, g))), minus(v, product(x, scaled_rows(0.5, g)))


def scaled_rows(number, g):
    return g * np.float32(number) if isinstance(g, np.ndarray) else g * number


def momentum(w, v, x, g):
    v = plus(scaled(0.9, v), product(x, g))
    return minus(w, scaled(0.1, v)), v


def decay(w, v, x, g):
    return plus(scaled(0.9, w), product(x, g)), v


def nesterov(w, v, x, g):
    v = plus(scaled(0.9, v), plus(product(x, g), scaled(0.01, w)))
    return minus(halved(plus(w, w)), scaled(0.1, v)), v


def one_of_two(w, v, x, g):
    return minus(w, product(x, g)), v


STEPS = {f.__name__: f for f in (descent, momentum, decay, nesterov, one_of_two)}


def of_numpy(step, start, x, g, sizes) -> list[np.ndarray]:
    """The kernels of all clients after their steps; a client whose batch is empty keeps its kernels."""
    w, v = (np.broadcast_to(k.astype("d"), (K, N, M)) for k in start)
    for s in range(x.shape[1] // B):
        rows = slice(s * B, (s + 1) * B)
        active = (sizes[:, s] > 0)[:, None, None]
        new = step(w, v, x[:, rows].astype("d"), g[:, rows].astype("d"))
        w, v = (np.where(active, a, b) for a, b in zip(new, (w, v), strict=True))
    return [w, v]


def trained(step, start, x, g, sizes, carry, *, own_rows=False, known=False, steps=None):
    """The carry that fits, and the kernels after the last step.

    Args:
        known: x are rows of data that are known before the loop.
    """
    fitting, forms = [], []

    def body(w0, v0, x, g, sizes):
        second = w0 if start[1] is start[0] else v0 if start[1].any() else ops.zeros([N, M])
        initial = [shared(w0), shared(second)]
        count = ops.constant(int(sizes.shape[1] if steps is None else steps), tf.int64)
        given, here = carry, ops.current_block()
        while True:
            fitting.append(given)
            found = loop(given, here, initial, count, x, g, sizes)
            if forms[-1] == given:
                assert len(set(fitting)) == len(fitting)
                return [found[i].low_rank.dense() for i in range(2)]
            given = forms[-1]

    def loop(given, here, initial, count, x, g, sizes):
        data = RowsInOrder((x, g), ops.constant([0, K * int(x.shape[1])], tf.int64), sizes, B)
        inputs = KnownInputs(data, here) if known else None
        own = OwnRows(EACH, data.own_rows, B) if own_rows else None
        opened = given.open(initial, K, own, inputs)

        def body(s, *variables):
            x, g = data.columns_of(s)
            active = ops.gather(sizes, s, axis=1) > 0
            kernels = opened.kernels_in_step(s, list(variables), (x, g))
            before = [kernels.values[i].low_rank if i in given.kernels else None for i in range(2)]
            after = step(*before, x, g)
            results = {i: BatchedValue(None, True, form=after[i]) for i in given.kernels}
            forms.append(kernels.carry_after_step(results))
            return kernels.variables_after_step(results, active) if forms[-1] == given else kernels.variables(), active

        variables = opened.initial_variables()
        if given.is_one_step:
            state = body(ops.constant(0, tf.int64), *variables)[0]
        else:
            state = scan(body, count, variables, kept_by_step=len(variables))
        return opened.final_kernels(count, state)

    results = run_region(body, *start, x, g, sizes)
    return fitting[-1], results


def data(counts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, g and the sizes of batches, of clients that take so many steps."""
    most = max(counts)
    sizes = np.where(np.arange(most) < np.array(counts)[:, None], B, 0)
    return normal(K, most * B, N), normal(K, most * B, M, seed=1), sizes


WEIGHTS, ZEROS = normal(N, M, seed=2), np.zeros((N, M), "f")


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    ("counts", "limit"), [((3, 1, 2), 3), ((5, 2, 3), 2), ((4, 4, 1), 2), ((1, 1, 1), 1)],
    ids=["few steps", "more than the limit", "twice the limit", "one step"],
)  # fmt: skip
def test_the_kernels_are_those_of_dense_training(name, counts, limit):
    x, g, sizes = data(counts)
    carry = LowRankCarry(((0,), (1,)), limit, max(counts) > limit)
    _, found = trained(STEPS[name], (WEIGHTS, ZEROS), x, g, sizes, carry)
    for have, want in zip(found, of_numpy(STEPS[name], (WEIGHTS, ZEROS), x, g, sizes), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("counts", [(3, 1, 2), (5, 2, 3)], ids=["few steps", "more than the limit"])
def test_kernels_may_begin_with_one_tensor(name, counts):
    x, g, sizes = data(counts)
    start = WEIGHTS, WEIGHTS
    _, kernels = trained(STEPS[name], start, x, g, sizes, LowRankCarry(((0,), (1,)), 3, max(counts) > 3))
    for have, want in zip(kernels, of_numpy(STEPS[name], start, x, g, sizes), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["descent", "momentum"])
def test_products_of_own_rows_give_the_same_kernels(name):
    x, g, sizes = data((5, 2, 0))
    for limit in (2, 5):
        carry = LowRankCarry(((0,), (1,)), limit, limit < 5)
        _, found = trained(STEPS[name], (WEIGHTS, ZEROS), x, g, sizes, carry, own_rows=True)
        for have, want in zip(found, of_numpy(STEPS[name], (WEIGHTS, ZEROS), x, g, sizes), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def form(name, *, limit=3, counts=(3, 1, 2), start=(WEIGHTS, ZEROS), **options) -> LowRankCarry:
    x, g, sizes = data(counts)
    carry = LowRankCarry(((0,), (1,)), limit, max(counts) > limit)
    return trained(STEPS[name], start, x, g, sizes, carry, **options)[0]


def test_kernels_whose_steps_append_the_same_rows_share_their_left_factor():
    assert form("descent").groups == ((0,), (1,))
    assert form("momentum").groups == ((0, 1),)
    assert form("nesterov").groups == ((0, 1),)


def test_coefficients_are_loop_variables_only_where_a_step_scales():
    assert not form("descent").scaled
    assert not form("momentum").scaled  # the velocity starts from zero: there is no matrix to scale
    assert form("momentum", start=(WEIGHTS, WEIGHTS.copy())).scaled == {(i, ("shared", 1)) for i in (0, 1)}
    assert form("decay").scaled == {(0, ("shared", 0))}
    of_own = form("decay", limit=2).scaled
    assert (0, ("own", 0)) in of_own


def test_the_rows_of_known_inputs_are_no_loop_variables():
    x, g, sizes = data((3, 1, 2))

    def of_layer(w, v, x, g):
        if isinstance(x, np.ndarray):
            return minus(w, 0.1 * np.einsum("krn,krm->knm", x, g + x @ w)), v
        return minus(w, product(x, (g + w.product_with(x)) * np.float32(0.1))), v

    carry = LowRankCarry(((0,), (1,)), 3, False)
    fitting, found = trained(of_layer, (WEIGHTS, ZEROS), x, g, sizes, carry, known=True)
    assert dict(fitting.inputs)[0] == KnownInput(0)
    want = of_numpy(of_layer, (WEIGHTS, ZEROS), x, g, sizes)
    np.testing.assert_allclose(found[0], want[0], rtol=1e-4, atol=1e-4)


# --- steps that do not keep the form ---


def next_carry(carry, after) -> LowRankCarry | None:
    """The carry to try next, after a step with these results of the kernels; the carry itself if it fits."""
    results = []

    def body(w0, v0, x, g):
        opened = carry.open([shared(w0), shared(v0)] * 2, K)
        kernels = opened.kernels_in_step(ops.constant(1, tf.int64), opened.initial_variables())
        results.append(kernels.carry_after_step(after(*map(kernels.low_rank, carry.kernels), x, g)))
        return []

    new_region([(tf.float32, s) for s in ([N, M], [N, M], [K, B, N], [K, B, M])], body)
    return results[0]


def value(low_rank) -> BatchedValue:
    return BatchedValue(None, True, form=low_rank)


CARRY = LowRankCarry(((0,), (1,)), 3, False)


def test_a_kernel_whose_step_is_dense_is_dropped():
    after = next_carry(CARRY, lambda w, v, x, g: {0: batched(w.dense()), 1: value(v)})
    assert after == CARRY.without(0) == LowRankCarry(((1,),), 3, False)
    assert next_carry(CARRY, lambda w, v, x, g: {0: value(w), 1: value(plus(v, product(x, g)))}) is CARRY


def test_a_kernel_to_which_a_step_appends_two_kinds_of_rows_is_dropped():
    def after(w, v, x, g):
        return {0: value(plus(w, plus(product(x, g), product(x * 2.0, g)))), 1: value(v)}

    assert next_carry(CARRY, after) == CARRY.without(0)


def test_a_kernel_with_another_matrix_is_dropped():
    def after(w, v, x, g):
        other = LowRank((N, M), K, ((ops.ones([N, M]), 1.0),))
        return {0: value(w), 1: value(plus(v, other))}

    assert next_carry(CARRY, after) == CARRY.without(1)


def test_a_kernel_that_gets_the_rows_of_another_joins_it():
    assert next_carry(CARRY, lambda w, v, x, g: {0: value(plus(w, v)), 1: value(v)}) == CARRY.merge_groups(0, 1)


def test_all_kernels_join_others_in_one_more_loop():
    def after(w0, v0, w1, v1, x, g):
        return {0: value(plus(w0, v0)), 1: value(v0), 2: value(plus(w1, v1)), 3: value(v1)}

    carry = LowRankCarry(((0,), (1,), (2,), (3,)), 3, False)
    assert next_carry(carry, after) == carry.merge_groups(0, 1).merge_groups(2, 3)


def test_without_and_joining_keep_the_other_kernels():
    carry = LowRankCarry(((0,), (1, 4), (2,)), 3, True, frozenset({(0, ("shared", 1)), (2, ("own", 2))}))
    assert carry.kernels == [0, 1, 2, 4]
    assert carry.without(1).kernels == [0, 2, 4]
    assert carry.without(1).scaled == {(2, ("own", 2))}
    assert set(carry.merge_groups(0, 4).groups) == {(0, 1, 4), (2,)}
    assert LowRankCarry(((3,),), 1, False).without(3) is None


# --- the first carry ---


def test_the_first_carry_has_all_large_kernels_that_clients_share():
    carries = []

    def body(*_):
        initial = [
            shared(ops.zeros([256, 64])),
            shared(ops.zeros([64])),
            batched(ops.zeros([K, 256, 64])),
            shared(ops.zeros([256, 64], tf.float64)),
            shared(ops.zeros([16, 16])),
            shared(ops.ones([128, 128])),
        ]
        for limit in (0, 1, 4):
            layout = PackedLayout((), (), low_rank=2, low_rank_steps=limit, exceeds_low_rank=True)
            carries.append(low_rank_carry(initial, layout))
        carries.append(low_rank_carry(initial, PackedLayout((), (), low_rank=60, low_rank_steps=4)))
        carries.append(low_rank_carry(initial[1:3], layout))
        return []

    new_region([], body)
    none, one, several, of_layout, nothing = carries
    assert none is None
    assert nothing is None
    assert one == LowRankCarry(((0,), (5,)), 1, True)
    assert several == LowRankCarry(((0,), (5,)), 4, True)
    assert of_layout == LowRankCarry(((5,),), 4, False)  # the other one's factors break even at 51
