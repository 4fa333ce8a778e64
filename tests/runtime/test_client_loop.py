"""A loop over the clients of a block in one graph has the bits of a call for each client."""

import contextlib
from collections.abc import Iterator

import attrs
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.compiler import compile_module
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.stages import client_loop
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.tensors.cancellation import Cancellation
from fedcore.runtime.clients import client_calls
from fedcore.testing.faults import out_of_memory

BATCH = fc.StructType([("x", fc.TensorType("float32", (None, 6))), ("y", fc.TensorType("float32", (None,)))])
WEIGHTS = fc.TensorType("float32", (6,))


@fc.tf_computation(WEIGHTS, BATCH)
def step(w, batch):
    error = tf.linalg.matvec(batch["x"], w) - batch["y"]
    return w - 0.1 * tf.linalg.matvec(batch["x"], error, transpose_a=True)


@fc.tf_computation(WEIGHTS, "float32", WEIGHTS)
def scaled_change(trained, share, start):
    noise = tf.random.stateless_normal([6], seed=[1, 2]) * 1e-3
    return (trained - start) * share + noise


@fc.tf_computation
def draw():
    return tf.random.normal([6])


@fc.federated_computation(
    fc.FederatedType(fc.SequenceType(BATCH), fc.CLIENTS),
    fc.FederatedType("float32", fc.CLIENTS),
    fc.FederatedType(WEIGHTS, fc.SERVER),
)
def trained(batches, shares, weights):
    """A sequence and a tensor of each client, and a broadcast; clients draw, too."""
    start = fc.federated_broadcast(weights)
    ends = fc.federated_map(lambda s, w: fc.sequence_reduce(s, w, step), (batches, start))
    changes = fc.federated_map(scaled_change, (ends, shares, start))
    drawn = fc.federated_eval(draw, fc.CLIENTS)
    return fc.federated_mean(changes, shares), fc.federated_sum(drawn)


def plan(computation=trained, **attributes):
    module = compile_module(computation.to_module("traced"))
    return attrs.evolve(
        module,
        functions=tuple(
            attrs.evolve(f, attributes={"strategy": "loop", **attributes}) if "strategy" in f.attributes else f
            for f in module.functions
        ),
    )


def arguments(clients: int) -> list:
    rng = np.random.default_rng(7)
    sets = []
    for i in range(clients):
        rows = 0 if i == 2 else int(rng.integers(1, 12))
        x, y = rng.normal(size=(rows, 6)).astype(np.float32), rng.normal(size=rows).astype(np.float32)
        data = fc.data.ClientDataset.from_columns({"x": x, "y": y})
        sets.append(data.shuffle(100).batch(4) if i < 8 else data.batch(5))  # clients differ in batches and orders
    shares = rng.uniform(0.5, 2.0, clients).astype(np.float32)
    return [sets, list(shares), rng.normal(size=6).astype(np.float32)]


def run(module, given, **runtime) -> tuple[list[bytes], list[str]]:
    report = fc.runtime.Report(seed=5)
    local = fc.runtime.local(**runtime)
    try:
        result = local.run(module, given, report)
    finally:
        local.close()
    return [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(result)], report.notes


@pytest.fixture
def loops(monkeypatch) -> list:
    """The numbers of clients at once of the loops that are realized."""
    realized = []

    def realize(*args, parallel, **options):
        realized.append(parallel)
        return client_loop.realize_loop(*args, parallel=parallel, **options)

    monkeypatch.setattr(client_calls, "realize_loop", realize)
    return realized


@contextlib.contextmanager
def no_loops() -> Iterator[None]:
    """Inside, each client has a call of its own, from the partial of the client before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_calls, "is_loopable", lambda stage: False)
        yield


@pytest.fixture(scope="module")
def given() -> list:
    return arguments(19)


@pytest.fixture(scope="module")
def expected(given) -> list[bytes]:
    with no_loops():
        return run(plan(block=4), given)[0]


@pytest.mark.parametrize(("parallel", "workers"), [(2, 1), (4, 2), (16, 3)])
def test_bits_are_those_of_the_clients_one_after_another(given, expected, loops, parallel, workers):
    bits, notes = run(plan(block=4, parallel=parallel), given, workers_per_device=workers)
    assert bits == expected
    assert set(loops) == {parallel}
    assert not [n for n in notes if "@clients" in n]


def test_a_block_of_one_client_needs_no_loop(given, loops):
    run(plan(block=1, parallel=4), given)
    assert not loops


def test_blocks_of_several_sizes_share_a_graph(loops):
    run(plan(block=4), arguments(7))
    assert loops == [4]  # for the block of 4 clients and that of 3; 4 at once where the plan says nothing


def test_large_arrays_are_added_one_by_one_without_a_copy_of_all(loops, monkeypatch):
    """They have the bits of the loop over all of them."""
    size = (client_calls.SHARED_BYTES >> 2) + 3
    arrays = list(np.random.default_rng(0).normal(size=(5, size)).astype("f"))
    of_client = fc.TensorType("float32", (size,))

    @fc.federated_computation(fc.FederatedType(of_client, fc.CLIENTS))
    def mean(values):
        return fc.federated_mean(values)

    module = plan(mean, block=8, parallel=1)
    alone, _ = run(module, [arrays])
    assert loops == []
    monkeypatch.setattr(client_calls, "SHARED_BYTES", 1 << 40)
    assert run(module, [arrays])[0] == alone
    assert loops == [1]


def test_no_clients_need_no_loop(loops):
    none = [[], [], np.zeros(6, np.float32)]
    assert run(plan(block=4, parallel=4), none)[0] == run(plan(block=1), none)[0]
    assert not loops


def test_a_client_that_fails_is_dropped_and_the_others_have_their_bits(loops):
    def sum_of(module):
        failing = [1.0, float("nan"), 2.0, 4.0, 8.0]
        local = fc.runtime.local(on_client_failure=fc.runtime.drop())
        try:
            return local.run(module, [failing], fc.runtime.Report(seed=1))
        finally:
            local.close()

    @fc.tf_computation("float32")
    def checked(x):
        with tf.control_dependencies([tf.debugging.assert_all_finite(x, "not finite")]):
            return x * 0.1

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def total(xs):
        return fc.federated_sum(fc.federated_map(checked, xs))

    module = plan(total, block=4)
    looped = sum_of(module)
    assert loops
    with no_loops():
        assert sum_of(module) == looped


VALUES = fc.FederatedType(("float32", [3]), fc.CLIENTS)


def in_blocks(computation, clients: list, block: int = 4) -> list[bytes]:
    with fc.use(fc.runtime.local(vectorize=False, block_size=block, workers_per_device=1)):
        return [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(computation(clients))]


@fc.tf_computation(("float32", [3]))
def halves(x):
    return x / 3.0, tf.reduce_sum(x)


@fc.federated_computation(VALUES)
def sum_and_values(xs):
    mine = fc.federated_map(halves, xs)
    return fc.federated_sum(mine[0]), mine


@fc.federated_computation(VALUES)
def only_values(xs):
    return fc.federated_map(halves, xs)


@pytest.mark.parametrize("computation", [sum_and_values, only_values], ids=lambda c: c.__name__)
def test_values_that_are_kept_come_out_of_the_loop(computation, loops):
    clients = list(np.random.default_rng(2).normal(size=(11, 3)).astype(np.float32))
    looped = in_blocks(computation, clients)
    assert len(loops) == 1  # for the blocks of 4 clients and that of 3
    with no_loops():
        assert in_blocks(computation, clients) == looped


@fc.tf_computation(("float32", [3]))
def printed(x):
    with tf.control_dependencies([tf.print("a client")]):
        return x * 0.1


@fc.tf_computation(("float32", [3]))
def counted(x):
    total = tf.Variable(x)
    total.assign_add(x)
    return total.read_value()


@pytest.mark.parametrize("work", [printed, counted], ids=["prints", "keeps state"])
def test_clients_whose_graphs_print_or_keep_state_have_calls_of_their_own(work, loops):
    @fc.federated_computation(VALUES)
    def total(xs):
        return fc.federated_sum(fc.federated_map(work, xs))

    clients = list(np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32))
    np.testing.assert_allclose(
        np.frombuffer(in_blocks(total, clients)[0], "f"), (0.1 if work is printed else 2) * np.sum(clients, 0), 1e-5
    )
    assert not loops


@fc.federated_computation(VALUES)
def plain_sum(xs):
    return fc.federated_sum(xs)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_the_sign_of_a_zero_does_not_depend_on_memory(count):
    clients = [np.full(3, -0.0, np.float32)] * count
    looped = in_blocks(plain_sum, clients)
    assert looped == [np.zeros(3, np.float32).tobytes()]
    runtime = fc.runtime.local(vectorize=False, block_size=4, workers_per_device=1)
    with fc.use(runtime), out_of_memory(runtime, "CPU:0", calls=[0]):
        for _ in range(2) if count > 1 else ():
            assert [np.asarray(plain_sum(clients)).tobytes()] == looped
    runtime.close()


def test_the_zeros_of_a_partial_are_no_constant_that_stays_alive():
    """TensorFlow would compute a Fill of known size once, and keep it."""
    size = 600

    @fc.tf_computation(fc.SequenceType(fc.TensorType("float32", (size, size))))
    def last(rows):
        return rows.reduce(tf.zeros([size, size]), lambda _, row: row)

    @fc.federated_computation(fc.FederatedType(fc.SequenceType(fc.TensorType("float32", (size, size))), fc.CLIENTS))
    def total(rows):
        return fc.federated_sum(fc.federated_map(last, rows))

    module = compile_module(total.to_module("traced"))
    (stage,) = [f for f in module.functions if "strategy" in f.attributes]
    names = [f.name for f in module.functions if f.name != stage.name]
    zero = next(n for n in names if n.startswith("zero"))
    join = next(n for n in names if n.startswith("join"))
    client_stage = ClientStage(module, zero, stage.name, join, 0, False, ())
    layout = Layout(fc.TensorType("float32", (size, size)))
    realized = client_loop.realize_loop(client_stage, [layout], parallel=1)
    (loop,) = [op for op in realized.call.graph.get_operations() if op.type in ("While", "StatelessWhile")]
    fills = [t.op.inputs[0].op for t in loop.inputs if t.shape == (size, size) and t.op.type == "EnsureShape"]
    assert [op.type for op in fills] == ["Fill"]
    assert tf.get_static_value(fills[0].inputs[0]) is None
    rows = [tf.random.normal([2, size, size]) for _ in range(2)]
    columns = [tf.concat(rows, 0), tf.constant([0, 1, 2, 3], tf.int64), tf.constant([0, 2, 4], tf.int64)]
    partial, *_ = realized([tf.constant([1, 2], tf.int64), *columns], Cancellation())
    np.testing.assert_allclose(partial, rows[0][1] + rows[1][1], rtol=1e-6)
