"""Real tf.data pipelines: imported where all steps are known, otherwise iterated."""

import gc
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context
from fedcore.data import sequence_values, tf_data_import
from fedcore.graphs.sequences import streams

ROWS = 10
X = np.arange(ROWS, dtype=np.float32)

collect = fc.tf_computation(fc.SequenceType(fc.TensorType("float32", [None])))(
    lambda ds: ds.reduce(tf.zeros([40]), lambda seen, b: tf.concat([seen, b], 0)[-40:])
)


def source() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(X)


@fc.tf_computation(fc.SequenceType(fc.TensorType("float32", [None])))
def folded(ds):
    total = tf.constant(0.0)
    for batch in ds:
        total = total * 1.5 + tf.reduce_sum(batch)
    return total


def by_hand(dataset) -> float:
    total = np.float32(0.0)
    for batch in dataset:
        total = np.float32(total * np.float32(1.5) + np.sum(batch))
    return total


IMPORTED = {
    "repeat": lambda: source().repeat(2).batch(3),
    "take and skip": lambda: source().repeat(3).skip(2).take(11).batch(4),
    "maps": lambda: source().map(lambda x: x + 1).repeat(2).map(lambda x: x * 2).batch(4).map(lambda b: b - 1),
    "parallel": lambda: source().repeat(2).map(lambda x: x * 2, num_parallel_calls=2).batch(3, num_parallel_calls=2),
    "dropped remainder": lambda: source().repeat(2).batch(3, drop_remainder=True).prefetch(2),
    "filter": lambda: source().repeat(2).filter(lambda x: x > 2).batch(3),
    "batches first": lambda: source().batch(4).repeat(2),
    "from a generator": lambda: tf.data.Dataset.range(5).map(lambda i: tf.cast(i, tf.float32)).repeat(2).batch(2),
    "options": lambda: source().repeat(2).batch(2).with_options(tf.data.Options()),
    "no shuffle or repeat": lambda: source().batch(3),
    "a step that is not known, of data that cannot differ": lambda: source().window(4).flat_map(lambda w: w.batch(4)),
    "batches of rows of unknown size": lambda: (
        source().map(lambda x: tf.ensure_shape(x[None], [None])).unbatch().batch(2)
    ),
}


LATE = {
    "map": lambda k: source().repeat(2).map(lambda x: x * k()).batch(4),
    "filter": lambda k: source().repeat(2).filter(lambda x: x > k()).batch(4),
    "a map that draws": lambda k: source().map(lambda x: x * k() + 0.0 * tf.random.uniform([])).batch(4),
    "containers": lambda k: (
        source()
        .shuffle(ROWS, seed=1)
        .map(lambda x: {"a": (x, [k(), k()])})
        .map(lambda e: e["a"][0] + tf.reduce_sum(e["a"][1]))
        .batch(4)
    ),
    "a branch": lambda k: source().repeat(2).map(lambda x: tf.cond(x > k(), lambda: x, lambda: -x)).batch(4),
    "a tensor": lambda k: source().repeat(2).map(lambda x: x * tf.constant([k()] * 99)[3]).batch(4),
    "a loop variable": lambda k: source().repeat(2).map(k.times).batch(4),
}


class Factor:
    """A number that changes, as the variable of a loop does in the functions that read it."""

    value = 1.0

    def __call__(self):
        return self.value

    def times(self, x):
        return x * self.value


@pytest.mark.parametrize("name", LATE)
def test_a_function_means_what_it_meant_when_the_dataset_was_made(name):
    factor, datasets = Factor(), []
    for factor.value in (2.0, 3.0, 5.0):
        datasets.append(LATE[name](factor))
    want = [by_hand(dataset.as_numpy_iterator()) for dataset in datasets]
    assert len(set(want)) == 3
    assert [float(folded(dataset)) for dataset in datasets] == pytest.approx(want)


def test_unchanged_functions_of_several_clients_share_a_layout():
    def pipeline():
        return source().repeat(2).map(lambda x: tf.cond(x > 1, lambda: x * 2, lambda: x)).batch(4)

    first, second = (tf_data_import.imported_columns(d, _whole).columns.layout for d in (pipeline(), pipeline()))
    assert first is second


def in_python() -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(lambda: iter(X), output_signature=tf.TensorSpec([], tf.float32))


ITERATED = {
    "Python": (lambda: in_python().batch(3), "its elements may differ in each iteration: it calls Python"),
    "a cache in a file": (
        lambda: source().repeat(2).cache(f"{tempfile.mkdtemp()}/cache").batch(2),
        "it caches in a file",
    ),
    "a step that is not known": (
        lambda: source().repeat(2).window(2).flat_map(lambda w: w.batch(2)),
        "WindowDataset is not supported",
    ),
    "a batch of batches": (lambda: source().repeat(2).batch(2).batch(2).unbatch(), "is not supported"),
}


@pytest.mark.parametrize("make", IMPORTED.values(), ids=IMPORTED)
def test_an_imported_pipeline_has_the_elements_of_tf_data(make):
    dataset = make()
    assert isinstance(tf_data_import.imported_columns(dataset, _whole), fc.data.ClientDataset)
    np.testing.assert_allclose(folded(dataset), by_hand(dataset), rtol=1e-6)
    assert fc.context.last_report().notes == []


@pytest.mark.parametrize(("make", "why"), ITERATED.values(), ids=ITERATED)
def test_what_is_not_recognised_is_iterated_and_noted(make, why):
    dataset = make()
    drawn = folded(dataset)
    np.testing.assert_allclose(drawn, by_hand(dataset), rtol=1e-6)
    (note,) = fc.context.last_report().notes
    assert note.startswith("a tf.data.Dataset is iterated in every call: ")
    assert why in note


def test_a_note_stands_once_for_many_clients():
    @fc.federated_computation(fc.FederatedType(fc.SequenceType(fc.TensorType("float32", [None])), fc.CLIENTS))
    def everywhere(data):
        return fc.federated_sum(fc.federated_map(folded, data))

    everywhere([in_python().batch(3)] * 5)
    assert len(fc.context.last_report().notes) == 1


def test_a_shuffled_pipeline_covers_every_epoch_and_follows_the_seed():
    dataset = source().shuffle(3).repeat(4).batch(7).prefetch(1)
    first, again, other = (collect.invoke(dataset, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    for epoch in first.reshape(4, ROWS):
        np.testing.assert_array_equal(np.sort(epoch), X)
    assert len({tuple(e) for e in first.reshape(4, ROWS)}) == 4


def test_the_source_is_iterated_once(monkeypatch):
    iterated = []
    columns = sequence_values._iterated
    monkeypatch.setattr(sequence_values, "_iterated", lambda *given: iterated.append(1) or columns(*given))
    dataset = source().map(lambda x: x + 1).repeat(2).batch(3)
    assert folded(dataset) == folded(dataset)
    assert len(iterated) == 1


def test_imported_columns_end_with_their_dataset():
    gc.collect()  # datasets of other tests
    before = tf_data_import._imports.size_bytes
    dataset = source().map(tf.identity).repeat(2).batch(3)
    folded(dataset)
    assert tf_data_import._imports.size_bytes == before + X.nbytes
    del dataset
    gc.collect()
    assert tf_data_import._imports.size_bytes == before


def test_beyond_the_budget_a_dataset_is_iterated(monkeypatch):
    monkeypatch.setattr(tf_data_import._imports, "max_bytes", tf_data_import._imports.size_bytes + X.nbytes - 1)
    dataset = source().map(tf.identity).repeat(2).batch(3)
    np.testing.assert_allclose(folded(dataset), by_hand(dataset), rtol=1e-6)
    assert "has more than" in fc.context.last_report().notes[0]


def test_rows_of_tensors_need_no_budget(monkeypatch):
    monkeypatch.setattr(tf_data_import._imports, "max_bytes", 0)
    dataset = source().repeat(2).batch(3)
    assert folded(dataset) == by_hand(dataset)
    assert not fc.context.last_report().notes


@pytest.mark.parametrize("held_bytes", [0, 1 << 20])
def test_rows_of_tensors_keep_the_names_of_a_dict(monkeypatch, held_bytes):
    """`tf.data` sorts them."""
    monkeypatch.setattr(streams, "HELD_BYTES", held_bytes)
    dataset = tf.data.Dataset.from_tensor_slices(
        {"x": np.float32([1, 2]), "a": (np.float32([3, 4]), np.float32([5, 6]))}
    )
    type_ = fc.SequenceType(fc.to_type(dataset.element_spec))
    elements = sequence_values.columns_of(dataset, type_).elements(0)
    assert [[float(leaf) for leaf in tf.nest.flatten(x)] for x in elements] == [[1, 3, 5], [2, 4, 6]]


ELEMENTS = {
    "numbers": lambda: tf.data.Dataset.range(150),
    "no elements": lambda: tf.data.Dataset.range(0),
    "strings": lambda: tf.data.Dataset.range(70).map(lambda i: tf.strings.as_string([i, -i])),
    "structs": lambda: tf.data.Dataset.range(70).map(lambda i: {"b": (i, tf.ones([2, 3], tf.bfloat16)), "a": i > 3}),
    "without bytes": lambda: tf.data.Dataset.range(70).map(lambda i: tf.zeros([0, 3])),
    "large": lambda: tf.data.Dataset.range(3).map(lambda i: tf.fill([sequence_values.READ_BYTES], i)),
    "generated": lambda: tf.data.Dataset.from_generator(
        lambda: range(70), output_signature=tf.TensorSpec([], tf.int64)
    ),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_that_are_read_together_are_those_of_the_iterator(name):
    dataset = ELEMENTS[name]()
    columns = sequence_values._iterated(dataset, 1 << 40, "value").columns
    elements = [tf.nest.map_structure(np.asarray, x) for x in dataset.as_numpy_iterator()]
    assert columns.row_count == len(elements)
    assert columns.groups is None
    read = [tf.nest.flatten(x) for x in columns.elements(0)]
    by_leaf = [[x["b"][0], x["b"][1], x["a"]] if isinstance(x, dict) else [x] for x in elements]
    for have, want in zip(read, by_leaf, strict=True):
        for a, b in zip(have, want, strict=True):
            assert (a.dtype, a.shape, a.tolist()) == (b.dtype, b.shape, b.tolist())


def _whole(dataset, max_bytes):
    from fedcore.data.sequence_values import _iterated

    return _iterated(dataset, max_bytes, "value")


@pytest.mark.parametrize("after", [lambda d: d, lambda d: d.shuffle(4, seed=1).repeat(2)], ids=["whole", "shuffled"])
def test_a_file_before_a_cache_is_read_once(tmp_path, after):
    path = str(tmp_path / "lines.txt")
    (tmp_path / "lines.txt").write_text("1\n2\n3\n")
    lines = tf.data.TextLineDataset(path).map(lambda line: tf.strings.to_number(line))
    cached, read_anew = (after(d).batch(2) for d in (lines.cache(), lines))
    assert {float(collect(d).sum()) for d in (cached, read_anew)} == {float(sum(sum(b) for b in cached))}
    total = float(collect(cached).sum())
    (tmp_path / "lines.txt").write_text("10\n20\n30\n")
    assert float(collect(cached).sum()) == total
    assert float(collect(read_anew).sum()) == 10 * total


def test_a_generator_before_a_cache_runs_once():
    runs = []

    def numbers():
        runs.append(1)
        yield from np.float32([1, 2, 3])

    generated = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.float32))
    dataset = generated.cache().batch(2)
    assert collect(dataset).tolist() == collect(dataset).tolist()
    assert len(runs) == 1


def of_one_batch(rows: int, *, repeat: int = 1) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(np.arange(rows, dtype=np.float32)).repeat(repeat)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_a_data_set_of_one_batch_is_a_group_of_rows_whatever_its_size(rows):
    type_ = fc.SequenceType(fc.TensorType("float32", [None]))
    columns = sequence_values.columns_of(of_one_batch(rows, repeat=3), type_)
    assert columns.layout == sequence_values.columns_of(of_one_batch(4), type_).layout
    assert columns is sequence_values.columns_of(fc.data.ClientDataset(columns), type_)
    assert folded(of_one_batch(rows, repeat=3)) == by_hand(of_one_batch(rows, repeat=3))


def test_elements_of_a_fixed_size_stay_elements():
    type_ = fc.SequenceType(fc.TensorType("float32", [4]))
    columns = sequence_values.columns_of(of_one_batch(4), type_)
    assert columns.groups is None
    assert not columns.layout.batched


def test_clients_of_one_batch_of_other_sizes_share_a_graph_call():
    @fc.tf_computation("float32", fc.TensorType("float32", [None]))
    def plus(total, batch):
        return total * 1.5 + tf.reduce_sum(batch)

    @fc.federated_computation(fc.FederatedType(fc.SequenceType(fc.TensorType("float32", [None])), fc.CLIENTS))
    def total(data):
        return fc.federated_sum(fc.federated_map(lambda ds: fc.sequence_reduce(ds, 0.0, plus), data))

    data = [of_one_batch(n) for n in (3, 5, 2, 8, 1, 4)]
    with fc.use(fc.runtime.local()):
        result = total(data)
    assert context.last_report().graph_calls["blocks"] == 1
    np.testing.assert_allclose(result, sum(by_hand(d) for d in data), rtol=1e-6)
