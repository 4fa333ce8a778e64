"""Every runtime draws a client's data alike: by the call's seed, the client, and the argument, wherever it is used."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.packing import pack_clients, packing_cache
from fedcore.graphs.batched.row_layouts import RowsInOrder
from fedcore.graphs.batched.schedule import ScheduleRules
from fedcore.graphs.stages.realize import pack

RUNTIMES = {"local": fc.runtime.local(workers_per_device=2), "reference": fc.runtime.reference()}
FLOATS = fc.SequenceType("float32")
BATCHES = fc.SequenceType(fc.TensorType("float32", [None]))


@fc.tf_computation(FLOATS)
def in_order(xs):
    """A number that tells the order of the elements."""
    return xs.reduce(0.0, lambda total, x: total * 10.0 + x)


@fc.tf_computation(BATCHES)
def in_batches(xs):
    return xs.reduce(0.0, lambda total, b: total * 100.0 + tf.reduce_sum(b) * tf.cast(tf.size(b), tf.float32))


def client(count: int = 6) -> fc.data.ClientDataset:
    return fc.data.ClientDataset.from_columns(np.arange(count, dtype=np.float32))


def on_both(computation, *arguments, seed: int):
    results = []
    for runtime in RUNTIMES.values():
        with fc.use(runtime, seed=seed):
            results.append(computation(*arguments))
    return results


PIPELINES = {
    "shuffle": lambda d: d.shuffle(9),
    "epochs": lambda d: d.repeat(2).shuffle(9),
    "shuffled epochs": lambda d: d.shuffle(9).repeat(2),
    "the same each epoch": lambda d: d.shuffle(9, reshuffle_each_iteration=False).repeat(2),
    "seeded": lambda d: d.shuffle(9, seed=4),
    "twice": lambda d: d.shuffle(9).take(4).shuffle(9),
    "map and filter": lambda d: d.map(lambda x: x + 1.0).filter(lambda x: x != 3.0).shuffle(9).skip(1),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_both_runtimes_shuffle_alike(name):
    computation = fc.federated_computation(
        lambda xs: fc.federated_map(in_order, xs), fc.FederatedType(FLOATS, fc.CLIENTS)
    )
    clients = [PIPELINES[name](client(n)) for n in (6, 5, 6)]
    local, reference = on_both(computation, clients, seed=3)
    assert local == reference
    # Clients of equal data draw for themselves, and anew in each call, unless the user or the pipeline fixes the order.
    draws = name not in ("seeded", "the same each epoch")
    assert (local[0] != local[2]) == draws
    assert (on_both(computation, clients, seed=4)[0] != local) == draws


BATCHED = {
    "batches": lambda d: d.shuffle(9).batch(4),
    "maps before and after": lambda d: d.map(lambda x: x * 2.0).shuffle(9).batch(4).map(lambda b: b + 1.0),
    "shuffled batches": lambda d: d.batch(2).shuffle(9),
    "foreign": lambda d: tf.data.Dataset.range(6).map(lambda i: tf.cast(i, tf.float32)).shuffle(9).batch(4),
    "lists of unequal batches": lambda d: [np.float32([1, 2]), np.float32([3]), np.float32([])],
}


@pytest.mark.parametrize("name", BATCHED)
def test_both_runtimes_read_equal_batches(name):
    computation = fc.federated_computation(
        lambda xs: fc.federated_sum(fc.federated_map(in_batches, xs)), fc.FederatedType(BATCHES, fc.CLIENTS)
    )
    local, reference = on_both(computation, [BATCHED[name](client())] * 2, seed=3)
    assert local == reference


def test_empty_batches_go_through_the_maps():
    dataset = fc.data.ClientDataset.from_columns(np.zeros([0, 2], np.float32)).map(lambda x: x[0]).batch(2)
    assert dataset.columns.elements(0) == []


def test_each_sequence_of_a_client_has_an_order_of_its_own_on_both_runtimes():
    pair = fc.FederatedType({"a": FLOATS, "n": "int32", "b": FLOATS}, fc.CLIENTS)

    @fc.federated_computation(fc.FederatedType(FLOATS, fc.SERVER), pair, fc.FederatedType(FLOATS, fc.CLIENTS))
    def drawn(server, pairs, third):
        of_clients = fc.federated_map(lambda p, t: (in_order(p.a), in_order(p.b), in_order(t)), (pairs, third))
        return fc.federated_map(in_order, server), of_clients

    data = client().shuffle(9)
    local, reference = on_both(drawn, data, [{"a": data, "n": 1, "b": data}] * 3, [data] * 3, seed=1)
    assert local == reference
    orders = [local[0], *(order for of_client in local[1] for order in of_client)]
    assert len(set(map(float, orders))) == 1 + 3 * 3


def test_two_stages_see_the_same_shuffle():
    @fc.federated_computation(fc.FederatedType("float32", fc.SERVER), fc.FederatedType(FLOATS, fc.CLIENTS))
    def twice(start, data):
        first = fc.federated_sum(fc.federated_map(in_order, data))
        sent = fc.federated_broadcast(fc.federated_map(lambda a, b: a * 0.0 + b, (first, start)))
        return first, fc.federated_sum(fc.federated_map(lambda d, s: in_order(d) + s, (data, sent)))

    clients = [client().shuffle(9) for _ in range(3)]
    for first, second in on_both(twice, 0.0, clients, seed=5):
        assert first == second
    assert on_both(twice, 0.0, clients, seed=5)[0] == on_both(twice, 0.0, clients, seed=5)[1]


def test_batched_clients_have_the_orders_of_clients_one_by_one():
    values = [(client().shuffle(9).columns, client().shuffle(9).columns) for _ in range(2)]
    seeds = np.array([5, 6])
    schedule, stacked = pack_clients(
        ClientLeaves(values), [0, 1], seeds, [3, 7], ScheduleRules(2), capacity=2, cache=packing_cache(1 << 20)
    )
    shape = schedule.layout
    assert [layout is not None for layout in shape.layouts] == [True, True]
    _, place, _, first_rows, _, _, second_rows, _ = map(np.asarray, stacked)
    for k, value in enumerate(values):
        for sequence, number, rows in zip(value, (3, 7), (first_rows, second_rows), strict=True):
            (_, alone) = pack(sequence, int(seeds[k]), number)
            np.testing.assert_array_equal(rows[place[k]] - 6 * k, alone[-1])


def test_rows_that_were_packed_for_groups_of_one_width_do_not_serve_another():
    values, cache = [(client().columns,) for _ in range(3)], packing_cache(1 << 20)
    for width in (2, 4, 2):
        rules = ScheduleRules(width)
        _, (seeds, *_) = pack_clients(ClientLeaves(values), range(3), np.arange(3), [0], rules, capacity=8, cache=cache)
        assert len(seeds) == 4
    rules = ScheduleRules(5)
    _, (seeds, *_) = pack_clients(ClientLeaves(values), range(3), np.arange(3), [0], rules, capacity=8, cache=cache)
    assert len(seeds) == 5


def test_absent_clients_have_no_lane():
    values = [(client().columns,) for _ in range(2)]
    _, (seeds, place, *_) = pack_clients(
        *(ClientLeaves(values), [1, 4], np.array([11, 14]), [0], ScheduleRules(2)),
        capacity=8,
        cache=packing_cache(1 << 20),
    )
    assert np.flatnonzero(np.asarray(place) >= 0).tolist() == [1, 4]
    assert [np.asarray(seeds)[place[i]] for i in (1, 4)] == [11, 14]


def test_rows_that_were_packed_for_low_rank_groups_do_not_serve_others():
    sizes = (6, 5, 2, 1, 2)  # with batches of 2, the clients of more than one step have groups of their own
    values = [(fc.data.ClientDataset.from_columns(np.full(n, n, np.float32)).batch(2).columns,) for n in sizes]
    cache = packing_cache(1 << 20)
    for low_rank in (2, 2, 0, 0, 2):
        rules = ScheduleRules(4, low_rank=low_rank)
        schedule, (_, lane_of, column, rows, _) = pack_clients(
            ClientLeaves(values), range(5), np.arange(5), [0], rules, capacity=8, cache=cache
        )
        assert schedule.layout.rows is RowsInOrder
        assert np.diff(rows).tolist() == [4 * 6, 4 * 2]
        for n, lane in zip(sizes, np.asarray(lane_of), strict=False):
            of_lane = np.diff(rows)[lane // 4] // 4
            begin = rows[lane // 4] + lane % 4 * of_lane
            assert np.asarray(column)[begin : begin + of_lane].tolist() == [n] * of_lane


@pytest.mark.parametrize(
    ("sizes", "lanes", "has_half_steps"),
    [
        ((4, 7, 5, 8, 1, 4), [3, 1, 2, 0, 5, 4], True),  # last batches of 4, 3, 1 and 4, 4, 1 rows
        ((5, 8, 6, 8), [3, 0, 2, 1], True),  # 8 of 32 rows
        ((7, 8, 7, 8), [2, 0, 3, 1], False),
        ((4, 4, 4, 4), [0, 1, 2, 3], False),
        ((0, 0), [0, 1], False),
    ],
)
def test_last_steps_take_half_the_rows_if_that_saves_enough(sizes, lanes, has_half_steps):
    values = [(fc.data.ClientDataset.from_columns(np.zeros(n, np.float32)).batch(4).columns,) for n in sizes]
    count = len(sizes)
    given = ClientLeaves(values), range(count), np.arange(count), [0]
    rules = ScheduleRules(2, half_steps=True)
    schedule, (_, lane_of, *_) = pack_clients(*given, rules, capacity=count, cache=packing_cache(1 << 20))
    shape = schedule.layout
    assert np.asarray(lane_of).tolist() == lanes
    assert shape.has_half_steps == has_half_steps
    assert shape.equal_steps == (len(set(sizes)) == 1)
    rules = ScheduleRules(2, half_steps=True, products="each")
    schedule, _ = pack_clients(*given, rules, capacity=count, cache=packing_cache(1 << 20))
    assert not schedule.layout.has_half_steps


@pytest.mark.parametrize(
    ("batch", "block", "joins"), [(20, 8, True), (48, 8, True), (49, 8, False), (200, 1, True), (385, 1, False)]
)
def test_factors_of_a_block_are_joined_up_to_a_number_of_rows(batch, block, joins):
    """The data set's batch size decides, not the rows of a call's clients."""
    values = [(fc.data.ClientDataset.from_columns(np.zeros(3, np.float32)).batch(batch).columns,)]
    schedule, _ = pack_clients(
        *(ClientLeaves(values), [0], np.arange(1), [0], ScheduleRules(2, low_rank=1, block=block)),
        capacity=8,
        cache=packing_cache(1 << 20),
    )
    assert schedule.layout.joins_blocks is joins


@pytest.mark.parametrize(
    ("sizes", "width"), [((4,) * 8, 8), ((4,) * 15, 8), ((4,) * 9, 2), ((4,) * 7 + (5,), 2), ((0,) * 8, 2)]
)
def test_groups_are_wide_where_all_clients_take_one_step_and_few_lanes_are_empty(sizes, width):
    values = [(fc.data.ClientDataset.from_columns(np.zeros(n, np.float32)).batch(4).columns,) for n in sizes]
    schedule, (seeds, *_) = pack_clients(
        *(ClientLeaves(values), range(len(sizes)), np.arange(len(sizes)), [0]),
        ScheduleRules(2, low_rank=1, one_step_width=8),
        capacity=16,
        cache=packing_cache(1 << 20),
    )
    assert schedule.layout.width == width
    assert len(seeds) % width == 0
