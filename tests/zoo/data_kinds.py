"""Kinds of data: where the clients' examples come from, and the pipeline over them."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc

from .entries import LENGTH, DataKind, Model, data_kind

datasets = fc.simulation.datasets


def make_clients(model: Model, kind: DataKind, seed: int = 0) -> tuple[Callable[[], list], Callable[[], list]]:
    """Functions that make the clients' data: fedcore's, and plain tf.data.Datasets."""
    rng = np.random.default_rng(seed)
    if kind.is_ragged:
        rows = [_ragged_rows(model, rng, size) for size in kind.sizes]
        plain = lambda: [_from_rows(model, r, kind) for r in rows]  # noqa: E731
        return plain, plain
    clients = [model.columns(rng, size) for size in kind.sizes]
    plain = lambda: [kind.pipeline(tf.data.Dataset.from_tensor_slices(c)) for c in clients]  # noqa: E731
    return lambda: SOURCES[kind.source](clients, kind.pipeline), plain


def _ragged_rows(model: Model, rng: np.random.Generator, rows: int) -> list:
    lengths = rng.integers(1, 2 * LENGTH, rows)
    return [keras.tree.map_structure(lambda a: a[0], model.columns(rng, 1, int(t))) for t in lengths]


def _from_rows(model: Model, rows: list, kind: DataKind) -> tf.data.Dataset:
    def spec(column):
        row = column.draw(np.random.default_rng(0), 1, LENGTH)[0]
        return tf.TensorSpec((None, *row.shape[1:]) if column.is_sequence else row.shape, tf.as_dtype(row.dtype))

    signature = keras.tree.map_structure(spec, model.parts)
    return kind.pipeline(tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=signature))


# The sources: (the clients' columns, pipeline) -> fedcore's data sets.


def _columns(clients, pipeline):
    return [pipeline(fc.data.ClientDataset.from_columns(c)) for c in clients]


def _tf_data(clients, pipeline):
    return [pipeline(tf.data.Dataset.from_tensor_slices(c)) for c in clients]


def _open_tf_data(clients, pipeline):
    """Data sets of tf.data whose element specs leave every dimension open."""

    def dataset(columns):
        signature = keras.tree.map_structure(
            lambda c: tf.TensorSpec([None] * (c.ndim - 1), tf.as_dtype(c.dtype)), columns
        )
        rows = [keras.tree.map_structure(lambda c: c[i], columns) for i in range(len(keras.tree.flatten(columns)[0]))]  # noqa: B023
        return tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=signature)

    return [pipeline(dataset(c)) for c in clients]


def _preprocessed(clients, pipeline):
    data = datasets.from_clients({f"client {i}": c for i, c in enumerate(clients)}).preprocess(pipeline)
    return [data.create_tf_dataset_for_client(f"client {i}") for i in range(len(clients))]


def _in_a_file(save: Callable, load: Callable) -> Callable:
    def source(clients, pipeline):
        named, restore = _named_columns(clients)
        directory = Path(tempfile.mkdtemp(prefix="zoo-"))
        save(datasets.from_clients({f"client {i}": c for i, c in enumerate(named)}), directory / "clients")
        data = load(os.fspath(directory / "clients"))
        made = [data.create_tf_dataset_for_client(f"client {i}") for i in range(len(clients))]
        return [pipeline(dataset.map(restore)) for dataset in made]

    return source


def _named_columns(clients) -> tuple[list[dict], Callable]:
    """The clients' columns as flat dicts, and the function of a row that restores their structure."""
    named = [{f"c{i}": leaf for i, leaf in enumerate(keras.tree.flatten(c))} for c in clients]
    return named, lambda row: keras.tree.pack_sequence_as(clients[0], [row[f"c{i}"] for i in range(len(named[0]))])


def _pandas(clients, pipeline):
    import pandas

    shapes = [leaf.shape[1:] for leaf in keras.tree.flatten(clients[0])]
    frames = []
    for i, client in enumerate(clients):
        frame = {"user": [f"client {i}"] * len(keras.tree.flatten(client)[0])}
        for j, leaf in enumerate(keras.tree.flatten(client)):
            frame |= {f"c{j}.{k}": scalars for k, scalars in enumerate(leaf.reshape(len(leaf), -1).T)}
        frames.append(pandas.DataFrame(frame))

    def restore(row):
        leaves = [tf.stack([row[f"c{j}.{k}"] for k in range(int(np.prod(s)))]) for j, s in enumerate(shapes)]
        reshaped = [tf.reshape(leaf, shape) for leaf, shape in zip(leaves, shapes, strict=True)]
        return keras.tree.pack_sequence_as(clients[0], reshaped)

    data = datasets.from_pandas(pandas.concat(frames), "user")
    return [pipeline(data.create_tf_dataset_for_client(f"client {i}").map(restore)) for i in range(len(clients))]


SOURCES: dict[str, Callable] = {
    "columns": _columns,
    "tf.data": _tf_data,
    "open tf.data": _open_tf_data,
    "ClientData.preprocess": _preprocessed,
    "HDF5": _in_a_file(datasets.save_hdf5, datasets.HDF5ClientData),
    "SQLite": _in_a_file(datasets.save_sqlite, datasets.SqlClientData),
    "pandas": _pandas,
}


@data_kind("full batches", (8, 4, 12), batch_size=4)
def full_batches(dataset):
    return dataset.batch(4, drop_remainder=True)


@data_kind("short last batches", (10, 7, 5))
def short_last_batches(dataset):
    return dataset.batch(4)


@data_kind("remainders dropped", (10, 7, 3), batch_size=4)
def remainders_dropped(dataset):
    return dataset.batch(4, drop_remainder=True)


@data_kind("an example each", (1, 1, 1))
def an_example_each(dataset):
    return dataset.batch(4)


@data_kind("one example among many", (9, 1))
def one_example_among_many(dataset):
    return dataset.batch(4)


@data_kind("batches of one", (3, 2))
def batches_of_one(dataset):
    return dataset.batch(1)


@data_kind("one batch a client", (6, 3, 4))
def one_batch_a_client(dataset):
    return dataset.batch(100)


@data_kind("a client without examples", (6, 0, 5))
def a_client_without_examples(dataset):
    return dataset.batch(4)


@data_kind("no examples at all", (0, 0))
def no_examples_at_all(dataset):
    return dataset.batch(4)


@data_kind("one client", (11,))
def one_client(dataset):
    return dataset.batch(4)


@data_kind("epochs", (5, 6))
def epochs(dataset):
    return dataset.batch(4).repeat(2)


@data_kind("epochs across batches", (5, 6))
def epochs_across_batches(dataset):
    return dataset.repeat(2).batch(4)


@data_kind("seeded shuffle", (9, 6))
def seeded_shuffle(dataset):
    return dataset.shuffle(100, seed=3).repeat(2).batch(4)


@data_kind("small shuffle buffer", (9, 6))
def small_shuffle_buffer(dataset):
    return dataset.shuffle(3, seed=5).batch(4)


@data_kind("take and skip", (9, 6))
def take_and_skip(dataset):
    return dataset.skip(1).take(7).batch(4).prefetch(2)


@data_kind("scaled by a map", (9, 6))
def scaled_by_a_map(dataset):
    return dataset.map(_scaled).batch(4).cache()


def _scaled(x, *others):
    """Halves the floats among the inputs."""
    halved = tf.nest.map_structure(lambda t: t * 0.5 if t.dtype.is_floating else t, x)
    return halved, *others


@data_kind("augmented by a map of batches", (9, 6))
def augmented_by_a_map_of_batches(dataset):
    return dataset.batch(4).map(lambda x, *others: (tf.nest.map_structure(lambda t: t[::-1], x), *others))


@data_kind("tf.data", (10, 7), "tf.data")
def from_tf_data(dataset):
    return dataset.batch(4)


@data_kind("tf.data, shuffled epochs", (10, 7), "tf.data")
def shuffled_epochs_of_tf_data(dataset):
    return dataset.shuffle(20, seed=1).repeat(2).batch(4).prefetch(tf.data.AUTOTUNE)


@data_kind("tf.data, windows", (10, 8), "tf.data")
def windows_of_tf_data(dataset):
    return dataset.window(3, shift=2, drop_remainder=True).flat_map(_first_of_windows).batch(4)


@data_kind("batches of many sizes", (20, 3), "tf.data")
def batches_of_many_sizes(dataset):
    return dataset.batch(16).concatenate(dataset.batch(1))


def _first_of_windows(*window):
    """The examples of a window, whose columns are datasets of their own."""
    return tf.data.Dataset.zip(window)


@data_kind("ClientData.preprocess", (10, 0, 7), "ClientData.preprocess")
def preprocessed(dataset):
    return dataset.repeat(2).batch(4)


@data_kind("HDF5 file", (10, 7), "HDF5")
def hdf5_file(dataset):
    return dataset.batch(4)


@data_kind("SQLite file", (10, 7), "SQLite")
def sqlite_file(dataset):
    return dataset.batch(4)


@data_kind("pandas frame", (10, 7), "pandas")
def pandas_frame(dataset):
    return dataset.batch(4)


@data_kind("padded batches", (10, 7, 1), "tf.data", is_ragged=True)
def padded_batches(dataset):
    return dataset.padded_batch(4)


@data_kind("padded epochs", (6, 5), "tf.data", is_ragged=True)
def padded_epochs(dataset):
    return dataset.shuffle(10, seed=2).repeat(2).padded_batch(4)


@data_kind("buckets of lengths", (10, 9), "tf.data", is_ragged=True)
def buckets_of_lengths(dataset):
    return dataset.bucket_by_sequence_length(
        lambda x, *_: tf.shape(tf.nest.flatten(x)[0])[0], bucket_boundaries=[4, 7], bucket_batch_sizes=[4, 3, 2]
    )


@data_kind("batches of one length", (4, 3), "tf.data", is_ragged=True)
def batches_of_one_length(dataset):
    return dataset.padded_batch(1)
