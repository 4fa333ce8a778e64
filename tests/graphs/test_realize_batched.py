"""A stage for packed clients returns the partial that its operations describe, however the clients are packed."""

import functools

import attrs
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.graphs.batched.client_groups import packed_specs
from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.packing import pack_clients, packing_cache
from fedcore.graphs.batched.schedule import Schedule, ScheduleRules
from fedcore.graphs.batched.stage_fold import StageFold, realize_batched
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.tensors.cancellation import Cancellation

N, M, BATCH, BLOCK = 32, 512, 4, 2  # a kernel whose factors break even at rank 30


@functools.cache
def planned():
    """A stage of clients that train a kernel by plain gradient descent and return its weighted change."""
    kernel = fc.to_type(("float32", [N, M]))
    batch = fc.to_type([("x", ("float32", [None, N])), ("y", ("float32", [None, M]))])

    @fc.tf_computation(kernel, batch)
    def step(w, batch):
        error = tf.matmul(batch["x"], w) - batch["y"]
        return w - 0.05 * tf.matmul(batch["x"], error, transpose_a=True)

    @fc.tf_computation(kernel, kernel, "float32")
    def change(after, before, weight):
        return (after - before) * weight, weight

    @fc.federated_computation(
        fc.FederatedType(kernel, fc.SERVER),
        fc.FederatedType(fc.SequenceType(batch), fc.CLIENTS),
        fc.FederatedType("float32", fc.CLIENTS),
    )
    def changes(w, data, weight):
        start = fc.federated_broadcast(w)
        ends = fc.federated_map(lambda s, w: fc.sequence_reduce(s, w, step), (data, start))
        return fc.federated_sum(fc.federated_map(change, (ends, start, weight)))

    return changes.to_module("planned")


WEIGHTS = np.random.default_rng(0).normal(size=(N, M)).astype("f")
FEW, MANY = (9, 4, 0, 12, 3), (9, 21, 0, 12, 3)


@functools.cache
def clients(counts) -> list:
    rng = np.random.default_rng(1)
    made = []
    for number, n in enumerate(counts):
        rows = {"x": rng.normal(size=(n, N)).astype("f") * 0.3, "y": rng.normal(size=(n, M)).astype("f")}
        made.append((fc.data.ClientDataset.from_columns(rows).batch(BATCH).columns, np.float32(number + 1)))
    return made


def stage() -> ClientStage:
    return ClientStage(planned(), "zero", "clients", "join", 1)


def packed(cohort, rules, *, blocks=4, positions=None) -> tuple[Schedule, list]:
    positions = range(len(cohort)) if positions is None else positions
    seeds = np.arange(len(cohort))
    leaves = ClientLeaves(cohort)
    return pack_clients(leaves, positions, seeds, [0, 1], rules, capacity=BLOCK * blocks, cache=packing_cache(1 << 20))


def partial(cohort, rules, *, blocks=4, positions=None, **options) -> list[np.ndarray]:
    """The leaves of the partial of a call."""
    schedule, tensors = packed(cohort, rules, blocks=blocks, positions=positions)
    realized = realize_batched(stage(), schedule.layout, block=BLOCK, blocks=blocks, **options)
    tensors = [tf.convert_to_tensor(t) for t in tensors]
    given = []
    if schedule.layout.takes_products:
        products = realized.products
        given = [products.function([tensors[i] for i in products.operands], Cancellation())]
    total, *_ = realized([tf.constant(WEIGHTS), *tensors, *given], Cancellation())
    return [np.asarray(t) for t in total]


def reference(cohort) -> list[np.ndarray]:
    """The sums of the clients' changes and of their weights, in float64."""
    total, count = np.zeros((N, M)), 0.0
    for columns, weight in cohort:
        w = WEIGHTS.astype("d")
        x, y = (np.asarray(a, "d") for a in columns.arrays)
        for i in range(0, len(x), BATCH):
            w = w - 0.05 * x[i : i + BATCH].T @ (x[i : i + BATCH] @ w - y[i : i + BATCH])
        total, count = total + (w - WEIGHTS) * weight, count + weight
    return [total, count]


RULES = {
    "dense": ScheduleRules(2, block=BLOCK),
    "wide": ScheduleRules(8, block=BLOCK),
    "low-rank": ScheduleRules(2, block=BLOCK, low_rank=12),
    "own products": ScheduleRules(2, block=BLOCK, low_rank=12, products="each"),
    "tiles": ScheduleRules(4, block=BLOCK, products="tiles"),
    "given products": ScheduleRules(2, block=BLOCK, low_rank=12, products="each", takes_products=True),
}


@pytest.mark.parametrize("counts", [FEW, MANY], ids=["few steps", "many steps"])
@pytest.mark.parametrize("name", RULES)
def test_the_partial_is_the_sum_of_the_clients_changes(name, counts):
    found = partial(clients(counts), RULES[name])
    for have, want in zip(found, reference(clients(counts)), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["dense", "low-rank"])
def test_the_number_of_blocks_of_a_call_decides_no_bits(name):
    assert bits(partial(clients(FEW), RULES[name], blocks=8)) == bits(partial(clients(FEW), RULES[name]))


def test_the_width_of_groups_decides_no_bits_where_products_have_the_rows_of_one_client():
    wider = attrs.evolve(RULES["own products"], width=4)
    assert bits(partial(clients(FEW), wider)) == bits(partial(clients(FEW), RULES["own products"]))


def bits(arrays) -> list[bytes]:
    return [a.tobytes() for a in arrays]


def test_clients_that_are_left_out_add_nothing():
    cohort = clients(FEW)
    present = [1, 3, 4]
    for name in ("dense", "low-rank"):
        found = partial([cohort[i] for i in present], RULES[name], positions=present)
        for have, want in zip(found, reference([cohort[i] for i in present]), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)


def test_kernels_are_low_rank_where_the_rules_say_so():
    dense, low = (partial(clients(FEW), RULES[name]) for name in ("dense", "low-rank"))
    assert packed(clients(FEW), RULES["low-rank"])[0].layout.low_rank_steps == 3
    assert dense[0].tobytes() != low[0].tobytes()  # factors add in another order


def test_one_client_after_the_other_gives_the_bits_of_a_block():
    cohort, rules = clients((9, 4)), RULES["dense"]
    want = partial(cohort, rules, blocks=1)
    state = [np.zeros((N, M), "f"), np.float32(0)]
    for k, client in enumerate(cohort):
        schedule, tensors = packed([client], rules, blocks=1)
        fold = StageFold(stage(), schedule.layout)
        flags = [np.bool_(k == 0), np.bool_(k == 1)]
        operands = [tf.convert_to_tensor(t) for t in [WEIGHTS, *tensors, *state, *flags]]
        total, *_ = fold.next_client()(operands, Cancellation())
        state = list(total)
    assert [np.asarray(a).tobytes() for a in state] == [a.tobytes() for a in want]


def test_the_specs_are_those_of_packed_tensors():
    for rules in RULES.values():
        schedule, tensors = packed(clients(FEW), rules)
        specs = packed_specs(stage().client_leaves, schedule.layout)
        assert len(specs) == len(tensors)
        for spec, tensor in zip(specs, tensors, strict=True):
            assert spec.is_compatible_with(tf.convert_to_tensor(tensor))


def test_groups_hold_blocks_only_if_their_lanes_are_in_the_order_of_the_clients():
    def holds(counts, rules, block):
        schedule, _ = packed(clients(counts), rules)
        return StageFold(stage(), schedule.layout).groups.hold_blocks(block)

    rules = attrs.evolve(RULES["dense"], width=4)
    assert holds((4, 4, 4), rules, 2)
    assert not holds((4, 4, 4), rules, 3)
    assert not holds((4, 8, 4), rules, 2)
    assert not holds((8, 8, 8), attrs.evolve(rules, low_rank=12), 2)  # kernels of several steps are factors
    assert holds((4, 4, 4), attrs.evolve(rules, low_rank=1), 2)
