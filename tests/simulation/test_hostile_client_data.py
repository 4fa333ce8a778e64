"""Files of client data that were made to read other files, to take memory out of proportion, or not to stop."""

import lzma
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import textwrap
import tracemalloc

import h5py
import numpy as np
import pytest
import tensorflow as tf

import fedcore.data  # noqa: F401  brings TensorFlow in, whose import is slow while memory is traced
from fedcore.errors import FedcoreError
from fedcore.simulation.datasets import (
    FilePerUserClientData,
    HDF5ClientData,
    SqlClientData,
    TestClientData,
    save_hdf5,
    save_sqlite,
)
from fedcore.simulation.datasets.downloads import cached_database

MIB = 2**20
SECRET = np.frombuffer(b"a secret of another file", np.uint8)


def refused(read, message: str) -> None:
    """Checks that reading is refused, in less memory than 80 MiB."""
    tracemalloc.start()
    try:
        with pytest.raises(FedcoreError, match=message):
            read()
        assert tracemalloc.get_traced_memory()[1] < 80 * MIB
    finally:
        tracemalloc.stop()


def refused_client(path, message: str, client_id: str = "a") -> None:
    refused(lambda: HDF5ClientData(path).create_tf_dataset_for_client(client_id), f"(?s){client_id}.*{message}")


@pytest.fixture
def secret(tmp_path):
    """A file with a secret, as bytes and as a data set."""
    SECRET.tofile(tmp_path / "secret.bin")
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = SECRET
        file.create_group("client")["x"] = SECRET
    return tmp_path


@pytest.fixture
def examples(tmp_path):
    """A file of TFF's format to write."""
    with h5py.File(tmp_path / "data.h5", "w", libver="latest") as file:
        yield file.create_group("examples")


def close(group) -> str:
    """The path of a file, which is closed."""
    path = group.file.filename
    group.file.close()
    return path


def test_hdf5_external_storage_is_refused(secret, examples):
    storage = [(str(secret / "secret.bin"), 0, SECRET.size)]
    examples.create_group("a").create_dataset("x", SECRET.shape, np.uint8, external=storage)
    refused_client(close(examples), "'x' has its content in another file")


def test_hdf5_virtual_data_sets_are_refused(secret, examples):
    layout = h5py.VirtualLayout(SECRET.shape, np.uint8)
    layout[:] = h5py.VirtualSource(str(secret / "secret.h5"), "x", SECRET.shape)
    examples.create_group("a").create_virtual_dataset("x", layout)
    refused_client(close(examples), "'x' has its content in another file")


def test_hdf5_external_links_of_data_sets_are_refused(secret, examples):
    examples.create_group("a")["x"] = h5py.ExternalLink(str(secret / "secret.h5"), "/x")
    refused_client(close(examples), "'x' in '/examples/a' is a link to another file")


def test_hdf5_external_links_of_clients_are_refused(secret, examples):
    examples["a"] = h5py.ExternalLink(str(secret / "secret.h5"), "/client")
    refused_client(close(examples), "'a' in '/examples' is a link to another file")


def test_hdf5_soft_links_by_way_of_an_external_link_are_refused(secret, examples):
    examples.file["elsewhere"] = h5py.ExternalLink(str(secret / "secret.h5"), "/")
    examples["a"] = h5py.SoftLink("/elsewhere/client")
    refused_client(close(examples), "'a' in '/examples' is a link to another file")


def test_hdf5_external_links_of_the_groups_are_refused(secret):
    with h5py.File(secret / "data.h5", "w") as file:
        file["examples"] = h5py.ExternalLink(str(secret / "secret.h5"), "/")
    refused(lambda: HDF5ClientData(secret / "data.h5"), "'examples' in '/' is a link to another file")


def test_hdf5_external_links_open_no_fifo(tmp_path, examples):
    os.mkfifo(tmp_path / "fifo")
    examples["a"] = h5py.ExternalLink(str(tmp_path / "fifo"), "/")
    refused_client(close(examples), "is a link to another file")


def test_hdf5_soft_links_within_the_file_are_followed(examples):
    examples.create_group("b")["x"] = [1.0]
    examples["a"] = h5py.SoftLink("b")
    examples["c"] = h5py.SoftLink("/examples/a")
    data = HDF5ClientData(close(examples))
    assert [len(list(data.create_tf_dataset_for_client(c))) for c in "abc"] == [1, 1, 1]


def test_hdf5_soft_links_without_an_end_are_refused(examples):
    examples["a"] = h5py.SoftLink("b")
    examples["b"] = h5py.SoftLink("a")
    refused_client(close(examples), "is a soft link without an end")


def test_hdf5_soft_links_are_followed_as_often_as_by_h5py(examples):
    examples.create_group("a0")["x"] = [1.0]
    for i in range(16):
        examples[f"a{i + 1}"] = h5py.SoftLink(f"a{i}")
    assert examples["a16"] == examples["a0"]
    path = close(examples)
    assert len(list(HDF5ClientData(path).create_tf_dataset_for_client("a16"))) == 1
    with h5py.File(path, "a") as file:
        file["examples/a17"] = h5py.SoftLink("a16")
        with pytest.raises(RuntimeError, match="too many links"):
            file["examples/a17"]
    refused_client(path, "is a soft link without an end", "a17")


def test_hdf5_soft_links_to_nothing_are_no_clients(examples):
    examples["a"] = h5py.SoftLink("/nowhere")
    with pytest.raises(KeyError, match="no client 'a'"):
        HDF5ClientData(close(examples)).create_tf_dataset_for_client("a")


def test_hdf5_data_sets_of_fill_values_are_refused(examples):
    examples.create_group("a").create_dataset("x", (800 * MIB,), "f4", fillvalue=1.0)
    path = close(examples)
    assert os.path.getsize(path) < 4096
    refused_client(path, "take 3355443200 bytes of memory")


def test_hdf5_chunked_data_sets_without_chunks_are_refused(examples):
    examples.create_group("a").create_dataset("x", (800 * MIB,), "f4", chunks=(1024,), compression="gzip")
    refused_client(close(examples), "take 3355443200 bytes of memory")


def test_hdf5_compressed_zeros_are_refused(examples):
    zeros = np.zeros(100 * MIB, np.uint8)
    examples.create_group("a").create_dataset("x", data=zeros, chunks=(MIB,), compression="gzip")
    refused_client(close(examples), "take 104857600 bytes of memory")


def test_hdf5_chunks_that_are_larger_than_the_data_are_refused(examples):
    examples.create_group("a").create_dataset("x", (1,), "f4", maxshape=(None,), chunks=(256 * MIB,), compression=9)
    refused_client(close(examples), "a chunk of 'x' takes 1073741824 bytes of memory")


def test_hdf5_names_of_one_data_set_are_counted_once(examples):
    group = examples.create_group("a")
    group["x0"] = np.zeros(2 * MIB, np.uint8)
    for i in range(1, 50):
        group[f"x{i}"] = group["x0"]
    refused_client(close(examples), "take 104857600 bytes of memory")


def test_hdf5_texts_that_are_one_in_the_file_are_refused(examples):
    """The references of all texts are that of the first, of a mebibyte."""
    texts = examples.create_group("a").create_dataset("x", (4096,), h5py.string_dtype())
    texts[0] = "x" * MIB
    examples.file.flush()
    offset = texts.id.get_offset()
    path = close(examples)
    with open(path, "r+b") as file:
        file.seek(offset)
        reference = file.read(16)
        file.seek(offset)
        file.write(reference * 4096)
    refused_client(path, "the text of 'x' takes [0-9]* bytes of memory")


def test_hdf5_rows_without_bytes_are_refused(examples):
    examples.create_group("a").create_dataset("x", (2**60, 0), "f4")
    refused_client(close(examples), "a column takes")


def test_hdf5_objects_that_are_neither_numbers_nor_text_are_refused(examples):
    examples.create_group("a").create_dataset("x", (2,), h5py.ref_dtype)
    refused_client(close(examples), "'x' holds neither numbers nor text")


def test_hdf5_packed_data_are_read_within_the_ratio(examples):
    rng = np.random.default_rng(0)
    digits = rng.integers(0, 2, (400, 28, 28)).astype(np.float32)
    examples.create_group("a").create_dataset("x", data=digits, compression="gzip")
    columns = HDF5ClientData(close(examples)).create_tf_dataset_for_client("a").columns
    np.testing.assert_array_equal(columns.arrays[0].ravel(), digits.ravel())


@pytest.fixture
def columns(tmp_path):
    """A file of `save_hdf5`, open to be changed."""
    save_hdf5(TestClientData({"a": {"x": [1.0, 2.0], "name": ["one", "two"]}}), tmp_path / "data.h5")
    with h5py.File(tmp_path / "data.h5", "r+") as file:
        yield file["splits/all"]


def test_hdf5_columns_in_external_storage_are_refused(secret, columns):
    del columns["columns/0/values"]
    storage = [(str(secret / "secret.bin"), 0, 8)]
    columns["columns/0"].create_dataset("values", (2,), "f4", external=storage)
    refused(lambda: HDF5ClientData(close(columns)), "'/splits/all/columns/0/values' has its content in another file")


def test_hdf5_columns_behind_external_links_are_refused(secret, columns):
    del columns["columns"]
    columns["columns"] = h5py.ExternalLink(str(secret / "secret.h5"), "/")
    refused(lambda: HDF5ClientData(close(columns)), "'columns' in '/splits/all' is a link to another file")


def test_hdf5_columns_in_chunks_are_refused(columns):
    del columns["client_ids"]
    columns.create_dataset("client_ids", data=np.frombuffer(b"a", np.uint8), chunks=(1,))
    refused(lambda: HDF5ClientData(close(columns)), "'*/splits/all/client_ids'* does not lie in the file in one piece")


LAYOUTS = {
    "no json": "{",
    "deep": "[" * 5000,
    "digits": '{"kind": "array", "names": ["x"], "dtypes": ["int8"], "shapes": [[' + "9" * 5000 + "]]}",
    "no dict": "[]",
    "no kind": '{"kind": "set", "names": ["x"], "dtypes": ["int8"], "shapes": [[]]}',
    "objects": '{"kind": "array", "names": ["x"], "dtypes": ["O"], "shapes": [[]]}',
    "a wide dtype": '{"kind": "array", "names": ["x"], "dtypes": ["(9999,9999)f8"], "shapes": [[]]}',
    "a dtype of a list": '{"kind": "array", "names": ["x"], "dtypes": [["x", "f8"]], "shapes": [[]]}',
    "negative": '{"kind": "array", "names": ["x"], "dtypes": ["int8"], "shapes": [[-1]]}',
    "huge": '{"kind": "array", "names": ["x"], "dtypes": ["int8"], "shapes": [[9223372036854775808]]}',
    "uneven": '{"kind": "dict", "names": ["x", "y"], "dtypes": ["int8"], "shapes": [[]]}',
    "two arrays": '{"kind": "array", "names": ["x", "y"], "dtypes": ["int8", "int8"], "shapes": [[], []]}',
    "one name": '{"kind": "dict", "names": ["x", "x"], "dtypes": ["int8", "int8"], "shapes": [[], []]}',
    "none": '{"kind": "dict", "names": [], "dtypes": [], "shapes": []}',
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_hdf5_layouts_that_are_none_are_refused(columns, layout):
    columns.attrs["layout"] = layout
    refused(lambda: HDF5ClientData(close(columns)), "the layout of its columns is none")


def overlapping() -> np.ndarray:
    """Texts of which the first has a mebibyte."""
    texts = np.full(4096, b"", object)
    texts[0] = b"y" * MIB
    return texts


def test_hdf5_texts_that_overlap_are_refused(tmp_path):
    save_hdf5(TestClientData({"a": {"x": overlapping()}}), tmp_path / "data.h5")
    with h5py.File(tmp_path / "data.h5", "r+") as file:
        file["splits/all/columns/0/ends"][1::2] = 0
    refused_client(str(tmp_path / "data.h5"), "the ends of its texts do not ascend")


# ---- SQLite


def database(path, *statements: str) -> str:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return str(path)


EXAMPLES = (
    "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)",
    "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)",
    "INSERT INTO client_metadata VALUES ('a', 'train', 1)",
    "INSERT INTO examples VALUES ('train', 'a', x'00')",
)
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


def test_sqlite_views_without_an_end_are_refused(tmp_path):
    view = f"CREATE VIEW client_metadata AS {ENDLESS} SELECT 'a' AS client_id, 'train' AS split_name, i FROM n WHERE 0"
    path = database(tmp_path / "data.sqlite", EXAMPLES[0], view)
    refused(lambda: SqlClientData(path, "train"), "`client_metadata` is computed by the database")


def test_sqlite_views_of_examples_are_refused(tmp_path):
    view = (
        f"CREATE VIEW examples AS {ENDLESS} SELECT 'train' AS split_name, 'a' AS client_id, x'00' AS "
        "serialized_example_proto FROM n"
    )
    path = database(tmp_path / "data.sqlite", *EXAMPLES[1:3], view)
    refused(lambda: SqlClientData(path), "`examples` is computed by the database, as a view is; only tables are read")


@pytest.mark.parametrize("view", ["layouts", "clients", "LAYOUTS"])
def test_sqlite_views_of_columns_are_refused(tmp_path, view):
    tables = {
        "layouts": "CREATE TABLE layouts (split_name TEXT, layout TEXT)",
        "clients": "CREATE TABLE clients (split_name TEXT, client_id TEXT, num_examples INTEGER, content BLOB)",
    }
    del tables[view.lower()]
    path = database(
        tmp_path / "data.sqlite",
        *tables.values(),
        f"CREATE VIEW {view} AS {ENDLESS} SELECT i AS split_name, i AS layout FROM n",
    )
    refused(lambda: SqlClientData(path), f"`{view.lower()}` is computed by the database")


def test_sqlite_views_under_the_type_of_a_table_are_refused(tmp_path):
    view = (
        f"CREATE VIEW examples AS {ENDLESS} SELECT '' AS split_name, '' AS client_id, x'' AS serialized_example_proto"
    )
    path = database(
        tmp_path / "data.sqlite",
        *EXAMPLES[1:3],
        f"{view} FROM n",
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_master SET type = 'table' WHERE name = 'examples'",
    )
    refused(lambda: SqlClientData(path).create_tf_dataset_for_client("a"), "`examples` is computed|malformed")


@pytest.mark.parametrize("kind", ["VIRTUAL", "STORED"])
def test_sqlite_computed_columns_are_refused(tmp_path, kind):
    table = (
        "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB GENERATED ALWAYS AS "
        f"(zeroblob(1000)) {kind})"
    )
    path = database(tmp_path / "data.sqlite", *EXAMPLES[1:3], table)
    refused(lambda: SqlClientData(path), "`examples` is computed by the database")


def test_sqlite_virtual_tables_are_refused(tmp_path):
    table = "CREATE VIRTUAL TABLE examples USING fts5(split_name, client_id, serialized_example_proto)"
    entry = f"INSERT INTO sqlite_master VALUES ('table', 'examples', 'examples', 0, '{table}')"  # needs no such module
    path = database(tmp_path / "data.sqlite", *EXAMPLES[1:3], "PRAGMA writable_schema = ON", entry)
    refused(lambda: SqlClientData(path), "`examples` is computed by the database")


def with_defaults(path, client_ids) -> str:
    """Examples that share one default value of a mebibyte."""
    tables = (
        "CREATE TABLE examples (split_name TEXT, client_id TEXT)",
        *(f"INSERT INTO examples VALUES ('train', '{c}')" for c in client_ids),
        f"ALTER TABLE examples ADD COLUMN serialized_example_proto BLOB DEFAULT x'{'00' * MIB}'",
    )
    return database(path, *EXAMPLES[1:3], *tables)


@pytest.mark.parametrize("client_ids", ["a" * 2000, "ab" * 1000], ids=["one run", "many runs"])
def test_sqlite_defaults_of_many_rows_are_refused(tmp_path, client_ids):
    data = SqlClientData(with_defaults(tmp_path / "data.sqlite", client_ids))
    refused(lambda: data.create_tf_dataset_for_client("a"), "client 'a' cannot be read from .* takes [0-9]* bytes")


def test_sqlite_texts_that_overlap_are_refused(tmp_path):
    save_sqlite(TestClientData({"a": {"x": overlapping()}}), tmp_path / "data.sqlite")
    connection = sqlite3.connect(tmp_path / "data.sqlite")
    ((content,),) = connection.execute("SELECT content FROM clients")
    ends = np.frombuffer(content[: 8 * 4096], np.int64).copy()
    ends[1::2] = 0
    ends[-1] = MIB
    connection.execute("UPDATE clients SET content = ?", (ends.tobytes() + content[8 * 4096 :],))
    connection.commit()
    connection.close()
    data = SqlClientData(tmp_path / "data.sqlite")
    refused(lambda: data.create_tf_dataset_for_client("a"), "the ends of its texts do not ascend")


ROWS = {
    "a text of rows": "'many', x''",
    "negative rows": "-1, x''",
    "text for bytes": "1, 'text'",
    "rows beyond the bytes": f"{2**62}, x''",
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_sqlite_rows_that_are_none_are_refused(tmp_path, row):
    save_sqlite(TestClientData({"a": [1.0]}), tmp_path / "data.sqlite")
    database(tmp_path / "data.sqlite", f"UPDATE clients SET (num_examples, content) = ({row})")
    data = SqlClientData(tmp_path / "data.sqlite")
    refused(lambda: data.create_tf_dataset_for_client("a"), "client 'a' cannot be read from")


def test_sqlite_rows_without_bytes_are_refused(tmp_path):
    save_sqlite(TestClientData({"a": np.zeros((1, 0), np.float32)}), tmp_path / "data.sqlite")
    database(tmp_path / "data.sqlite", f"UPDATE clients SET num_examples = {2**60}")
    data = SqlClientData(tmp_path / "data.sqlite")
    refused(lambda: data.create_tf_dataset_for_client("a"), "client 'a' cannot be read from .* a column takes")


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_sqlite_layouts_that_are_none_are_refused(tmp_path, layout):
    save_sqlite(TestClientData({"a": [1.0]}), tmp_path / "data.sqlite")
    connection = sqlite3.connect(tmp_path / "data.sqlite")
    connection.execute("UPDATE layouts SET layout = ?", (layout,))
    connection.commit()
    connection.close()
    refused(lambda: SqlClientData(tmp_path / "data.sqlite"), "the layout of its columns is none")


def test_sqlite_ids_that_are_no_text_are_refused(tmp_path):
    path = database(tmp_path / "data.sqlite", *EXAMPLES, "UPDATE client_metadata SET client_id = x'ff'")
    refused(lambda: SqlClientData(path).client_ids, "a client's id is a text, not b")


def shared_pages(path, depth: int) -> str:
    """A table whose tree has `depth` levels of pages, in each of which all children are one page."""
    page = 512
    database(
        path,
        f"PRAGMA page_size={page}",
        *EXAMPLES[:2],
    )
    connection = sqlite3.connect(path)
    connection.executemany("INSERT INTO examples VALUES ('t', ?, x'00')", [(str(i),) for i in range(900)])
    connection.commit()
    ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'examples'")
    connection.close()
    data = bytearray(pathlib.Path(path).read_bytes())
    kinds = {number: data[(number - 1) * page] for number in range(2, len(data) // page + 1)}
    assert kinds[root] == 5  # an interior page of a table
    leaves = [number for number, kind in kinds.items() if kind == 13]
    below, *spare = leaves[3:]
    pages = [root, *spare[: depth - 1]]
    for number in reversed(pages):
        body = bytearray(page)
        cells = 60
        body[0] = 5
        body[3:5] = cells.to_bytes(2, "big")
        start = page - 5 * cells
        body[5:7] = start.to_bytes(2, "big")
        body[8:12] = below.to_bytes(4, "big")
        for i in range(cells):
            body[12 + 2 * i : 14 + 2 * i] = (start + 5 * i).to_bytes(2, "big")
            body[start + 5 * i : start + 5 * i + 5] = below.to_bytes(4, "big") + b"\x01"
        data[(number - 1) * page : number * page] = body
        below = number
    pathlib.Path(path).write_bytes(data)
    return str(path)


def test_sqlite_trees_whose_children_are_one_page_end(tmp_path):
    """Sixty children on each of ten levels: 6e17 rows."""
    data = SqlClientData(shared_pages(tmp_path / "data.sqlite", 10))
    refused(
        lambda: data.create_tf_dataset_for_client("nobody"), "more steps than a database of its size needs|malformed"
    )


def test_ctrl_c_ends_a_query(tmp_path):
    """In a process of its own. The table is large, and a step of the query waits for the interrupt."""
    program = """
        import os, signal, sys, sqlite3
        from fedcore.simulation.datasets.sqlite_tables import Tables
        tables = Tables(sys.argv[1])
        tables._steps.most_calls = 10**9
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
        print("ready", flush=True)
        tables.rows("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE i < 0")
    """
    path = database(tmp_path / "data.sqlite", *EXAMPLES)
    command = [sys.executable, "-c", textwrap.dedent(program), path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert said.rstrip().endswith("KeyboardInterrupt")


# ---- other files


def checksum_of(data: bytes) -> bytes:
    """The masked CRC-32C of a TFRecord file."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


@pytest.mark.parametrize("length", [10**15, 2**64 - 1, 21])
@pytest.mark.parametrize("read", ["default", "its own class"])
def test_records_that_are_longer_than_their_file_are_refused(tmp_path, length, read):
    """TensorFlow ends the process for a record of 10^15 bytes."""
    head = length.to_bytes(8, "little")
    (tmp_path / "a").write_bytes(head + checksum_of(head) + b"x" * 20)
    data = FilePerUserClientData.create_from_dir(tmp_path, None if read == "default" else tf.data.TFRecordDataset)
    refused(lambda: data.create_tf_dataset_for_client("a"), f"a record has {length} bytes, which is longer than")


def test_records_within_their_file_are_read(tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "a")) as file:
        file.write(b"one")
        file.write(b"two")
    data = FilePerUserClientData.create_from_dir(tmp_path)
    assert list(data.create_tf_dataset_for_client("a").as_numpy_iterator()) == [b"one", b"two"]


def test_a_directory_of_clients_has_no_links_out_of_it(tmp_path):
    (tmp_path / "secret").write_text("a secret")
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "a").symlink_to(tmp_path / "secret")
    with pytest.raises(FedcoreError, match=r"'a' is a link out of .*; fix: name the files of clients yourself"):
        FilePerUserClientData.create_from_dir(tmp_path / "clients", tf.data.TextLineDataset)


def test_a_directory_of_clients_has_links_within_it(tmp_path):
    (tmp_path / "a").write_text("first\n")
    (tmp_path / "b").symlink_to("a")
    data = FilePerUserClientData.create_from_dir(tmp_path, tf.data.TextLineDataset)
    assert list(data.create_tf_dataset_for_client("b").as_numpy_iterator()) == [b"first"]


def test_packed_databases_that_unpack_to_far_more_are_refused(tmp_path):
    packed = lzma.compress(bytes(200 * MIB), lzma.FORMAT_ALONE, preset=0)
    (tmp_path / "data.sqlite.lzma").write_bytes(packed)
    refused(lambda: cached_database("data.sqlite", tmp_path), "cannot be unpacked: its content takes")
    assert os.listdir(tmp_path) == ["data.sqlite.lzma"]


def test_packed_databases_that_need_memory_out_of_proportion_are_refused(tmp_path):
    header = b"\x5d" + (2**32 - 1).to_bytes(4, "little") + b"\xff" * 8
    (tmp_path / "data.sqlite.lzma").write_bytes(header + lzma.compress(b"x" * 99, lzma.FORMAT_ALONE)[13:])
    refused(lambda: cached_database("data.sqlite", tmp_path), "cannot be unpacked: Memory usage limit exceeded")
