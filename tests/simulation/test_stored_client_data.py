"""Client data in HDF5 and SQLite files: formats, laziness, damaged and missing files."""

import doctest
import os
import pickle
import re
import sqlite3
import threading

import h5py
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError, NotFound, TracingError, TypeMismatch
from fedcore.simulation.datasets import (
    ClientData,
    HDF5ClientData,
    SqlClientData,
    TestClientData,
    hdf5_client_data,
    load_and_parse_sql_client_data,
    save_hdf5,
    save_sqlite,
    save_to_sql_client_data,
    sqlite_client_data,
)

DATA = TestClientData(
    {
        "b": {"x": [[3.0, 1.0], [4.0, 1.0]], "name": ["beta", ""], "y": [2, 3]},
        "a": {"x": [[1.0, 0.5]], "name": ["é"], "y": [1]},
        "empty": {"x": np.zeros((0, 2), np.float32), "name": np.zeros(0, "S1"), "y": np.zeros(0, np.int32)},
    }
)
COLUMNAR = {"hdf5": (save_hdf5, HDF5ClientData), "sqlite": (save_sqlite, SqlClientData)}
each_format = pytest.mark.parametrize(("save", "load"), COLUMNAR.values(), ids=COLUMNAR)


def rows(data: ClientData, client_id: str) -> list:
    return [
        tf.nest.map_structure(lambda v: v.tolist() if hasattr(v, "tolist") else v, e)
        for e in data.create_tf_dataset_for_client(client_id).as_numpy_iterator()
    ]


def assert_equal_clients(have: ClientData, want: ClientData) -> None:
    assert have.client_ids == want.client_ids
    assert have.element_type_structure == want.element_type_structure
    for client_id in want.client_ids:
        assert rows(have, client_id) == rows(want, client_id)


@each_format
def test_what_is_stored_comes_back(save, load, tmp_path):
    save(DATA, tmp_path / "new" / "data")
    assert_equal_clients(load(tmp_path / "new" / "data"), DATA)


@each_format
@pytest.mark.parametrize(
    "columns", [[1, 2], ([1.0], [True]), {"x": np.zeros((2, 3), np.float16)}, [["a", "b"]]], ids=str
)
def test_tuples_bare_columns_and_all_dtypes_are_stored(save, load, columns, tmp_path):
    data = TestClientData({"one": columns})
    save(data, tmp_path / "data")
    assert_equal_clients(load(tmp_path / "data"), data)


@each_format
def test_splits_share_a_file_and_are_named_to_read(save, load, tmp_path):
    path = tmp_path / "data"
    save({"train": DATA.select(["a", "b"]), "test": DATA.select(["empty"])}, path)
    assert load(path, "test").client_ids == ["empty"]
    assert load(path, "train").client_ids == ["a", "b"]
    with pytest.raises(FedcoreError, match=r"has the splits test, train; name one"):
        load(path)
    with pytest.raises(FedcoreError, match=r"has the splits test, train; there is no 'dev'"):
        load(path, "dev")


@each_format
def test_data_sets_are_columnar_and_steps_stay_so(save, load, tmp_path):
    save(DATA, tmp_path / "data")
    data = load(tmp_path / "data").preprocess(lambda dataset: dataset.repeat(2).shuffle(4).batch(2))
    assert isinstance(data.create_tf_dataset_for_client("b"), ClientDataset)


@each_format
def test_preprocessed_data_is_stored_as_it_is_after_preprocessing(save, load, tmp_path):
    doubled = DATA.select(["a", "b"]).preprocess(lambda dataset: dataset.map(lambda e: e["y"] * 2))
    save(doubled, tmp_path / "data")
    assert_equal_clients(load(tmp_path / "data"), doubled)


@each_format
def test_batches_of_different_sizes_are_refused_with_the_fix(save, load, tmp_path):
    batched = TestClientData({"a": [1, 2, 3]}).preprocess(lambda dataset: dataset.batch(2))
    with pytest.raises(FedcoreError, match="fix: store them before they are batched"):
        save(batched, tmp_path / "data")
    assert os.listdir(tmp_path) == []


@each_format
def test_a_write_that_fails_leaves_the_old_file(save, load, tmp_path):
    save(DATA, tmp_path / "data")
    different = ClientData.from_clients_and_tf_fn(
        ["a", "b"], lambda i: ClientDataset.from_columns(np.zeros(1, {"a": np.int32, "b": np.float32}[i]))
    )
    with pytest.raises(FedcoreError, match=r"client 'b'  has 0=float32\[\]\n  the first   has 0=int32\[\]"):
        save(different, tmp_path / "data")
    assert os.listdir(tmp_path) == ["data"]
    assert_equal_clients(load(tmp_path / "data"), DATA)


@each_format
def test_nested_examples_and_no_clients_are_refused(save, load, tmp_path):
    with pytest.raises(FedcoreError, match="one dict or tuple of columns; 'x' holds others"):
        save(TestClientData({"a": {"x": {"y": [1]}}}), tmp_path / "data")
    with pytest.raises(FedcoreError, match="no clients to store"):
        save(ClientData.from_clients_and_tf_fn([], lambda i: None), tmp_path / "data")


@each_format
def test_a_client_is_read_without_listing_the_others(save, load, tmp_path):
    save(DATA, tmp_path / "data")
    data = load(tmp_path / "data")
    assert rows(data, "a") == rows(DATA, "a")
    assert "_ids" not in vars(data)


@each_format
def test_an_unknown_client_is_named(save, load, tmp_path):
    save(DATA, tmp_path / "data")
    with pytest.raises(KeyError, match="no client 'z' among 3"):
        load(tmp_path / "data").create_tf_dataset_for_client("z")


@each_format
def test_data_in_a_file_pickles_and_is_read_by_threads_and_forked_processes(save, load, tmp_path):
    save(DATA, tmp_path / "data")
    data = load(tmp_path / "data")
    first = rows(data, "b")
    assert rows(pickle.loads(pickle.dumps(data)), "b") == first
    found: list = []
    threads = [threading.Thread(target=lambda: found.append(data._store.read("b")["y"].tolist())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[2, 3]] * 4


@each_format
def test_a_forked_process_opens_the_file_anew(save, load, tmp_path):
    save(DATA, tmp_path / "data")
    store = load(tmp_path / "data")._store
    store.read("a")
    here = store.get()
    store._opened = {os.getpid() + 1: store._opened[os.getpid()]}  # as a process sees it that was forked
    assert store.get() is not here
    assert store.read("a")["y"].tolist() == [1]


@each_format
def test_one_file_is_read_though_another_takes_its_place_and_copies_do_not_mix_them(save, load, tmp_path):
    save(DATA, tmp_path / "data")
    data = load(tmp_path / "data")
    copy = pickle.dumps(data)
    assert_equal_clients(pickle.loads(copy), DATA)
    assert pickle.dumps(pickle.loads(copy)) == copy
    other = TestClientData({"c": [[7, 8, 9]] * 3000})
    save(other, tmp_path / "data")
    assert_equal_clients(data, DATA)
    assert pickle.dumps(load(tmp_path / "data")) != copy
    with pytest.raises(FedcoreError, match=r"data has \d+ bytes, but had \d+ when .*; fix: make them anew"):
        pickle.loads(copy).create_tf_dataset_for_client("a")
    (tmp_path / "data").unlink()
    assert_equal_clients(data, DATA)


@each_format
@pytest.mark.parametrize("keep", [0, 5000, None], ids=["emptied", "cut", "overwritten"])
def test_a_file_that_is_damaged_while_it_is_open_is_an_error(save, load, keep, tmp_path):
    path = tmp_path / "data"
    save(TestClientData({f"c{i}": np.zeros(3000, np.float32) for i in range(9)}), path)
    data = load(path)
    with open(path, "rb+") as file:
        if keep is None:
            file.write(b"other bytes" * 2000)
        else:
            file.truncate(keep)
    with pytest.raises(FedcoreError, match=str(path)):
        [data.create_tf_dataset_for_client(client_id) for client_id in ("c0", "c8")]


@each_format
def test_files_that_are_missing_or_of_another_kind_are_named(save, load, tmp_path):
    with pytest.raises(FedcoreError, match=f"there is no file {tmp_path}/nothing"):
        load(tmp_path / "nothing")
    (tmp_path / "text").write_text("hello " * 300)
    with pytest.raises(FedcoreError, match=r"text is no .* that can be read"):
        load(tmp_path / "text")


def summing():
    """A process that adds up what the clients hold."""
    data_type = fc.FederatedType(fc.SequenceType(DATA.element_type_structure), fc.CLIENTS)
    count = fc.tf_computation(lambda data: data.reduce(0, lambda n, _: n + 1))
    start = fc.tf_computation(lambda: tf.constant(0))

    @fc.federated_computation(fc.FederatedType("int32", fc.SERVER), data_type)
    def next_round(state, data):
        counted = fc.federated_sum(fc.federated_map(count, data))
        return fc.federated_map(lambda a, b: a + b, (state, counted)), counted

    return fc.templates.IterativeProcess(
        fc.federated_computation(lambda: fc.federated_eval(start, fc.SERVER)), next_round
    )


def number(client_id):
    return sum(1 for _ in DATA.create_tf_dataset_for_client(client_id))


@each_format
def test_a_process_reads_the_clients_of_a_round_from_their_files(save, load, tmp_path):
    save(DATA, tmp_path / "data")
    data = load(tmp_path / "data").preprocess(lambda dataset: dataset.repeat(2))
    process = fc.simulation.compose_dataset_computation_with_iterative_process(data.dataset_computation, summing())
    assert str(process.next.type_signature.parameter["data"]) == "{str}@CLIENTS"
    state, counted = process.next(process.initialize(), ["a", "b", "a"])
    assert (state, counted) == (2 * (2 * number("a") + number("b")),) * 2
    assert process.next(state, [b"b"])[1] == 2 * number("b")


@each_format
def test_the_data_set_of_a_client_in_a_file_is_computed_from_python(save, load, tmp_path):
    save(DATA, tmp_path / "data")
    made = load(tmp_path / "data").dataset_computation
    assert sum(1 for _ in made("b")) == number("b")
    assert made.type_signature == DATA.dataset_computation.type_signature


@each_format
def test_a_traced_computation_holds_the_examples_of_files(save, load, tmp_path):
    save(DATA, tmp_path / "data")
    made = load(tmp_path / "data").dataset_computation
    count = fc.tf_computation(lambda data: data.reduce(0, lambda n, _: n + 1))

    @fc.federated_computation(fc.FederatedType("str", fc.CLIENTS))
    def counted(ids):
        return fc.federated_sum(fc.federated_map(count, fc.federated_map(made, ids)))

    (tmp_path / "data").unlink()
    assert counted(["a", "b"]) == number("a") + number("b")


def test_a_graph_does_not_hold_large_files(tmp_path, monkeypatch):
    monkeypatch.setattr("fedcore.simulation.datasets.reading.LIMIT_BYTES", 8)
    save_sqlite(DATA, tmp_path / "data")
    made = SqlClientData(tmp_path / "data").dataset_computation
    with pytest.raises(TracingError, match=r"bytes are too many to be constants of a graph, which holds 8; fix: "):
        fc.federated_computation(lambda ids: fc.federated_map(made, ids), fc.FederatedType("str", fc.CLIENTS))


def test_unknown_clients_of_files_are_named(tmp_path):
    save_sqlite(DATA, tmp_path / "data")
    data = SqlClientData(tmp_path / "data")
    process = fc.simulation.compose_dataset_computation_with_iterative_process(data.dataset_computation, summing())
    with pytest.raises(NotFound, match="no client 'nobody' among"):
        process.next(0, ["nobody"])
    with pytest.raises(TypeMismatch, match="clients are given by a list of their ids, not by 'a'"):
        process.next(0, "a")


# --- the published formats ---


@pytest.fixture
def groups(tmp_path):
    """TFF's and LEAF's HDF5: examples/<client id>/<field>."""
    with h5py.File(tmp_path / "published.h5", "w") as file:
        for client_id, count in (("f0001_41", 2), ("f0000_14", 1)):
            client = file.create_group(f"examples/{client_id}")
            client["pixels"] = np.full((count, 28, 28), 0.5, np.float32)
            client["label"] = np.arange(count, dtype=np.int32)
            client["text"] = ["to be"] * count
    return tmp_path / "published.h5"


def test_groups_of_clients_are_read_with_fields_in_order_of_names(groups):
    data = HDF5ClientData(groups)
    assert data.client_ids == ["f0000_14", "f0001_41"]
    assert data.element_type_structure == {
        "label": tf.TensorSpec([], tf.int32),
        "pixels": tf.TensorSpec([28, 28], tf.float32),
        "text": tf.TensorSpec([], tf.string),
    }
    assert list(data.element_type_structure) == ["label", "pixels", "text"]
    assert [e["text"] for e in rows(data, "f0001_41")] == [b"to be"] * 2
    for unknown in ("f9", "f0000_14/pixels", "/", ".", "", "f\0"):
        with pytest.raises(KeyError, match=re.escape(f"no client {unknown!r} among 2")):
            data.create_tf_dataset_for_client(unknown)


def test_a_client_whose_group_is_another_is_named(tmp_path):
    with h5py.File(tmp_path / "data", "w") as file:
        file["examples/a/x"] = file["examples/b/y"] = file["examples/c/x/y"] = file["examples/d"] = [1.0]
        file.create_group("examples/e")
    data = HDF5ClientData(tmp_path / "data")
    assert rows(data, "a") == [{"x": 1.0}]
    for client_id in "bcde":
        with pytest.raises(FedcoreError, match=f"client '{client_id}' is no group with a data set for each field"):
            data.create_tf_dataset_for_client(client_id)


@pytest.mark.parametrize("split", ["a/b", "", ".", "a\0"])
def test_a_split_that_hdf5_cannot_have_is_refused_before_it_is_written(split, tmp_path):
    with pytest.raises(FedcoreError, match="a split has a name without `/`"):
        save_hdf5({split: DATA}, tmp_path / "data")
    assert os.listdir(tmp_path) == []


def test_an_hdf5_file_of_something_else_is_refused(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["weights"] = [1.0]
    with pytest.raises(FedcoreError, match="neither a group `examples` nor the format of save_hdf5"):
        HDF5ClientData(tmp_path / "other.h5")


@pytest.fixture(params=["with an index", "without one"])
def examples(request, tmp_path):
    """TFF's SQLite; without an index, the rows of the clients are mixed."""
    path = tmp_path / "published.sqlite"
    splits = {"a": "train", "b": "train", "empty": "test"}
    save_to_sql_client_data(DATA.client_ids, DATA.create_tf_dataset_for_client, path, split_names_by_client_id=splits)
    if request.param == "without one":
        with sqlite3.connect(path) as connection:
            connection.execute("DROP INDEX examples_by_client")
            connection.execute("CREATE TABLE mixed AS SELECT * FROM examples ORDER BY rowid % 2")
            connection.execute("DROP TABLE examples")
            connection.execute("ALTER TABLE mixed RENAME TO examples")
        connection.close()
    return path


def test_examples_are_parsed_by_their_spec(examples):
    data = load_and_parse_sql_client_data(str(examples), DATA.element_type_structure)
    assert data.client_ids == DATA.client_ids
    assert data.element_type_structure == DATA.element_type_structure
    for client_id in DATA.client_ids:
        by_number = sorted(rows(data, client_id), key=lambda e: e["y"])
        assert by_number == rows(DATA, client_id)
    assert isinstance(data.create_tf_dataset_for_client("a"), ClientDataset)


def test_a_database_without_an_index_is_searched_once(examples):
    data = SqlClientData(examples)
    rows(data, "a")
    runs = dict(data._store.get()._runs)
    has_index = not runs
    assert has_index or sum(last - first + 1 for client in runs.values() for first, last in client) == 3
    rows(data, "b")
    assert data._store.get()._runs == runs
    with sqlite3.connect(examples) as connection:
        indices = connection.execute("SELECT COUNT(*) FROM sqlite_master WHERE type = 'index'").fetchone()[0]
    connection.close()
    assert has_index == bool(indices)


def test_a_split_has_its_own_clients_only(examples):
    train = load_and_parse_sql_client_data(examples, DATA.element_type_structure, "train")
    assert train.client_ids == ["a", "b"]
    assert [e["y"] for e in rows(train, "a")] == [1]
    with pytest.raises(KeyError, match="no client 'empty' among 2"):
        train.create_tf_dataset_for_client("empty")
    with pytest.raises(FedcoreError, match=r"has the splits test, train; there is no 'dev'"):
        SqlClientData(examples, "dev")


def test_without_a_spec_examples_are_serialized_protos(examples):
    data = SqlClientData(str(examples), "train")
    assert data.element_type_structure == tf.TensorSpec([], tf.string)
    (proto,) = data.create_tf_dataset_for_client("a").as_numpy_iterator()
    example = tf.train.Example.FromString(proto)
    assert example.features.feature["name"].bytes_list.value == ["é".encode()]
    assert example.features.feature["x"].float_list.value == [1.0, 0.5]


def test_a_spec_that_does_not_fit_the_examples_is_an_error(examples):
    data = load_and_parse_sql_client_data(examples, {"z": tf.TensorSpec([], tf.int64)}, "train")
    with pytest.raises(FedcoreError, match=r"not what element_spec says: .*Feature: z"):
        data.create_tf_dataset_for_client("a")


@pytest.mark.parametrize(
    "spec",
    [tf.TensorSpec([], tf.int32), {"x": tf.TensorSpec([None], tf.int32)}, {"x": {"y": tf.TensorSpec([], tf.int32)}}],
)
def test_a_spec_that_no_proto_can_have_is_refused(examples, spec):
    with pytest.raises(TypeError, match=r"dict from names to tf\.TensorSpecs"):
        load_and_parse_sql_client_data(examples, spec)


def test_a_database_is_not_overwritten_unless_it_may_be(examples):
    with pytest.raises(ValueError, match="fix: allow_overwrite=True"):
        save_to_sql_client_data(["a"], DATA.create_tf_dataset_for_client, examples)
    save_to_sql_client_data(["a"], DATA.create_tf_dataset_for_client, examples, allow_overwrite=True)
    assert SqlClientData(examples, "default_split").client_ids == ["a"]


def test_clients_without_a_split_and_of_other_types_are_named(tmp_path):
    path = tmp_path / "new.sqlite"
    with pytest.raises(ValueError, match="client 'b' has no split"):
        save_to_sql_client_data(["b"], DATA.create_tf_dataset_for_client, path, split_names_by_client_id={"a": "train"})
    with pytest.raises(TypeError, match=r"client 'b'  has .*float32"):
        save_to_sql_client_data(
            ["a", "b"],
            lambda i: ClientDataset.from_columns({"x": np.zeros(1, np.int32 if i == "a" else np.float32)}),
            path,
        )
    assert os.listdir(tmp_path) == []


def test_a_database_without_the_tables_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "other") as connection:
        connection.execute("CREATE TABLE examples (client_id TEXT)")
    connection.close()
    with pytest.raises(FedcoreError, match="the table `examples` lacks serialized_example_proto, split_name"):
        SqlClientData(tmp_path / "other")


@pytest.mark.parametrize("module", [hdf5_client_data, sqlite_client_data])
def test_the_examples_of_the_docs_run(module, tmp_path):
    small = TestClientData({"a": {"x": [1, 2]}, "b": {"x": [3]}, "c": {"x": [4]}})
    names = {"path": str(tmp_path / "data"), "TestClientData": TestClientData, "data": small.select(["a", "b"])}
    names |= {"train": small.select(["a", "b"]), "test": small.select(["c"])}
    for test in doctest.DocTestFinder().find(module):
        test.globs.update(names)
        (tmp_path / "data").unlink(missing_ok=True)
        assert doctest.DocTestRunner().run(test).failed == 0
