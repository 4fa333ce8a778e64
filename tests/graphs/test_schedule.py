"""Which client is computed in which lane, and how its rows are packed."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedcore as fc
from fedcore.data import columns_of
from fedcore.graphs.batched import schedule
from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.row_layouts import ABSENT, GatheredRows, RowsInOrder, WholeBatches
from fedcore.graphs.batched.schedule import (
    Schedule,
    ScheduleRules,
    group_width,
    padded_size,
    pads_too_much,
    schedule_clients,
)


def make_schedule(counts, rules: ScheduleRules, batch: int = 2, positions=None, *, shuffles: bool = False) -> Schedule:
    """The schedule of clients with so many rows."""
    datasets = [fc.data.ClientDataset.from_columns(np.zeros(n, np.float32)) for n in counts]
    datasets = [(d.shuffle(9) if shuffles else d).batch(batch) for d in datasets]
    leaves = ClientLeaves([(d.columns,) for d in datasets])
    positions = range(len(counts)) if positions is None else positions
    return schedule_clients(leaves, leaves.orders(np.arange(len(counts)), [0]), rules, positions, max(positions) + 1)


def ragged_leaves(clients) -> ClientLeaves:
    """Clients with batches of so many rows, whose sizes the data decide."""
    type_ = fc.SequenceType(fc.TensorType("float32", (None,)))
    return ClientLeaves([(columns_of([np.zeros(n, "f") for n in sizes], type_),) for sizes in clients])


def ragged_schedule(clients, rules: ScheduleRules) -> Schedule:
    leaves = ragged_leaves(clients)
    return schedule_clients(leaves, leaves.orders(np.arange(len(clients)), [0]), rules, range(len(clients)), 16)


TEXTS = {
    "in order": (
        ([2, 5, 3], ScheduleRules(2)),
        """\
3 clients in 2 groups of 2 lanes
rows in order, batches of 2
group 0: clients 1, 2; 3 steps, 12 rows, 4 of them padding
group 1: client 0; 1 step, 4 rows, 2 of them padding""",
    ),
    "half steps": (
        ([4, 7, 5, 8, 1, 4], ScheduleRules(2, half_steps=True), 4),
        """\
6 clients in 3 groups of 2 lanes
rows in order, batches of 4
group 0: clients 3, 1; 2 steps, 16 rows, 1 of them padding
group 1: clients 2, 0; 2 steps, 1 with half of the rows, 12 rows, 3 of them padding
group 2: clients 5, 4; 1 step, 8 rows, 3 of them padding""",
    ),
    "low-rank steps": (
        ([6, 5, 2, 1, 2], ScheduleRules(4, low_rank=2, products="each", block=8)),
        """\
5 clients in 2 groups of 4 lanes
rows in order, batches of 2
products: each
kernels are low-rank in groups of one step
the factors of a block are one product of 16 rows
group 0: clients 0, 1; 3 steps, 24 rows, 13 of them padding, dense kernels
group 1: clients 2, 3, 4; 1 step, 8 rows, 3 of them padding""",
    ),
    "given products": (
        ([3, 4], ScheduleRules(2, low_rank=4, products="tiles", takes_products=True)),
        """\
2 clients in 1 group of 2 lanes
rows in order, batches of 2
products: tiles
kernels are low-rank for 2 steps at a time
the factors of a block are one product
products of the clients' rows are given
group 0: clients 1, 0; 2 steps, 8 rows, 1 of them padding""",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_schedule_prints(name):
    arguments, text = TEXTS[name]
    assert str(make_schedule(*arguments)) == text


def test_clients_whose_batches_are_of_like_size_share_groups():
    schedule = ragged_schedule([[60], [7], [12, 9], [2, 3, 5], [8, 1], [64], [3, 4, 4]], ScheduleRules(2))
    assert (
        str(schedule)
        == """\
7 clients in 4 groups of 2 lanes
rows gathered, batches of 64 or 32 or 16 or 8
group 0: clients 0, 5; 1 step, 128 rows, 4 of them padding
group 1: client 2; 2 steps, 64 rows, 43 of them padding
group 2: clients 3, 6; 3 steps, 48 rows, 27 of them padding
group 3: clients 4, 1; 2 steps, 32 rows, 16 of them padding"""
    )


def test_levels_that_save_less_than_half_are_not_built():
    assert ragged_schedule([[60, 50], [7], [33], [64]], ScheduleRules(2)).layout.levels == ()
    assert ragged_schedule([[60], [1], [1], [1]] * 3, ScheduleRules(2, products="each")).layout.levels == ()


def test_few_sizes_of_batches_are_graphs():
    layouts = {ragged_schedule([[n, n - 1]], ScheduleRules(2)).layout for n in range(33, 65)}
    assert len(layouts) == 1


@pytest.mark.parametrize(
    ("clients", "start_rows", "pads"),
    [
        ([[32, 30], [29, 31]], 0, False),
        ([[20, 1, 2, 3], [30, 1, 1, 2]], 0, True),
        ([[20, 1, 2, 3], [30, 1, 1, 2]], 100, False),  # starting the operations of eight steps takes longer
        ([[200], [2], [3]], 0, False),  # groups of their own
    ],
)
def test_clients_run_one_by_one_where_their_own_batches_differ(clients, start_rows, pads):
    assert pads_too_much(ragged_leaves(clients), ScheduleRules(4, start_rows=start_rows)) == pads


def test_clients_have_the_numbers_of_the_call():
    assert (
        make_schedule([2, 3], ScheduleRules(2), positions=[1, 4])
        .text(first=8)
        .endswith("clients 12, 9; 2 steps, 8 rows, 3 of them padding")
    )


def test_clients_of_tensors_have_no_rows():
    leaves = ClientLeaves([(np.float32(n),) for n in range(3)])
    schedule = schedule_clients(leaves, {}, ScheduleRules(2), range(3), 3)
    assert str(schedule) == "3 clients in 2 groups of 2 lanes\ngroup 0: clients 0, 1\ngroup 1: client 2"


COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=12)
RULES = st.builds(
    ScheduleRules,
    st.integers(2, 4),
    one_step_width=st.sampled_from([0, 8]),
    low_rank=st.sampled_from([0, 1, 4]),
    products=st.sampled_from(["", "each"]),
    half_steps=st.booleans(),
    takes_products=st.booleans(),
    keeps_one_step=st.booleans(),
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(counts=COUNTS, rules=RULES, shuffles=st.booleans(), skip=st.integers(0, 2))
def test_each_present_client_has_one_lane_and_its_batches(counts, rules, shuffles, skip):
    positions = [i * (skip + 1) for i in range(len(counts))]
    schedule = make_schedule(counts, rules, 2, positions, shuffles=shuffles)
    lanes = schedule.lanes(0)
    assert sorted(lanes.clients[lanes.clients != ABSENT].tolist()) == list(range(len(counts)))
    assert len(lanes.clients) % schedule.layout.width == 0
    assert np.flatnonzero(schedule.lane_of != ABSENT).tolist() == positions
    for client, position in enumerate(positions):
        assert lanes.clients[schedule.lane_of[position]] == client
        assert lanes.sizes[schedule.lane_of[position]].sum() == counts[client]
    assert sorted(c for group in schedule.groups for c in group.clients) == positions
    assert sum(g.rows - g.padding for g in schedule.groups) == sum(counts)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(counts=COUNTS, rules=RULES)
def test_clients_end_in_the_order_of_their_lanes(counts, rules):
    steps = [group.steps for group in make_schedule(counts, rules).groups]
    assert steps == sorted(steps, reverse=True)


def test_the_number_of_clients_decides_no_graph():
    schedules = [make_schedule([3, 1] * n, ScheduleRules(4)) for n in (1, 2, 5)]
    assert len(set(schedules)) == 1
    assert len({str(s) for s in schedules}) == 3


def test_a_schedule_does_not_change():
    schedule = make_schedule([2, 5], ScheduleRules(2))
    with pytest.raises(ValueError, match="read-only"):
        schedule.lane_of[0] = 1
    with pytest.raises(TypeError):
        schedule.sizes[1] = schedule.sizes[0]


@pytest.mark.parametrize(
    ("counts", "rules", "shuffles", "rows"),
    [
        ([2, 5], ScheduleRules(2), True, GatheredRows),
        ([2, 5], ScheduleRules(2), False, RowsInOrder),
        ([2, 1], ScheduleRules(2), False, WholeBatches),
        ([2, 1], ScheduleRules(2), True, GatheredRows),
        ([2, 5], ScheduleRules(2, low_rank=4, products="each"), False, RowsInOrder),
        ([2, 1], ScheduleRules(2, low_rank=4, products="each"), False, RowsInOrder),
        ([2, 5], ScheduleRules(2, low_rank=2, products="each"), False, RowsInOrder),
    ],
)
def test_the_row_layout_is_the_one_that_copies_least(counts, rules, shuffles, rows):
    assert make_schedule(counts, rules, shuffles=shuffles).layout.rows is rows


def test_groups_are_wide_where_few_lanes_stay_empty():
    rules = ScheduleRules(2, one_step_width=8)
    assert [group_width(rules, np.ones(n, int), 1) for n in (7, 8, 9, 15)] == [2, 8, 2, 8]
    assert group_width(rules, np.array([1] * 7 + [2]), 1) == 2
    assert group_width(rules, np.ones(8, int), 0) == 2


@pytest.mark.parametrize(
    ("steps", "width"),
    [
        ([2] * 32, 32),  # equal clients
        ([5, 4, 3, 2] * 8, 32),  # a little longer ones keep few lanes waiting
        ([600], 2),  # one client in 32 lanes
        ([600, *[2] * 31], 2),  # one client that keeps 31 waiting
        ([600, 590, 580, 570, *[2] * 28], 4),
        ([3], 32),  # the size of a cohort of short clients decides no graph
        ([127, *[2] * 31], 32),
    ],
)
def test_groups_are_narrow_where_long_clients_keep_lanes_waiting(steps, width):
    assert group_width(ScheduleRules(32), np.array(steps), 0) == width


def test_narrow_groups_have_the_bits_of_wide_ones(monkeypatch):
    rng = np.random.default_rng(0)
    sizes = [3, 5, 900, 4, 2, 7, 90, 3, 6]
    data = [
        fc.data.ClientDataset.from_columns((rng.normal(size=(n, 6)).astype("f"), rng.integers(0, 3, n))).batch(4)
        for n in sizes
    ]

    def model_fn():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "relu"), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(model, loss, data[0].element_spec)

    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
    start = process.initialize.invoke(seed=0)

    def weights(most_waiting: float):
        monkeypatch.setattr(schedule, "MOST_WAITING", most_waiting)
        with fc.use(fc.runtime.local()):
            state, _ = process.next(start, data)
        return [np.asarray(w).tobytes() for w in state.model.trainable]

    assert weights(0.0) == weights(1.0)


@pytest.mark.parametrize(("counts", "size"), [([1], 2), ([3], 4), ([5, 2], 8), ([20], 20), ([17], 20), ([], 2)])
def test_batches_are_padded_to_a_power_of_two_up_to_the_datasets_size(counts, size):
    columns = [fc.data.ClientDataset.from_columns(np.zeros(n, "f")).batch(20).columns for n in counts or [0]]
    orders = [c.read(0) for c in columns]
    assert padded_size(orders, columns, ScheduleRules(2)) == size
    assert padded_size(orders, columns, ScheduleRules(2, products="each")) == 20
