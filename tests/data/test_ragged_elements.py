"""Elements and batches of different sizes within a client run on every runtime as a loop by hand computes them."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.data.sequence_values import columns_of
from fedcore.errors import TypeMismatch
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.layout import Layout
from fedcore.types.ragged_rows import RaggedRows

RUNTIMES = {
    "default": fc.runtime.local(),
    "vectorised": fc.runtime.local(vectorize=2),
    "loop": fc.runtime.local(vectorize=False),
    "reference": fc.runtime.reference(),
}
SIZES = (7, 4, 1, 0, 12)
ELEMENT = (fc.TensorType("int32", [None, None]), fc.TensorType("int32", [None]))


@pytest.fixture(params=RUNTIMES)
def runtime(request):
    with fc.use(RUNTIMES[request.param]) as used:
        yield used


def texts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(count)
    return [rng.integers(1, 10, size=rng.integers(1, 9)).tolist() for _ in range(count)]


def ragged(count: int) -> tf.data.Dataset:
    rows = tf.ragged.constant(texts(count), ragged_rank=1, dtype=tf.int32)
    return tf.data.Dataset.from_tensor_slices((rows, tf.range(count)))


def dense(count: int) -> tf.data.Dataset:
    return ragged(count).map(
        lambda x, y: (tf.ensure_shape(x.to_tensor() if isinstance(x, tf.RaggedTensor) else x, [None]), y)
    )


def by_hand(count: int) -> list:
    batches = []
    for begin in range(0, count, 3):
        rows = texts(count)[begin : begin + 3]
        width = max(map(len, rows))
        padded = np.array([row + [0] * (width - len(row)) for row in rows], np.int32)
        batches.append((padded, np.arange(begin, begin + len(rows), dtype=np.int32)))
    return batches


BATCHES = {
    "padded_batch": lambda n: dense(n).padded_batch(3),
    "padded_batch, shuffled": lambda n: dense(n).shuffle(9, seed=2).padded_batch(3).repeat(2),
    "padded_batch of epochs": lambda n: dense(n).padded_batch(3).repeat(2).shuffle(3, seed=1),
    "one batch": lambda n: dense(n).padded_batch(100),
    "buckets": lambda n: dense(n).bucket_by_sequence_length(lambda x, y: tf.size(x), [3, 6], [4, 3, 2]),
    "to_tensor": lambda n: ragged(n).batch(3).map(lambda x, y: (x.to_tensor(), y)),
    "lists": by_hand,
}


@fc.tf_computation(fc.SequenceType(ELEMENT))
def folded(batches):
    """A number that depends on every value, shape and position."""
    total = tf.constant(0.0, tf.float64)
    for x, y in batches:
        weighed = tf.cast(x, tf.float64) * tf.cast(tf.range(1, tf.shape(x)[1] + 1), tf.float64)
        rows = tf.reduce_sum(weighed, 1) * tf.cast(y + 1, tf.float64)
        total = total * 1.5 + tf.reduce_sum(rows) + tf.cast(tf.size(x), tf.float64)
    return total


def folded_by_hand(batches) -> float:
    total = 0.0
    for x, y in batches:
        rows = (np.asarray(x, np.float64) * np.arange(1, np.shape(x)[1] + 1)).sum(1) * (np.asarray(y) + 1.0)
        total = total * 1.5 + rows.sum() + np.size(x)
    return total


@fc.federated_computation(fc.FederatedType(fc.SequenceType(ELEMENT), fc.CLIENTS))
def folded_each(data):
    return fc.federated_map(folded, data)


@fc.federated_computation(fc.FederatedType(fc.SequenceType(ELEMENT), fc.CLIENTS))
def folded_sum(data):
    return fc.federated_sum(fc.federated_map(folded, data))


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_different_sizes_are_those_of_tf_data(name, runtime):
    clients = [BATCHES[name](n) for n in SIZES]
    want = [folded_by_hand(clients[i]) for i in range(len(SIZES))]
    np.testing.assert_allclose(folded_each(clients), want, rtol=1e-12)
    np.testing.assert_allclose(folded_sum(clients), sum(want), rtol=1e-12)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 3, 3), (5, 2, 9)], ids=str)
def test_images_of_several_sizes_are_elements(sizes, runtime):
    image = fc.SequenceType((fc.TensorType("float32", [None, None, 3]), "int32"))

    @fc.federated_computation(fc.FederatedType(image, fc.CLIENTS))
    def brightness(data):
        reduce = fc.tf_computation(
            lambda ds: ds.reduce(0.0, lambda s, e: s * 2.0 + tf.reduce_mean(e[0]) * tf.cast(e[1], tf.float32)), image
        )
        return fc.federated_map(reduce, data)

    rng = np.random.default_rng(0)
    clients = [[(rng.normal(size=(k, 1 + j, 3)).astype(np.float32), np.int32(j)) for j in range(3)] for k in sizes]
    want = []
    for images in clients:
        total = 0.0
        for x, y in images:
            total = total * 2 + x.mean() * y
        want.append(total)
    np.testing.assert_allclose(brightness(clients), want, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 5])
def test_steps_follow_ragged_examples(size, runtime):
    @fc.federated_computation(fc.FederatedType(fc.SequenceType(ELEMENT), fc.CLIENTS))
    def each(data):
        return fc.federated_map(folded, data)

    images = [(np.full((size + i % 2, 2), i, np.int32), np.int32(i)) for i in range(4)]
    specs = (tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.int32))
    source = tf.data.Dataset.from_generator(lambda: iter(images), output_signature=specs)

    def pipeline(d):
        return d.map(lambda x, y: (x + y, y)).filter(lambda x, y: y != 1).map(lambda x, y: (x, y[tf.newaxis])).repeat(2)

    dataset = fc.data.ClientDataset(columns_of(images, fc.SequenceType(specs)))
    found = pipeline(dataset)
    assert isinstance(found, fc.data.ClientDataset)
    (total,) = each([found])
    np.testing.assert_allclose(total, folded_by_hand(pipeline(source)), rtol=1e-12)
    np.testing.assert_allclose(total, folded_by_hand(list(found)), rtol=1e-12)


def test_clients_of_one_batch_have_one_layout():
    wanted = fc.SequenceType((fc.TensorType("float32", [None, 4]), fc.TensorType("int32", [None])))
    given = [
        [(np.ones((n, 4), np.float32), np.ones(n, np.int32))] for n in (1, 5, 17)
    ] + [
        tf.data.Dataset.from_tensor_slices((np.ones((n, 4), np.float32), np.ones(n, np.int32))).batch(99)
        for n in (2, 3)
    ]  # fmt: skip
    lists, datasets = ({columns_of(v, wanted).layout for v in part} for part in (given[:3], given[3:]))
    assert len(lists) == len(datasets) == 1


@pytest.mark.parametrize("name", ["padded_batch", "one batch", "lists"])
def test_batches_of_unknown_width_have_one_layout(name):
    assert len({columns_of(BATCHES[name](n), fc.SequenceType(ELEMENT)).draw(0).layout for n in SIZES}) == 1


def test_ragged_columns_hold_no_padding():
    long = [np.ones((1, 1000), np.float32), *(np.ones((1, 1), np.float32) for _ in range(100))]
    columns = columns_of(long, fc.SequenceType(fc.TensorType("float32", [None, None])))
    assert columns.arrays[0].size == 1100


def test_an_element_of_another_shape_names_itself():
    with pytest.raises(TypeMismatch, match=r"data\[0\]\[1\]"):
        folded_each([[(np.ones((2, 3), np.int32), np.ones(2, np.int32)), (np.ones(3, np.int32), np.ones(2, np.int32))]])


def test_columns_of_ragged_elements_travel_in_a_pickle():
    import pickle

    columns = columns_of(by_hand(7), fc.SequenceType(ELEMENT))
    again = pickle.loads(pickle.dumps(columns))
    assert isinstance(again, Columns)
    for have, want in zip(again.elements(0), by_hand(7), strict=True):
        for a, b in zip(have, want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_reader_of_ragged_rows_is_traced_once_for_all_clients(monkeypatch):
    traces, example = [], Layout.example
    monkeypatch.setattr(Layout, "example", lambda self, *given: traces.append(self) or example(self, *given))
    rows = [RaggedRows(np.arange(6 + n, dtype=np.int16), np.array([2, 4 + n])) for n in range(3)]
    clients = [fc.data.ClientDataset.from_columns({"x": r, "y": np.arange(2, dtype=np.int16)}) for r in rows]
    read = [[e["x"].tolist() for e in c.padded_batch(2).as_numpy_iterator()] for c in clients]

    assert read == [[[[0, 1, *[0] * (2 + n)], [*range(2, 6 + n)]]] for n in range(3)]
    assert len(traces) == 1
