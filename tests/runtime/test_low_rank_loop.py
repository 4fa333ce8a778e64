"""Kernels that a loop over clients keeps as a shared kernel plus factors, where a stage trains convolutions."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from local_runtimes import shared_runtime

import fedcore as fc
from fedcore.context import last_report, plan_of
from fedcore.graphs.batched.low_rank import LowRank
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import new_region
from fedcore.graphs.emission.region_function import region_function
from fedcore.runtime.clients.client_source import UnreadRun, longest_first
from fedcore.testing.faults import out_of_memory

BATCH = 5  # the kernel 36 x 512 breaks even at rank 33: 6 steps
SIZES = (33, 4, 0, 61, 12)  # up to 13 steps: factors are added up twice
OPTIMIZERS = {
    "sgd": keras.optimizers.SGD(0.1),
    "nesterov and decay": keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
}


def model_fn():
    stack = [
        keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
        keras.layers.MaxPool2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dropout(0.3, seed=1),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential([keras.Input((6, 6, 1)), *stack])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    spec = (tf.TensorSpec([None, 6, 6, 1]), tf.TensorSpec([None], tf.int32))
    return fc.learning.models.from_keras_model(model, loss=loss, input_spec=spec)


@pytest.fixture(scope="module")
def processes():
    return {
        name: fc.learning.algorithms.build_weighted_fed_avg(model_fn, client_optimizer_fn=optimizer)
        for name, optimizer in OPTIMIZERS.items()
    }


def examples(sizes, scale: float = 1.0) -> list:
    rng = np.random.default_rng(0)
    columns = [(rng.normal(size=(n, 6, 6, 1)).astype("f") * scale, rng.integers(0, 3, n).astype("i")) for n in sizes]
    return [fc.data.ClientDataset.from_columns(c) for c in columns]


def clients(sizes=SIZES, scale: float = 1.0) -> list:
    return [of_client.batch(BATCH) for of_client in examples(sizes, scale)]


def one_round(process, data, runtime) -> list[np.ndarray]:
    with fc.use(runtime, seed=3):
        state = process.next(process.initialize(), data).state
    return [np.asarray(w) for w in state.global_model_weights.trainable]


def same_bits(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def plan(process, **settings) -> str:
    with fc.use(shared_runtime(**settings)):
        return str(plan_of(process.next.module))


def test_the_plan_of_a_loop_says_what_its_options_chose(processes):
    process = processes["sgd"]
    assert "{strategy=loop, block=4, parallel=4, low_rank=" in plan(process)
    assert "{strategy=loop, block=1, why=" in plan(process, low_rank=False)
    assert "{strategy=loop, block=1, compute_dtype=bfloat16, why=" in plan(process, compute_dtype="bfloat16")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_low_rank_training_agrees_with_dense_training(processes, optimizer):
    process, data = processes[optimizer], clients()
    with fc.use(shared_runtime()):
        plan = plan_of(process.next.module).function("clients").attributes
    assert (plan["strategy"], plan["low_rank"]) == ("loop", 33)
    low = one_round(process, data, shared_runtime())
    dense = one_round(process, data, shared_runtime(low_rank=False))
    assert not same_bits(low, dense)  # it is another strategy
    for x, y in zip(low, dense, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


NO_MORE_STEPS = (30, 12, 4, 0, 20)  # the factors of a block stay factors


@pytest.mark.parametrize(
    ("sizes", "block"),
    [
        *((sizes, "auto") for sizes in (NO_MORE_STEPS, SIZES)),
        (NO_MORE_STEPS, 2),
        *(pytest.param((33, 12), block, marks=pytest.mark.soak) for block in ("auto", 2, 1)),
        *(pytest.param(SIZES, block, marks=pytest.mark.soak) for block in (2, 1)),
    ],
)
def test_the_bits_depend_neither_on_workers_nor_on_memory(processes, sizes, block):
    process, data = processes["sgd"], clients(sizes)
    expected = one_round(process, data, shared_runtime(workers_per_device=2, block_size=block))
    devices = shared_runtime(client_devices=("CPU:0",) * 3, workers_per_device=1, block_size=block)
    assert same_bits(expected, one_round(process, data, devices))
    if block == 1:
        return
    runtime = fc.runtime.local(workers_per_device=1, block_size=block)
    with out_of_memory(runtime, "CPU:0", calls=range(1)) as failed:
        found = one_round(process, data, runtime)
    assert "in calls of 1 client" in last_report().notes[-1]
    runtime.close()
    assert failed
    assert same_bits(expected, found)


@pytest.mark.parametrize("at", [0, 3, *(pytest.param(at, marks=pytest.mark.soak) for at in (1, 2))])
def test_a_block_whose_client_is_dropped_has_the_bits_of_the_others(processes, at):
    """In another call the clients behind it have other numbers, and so other seeds; the network draws."""
    data = clients((30, 12, 20, 7))
    poisoned = list(data)
    poisoned[at] = clients((9,), scale=np.nan)[0]
    emptied = list(data)
    emptied[at] = clients((0,))[0]
    expected = one_round(processes["sgd"], emptied, shared_runtime())
    assert same_bits(one_round(processes["sgd"], poisoned, fc.runtime.local()), expected)


def test_clients_of_other_layouts_run_dense_in_their_blocks(processes):
    data = clients((30, 12, 20, 7, 9, 15))
    data[5] = data[5].map(lambda x, y: (x * 1.0, y))
    low = one_round(processes["sgd"], data, shared_runtime())
    dense = one_round(processes["sgd"], data, shared_runtime(low_rank=False))
    for x, y in zip(low, dense, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())
    devices = fc.runtime.local(client_devices=["CPU:0"] * 2, workers_per_device=1)
    assert same_bits(low, one_round(processes["sgd"], data, devices))


def halved(x, y):
    return x * 0.5, y


def moved_by_a_branch(x, y):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: x - 1.0), y


def row_by_row(x, y):
    return tf.map_fn(lambda row: row + 1.0, x), y


def printed(x, y):
    tf.print(tf.shape(x), output_stream="file:///dev/null")
    return x, y


@pytest.mark.parametrize(
    ("of_examples", "of_batches", "notes"),
    [
        (halved, halved, 0),
        (moved_by_a_branch, row_by_row, 0),
        (halved, printed, 1),  # several clients would print at once: they run client by client
    ],
)
def test_clients_train_on_mapped_examples_and_batches(processes, of_examples, of_batches, notes):
    data = [of_client.map(of_examples).batch(BATCH).map(of_batches) for of_client in examples((30, 12, 4))]
    low = one_round(processes["sgd"], data, shared_runtime())
    assert len(last_report().notes) == notes
    dense = one_round(processes["sgd"], data, shared_runtime(low_rank=False))
    assert same_bits(low, dense) == bool(notes)
    for x, y in zip(low, dense, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


def test_a_client_that_is_not_finite_is_left_out(processes):
    poisoned = [*clients((12,)), *clients((7,), scale=np.inf)]
    expected = one_round(processes["sgd"], clients((12,)), shared_runtime())
    assert same_bits(one_round(processes["sgd"], poisoned, fc.runtime.local()), expected)


def results_of(body) -> list[np.ndarray]:
    """The results of a function that builds a region."""
    return [t.numpy() for t in region_function(new_region([], body), name="matrices")()]


@pytest.mark.parametrize(
    ("left", "right", "finite"),
    [
        ([1.0, -1.0], [1.0, 1.0], True),
        ([1e30, -1e30], [1e30, 1e30], False),  # the entries overflow
        ([1e25, -1e25], [1.0, 1.0], True),  # the norms overflow, no entry does
        ([np.inf, 0.0], [0.0, 0.0], False),
        ([1.0, 0.0], [0.0, np.nan], False),
    ],
)
def test_finite_matrices_are_told_from_others_by_their_factors(left, right, finite):
    def body():
        factors = tuple(ops.constant([[[0.5, 2.0]], [row]], tf.float32) for row in (left, right))
        own = ops.constant([[[1.0, 2.0], [3.0, np.inf if k else 0.0]] for k in range(2)])
        product = LowRank((2, 2), 2, factors=(factors,))
        both = LowRank((2, 2), 2, ((own, 2.0),), (factors,))
        return [product.dense(), *(ops.is_finite(m.finiteness_of_sum()) for m in (product, both))]

    dense, of_product, of_both = results_of(body)
    assert of_product.tolist() == [True, finite]
    assert np.isfinite(dense[1]).all() == finite
    assert of_both.tolist() == [True, False]


def test_choices_are_those_of_the_dense_matrix():
    rng = np.random.default_rng(1)
    left, right, own = (rng.normal(size=s).astype("f") for s in ((2, 6, 9), (2, 6, 7), (2, 9, 7)))

    def body():
        shared, scale = ops.ones([9, 7]), ops.constant([0.5, np.nan])
        factors = ops.constant(left) * scale[:, None, None], ops.constant(right)
        matrix = LowRank((9, 7), 2, ((ops.constant(own), 2.0), (shared, scale)), (factors,))
        return [matrix.dense(), matrix.or_zero(ops.constant([True, False])).dense()]

    dense, found = results_of(body)
    np.testing.assert_array_equal(found[0], dense[0])
    assert not np.any(found[1])


def test_the_longest_of_a_few_slices_come_first():
    slices = [UnreadRun(i, 1, i, [(client,)]) for i, client in enumerate(clients((4, 12, 0, 12, 1, 1, 1, 1, 30)))]
    assert [s.index for s in longest_first(iter(slices))] == [1, 3, 0, 4, 5, 6, 7, 2, 8]
