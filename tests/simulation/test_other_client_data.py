"""Client data from files, functions and transformations; mixtures; data sets inside graphs."""

import doctest
import os

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError, InvalidValue
from fedcore.simulation.datasets import (
    ClientData,
    FilePerUserClientData,
    TestClientData,
    TransformingClientData,
    build_dataset_mixture,
    build_single_label_dataset,
    build_synthethic_iid_datasets,
    file_per_user_client_data,
    mixtures,
    transforming_client_data,
)

DATA = TestClientData({"a": {"x": [1, 2]}, "b": {"x": [3]}})


def xs(dataset):
    return [int(example["x"]) for example in dataset]


# --- a file for each client ---


@pytest.fixture
def directory(tmp_path):
    for name, lines in {"a": "first\nsecond\n", "b": "third\n"}.items():
        (tmp_path / name).write_text(lines)
    (tmp_path / "more").mkdir()
    return tmp_path


def test_each_file_of_a_directory_is_a_client_and_columnar(directory):
    data = FilePerUserClientData.create_from_dir(directory, tf.data.TextLineDataset)
    assert data.client_ids == ["a", "b"]
    dataset = data.create_tf_dataset_for_client("a")
    assert isinstance(dataset, ClientDataset)
    assert list(dataset.as_numpy_iterator()) == [b"first", b"second"]
    assert data.select(["b"]).client_ids == ["b"]
    with pytest.raises(KeyError, match="no client 'more' among 2"):
        data.create_tf_dataset_for_client("more")


def test_records_are_the_default(tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
        writer.write(b"record")
    data = FilePerUserClientData.create_from_dir(tmp_path)
    assert list(data.create_tf_dataset_for_client("a").as_numpy_iterator()) == [b"record"]


def test_data_sets_without_columns_are_handed_out_as_they_are(directory):
    def batched(path):
        return tf.data.TextLineDataset(path).batch(2).concatenate(tf.data.Dataset.from_tensors([b"x"]))

    def endless(path):
        return tf.data.Dataset.from_tensors(path).repeat()

    for dataset_fn in (batched, endless):
        data = FilePerUserClientData({"a": str(directory / "a")}, dataset_fn)
        assert not isinstance(data.create_tf_dataset_for_client("a"), ClientDataset)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: FilePerUserClientData({}, len), "at least one client"),
        (lambda d: FilePerUserClientData(["a"], len), "a dict from ids to paths"),
        (lambda d: FilePerUserClientData({"a": "b"}, None), "dataset_fn is a function from a path to a data set"),
        (lambda d: FilePerUserClientData.create_from_dir(d / "nothing"), "there is no directory .*nothing"),
        (lambda d: FilePerUserClientData.create_from_dir(d / "more"), "there is no file in .*more"),
    ],
)
def test_files_that_are_not_there_are_named(directory, make, message):
    with pytest.raises(FedcoreError, match=message):
        make(directory)


@pytest.mark.parametrize("keep", [None, 0.9, "text"])
def test_a_file_that_is_gone_cut_or_of_another_kind_is_named_with_its_client(tmp_path, keep):
    path = tmp_path / "ada"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"record" * 10)
    data = FilePerUserClientData.create_from_dir(tmp_path)
    if keep is None:
        path.unlink()
    elif keep == "text":
        path.write_text("no records, but text")
    else:
        os.truncate(path, int(path.stat().st_size * keep))
    with pytest.raises(FedcoreError, match=rf"client 'ada' cannot be read from {path}: \S(.*\S)?$"):
        data.create_tf_dataset_for_client("ada")


# --- transformations ---


def times_its_number(client_id):
    return lambda example: {"x": example["x"] * int(client_id[-1])}


def test_each_client_may_stand_for_several():
    data = TransformingClientData(DATA, times_its_number, lambda i: [i + "-1", i + "-2"], lambda i: i[:-2])
    assert data.client_ids == ["a-1", "a-2", "b-1", "b-2"]
    assert xs(data.create_tf_dataset_for_client("a-2")) == [2, 4]
    assert isinstance(data.create_tf_dataset_for_client("a-2"), ClientDataset)
    assert data.element_type_structure == DATA.element_type_structure
    with pytest.raises(KeyError, match="no client 'a' among 4"):
        data.create_tf_dataset_for_client("a")


def test_a_function_that_reduces_ids_may_be_tensorflows():
    data = TransformingClientData(
        DATA, lambda i: lambda e: e, lambda i: [i + "-1"], lambda i: tf.strings.split(i, "-")[0]
    )
    assert xs(data.create_tf_dataset_for_client("b-1")) == [3]
    assert xs(data.dataset_computation("a-1")) == [1, 2]


def test_without_functions_of_ids_the_clients_stay():
    data = TransformingClientData(DATA, lambda i: lambda e: {"x": e["x"] + ord(i)})
    assert data.client_ids == DATA.client_ids
    assert xs(data.create_tf_dataset_for_client("b")) == [3 + ord("b")]


def test_one_function_of_ids_alone_and_no_clients_are_refused():
    with pytest.raises(ValueError, match="both or neither of expand_client_id and reduce_client_id"):
        TransformingClientData(DATA, times_its_number, expand_client_id=lambda i: [i])
    with pytest.raises(ValueError, match="base_client_data has no clients"):
        TransformingClientData(DATA.select([]), times_its_number)
    with pytest.raises(TypeError, match="base_client_data is client data, not"):
        TransformingClientData({"a": [1]}, times_its_number)


# --- inside graphs ---


def test_ids_and_preprocessing_may_be_the_graphs():
    data = DATA.preprocess(lambda dataset: dataset.map(lambda e: {"x": e["x"] * 10}))
    assert str(data.dataset_computation.type_signature) == "(str -> <x=int32>*)"
    assert xs(data.dataset_computation("a")) == [10, 20]
    assert data.dataset_computation is data.dataset_computation


def test_an_unknown_id_fails_in_a_graph():
    with pytest.raises(FedcoreError, match="no such client among 2"):
        DATA.dataset_computation("z")


def test_functions_of_a_tensor_make_a_dataset_computation():
    data = ClientData.from_clients_and_tf_fn(
        client_ids=["aa", "b"],
        serializable_dataset_fn=lambda i: tf.data.Dataset.from_tensor_slices({"x": tf.strings.bytes_split(i)}),
    )
    assert [e["x"] for e in data.dataset_computation("aa").as_numpy_iterator()] == [b"a", b"a"]
    assert data.select(["b"]).client_ids == ["b"]


def test_a_computation_is_no_preprocessing():
    computation = fc.tf_computation("int32")(lambda x: x)
    with pytest.raises(TypeError, match="preprocess_fn is a Python function from a data set to a data set, not a comp"):
        DATA.preprocess(computation)
    with pytest.raises(TypeError, match="serializable_dataset_fn is a Python function from a client's id"):
        ClientData.from_clients_and_tf_fn(["a"], computation)


def test_preprocessed_data_is_held_in_memory_after_preprocessing():
    data = DATA.preprocess(lambda dataset: dataset.map(lambda e: e["x"] * 10)).in_memory()
    assert data.create_tf_dataset_for_client("a").stored_rows.tolist() == [10, 20]
    assert data.in_memory() is data


def test_seeds_may_be_sequences():
    data = TestClientData({str(i): {"x": [i]} for i in range(20)})
    drawn = [[xs(d) for d in data.datasets(5, seed=seed)] for seed in ([1, 2], (1, 2), [1, 3])]
    assert drawn[0] == drawn[1] != drawn[2]


# --- classes of one's own ---


class AsInTFF(ClientData):
    """The three properties that a class of TFF has."""

    client_ids = property(lambda self: ["b", "a"])
    serializable_dataset_fn = property(lambda self: DATA.serializable_dataset_fn)
    element_type_structure = property(lambda self: DATA.element_type_structure)


class ByMethod(ClientData):
    def create_tf_dataset_for_client(self, client_id):
        return DATA.create_tf_dataset_for_client(client_id)


@pytest.mark.parametrize("data", [AsInTFF(), ByMethod(["a", "b"])], ids=lambda data: type(data).__name__)
def test_a_class_of_ones_own_is_client_data(data):
    assert sorted(data.client_ids) == ["a", "b"]
    assert xs(data.create_tf_dataset_for_client("a")) == [1, 2]
    assert sorted(xs(data.create_tf_dataset_from_all_clients(seed=1))) == [1, 2, 3]
    train, test = ClientData.train_test_client_split(data, 1, seed=1)
    assert sorted(train.client_ids + test.client_ids) == ["a", "b"]
    batched = data.preprocess(lambda dataset: dataset.batch(2))
    assert batched.element_type_structure["x"].shape.rank == 1


def test_a_class_without_ids_or_data_sets_says_what_to_define():
    class Nothing(ClientData):
        pass

    with pytest.raises(NotImplementedError, match=r"Nothing gives its client ids to ClientData\.__init__"):
        Nothing().client_ids  # noqa: B018
    with pytest.raises(NotImplementedError, match="Nothing defines create_tf_dataset_for_client"):
        Nothing(["a"]).create_tf_dataset_for_client("a")


# --- mixtures ---


def test_a_mixture_takes_each_example_from_one_of_two():
    low, high = tf.data.Dataset.range(1000), tf.data.Dataset.range(1000, 1900)
    found = [int(x) for x in build_dataset_mixture(low, high, 0.3, seed=4)]
    again = [int(x) for x in build_dataset_mixture(low, high, 0.3, seed=4)]
    assert found == again
    assert [x % 1000 for x in found] == list(range(900))
    assert 0.2 < np.mean(np.array(found) < 1000) < 0.4


@pytest.mark.parametrize(("probability", "wants"), [(0.0, [3]), (1.0, [1])])
def test_a_mixture_may_be_of_one(probability, wants):
    a, b = (DATA.create_tf_dataset_for_client(i) for i in "ab")
    assert xs(build_dataset_mixture(a, b, probability)) == wants


@pytest.mark.parametrize("probability", [-0.1, 1.5])
def test_what_is_no_probability_is_refused(probability):
    a, b = (DATA.create_tf_dataset_for_client(i) for i in "ab")
    with pytest.raises(InvalidValue, match=f"a_probability is a number from 0 to 1, not {probability}"):
        build_dataset_mixture(a, b, probability)


def test_examples_of_one_label_stay_columnar():
    data = TestClientData({"a": {"x": [1, 2, 3], "y": [0, 1, 0]}})
    found = build_single_label_dataset(data.create_tf_dataset_for_client("a"), "y", 0)
    assert isinstance(found, ClientDataset)
    assert xs(found) == [1, 3]


def test_iid_clients_draw_from_all():
    clients = list(build_synthethic_iid_datasets(DATA, client_dataset_size=2).take(3))
    assert sorted(int(x) for client in clients for x in client["x"]) == [1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="client_dataset_size is a whole number, 1 or more"):
        build_synthethic_iid_datasets(DATA, 0)


@pytest.mark.parametrize("module", [file_per_user_client_data, mixtures, transforming_client_data])
def test_the_examples_of_the_docs_run(module, tmp_path):
    (tmp_path / "file").write_text("first\nsecond\n")
    names = {"tf": tf, "TestClientData": TestClientData, "path": str(tmp_path / "file")}
    assert doctest.testmod(module, extraglobs=names).failed == 0
