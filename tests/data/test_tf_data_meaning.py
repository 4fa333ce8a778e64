"""Pipelines differ between epochs and calls where those of plain tf.data do, and their draws follow the call's seed."""

import functools
import tempfile

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
    "six maps before windows": lambda d: (
        functools.reduce(lambda mapped, k: mapped.map(lambda x: x + k * tf.random.uniform([])), range(6), d)
        .window(2)
        .flat_map(lambda w: w)
        .repeat(2)
    ),
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
    "tf.random.Generator before a cache": lambda d: (
        d.map(lambda x: x + generator().uniform([])).cache().window(2).flat_map(lambda w: w).repeat(2)
    ),
    "a layer of Keras before a cache": lambda d: (
        d.map(lambda x: noise_layer()(tf.reshape(x, [1, 1]), training=True)[0, 0]).cache().repeat(2)
    ),
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


def twice(dataset, combine):
    combined = combine((dataset, dataset))
    return combined.map(lambda x, y: x + 100 * y) if isinstance(combined.element_spec, tuple) else combined


def parts(dataset):
    return dataset.take(2).concatenate(dataset.skip(2))


EXACT = {
    "an operation": lambda d: d.map(seeded).repeat(2),
    "an operation of batches": lambda d: d.batch(2).map(lambda b: b + tf.random.normal([2], seed=1)).unbatch(),
    "a map and a shuffle": lambda d: d.map(seeded).shuffle(4, seed=2).repeat(2),
    "two readings of a shuffle": lambda d: twice(d.shuffle(4, seed=1), tf.data.Dataset.zip),
    "a shuffle and its next order": lambda d: twice(d.shuffle(4, seed=1), lambda ab: ab[0].concatenate(ab[1])),
    "a split and its parts": lambda d: parts(d.shuffle(4, seed=1, reshuffle_each_iteration=False)),
    "readings of a shuffle and a cache": lambda d: twice(
        d.shuffle(4, seed=1).cache().shuffle(4, seed=2), tf.data.Dataset.zip
    ),
    "rejection_resample": lambda d: (
        d.shuffle(4, seed=1)
        .rejection_resample(lambda x: tf.cast(x, tf.int32) % 2, [0.5, 0.5], seed=3)
        .map(lambda label, x: x)
    ),
    "random numbers anew": lambda d: twice(
        tf.data.Dataset.random(seed=4, rerandomize_each_iteration=True)
        .take(4)
        .map(lambda n: tf.cast(n % 99, tf.float32)),
        tf.data.Dataset.zip,
    ),
    "a zip of shuffles": lambda d: (
        tf.data.Dataset.zip((d.shuffle(4, seed=1), d.shuffle(4, seed=2))).map(tf.add).repeat(2)
    ),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", EXACT)
def test_seeded_pipelines_have_the_numbers_of_tf_data(name, source):
    (found,) = of_each([EXACT[name](SOURCES[source]()).batch(3)])
    assert found.tolist() == [float(x) for x in EXACT[name](SOURCES["tf.data"]())]


@tf.function
def drawn_in_a_function(x):
    return drawn(x)


def through_windows(dataset):
    return dataset.window(2).flat_map(lambda window: window)


READ_TWICE = {
    "zip": lambda d: twice(d.map(drawn), lambda ab: tf.data.Dataset.zip(ab).map(lambda x, y: tf.stack([x, y]))),
    "zip of functions' datasets": lambda d: twice(
        d.flat_map(lambda x: tf.data.Dataset.from_tensors(x).map(drawn)),
        lambda ab: tf.data.Dataset.zip(ab).map(lambda x, y: tf.stack([x, y])),
    ),
    "concatenate": lambda d: twice(d.map(drawn).batch(2), lambda ab: ab[0].concatenate(ab[1])),
    "choose_from_datasets": lambda d: twice(
        d.map(drawn).batch(2),
        lambda ab: tf.data.Dataset.choose_from_datasets(list(ab), tf.data.Dataset.range(2).repeat(COUNT)),
    ),
    "a tf.function": lambda d: through_windows(
        d.map(lambda x: tf.stack([drawn_in_a_function(x), drawn_in_a_function(x)]))
    ),
    "a tf.function in a branch": lambda d: through_windows(
        d.map(lambda x: tf.stack([drawn_in_a_function(x), tf.cond(x < 9, lambda: drawn_in_a_function(x), lambda: x)]))
    ),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", READ_TWICE)
def test_two_readings_of_a_map_draw_other_numbers(name, source):
    dataset = READ_TWICE[name](SOURCES[source]())
    for seed in (1, 2):
        (found,) = of_each.invoke([dataset], seed=seed)
        assert len(set(found.tolist())) == 2 * COUNT
        assert sorted(np.floor(found)) == sorted([*X, *X])


SPLIT = {
    "a shuffle": lambda d: d.shuffle(COUNT, reshuffle_each_iteration=False),
    "a shuffle of what varies": lambda d: d.map(drawn).map(tf.floor).shuffle(COUNT, reshuffle_each_iteration=False),
    "a generator": lambda d: tf.data.Dataset.from_generator(
        lambda: iter(X), output_signature=tf.TensorSpec([], tf.float32)
    ).shuffle(COUNT, reshuffle_each_iteration=False),
    "a cache": lambda d: tf.data.Dataset.zip((d, d.shuffle(COUNT))).shuffle(COUNT).cache().map(lambda x, y: x),
    "a cache of functions' datasets": lambda d: (
        d.batch(COUNT).flat_map(lambda b: tf.data.Dataset.from_tensor_slices(b).shuffle(COUNT)).cache()
    ),
    "a cache of a draw": lambda d: d.map(lambda x: tf.stack([generator().uniform([]), x])).cache().map(lambda x: x[1]),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", SPLIT)
def test_the_parts_of_a_split_that_no_seed_fixes_are_disjoint(name, source):
    dataset = SPLIT[name](SOURCES[source]())
    first, second = dataset.take(2).batch(2), dataset.skip(2).map(lambda x: x + 100).batch(3)
    iterated = through_windows(dataset.skip(2)).batch(2)
    for seed in (1, 2):
        head, tail, again = (of_each.invoke([d], seed=seed)[0] for d in (first, second, iterated))
        assert sorted([*head, *(tail - 100)]) == X.tolist()
        assert (tail - 100).tolist() == again.tolist()


@pytest.mark.parametrize("source", SOURCES)
def test_a_pipeline_with_both_parts_of_a_split_has_every_element_once(source):
    dataset = parts(SOURCES[source]().shuffle(COUNT, reshuffle_each_iteration=False)).batch(2)
    for seed in (1, 2):
        assert sorted(of_each.invoke([dataset], seed=seed)[0]) == X.tolist()


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


class Rows:
    """Elements of open shapes from Python, which counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def row(self, i) -> np.ndarray:
        return np.full([i % 3 + 1], i, np.float32)

    def generated(self) -> tf.data.Dataset:
        def rows():
            self.calls += 1
            yield from map(self.row, range(COUNT))

        return tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([None], tf.float32))

    def mapped(self) -> tf.data.Dataset:
        def row(i):
            self.calls += 1
            return self.row(i)

        called = tf.data.Dataset.range(COUNT).map(lambda i: tf.numpy_function(row, [i], tf.float32))
        return called.map(lambda x: tf.ensure_shape(x, [None]))


def ordered(dataset):
    return dataset.shuffle(COUNT, seed=1)


def drawn_rows(x):
    return x + tf.random.uniform([])


def length(x):
    return tf.shape(x)[0]


CACHED = {
    "a shuffle behind": lambda r: ordered(r.generated().cache()),
    "shuffles before and behind": lambda r: ordered(r.generated().shuffle(3, seed=9).cache()),
    "a map in Python": lambda r: ordered(r.mapped().cache()).padded_batch(2).unbatch(),
    "a file": lambda r: ordered(r.generated().shuffle(3, seed=9).cache(f"{tempfile.mkdtemp()}/cache")),
    "two caches, one after the other": lambda r: ordered(ordered(r.generated().cache()).cache()).padded_batch(2),
    "a snapshot": lambda r: ordered(ordered(r.generated()).snapshot(tempfile.mkdtemp()).cache()),
    "zip": lambda r: ordered(
        tf.data.Dataset.zip((r.generated().cache(), r.mapped().cache())).map(lambda x, y: x[:1] + y[:1])
    ),
    "zip of shuffles": lambda r: tf.data.Dataset.zip((ordered(r.generated().cache()), ordered(r.mapped().cache()))).map(
        lambda x, y: x[:1] - y[:1]
    ),
    "concatenate": lambda r: r.generated().cache().concatenate(r.mapped().cache()).shuffle(2 * COUNT, seed=1),
    "interleave": lambda r: (
        lambda rows: tf.data.Dataset.range(2).interleave(lambda i: rows, block_length=2).shuffle(9, seed=1)
    )(r.generated().cache()),
    "choose_from_datasets": lambda r: tf.data.Dataset.choose_from_datasets(
        [ordered(r.generated().cache()), r.mapped().cache()], tf.data.Dataset.range(2).repeat(COUNT)
    ),
    "sample_from_datasets": lambda r: tf.data.Dataset.sample_from_datasets(
        [ordered(r.generated().cache()), r.mapped().cache()], seed=3
    ),
    "rejection_resample": lambda r: (
        ordered(r.generated().cache())
        .rejection_resample(lambda x: length(x) % 2, [0.5, 0.5], seed=3)
        .map(lambda c, x: x)
    ),
    "padded_batch": lambda r: ordered(r.generated().cache()).padded_batch(3).map(lambda b: tf.reshape(b, [-1])),
    "buckets": lambda r: (
        ordered(r.generated().cache()).bucket_by_sequence_length(length, [2], [2, 2]).map(lambda b: tf.reshape(b, [-1]))
    ),
    "repetitions before": lambda r: r.generated().repeat(2).cache().shuffle(9, seed=1),
    "repetitions behind": lambda r: ordered(r.generated().cache()).repeat(2).padded_batch(2).unbatch(),
    "maps with seeds": lambda r: ordered(r.generated().map(seeded).cache().map(seeded)),
    "random numbers anew": lambda r: tf.data.Dataset.zip(
        (r.generated().cache(), tf.data.Dataset.random(seed=4, rerandomize_each_iteration=True))
    ).map(lambda x, n: x + tf.cast(n % 1000, tf.float32)),
    "an incomplete iteration": lambda r: ordered(r.generated()).cache().take(3),
}


@pytest.mark.parametrize("name", CACHED)
def test_every_round_has_the_first_order_of_tf_data_around_a_cache_of_pythons_values(name):
    plain, rows = Rows(), Rows()
    real, dataset = CACHED[name](plain), CACHED[name](rows)
    want, *_ = ([float(x) for row in real for x in tf.reshape(row, [-1])] for _ in range(2))
    have = [of_each.invoke([dataset.map(lambda x: tf.reshape(x, [-1]))], seed=seed)[0].tolist() for seed in (1, 2)]
    assert have == [want, want]
    assert rows.calls == plain.calls


FIXED = {
    "a shuffle": lambda d: d.shuffle(COUNT).cache(),
    "a map": lambda d: d.map(drawn_rows).cache(),
    "tf.random.Generator": lambda d: d.map(lambda x: x + generator().uniform([])).cache(),
    "a layer of Keras": lambda d: d.map(lambda x: noise_layer()(x[None], training=True)[0]).cache(),
}


@pytest.mark.parametrize("name", FIXED)
def test_draws_before_a_cache_of_pythons_values_depend_on_the_data(name):
    first, second = (FIXED[name](Rows().generated()) for _ in range(2))
    readings = [of_each.invoke([d], seed=seed)[0].tolist() for d, seed in ((first, 1), (first, 2), (second, 2))]
    assert readings[0] == readings[1] == readings[2]


BEHIND = {
    "a shuffle": lambda d: d.cache().shuffle(COUNT),
    "tf.random.Generator": lambda d: d.cache().map(lambda x: x + generator().uniform([])),
    "a layer of Keras": lambda d: d.cache().map(lambda x: noise_layer()(x[None], training=True)[0]),
}


@pytest.mark.parametrize("name", BEHIND)
def test_draws_behind_a_cache_of_pythons_values_follow_the_seed(name):
    first, second = (BEHIND[name](Rows().generated()) for _ in range(2))
    readings = [of_each.invoke([d], seed=seed)[0].tolist() for d, seed in ((first, 1), (first, 2), (second, 2))]
    assert readings[0] != readings[1] == readings[2]


def test_what_is_read_before_a_cache_is_read_once_whatever_follows(tmp_path):
    path, scale = tmp_path / "rows.txt", tf.Variable(1.0)
    path.write_text("1\n2\n")
    lines = tf.data.TextLineDataset(str(path)).map(tf.strings.to_number)
    variable = tf.data.Dataset.from_tensor_slices(X).map(lambda x: x * scale)
    cached = [d.cache().window(2).flat_map(lambda w: w.batch(2)) for d in (lines, variable)]
    first = [x.tolist() for x in of_each(cached)]
    path.write_text("3\n4\n")
    scale.assign(2.0)
    assert [x.tolist() for x in of_each(cached)] == first == [[1, 2], X.tolist()]
