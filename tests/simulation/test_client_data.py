import doctest
from collections import namedtuple

import numpy as np
import pytest
import tensorflow as tf

from fedcore.data import ClientDataset
from fedcore.errors import TypeMismatch
from fedcore.simulation import partition
from fedcore.simulation.datasets import ArrayClientData, ClientData, TestClientData, client_data

THREE = {
    "b": {"x": [3, 4], "y": [[0.5], [1.5]]},
    "a": {"x": [1], "y": [[2.5]]},
    "c": {"x": [5], "y": [[3.5]]},
}


def xs(dataset):
    return [int(example["x"]) for example in dataset]


def test_client_ids_are_sorted():
    assert TestClientData(THREE).client_ids == ["a", "b", "c"]


def test_a_client_gets_its_own_examples_in_order():
    data = TestClientData(THREE)
    assert [xs(data.create_tf_dataset_for_client(i)) for i in "abc"] == [[1], [3, 4], [5]]


def test_clients_and_all_clients_are_columnar():
    data = TestClientData(THREE)
    assert isinstance(data.create_tf_dataset_for_client("a"), ClientDataset)
    assert isinstance(data.create_tf_dataset_from_all_clients(), ClientDataset)


def test_an_unknown_client_is_named():
    with pytest.raises(KeyError, match="no client 'z' among 3"):
        TestClientData(THREE).create_tf_dataset_for_client("z")


def test_the_element_type_is_the_one_of_tf_data():
    assert TestClientData(THREE).element_type_structure == {
        "x": tf.TensorSpec([], tf.int32),
        "y": tf.TensorSpec([1], tf.float32),
    }


@pytest.mark.parametrize(
    "value", [[1, 2], [2**40], [1.5], ["é", "b"], [True], [np.float64(1)], np.zeros(2), ([1], [2.0])], ids=str
)
def test_hand_written_values_get_the_type_that_tf_data_gives_them(value):
    wants = tf.data.Dataset.from_tensor_slices(value).element_spec
    assert TestClientData({"a": value}).element_type_structure == wants


def test_strings_come_back_as_utf_8_bytes():
    dataset = TestClientData({"a": ["é"], "b": ["longer"]}).create_tf_dataset_for_client("a")
    assert list(dataset.as_numpy_iterator()) == ["é".encode()]


def test_named_tuples_stay_named_tuples():
    point = namedtuple("point", ["x", "y"])
    spec = TestClientData({"a": point([1], [2])}).element_type_structure
    assert spec._fields == ("x", "y")


def test_all_clients_come_whole_in_an_order_of_the_seed():
    data = TestClientData({str(i): {"x": [10 * i, 10 * i + 1]} for i in range(9)})
    orders = [xs(data.create_tf_dataset_from_all_clients(seed=seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])
    assert all(b == a + 1 for a, b in zip(orders[0][::2], orders[0][1::2], strict=True))


def test_preprocessed_clients_come_whole_too():
    data = TestClientData(THREE).preprocess(lambda dataset: dataset.map(lambda e: {"x": e["x"] * 10}))
    assert sorted(xs(data.create_tf_dataset_from_all_clients(seed=0))) == [10, 30, 40, 50]


def test_datasets_gives_as_many_clients_as_asked_in_an_order_of_the_seed():
    data = TestClientData({str(i): {"x": [i]} for i in range(20)})
    drawn = [[xs(dataset) for dataset in data.datasets(limit_count=5, seed=seed)] for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 5
    assert len(list(data.datasets())) == 20


def test_preprocess_keeps_the_clients_and_changes_their_data():
    batched = TestClientData(THREE).preprocess(lambda dataset: dataset.batch(2))
    assert batched.client_ids == ["a", "b", "c"]
    (batch,) = batched.create_tf_dataset_for_client("b")
    np.testing.assert_array_equal(batch["x"], [3, 4])


def test_a_client_split_is_one_of_the_seed_and_loses_no_client():
    data = TestClientData({str(i): {"x": [i]} for i in range(20)})
    train, test = ClientData.train_test_client_split(data, 5, seed=1)
    again, _ = ClientData.train_test_client_split(data, 5, seed=1)
    assert len(test.client_ids) == 5
    assert sorted(train.client_ids + test.client_ids) == data.client_ids
    assert train.client_ids == again.client_ids


def test_a_client_split_keeps_preprocessing():
    data = TestClientData(THREE).preprocess(lambda dataset: dataset.batch(2))
    train, _ = ClientData.train_test_client_split(data, 1, seed=0)
    assert train.element_type_structure["x"].shape.rank == 1


def test_clients_without_examples_are_never_test_clients():
    empty = {"x": np.zeros(0, np.int32), "y": np.zeros((0, 1), np.float32)}
    data = TestClientData({**THREE, "empty": empty})
    _, test = ClientData.train_test_client_split(data, 3)
    assert test.client_ids == ["a", "b", "c"]


def test_a_split_with_no_client_left_to_train_is_an_error():
    with pytest.raises(ValueError, match="cannot take 3 of 3 clients for test"):
        ClientData.train_test_client_split(TestClientData(THREE), 3)


def test_clients_of_different_types_are_shown_side_by_side():
    with pytest.raises(ValueError, match=r"'a'  has \{'x': 'int32\[\]'\}\n  'b'  has \{'x': 'float32\[\]'\}"):
        TestClientData({"a": {"x": [1]}, "b": {"x": [1.0]}})


def test_columns_of_one_client_must_be_equally_long():
    with pytest.raises(ValueError, match=r"client 'a': columns must be equally long, not \[1, 2\]"):
        TestClientData({"a": {"x": [1], "y": [1, 2]}})


def test_a_client_id_must_be_a_string():
    with pytest.raises(TypeError, match="client ids must be strings"):
        TestClientData({1: [1]})


def test_rows_outside_the_columns_are_an_error():
    with pytest.raises(ValueError, match="client 'a': rows 0 to 4 are not within 3"):
        ArrayClientData(np.zeros(3), {"a": (0, 4)})


def test_the_parts_of_a_partitioner_are_named_by_their_numbers():
    data = ArrayClientData.from_partition(np.arange(10), partition.iid(np.zeros(10), 3))
    assert data.client_ids == ["0", "1", "2"]
    assert sorted(int(x) for i in data.client_ids for x in data.create_tf_dataset_for_client(i)) == list(range(10))
    with pytest.raises(TypeError, match="parts holds an array of row numbers for each client, not"):
        ArrayClientData.from_partition(np.arange(3), [0, 1, 2])


def test_a_partition_gives_each_client_the_rows_it_names():
    parts = {"a": np.array([4, 0]), "b": np.array([2])}
    data = ArrayClientData.from_partition({"x": np.arange(5) * 10}, parts)
    assert xs(data.create_tf_dataset_for_client("a")) == [40, 0]
    assert xs(data.create_tf_dataset_for_client("b")) == [20]


def test_data_sets_may_come_from_a_function_of_the_client():
    def dataset_of_length(client_id):
        return tf.data.Dataset.from_tensors({"x": len(client_id)})

    data = ClientData.from_clients_and_tf_fn(["bb", "a"], dataset_of_length)
    assert data.client_ids == ["a", "bb"]
    assert xs(data.create_tf_dataset_for_client("bb")) == [2]


def test_the_examples_of_the_docs_run():
    assert doctest.testmod(client_data).failed == 0


def test_a_preprocessing_that_returns_nothing_is_named():
    data = TestClientData(THREE).preprocess(lambda dataset: None)
    with pytest.raises(
        TypeMismatch, match=r"`<lambda>` \(.*test_client_data.py:\d+\) returns None; it returns the client"
    ):
        data.create_tf_dataset_for_client("b")
