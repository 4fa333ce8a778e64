"""Clients side by side in one call: what could differ from running them one after the other."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equal_rows import needs_equal_rows

import fedcore as fc
from fedcore.context import plan_of

BATCHES = fc.SequenceType(("float32", [None]))


@fc.tf_computation("float32", ("float32", [None]))
def step(total, batch):
    return total * 2.0 + tf.reduce_sum(batch) + tf.cast(tf.shape(batch)[0], tf.float32)


@fc.federated_computation(fc.FederatedType(BATCHES, fc.CLIENTS))
def steps(clients):
    return fc.federated_sum(fc.federated_map(lambda batches: fc.sequence_reduce(batches, 0.0, step), clients))


def client(rows: int, batch: int) -> fc.data.ClientDataset:
    return fc.data.ClientDataset.from_columns(np.arange(rows, dtype=np.float32)).batch(batch)


def by_hand(batches) -> float:
    total = 0.0
    for batch in batches:
        total = total * 2.0 + sum(batch) + len(batch)
    return total


def test_the_stage_is_vectorised():
    assert steps.to_module("planned").function("clients").attributes["strategy"] == "vectorised"


@pytest.mark.parametrize("sizes", [[(7, 2), (9, 5)], [(9, 5), (7, 2)], [(3, 100), (40, 8), (0, 4)]])
def test_clients_of_one_call_may_have_batches_of_different_sizes(sizes):
    want = sum(by_hand([list(range(n))[i : i + b] for i in range(0, n, b)]) for n, b in sizes)
    assert steps([client(n, b) for n, b in sizes]) == want


def test_an_empty_batch_is_a_step_and_ends_nothing():
    cohort = [[[1.0, 2.0], [], [3.0]], [[4.0], [5.0, 6.0]]]
    assert steps(cohort) == sum(map(by_hand, cohort))


def test_a_step_over_a_batch_may_loop_over_another_sequence():
    @fc.tf_computation("float32", ("float32", [None]))
    def add_rows(total, batch):
        return total + tf.reduce_sum(batch)

    @fc.federated_computation(fc.FederatedType(BATCHES, fc.CLIENTS), fc.FederatedType(BATCHES, fc.CLIENTS))
    def products(batches, others):
        def work(own, other):
            def repeated(total, batch):
                return fc.sequence_reduce(other, total, lambda inner_total, _: add_rows(inner_total, batch))

            return fc.sequence_reduce(own, 0.0, repeated)

        return fc.federated_sum(fc.federated_map(work, (batches, others)))

    batches, others = [[[1.0] * 3, [1.0] * 2], [[1.0] * 3, [1.0]]], [[[0.0] * 2, [0.0] * 3], [[0.0] * 3] * 3]
    assert products(batches, others) == 5 * 2 + 4 * 3


def test_a_map_over_batches_sees_the_rows_that_are_there():
    @fc.tf_computation(("float32", [None]))
    def mean(batch):
        return tf.reduce_sum(batch) / tf.cast(tf.shape(batch)[0], tf.float32)

    @fc.federated_computation(fc.FederatedType(BATCHES, fc.CLIENTS))
    def means(clients):
        return fc.federated_sum(fc.federated_map(lambda b: fc.sequence_sum(fc.sequence_map(mean, b)), clients))

    assert means.to_module("planned").function("clients").attributes["strategy"] == "vectorised"
    sizes = [(7, 2), (9, 5), (1, 3)]
    want = sum(np.mean(list(range(n))[i : i + b]) for n, b in sizes for i in range(0, n, b))
    np.testing.assert_allclose(means([client(n, b) for n, b in sizes]), want, rtol=1e-6)


@fc.tf_computation(("float32", "float32", "float32"), ("float32", [None]))
def running_mean(state, batch):
    steps, rows, mean = state
    steps, rows = steps + 1.0, rows + tf.cast(tf.shape(batch)[0], tf.float32)
    return steps, rows, mean + (tf.reduce_mean(batch) - mean) / steps


@fc.federated_computation(fc.FederatedType(BATCHES, fc.CLIENTS))
def running_means(clients):
    means = fc.federated_map(lambda b: fc.sequence_reduce(b, (0.0, 0.0, 0.0), running_mean), clients)
    return fc.federated_sum(means)


def test_a_total_that_a_step_goes_on_to_read_is_that_of_the_step():
    assert running_means.to_module("planned").function("clients").attributes["strategy"] == "vectorised"
    sizes = (7, 3, 20, 1, 9)
    batches = [[list(range(n))[i : i + 4] for i in range(0, n, 4)] for n in sizes]
    want = sum(map(len, batches)), sum(sizes), sum(np.mean([np.mean(b) for b in of_client]) for of_client in batches)
    np.testing.assert_allclose(running_means([client(n, 4) for n in sizes]), want, rtol=1e-6)


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_batches_in_order_give_the_bits_of_gathered_ones(drop_remainder):
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=n).astype(np.float32) for n in (7, 0, 23, 4, 9, 1, 8, 16, 5, 30, 2)]
    whole = [fc.data.ClientDataset.from_columns(c) for c in columns]
    in_order = [d.batch(4, drop_remainder=drop_remainder) for d in whole]
    gathered = [d.take(100).batch(4, drop_remainder=drop_remainder) for d in whole]
    assert steps(in_order) == steps(gathered)


@pytest.mark.parametrize(
    ("count", "start"),
    [
        *((77, 0.0), (77, 0.5), (64, 0.5), (9, 0.0), (1, 0.5)),
        *(pytest.param(*more, marks=pytest.mark.soak) for more in ((64, 0.0), (9, 0.5), (1, 0.0))),
    ],
)
def test_clients_in_order_add_up_to_the_bits_of_the_fold(count, start):
    @fc.tf_computation("float32")
    def spread(x):
        return tf.sin(x * tf.range(0.0, 5000.0)), x, tf.cast(x * 10, tf.int32)

    zero = (np.full(5000, start, np.float32), np.float32(start), np.int32(start))

    @fc.tf_computation(fc.to_type((("float32", (5000,)), "float32", "int32")), spread.type_signature.result)
    def add(total, value):
        return tuple(a + b for a, b in zip(total, value, strict=True))

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def total(clients):
        values = fc.federated_map(spread, clients)
        return fc.federated_aggregate(values, zero, add, add, fc.tf_computation(lambda x: x, add.type_signature.result))

    clients = np.random.default_rng(0).normal(size=count).astype(np.float32)
    clients[::5] = -0.0  # whose sums are negative zeros
    found = []
    for width in (12, 8, 16, 24, 32):  # groups that part a block, whose clients are folded; of 1, 2, 3 and 4 blocks
        runtime = fc.runtime.local(vectorize=width)
        with fc.use(runtime):
            assert total.to_module("planned").function("clients").attributes["block"] == 8
            found.append([np.asarray(leaf).tobytes() for leaf in total(clients)])
        runtime.close()
    assert all(f == found[0] for f in found)


@pytest.mark.parametrize("batch", [4, 2])
def test_clients_that_end_together_have_the_bits_of_those_that_do_not(batch):
    @fc.tf_computation("float32", ("float32", [None]))
    def waves(total, rows):
        return total * 1.1 + tf.reduce_sum(tf.sin(rows))

    @fc.federated_computation(fc.FederatedType(BATCHES, fc.CLIENTS))
    def total(clients):
        return fc.federated_sum(fc.federated_map(lambda b: fc.sequence_reduce(b, 0.0, waves), clients))

    rng = np.random.default_rng(0)
    alike = [fc.data.ClientDataset.from_columns(rng.normal(size=4).astype(np.float32)).batch(batch) for _ in range(11)]
    nothing = fc.data.ClientDataset.from_columns(np.zeros(9, np.float32)).batch(batch)  # takes more steps, adds 0
    assert total(alike).tobytes() == total([*alike, nothing]).tobytes()


def test_large_sums_have_the_same_bits_in_every_call():
    @fc.tf_computation(("float32", (160_000,)), ("float32", [None]))
    def spread(total, rows):
        return total + tf.sin(tf.reduce_sum(rows) * tf.range(1.0, 160_001.0))

    @fc.federated_computation(fc.FederatedType(BATCHES, fc.CLIENTS))
    def total(clients):
        start = np.zeros(160_000, np.float32)
        return fc.federated_sum(fc.federated_map(lambda b: fc.sequence_reduce(b, start, spread), clients))

    rng = np.random.default_rng(0)
    clients = [
        fc.data.ClientDataset.from_columns(rng.normal(size=n).astype(np.float32)).batch(2)
        for n in rng.integers(8, 13, 100)
    ]
    assert len({total(clients).tobytes() for _ in range(8)}) == 1


def test_leaves_of_every_place_and_size_are_merged_by_their_dtype():
    """A dtype of TensorFlow equals the number of its enumeration, so a leaf's place must not be taken for one."""
    shapes = [(), (5000,), (4,)]

    @fc.tf_computation("float32")
    def leaves(x):
        return [tf.cast(tf.fill(shapes[i % 3], x), dtype) for i in range(15) for dtype in (tf.int64, tf.float32)]

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def total(xs):
        return fc.federated_sum(fc.federated_map(leaves, xs))

    for i, found in enumerate(total([np.float32(k) for k in range(40)])):
        np.testing.assert_array_equal(found, np.full(shapes[i // 2 % 3], 780, found.dtype))


@pytest.mark.parametrize("join", [fc.federated_sum, fc.federated_mean, fc.federated_max])
@pytest.mark.parametrize("shapes", [[(0,)], [(2, 0)], [(), (0,), (0, 3), (4,)]])
def test_arrays_without_elements_are_joined(shapes, join):
    @fc.federated_computation(fc.FederatedType([("float32", shape) for shape in shapes], fc.CLIENTS))
    def joined(xs):
        return join(xs)

    found = joined([[np.ones(shape, np.float32) for shape in shapes]] * 40)
    assert [part.shape for part in found] == shapes
    assert all((part == (40 if join is fc.federated_sum else 1)).all() for part in found)


def images():
    stack = [keras.layers.Conv2D(8, 5, padding="same", activation="relu"), keras.layers.MaxPool2D()]
    stack += [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((12, 12, 1)), *stack])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    spec = (tf.TensorSpec([None, 12, 12, 1]), tf.TensorSpec([None], tf.int32))
    return fc.learning.models.from_keras_model(model, loss=loss, input_spec=spec)


def clients_with_images(sizes=(9, 4, 0, 7, 12)) -> list:
    rng = np.random.default_rng(0)
    columns = [(rng.normal(size=(n, 12, 12, 1)).astype("f"), rng.integers(0, 3, n).astype("i")) for n in sizes]
    return [fc.data.ClientDataset.from_columns(c).batch(4) for c in columns]


@needs_equal_rows
def test_shared_convolutions_give_the_same_bits_in_every_width():
    data = clients_with_images()
    process = fc.learning.algorithms.build_fed_eval(images)
    state, losses = process.initialize(), []
    for width in (2, 4):
        with fc.use(fc.runtime.local(vectorize=width)):
            losses.append(
                np.asarray(process.next(state, data).metrics["client_work"]["eval"]["current_round_metrics"]["loss"])
            )
    assert losses[0].tobytes() == losses[1].tobytes()


@needs_equal_rows
def test_gradients_of_shared_convolutions_are_vectorised_and_give_the_same_bits_in_every_width():
    data, weights = clients_with_images(), {}
    process = fc.learning.algorithms.build_fed_sgd(images)
    for width in ("auto", 3, 8, False):
        with fc.use(fc.runtime.local(vectorize=width), seed=3):
            assert ("strategy=vectorised" in str(plan_of(process.next.module))) is (width is not False)
            state = process.next(process.initialize(), data).state
        weights[width] = [np.asarray(w) for w in state.global_model_weights.trainable]
    for auto, three, eight, loop in zip(*weights.values(), strict=True):
        assert auto.tobytes() == three.tobytes() == eight.tobytes()
        np.testing.assert_allclose(auto, loop, rtol=0, atol=1e-5 * np.abs(loop).max())
