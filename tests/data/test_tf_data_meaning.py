"""Pipelines differ between epochs and calls where those of plain tf.data do, and their draws follow the call's seed."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc

COUNT = 6
X = np.arange(COUNT, dtype=np.float32)
BATCHES = fc.SequenceType(fc.TensorType("float32", [None]))
RUNTIMES = {
    "vectorised": fc.runtime.local(vectorize=2),
    "loop": fc.runtime.local(vectorize=False),
    "reference": fc.runtime.reference(),
}
SOURCES = {
    "tf.data": lambda: tf.data.Dataset.from_tensor_slices(X),
    "columns": lambda: fc.data.ClientDataset.from_columns(X),
}


@fc.tf_computation(BATCHES)
def values(batches):
    return batches.reduce(tf.zeros([0]), lambda found, batch: tf.concat([found, batch], 0))


@fc.federated_computation(fc.FederatedType(BATCHES, fc.CLIENTS))
def of_each(data):
    return fc.federated_map(values, data)


@functools.cache
def noise_layer() -> keras.layers.Layer:
    return keras.layers.GaussianNoise(1.0)


@functools.cache
def generator() -> tf.random.Generator:
    return tf.random.Generator.from_seed(1)


rng = np.random.default_rng(0)


def python_rows():
    for x in X:
        yield np.float32(x + rng.uniform())


def drawn(x):
    return x + tf.random.uniform([])


def seeded(x):
    return x + tf.random.uniform([], seed=3)


def in_python(x):
    return tf.ensure_shape(tf.numpy_function(lambda a: np.float32(a + rng.uniform()), [x], tf.float32), [])


def hundreds(x):
    return x + 100


def random_crop_begin() -> tf.Tensor:
    begin, _, _ = tf.image.sample_distorted_bounding_box(
        [10_000, 10_000, 3], tf.zeros([1, 0, 4]), use_image_if_no_bounding_boxes=True
    )
    return tf.cast(begin[0], tf.float32)


def shuffled_twice(combine):
    return lambda d: combine(d.shuffle(COUNT), d.shuffle(COUNT)).repeat(2)


def with_random(dataset, **options):
    pairs = tf.data.Dataset.zip((dataset, tf.data.Dataset.random(**options)))
    return pairs.map(lambda x, n: x + tf.cast(n % 1000, tf.float32)).repeat(2)


SEEDABLE = {
    "a map": lambda d: d.map(drawn).repeat(2),
    "a map after a repeat": lambda d: d.repeat(2).map(drawn),
    "a parallel map": lambda d: d.map(drawn, num_parallel_calls=2).prefetch(1).repeat(2),
    "a map that branches": lambda d: d.map(lambda x: tf.cond(x > 2, lambda: drawn(x), lambda: x)).repeat(2),
    "a map of batches": lambda d: d.batch(4).map(lambda b: b + tf.random.uniform(tf.shape(b))).repeat(2).unbatch(),
    "a map before a shuffle": lambda d: d.map(drawn).shuffle(COUNT).repeat(2),
    "a map before a fixed shuffle": lambda d: d.map(drawn).shuffle(COUNT, reshuffle_each_iteration=False).repeat(2),
    "two maps": lambda d: d.map(drawn).shuffle(4).map(lambda x: x + tf.random.normal([])).take(4).repeat(2),
    "a map before windows": lambda d: d.map(drawn).window(2).flat_map(lambda w: w.batch(2)).unbatch().repeat(2),
    "a parallel map before windows": lambda d: (
        d.map(drawn, num_parallel_calls=2).window(2).flat_map(lambda w: w.batch(2)).unbatch().repeat(2)
    ),
    "an operation that a graph refuses": lambda d: d.map(lambda x: x + random_crop_begin()).repeat(2),
    "a filter": lambda d: d.repeat(4).filter(lambda x: tf.random.uniform([]) < 0.5).take(6),
    "a filter after a map": lambda d: d.map(drawn).filter(lambda x: x < 3).repeat(2),
    "a scan": lambda d: d.scan(0.0, lambda s, x: (s + tf.random.uniform([]), x + s)).repeat(2),
    "zip": shuffled_twice(lambda a, b: tf.data.Dataset.zip((a, b)).map(lambda x, y: x + 10 * y)),
    "concatenate": shuffled_twice(lambda a, b: a.concatenate(b)),
    "choose_from_datasets": shuffled_twice(
        lambda a, b: tf.data.Dataset.choose_from_datasets([a, b], tf.data.Dataset.range(2).repeat()).take(6)
    ),
    "flat_map": lambda d: (
        d.batch(COUNT).flat_map(lambda b: tf.data.Dataset.from_tensor_slices(b).shuffle(COUNT)).repeat(2)
    ),
    "interleave": lambda d: d.interleave(lambda x: tf.data.Dataset.from_tensors(x).repeat(2)).shuffle(9).repeat(2),
    "sample_from_datasets": lambda d: tf.data.Dataset.sample_from_datasets([d, d.map(hundreds)]).take(6).repeat(2),
    "sample_from_datasets, seeded": lambda d: (
        tf.data.Dataset.sample_from_datasets([d, d.map(hundreds)], seed=5).take(6).repeat(2)
    ),
    "random": lambda d: with_random(d),
    "random, anew": lambda d: with_random(d, rerandomize_each_iteration=True),
    "a cache": lambda d: d.map(drawn).cache().repeat(2),
    "a shuffle and a cache": lambda d: d.shuffle(COUNT).map(drawn).cache().repeat(2),
    "a cache before windows": lambda d: (
        d.map(drawn).cache().window(2).flat_map(lambda w: w.batch(2)).unbatch().repeat(2)
    ),
    "a map after a cache": lambda d: d.cache().map(drawn).repeat(2),
    "a fixed shuffle": lambda d: d.shuffle(COUNT, reshuffle_each_iteration=False).repeat(2),
    "seeds of an operation": lambda d: d.map(seeded).repeat(2),
    "stateless": lambda d: d.map(lambda x: x + tf.random.stateless_uniform([], (1, 2))).repeat(2),
    "tf.random.Generator": lambda d: d.map(lambda x: x + generator().uniform([])).repeat(2),
    "a layer of Keras": lambda d: d.map(lambda x: noise_layer()(tf.reshape(x, [1, 1]), training=True)[0, 0]).repeat(2),
    "keras.random": lambda d: d.map(lambda x: x + keras.random.uniform([])).repeat(2),
}
PYTHON = {
    "numpy_function": lambda d: d.map(in_python).repeat(2),
    "numpy_function and a shuffle": lambda d: d.map(in_python).shuffle(COUNT).repeat(2),
    "numpy_function and a cache": lambda d: d.map(in_python).cache().repeat(2),
    "from_generator": lambda d: tf.data.Dataset.from_generator(
        python_rows, output_signature=tf.TensorSpec([], tf.float32)
    ).repeat(2),
}


def are_equal(readings) -> tuple[bool, bool]:
    """Whether the two epochs of the first reading are equal, and the two readings."""
    first, second = readings
    half = len(first) // 2
    return np.array_equal(first[:half], first[half:]), np.array_equal(first, second)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", {**SEEDABLE, **PYTHON})
def test_epochs_and_calls_differ_where_those_of_tf_data_do(name, source):
    pipeline = {**SEEDABLE, **PYTHON}[name]
    real, dataset = pipeline(SOURCES["tf.data"]()), pipeline(SOURCES[source]()).batch(3)
    reads = [[[float(x) for x in real] for _ in range(2)] for _ in range(4)]
    want = reads[0]
    have = [of_each.invoke([dataset], seed=seed)[0] for seed in (1, 2)]
    never_differ = [all(equal) for equal in zip(*map(are_equal, reads), strict=True)]  # once may be chance
    assert list(are_equal(have)) == never_differ
    assert [len(reading) for reading in have] == [len(reading) for reading in want]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", SEEDABLE)
def test_what_a_pipeline_draws_follows_the_seed_of_the_call(name, source):
    made = [SEEDABLE[name](SOURCES[source]()).batch(3) for _ in range(2)]
    first, again, other = (of_each.invoke([d], seed=1)[0].tolist() for d in (made[0], made[0], made[1]))
    assert first == again == other


@pytest.mark.parametrize("name", ["a map", "a map before windows", "zip", "a layer of Keras"])
def test_clients_of_equal_data_draw_for_themselves(name):
    dataset = SEEDABLE[name](SOURCES["tf.data"]()).batch(3)
    first, second = of_each([dataset, dataset])
    assert first.tolist() != second.tolist()


RANDOM_COLUMNS = {
    "a map": lambda d: d.map(drawn).repeat(2).batch(4),
    "a map of batches": lambda d: d.shuffle(3).batch(4).map(lambda b: b * tf.random.uniform([])).repeat(2),
    "batches of other sizes": lambda d: d.batch(4).map(lambda b: tf.repeat(b, tf.random.uniform([], 1, 4, tf.int32))),
    "maps around": lambda d: (
        d.map(lambda x: x * 2).map(drawn).shuffle(3).map(lambda x: -x).batch(4).map(lambda b: b + 1)
    ),
    "two maps": lambda d: d.map(drawn).shuffle(2).batch(4).map(lambda b: b + tf.random.uniform([])).repeat(2),
    "a cache": lambda d: d.shuffle(4).map(drawn).cache().repeat(2).batch(4),
    "a seeded shuffle": lambda d: d.map(drawn).shuffle(3, seed=1).repeat(2).batch(4),
    "no elements": lambda d: d.take(0).map(drawn).batch(4),
}


@pytest.mark.parametrize("name", RANDOM_COLUMNS)
def test_maps_that_draw_stay_columns_and_all_runtimes_draw_alike(name):
    dataset = RANDOM_COLUMNS[name](SOURCES["columns"]())
    assert isinstance(dataset, fc.data.ClientDataset)
    results = []
    for runtime in RUNTIMES.values():
        with fc.use(runtime):
            results.append([x.tolist() for x in of_each.invoke([dataset, dataset.take(1), dataset], seed=3)])
    assert results[0] == results[1] == results[2]


def test_every_element_that_a_map_makes_has_numbers_of_its_own():
    (found,) = of_each([SOURCES["columns"]().map(lambda x: tf.random.uniform([])).repeat(50).batch(4)])
    assert len(set(found.tolist())) == 50 * COUNT
    assert abs(found.mean() - 0.5) < 0.05


EXACT = {
    "an operation": lambda d: d.map(seeded).repeat(2),
    "an operation of batches": lambda d: d.batch(2).map(lambda b: b + tf.random.normal([2], seed=1)).unbatch(),
    "a map and a shuffle": lambda d: d.map(seeded).shuffle(4, seed=2).repeat(2),
    "a zip of shuffles": lambda d: (
        tf.data.Dataset.zip((d.shuffle(4, seed=1), d.shuffle(4, seed=2))).map(tf.add).repeat(2)
    ),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", EXACT)
def test_seeded_pipelines_have_the_numbers_of_tf_data(name, source):
    (found,) = of_each([EXACT[name](SOURCES[source]()).batch(3)])
    assert found.tolist() == [float(x) for x in EXACT[name](SOURCES["tf.data"]())]


@pytest.mark.parametrize("source", SOURCES)
def test_a_variable_that_changes_between_calls_is_read_in_each(source):
    scale = tf.Variable(1.0)
    dataset = SOURCES[source]().map(lambda x: x * scale).repeat(2).batch(3)
    first = of_each([dataset])[0]
    scale.assign(2.0)
    assert of_each([dataset])[0].tolist() == (2 * first).tolist()


@pytest.mark.parametrize("source", SOURCES)
def test_a_counter_that_a_map_keeps_counts_on(source):
    count = tf.Variable(0.0)
    dataset = SOURCES[source]().map(lambda x: x * 0 + count.assign_add(1.0)).batch(3)
    assert [of_each([dataset])[0][0] for _ in range(2)] == [1.0, COUNT + 1.0]


def test_a_dataset_that_cannot_differ_is_read_once():
    dataset = SOURCES["tf.data"]().map(lambda x: x + 1).batch(3)
    of_each([dataset])
    assert fc.context.last_report().notes == []


def test_files_that_change_between_calls_are_read_in_each(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("1\n2\n")
    dataset = tf.data.TextLineDataset(str(path)).map(tf.strings.to_number).repeat(2).batch(3)
    first = of_each([dataset])[0].tolist()
    path.write_text("3\n4\n")
    assert (first, of_each([dataset])[0].tolist()) == ([1, 2, 1, 2], [3, 4, 3, 4])
