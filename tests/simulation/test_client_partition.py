"""`split_over_clients`: data without clients, in any form, at n clients."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError
from fedcore.simulation import partition
from fedcore.simulation.datasets import client_partition, split_over_clients

X, Y = np.arange(60, dtype=np.float32), np.repeat([2, 0, 1], 20)
PARTITIONERS = {
    "iid": {},
    "dirichlet": {"alpha": 0.1},
    "shards": {"shards_per_client": 1},
    "quantity_skew": {"alpha": 0.5},
    "power_law": {"exponent": 1.5},
}


def pairs(data) -> list[tuple]:
    """The (x, y) of each client, in the order of client ids."""
    return [
        [
            tuple(e.values()) if isinstance(e, dict) else e
            for e in data.create_tf_dataset_for_client(i).as_numpy_iterator()
        ]
        for i in data.client_ids
    ]


def forms() -> dict:
    return {
        "pair": (X, Y),
        "lists in a pair": (X.tolist(), Y.tolist()),
        "dict": {"x": X, "y": Y},
        "tf.data": tf.data.Dataset.from_tensor_slices((X, Y)).map(lambda x, y: (x, y)),
        "ClientDataset": ClientDataset.from_columns((X, Y)),
        "tensors": (tf.constant(X), tf.constant(Y)),
    }


@pytest.mark.parametrize("name", PARTITIONERS)
def test_clients_have_the_rows_that_the_partitioner_gives(name):
    data = split_over_clients((X, Y), 10, name, seed=3, **PARTITIONERS[name])
    parts = getattr(partition, name)(Y, 10, seed=3, **PARTITIONERS[name])
    assert data.client_ids == [f"client_{i}" for i in range(10)]
    assert pairs(data) == [list(zip(X[part], Y[part], strict=True)) for part in parts]


@pytest.mark.parametrize("form", forms())
def test_each_form_of_examples_is_split_alike(form):
    options = {"labels": "y"} if form == "dict" else {}
    data = split_over_clients(forms()[form], 7, "dirichlet", alpha=0.1, **options)
    want = split_over_clients((X, Y), 7, partition.dirichlet, alpha=0.1)
    assert [[(float(x), int(y)) for x, y in client] for client in pairs(data)] == pairs(want)


def test_a_data_frame_is_split_by_the_column_of_labels():
    pandas = pytest.importorskip("pandas")
    data = split_over_clients(pandas.DataFrame({"x": X, "y": Y}), 7, "dirichlet", alpha=0.1, labels="y")
    assert pairs(data) == pairs(split_over_clients((X, Y), 7, "dirichlet", alpha=0.1))


def test_a_data_set_of_hugging_face_is_read_client_by_client():
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"x": X, "y": Y})
    data = split_over_clients(dataset, 7, "dirichlet", alpha=0.1, labels="y")
    assert data.is_in_files
    assert pairs(data) == pairs(split_over_clients((X, Y), 7, "dirichlet", alpha=0.1))


def test_a_map_style_data_set_of_pytorch_is_read_client_by_client():
    class Examples:
        def __len__(self):
            return len(X)

        def __getitem__(self, i):
            return X[i], Y[i]

    data = split_over_clients(Examples(), 7, "dirichlet", alpha=0.1, labels=Y)
    assert pairs(data) == pairs(split_over_clients((X, Y), 7, "dirichlet", alpha=0.1))


def test_without_labels_examples_are_split_by_their_number():
    data = split_over_clients(X, 11)
    assert sorted(x for client in pairs(data) for x in client) == X.tolist()
    assert data.client_ids[:2] == ["client_00", "client_01"]


def test_labels_of_keras_data_sets_may_have_a_second_dimension_of_one():
    want = split_over_clients((X, Y), 5, "shards")
    data = split_over_clients((X, Y[:, np.newaxis]), 5, "shards")
    assert [[x for x, _ in client] for client in pairs(data)] == [[x for x, _ in client] for client in pairs(want)]


def test_a_partitioner_of_ones_own_gets_labels_and_options():
    def by_parity(labels, num_clients, seed, offset):
        return [np.flatnonzero((labels + offset) % num_clients == k) for k in range(num_clients)]

    data = split_over_clients((X, Y), 2, by_parity, offset=1)
    assert [{int(y) for _, y in client} for client in pairs(data)] == [{1}, {0, 2}]


def test_a_trained_model_takes_what_the_split_gives():
    data = split_over_clients((X[:, np.newaxis], Y), 6, "power_law").preprocess(lambda dataset: dataset.batch(4))
    import keras

    def model_fn():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(model, loss, data.element_type_structure)

    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, fc.learning.optimizers.build_sgdm(0.001))
    history = fc.learning.programs.train(process, data, 1, clients_per_round=None, progress=False)
    assert history["num_examples"] == [60]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: split_over_clients((X, Y), 61), "cannot give each of 61 clients one of 60 examples"),
        (lambda: split_over_clients((X, Y), "3"), "num_clients is a whole number, not '3'"),
        (lambda: split_over_clients(X, 3, "shards"), "shards looks at labels; fix: labels=an array"),
        (
            lambda: split_over_clients({"x": X, "y": Y}, 3, "dirichlet", alpha=1.0),
            "dirichlet looks at labels; fix: labels=the name of its column, one of 'x', 'y'",
        ),
        (lambda: split_over_clients({"x": X}, 3, labels="z"), "there is no column 'z'; there are 'x'"),
        (
            lambda: split_over_clients((X, Y), 3, "dirichlet"),
            "dirichlet takes labels, num_clients, alpha, seed: missing a required argument: 'alpha'",
        ),
        (lambda: split_over_clients((X, Y), 3, alpha=1.0), "iid takes labels, num_clients, seed: got an unexpected"),
        (
            lambda: split_over_clients((X, Y), 3, "random"),
            "one of iid, dirichlet, shards, quantity_skew, power_law, not",
        ),
        (
            lambda: split_over_clients((X, np.eye(3)[Y]), 3, "shards"),
            r"labels have the shape \[60, 3\]; fix: labels=y.argmax\(-1\) for one-hot labels y",
        ),
        (
            lambda: split_over_clients((X, Y), 3, "shards", labels=Y[:5]),
            r"60 examples, and labels have the shape \[5\]",
        ),
        (lambda: split_over_clients([X, Y], 3), r"not \[.*fix: a pair of arrays is a tuple \(x, y\)"),
        (lambda: split_over_clients((X, Y[:5]), 3), r"columns must be equally long, not \[5, 60\]"),
        (
            lambda: split_over_clients(tf.data.Dataset.from_tensor_slices((X, Y)).batch(7), 3),
            r"differ in shape.*; fix: leave \.batch\(n\) out, or pad examples to one shape",
        ),
        (
            lambda: split_over_clients(tf.data.Dataset.from_tensor_slices((X, Y)).repeat(), 3),
            r"repeats without end.*; fix: leave \.repeat\(\) out",
        ),
        (lambda: split_over_clients(ClientDataset.from_columns(X).repeat(), 3), "repeats without end"),
    ],
)
def test_what_does_not_fit_is_named_with_the_fix(make, message):
    with pytest.raises(FedcoreError, match=message):
        make()


def test_the_example_of_the_docs_runs():
    assert doctest.testmod(client_partition).failed == 0
