"""The methods of `tf.data` on a sequence parameter inside a body: rows as `tf.data` gives them, or a refusal."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TracingError

Point = collections.namedtuple("Point", ["x", "y"])
ROWS = fc.SequenceType("int64")
COUNT = 7


def rows(dataset):
    return dataset.reduce(tf.zeros([0], tf.int64), lambda found, x: tf.concat([found, tf.reshape(x, [-1])], 0))


def draws(dataset):
    """The first parts of the elements, one after the other."""
    return dataset.reduce(tf.zeros([0]), lambda found, element: tf.concat([found, tf.reshape(element[0], [-1])], 0))


def inside(pipeline) -> fc.Computation:
    return fc.tf_computation(ROWS)(lambda ds: rows(pipeline(ds)))


def odd(x):
    return x % 2 == 1


METHODS = {
    "filter": lambda d: d.filter(odd),
    "filter, then cache": lambda d: d.filter(odd).cache().prefetch(1),
    "concatenate": lambda d: d.concatenate(d.take(2)),
    "concatenate to a real one": lambda d: d.filter(odd).concatenate(tf.data.Dataset.range(2)),
    "flat_map": lambda d: d.flat_map(lambda x: tf.data.Dataset.range(x)),
    "interleave": lambda d: d.interleave(lambda x: tf.data.Dataset.range(x), cycle_length=2),
    "padded_batch": lambda d: d.padded_batch(3),
    "take_while": lambda d: d.take_while(lambda x: x < 4),
    "unbatch": lambda d: d.batch(3).unbatch(),
    "window": lambda d: d.window(2).flat_map(lambda w: w.batch(2)),
    "enumerate": lambda d: d.enumerate(3).map(lambda i, x: i * x),
    "shard": lambda d: d.shard(2, 1),
    "scan": lambda d: d.scan(tf.constant(0, tf.int64), lambda total, x: (total + x, total + x)),
    "unique": lambda d: d.map(lambda x: x % 3).unique(),
    "rebatch": lambda d: d.batch(2).rebatch(3),
    "zip": lambda d: d.zip(d, d.skip(1)).map(lambda a, b: a * 10 + b),
    "apply": lambda d: d.apply(lambda e: e.skip(1)),
    "group_by_window": lambda d: d.group_by_window(lambda x: x % 2, lambda key, w: w.batch(2), window_size=2),
    "choose_from_datasets": lambda d: d.choose_from_datasets([d, d.skip(2)], tf.data.Dataset.range(2).repeat(3)),
    "skip all": lambda d: d.skip(-1),
}
SHUFFLES = {
    "shuffle": lambda d: d.shuffle(4, seed=3),
    "seed 0": lambda d: d.shuffle(4, seed=0),
    "epochs": lambda d: d.shuffle(4, seed=3).repeat(2).batch(3),
    "the same each epoch": lambda d: d.shuffle(4, seed=3, reshuffle_each_iteration=False).repeat(2),
    "cached": lambda d: d.shuffle(4, seed=3).cache().repeat(2),
    "a part": lambda d: d.shuffle(4, seed=3).take(3).repeat(2),
    "nested": lambda d: d.map(lambda x: x + 1).batch(2).shuffle(4, seed=3).unbatch().shuffle(3, seed=2).repeat(2),
}
ALL = METHODS | SHUFFLES


@pytest.mark.parametrize("name", ALL)
def test_a_method_gives_the_rows_of_tf_data(name):
    want = rows(ALL[name](tf.data.Dataset.range(COUNT))).numpy().tolist()
    assert inside(ALL[name]).invoke(np.arange(COUNT), seed=5).tolist() == want


def test_every_iteration_of_a_seeded_shuffle_has_the_order_of_tf_data():
    @fc.tf_computation(ROWS)
    def epochs(ds):
        shuffled = ds.shuffle(COUNT, seed=3)
        found = rows(shuffled)
        for _ in tf.range(2):
            for x in shuffled:
                tf.autograph.experimental.set_loop_options(shape_invariants=[(found, tf.TensorShape([None]))])
                found = tf.concat([found, [x]], 0)
        return found

    shuffled = tf.data.Dataset.range(COUNT).shuffle(COUNT, seed=3)
    assert epochs(np.arange(COUNT)).tolist() == [int(x) for _ in range(3) for x in shuffled]


def test_clients_train_over_a_seeded_shuffle_on_both_runtimes():
    batches = fc.SequenceType(fc.TensorType("float32", [None]))

    @fc.tf_computation(batches)
    def trained(ds):
        weight = tf.Variable(1.0)
        for batch in ds.shuffle(10, seed=1):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(weight * batch - 2.0 * batch))
            weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return weight.read_value()

    everywhere = fc.federated_computation(
        lambda data: fc.federated_map(trained, data), fc.FederatedType(batches, fc.CLIENTS)
    )
    data = [np.float32([1, 2]), np.float32([3, 4]), np.float32([5])]
    weight = 1.0
    for k in tf.data.Dataset.range(3).shuffle(10, seed=1):
        weight -= 0.01 * np.mean(2 * (weight - 2) * data[k] ** 2)
    for runtime in (fc.runtime.local(workers_per_device=1), fc.runtime.reference()):
        with fc.use(runtime):
            np.testing.assert_allclose(everywhere([data] * 3), [weight] * 3, rtol=1e-6)


DRAWN = {
    "one": lambda d: d.shuffle(COUNT),
    "then another method": lambda d: d.shuffle(COUNT).filter(lambda x: x >= 0),
    "then steps": lambda d: d.shuffle(COUNT).map(lambda x: x + 1).batch(2),
    "epochs": lambda d: d.shuffle(COUNT).repeat(3),
    "epochs after another method": lambda d: d.filter(lambda x: x >= 0).shuffle(COUNT).repeat(3),
    "of a real dataset": lambda d: tf.data.Dataset.range(COUNT).shuffle(COUNT).repeat(2),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_shuffle_without_a_seed_follows_the_calls(name):
    computation = inside(DRAWN[name])
    first, again, *others = (computation.invoke(np.arange(COUNT), seed=s).tolist() for s in (1, 1, 2, 3, 4))
    assert first == again
    assert any(first != other for other in others)
    epochs = np.reshape(first, [-1, COUNT])
    assert len({tuple(sorted(epoch)) for epoch in epochs.tolist()}) == 1
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == len(epochs)


@pytest.mark.parametrize("method", ["cache", "fixed"])
def test_a_fixed_order_is_that_of_every_epoch_and_part(method):
    def kept(ds):
        return ds.shuffle(COUNT).cache() if method == "cache" else ds.shuffle(COUNT, reshuffle_each_iteration=False)

    @fc.tf_computation(ROWS)
    def parts(ds):
        order = kept(ds)
        return rows(order.repeat(2)), rows(order.take(3)), rows(order.skip(3).filter(lambda x: x >= 0))

    whole, left, right = (found.tolist() for found in parts.invoke(np.arange(COUNT), seed=1))
    assert whole == 2 * (left + right)


@pytest.mark.parametrize(
    "pipeline",
    [
        lambda d: d.map(lambda x: (tf.random.uniform([x]), x)).cache(),
        lambda d: d.map(lambda x: (tf.random.uniform([x]), x)).shuffle(3).cache().map(lambda a, x: (a, x)),
        lambda d: d.map(lambda x: tf.random.uniform([])).map(lambda a: (a, 1)).batch(2).cache().unbatch(),
    ],
    ids=["map", "shuffle", "batch"],
)
def test_a_cache_keeps_what_a_map_drew(pipeline):
    @fc.tf_computation(ROWS)
    def twice(ds):
        cached = pipeline(ds)
        return draws(cached), draws(cached.repeat(2)), draws(pipeline(ds))

    first, epochs, others = twice.invoke(np.arange(COUNT), seed=1)
    assert len(set(first.tolist())) == len(first) > 0
    assert epochs.tolist() == 2 * first.tolist()
    assert sorted(others.tolist()) != sorted(first.tolist())


REFUSED = {
    "as_numpy_iterator": (lambda d: d.as_numpy_iterator(), r"no \.as_numpy_iterator\(\): .* use a for loop"),
    "rejection_resample": (
        lambda d: d.rejection_resample(lambda x: 0, [1.0]),
        r"no \.rejection_resample\(\): what it draws follows no seed of the call; use \.filter\(\)",
    ),
    "save": (lambda d: d.save("x"), r"no \.save\(\): a graph writes no files"),
    "cache in a file": (lambda d: d.cache("x"), r"is not cached in a file"),
    "ragged_batch": (lambda d: d.ragged_batch(2), r"no \.ragged_batch\(\): .* use \.padded_batch\(n\)"),
    "range": (lambda d: d.range(3), r"no \.range\(\): .* call that of tf\.data\.Dataset"),
    "repeat": (lambda d: d.repeat(), r"repeat\(n\)"),
    "repeat -1": (lambda d: d.repeat(-1), r"repeat\(n\)"),
    "an empty buffer": (lambda d: d.shuffle(0), "the buffer of a shuffle holds at least one element, not 0"),
    "an empty batch": (lambda d: d.batch(0), "a batch has at least one element, not 0"),
    "an argument of a real dataset": (
        lambda d: tf.data.Dataset.range(2).concatenate(d),
        r"takes a tf\.data\.Dataset only: give it \.real\(\) of the sequence",
    ),
    "draws in a function of a dataset": (
        lambda d: d.filter(lambda x: tf.random.uniform([]) < 0.5),
        "draws random numbers in a function of the op FilterDataset",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_in_a_body_is_refused_with_what_to_do(name):
    pipeline, text = REFUSED[name]
    with pytest.raises(TracingError, match=text):
        fc.tf_computation(ROWS)(pipeline)


def test_no_such_method_is_an_attribute_error():
    with pytest.raises(AttributeError, match="a sequence inside a graph has no 'fold', nor has"):
        fc.tf_computation(ROWS)(lambda ds: ds.fold(0))


ZIPS = {
    "a pair": lambda a, b: tf.data.Dataset.zip((a, b)).map(lambda x, y: x + y),
    "arguments": lambda a, b: tf.data.Dataset.zip(a, b).map(lambda x, y: x + y),
    "a dict": lambda a, b: tf.data.Dataset.zip({"x": a, "y": b.map(lambda v: v * 1)}).map(lambda e: e["x"] + e["y"]),
    "with a real dataset": lambda a, b: tf.data.Dataset.zip((a, b.real())).map(lambda x, y: x + y),
    "real datasets": lambda a, b: tf.data.Dataset.zip((a.real(), b.real())).map(lambda x, y: x + y),
}


@pytest.mark.parametrize("name", ZIPS)
def test_sequences_are_zipped(name):
    sums = fc.tf_computation(ROWS, ROWS)(lambda a, b: rows(ZIPS[name](a, b)))
    assert sums([1, 2, 3], [10, 20]).tolist() == [11, 22]


def test_the_zip_of_sequences_is_a_loop_over_gathers():
    product = fc.tf_computation(ROWS, ROWS)(
        lambda a, b: tf.data.Dataset.zip((a, b)).reduce(np.int64(0), lambda s, pair: s + pair[0] * pair[1])
    )
    assert not any(b"ZipDataset" in blob for blob in product.module.blobs.values())
    assert product([1, 2, 3], [4, 5, 6]) == 32


def test_a_zip_shuffles_each_of_its_sequences_by_the_seed_of_the_call():
    pairs = fc.tf_computation(ROWS, ROWS)(
        lambda a, b: rows(tf.data.Dataset.zip((a.shuffle(9), b)).map(lambda x, y: 10 * x + y))
    )
    first, again = (pairs.invoke([1, 2, 3, 4], [5, 6, 7, 8], seed=3).tolist() for _ in range(2))
    assert first == again
    assert sorted(x // 10 for x in first) == [1, 2, 3, 4]
    assert [x % 10 for x in first] == [5, 6, 7, 8]


def test_the_zip_of_real_datasets_is_that_of_tf_data():
    assert [tuple(map(int, p)) for p in tf.data.Dataset.zip(tf.data.Dataset.range(2), tf.data.Dataset.range(9))] == [
        (0, 0),
        (1, 1),
    ]


def test_a_named_tuple_is_one_argument_of_a_map():
    point = fc.to_type(Point("int64", "int64"))
    total = fc.tf_computation(fc.SequenceType(point))(lambda ds: rows(ds.map(lambda p: p.x + p.y)))
    assert total([Point(1, 2), Point(3, 4)]).tolist() == [3, 7]
    columns = fc.data.ClientDataset.from_columns(Point(np.arange(2), np.arange(2)))
    assert [int(x) for x in columns.map(lambda p: p.x + p.y)] == [0, 2]
