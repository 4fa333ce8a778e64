"""`train_validation_split`: two parts of each client's examples."""

import pickle

import numpy as np
import pytest
import tensorflow as tf

from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError
from fedcore.simulation.datasets import (
    ClientData,
    HDF5ClientData,
    TestClientData,
    example_split,
    from_clients,
    save_hdf5,
)

SIZES = {"a": 10, "b": 1, "c": 7, "d": 2}
DATA = from_clients({i: {"x": np.arange(n), "name": np.full(n, i)} for i, n in SIZES.items()})


def xs(data, client_id):
    dataset = data.create_tf_dataset_for_client(client_id)
    assert isinstance(dataset, ClientDataset)
    return [int(example["x"]) for example in dataset]


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_each_example_is_in_one_part_in_order_and_one_at_least_is_trained_with(share):
    train, validation = DATA.train_validation_split(share)
    assert train.client_ids == validation.client_ids == list(SIZES)
    for client_id, size in SIZES.items():
        parts = xs(train, client_id), xs(validation, client_id)
        assert sorted(parts[0] + parts[1]) == list(range(size))
        assert [sorted(part) for part in parts] == list(parts)
        assert len(parts[1]) == min(round(share * size), size - 1)


def test_the_seed_and_the_clients_id_decide_the_split():
    again, other = (DATA.train_validation_split(0.5, seed=seed)[1] for seed in (0, 1))
    validation = DATA.train_validation_split(0.5)[1]
    assert xs(validation, "a") == xs(again, "a") != xs(other, "a")
    alone = DATA.select(["a"]).train_validation_split(0.5)[1]
    assert xs(alone, "a") == xs(validation.select(["a"]), "a") == xs(validation, "a")
    same_size = from_clients({i: np.arange(50) for i in "pq"}).train_validation_split(0.5)[1]
    p, q = ([int(x) for x in same_size.create_tf_dataset_for_client(i)] for i in "pq")
    assert p != q


def test_the_split_is_that_of_earlier_versions():
    assert xs(DATA.train_validation_split(0.5)[1], "a") == [0, 1, 3, 6, 7]


def test_data_of_files_stay_in_files_and_pickle(tmp_path):
    save_hdf5(DATA, tmp_path / "data.h5")
    stored = HDF5ClientData(tmp_path / "data.h5").train_validation_split(0.3)[0]
    assert stored.is_in_files
    assert xs(pickle.loads(pickle.dumps(stored)), "a") == xs(DATA.train_validation_split(0.3)[0], "a")


def test_real_data_sets_are_split_and_preprocessed_after():
    def dataset(client_id):
        return tf.data.Dataset.range(SIZES[client_id]).map(lambda x: {"x": x})

    train, validation = ClientData.from_clients_and_tf_fn(SIZES, dataset).train_validation_split(0.2)
    assert xs(train, "a") == xs(DATA.train_validation_split(0.2)[0], "a")
    (batch,) = validation.preprocess(lambda d: d.batch(5)).create_tf_dataset_for_client("a")
    assert batch["x"].shape == [2]


def test_held_in_memory_the_parts_have_a_computation():
    train, _ = TestClientData({"a": [1, 2, 3, 4]}).train_validation_split(0.5)
    assert str(train.in_memory().dataset_computation.type_signature) == "(str -> int32*)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DATA.train_validation_split(0), "share is a number between 0 and 1, not 0"),
        (lambda: DATA.train_validation_split(20), "share is a number between 0 and 1, not 20"),
        (lambda: DATA.train_validation_split(0.2)[0].create_tf_dataset_for_client("z"), "no client 'z' among 4"),
        (
            lambda: xs(DATA.preprocess(lambda d: d.shuffle(9)).train_validation_split()[0], "a"),
            "client 'a' draws random numbers, so each round.*; fix: split before preprocess shuffles",
        ),
        (
            lambda: xs(from_clients([tf.data.Dataset.range(9).shuffle(9)]).train_validation_split()[0], "client_0"),
            "client 'client_0' draws random numbers",
        ),
        (
            lambda: xs(DATA.preprocess(lambda d: d.batch(3)).train_validation_split()[0], "a"),
            "fix: split the examples before preprocess batches them",
        ),
    ],
)
def test_what_cannot_be_split_is_named_with_the_fix(make, message):
    with pytest.raises(FedcoreError, match=message):
        make()


def test_equal_splits_are_made_by_the_one_function():
    train, validation = example_split.split_examples(DATA, 0.2, 0)
    assert (xs(train, "a"), xs(validation, "a")) == tuple(xs(part, "a") for part in DATA.train_validation_split())
