"""100,000 clients in HDF5 and SQLite files: opening, memory, and reading beside the same arrays read by hand."""

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import numpy as np
import psutil

CLIENTS, ROWS, PIXELS = 100_000, 5, 64
READ = 2_000  # clients of a timed reading
IDS = [f"client_{i:06d}" for i in range(CLIENTS)]


@attrs.frozen
class Format:
    """A format of files.

    Args:
        write: path -> None.
        open: path -> client data.
        by_hand: path -> a function that reads the arrays of the clients with these numbers.
    """

    write: Callable[[Path], None]
    open: Callable
    by_hand: Callable[[Path], Callable[[np.ndarray], Iterator[dict]]]


def client_files(rounds: int) -> dict:
    """The figures of each format."""
    with tempfile.TemporaryDirectory() as directory:
        found = {name: _measured(format_, Path(directory) / "clients", rounds) for name, format_ in FORMATS.items()}
    return {"name": "files", "clients": CLIENTS, "formats": found}


def _measured(format_: Format, path: Path, rounds: int) -> dict:
    format_.write(path)
    before = psutil.Process().memory_info().rss
    data, open_s = _timed(lambda: format_.open(path))
    _, first_s = _timed(lambda: data.create_tf_dataset_for_client(IDS[CLIENTS // 2]))
    ids, ids_s = _timed(lambda: data.client_ids)
    assert ids == IDS
    memory_mb = (psutil.Process().memory_info().rss - before) / 2**20
    by_hand = format_.by_hand(path)
    times = []
    for i in range(rounds + 1):  # the first one warms up
        numbers = np.random.default_rng(i).integers(0, CLIENTS, READ)
        ours, our_s = _timed(lambda n=numbers: [data.create_tf_dataset_for_client(IDS[i]) for i in n])
        hand, hand_s = _timed(lambda n=numbers: list(by_hand(n)))
        np.testing.assert_array_equal(ours[7].stored_rows["pixels"], hand[7]["pixels"])
        times.append((our_s, hand_s))
    path.unlink()
    our_s, hand_s = np.median(times[1:], axis=0)
    return {
        "open_s": open_s,
        "first_client_s": first_s,
        "ids_s": ids_s,
        "memory_mb": memory_mb,
        "clients_per_s": READ / our_s,
        "by_hand_per_s": READ / hand_s,
    }


def _timed(run: Callable):
    began = time.perf_counter()
    result = run()
    return result, time.perf_counter() - began


def _columns() -> dict[str, np.ndarray]:
    numbers = np.arange(CLIENTS * ROWS)
    pixels = np.repeat(numbers[:, None] % 255 / 255, PIXELS, axis=1)
    return {"label": (numbers % 10).astype(np.int32), "pixels": pixels.astype(np.float32)}


def _data():
    from fedcore.simulation.datasets import ArrayClientData

    return ArrayClientData(_columns(), {client: (ROWS * i, ROWS * (i + 1)) for i, client in enumerate(IDS)})


def _write_hdf5(path: Path) -> None:
    from fedcore.simulation.datasets import save_hdf5

    save_hdf5(_data(), path)


def _hdf5_by_hand(path: Path):
    import h5py

    with h5py.File(path) as file:
        stored = [file[f"splits/all/columns/{i}/values"] for i in range(2)]
        mapped = [np.memmap(path, x.dtype, "r", x.id.get_offset(), x.shape) for x in stored]
    label, pixels = mapped[0], mapped[1].reshape(-1, PIXELS)
    return lambda numbers: (
        {"label": label[i * ROWS : (i + 1) * ROWS], "pixels": pixels[i * ROWS : (i + 1) * ROWS]} for i in numbers
    )


def _write_published_hdf5(path: Path) -> None:
    import h5py

    columns = _columns()
    with h5py.File(path, "w") as file:
        for i, client in enumerate(IDS):
            group = file.create_group(f"examples/{client}")
            for name, column in columns.items():
                group[name] = column[i * ROWS : (i + 1) * ROWS]


def _published_hdf5_by_hand(path: Path):
    import h5py

    examples = h5py.File(path)["examples"]
    return lambda numbers: ({name: column[()] for name, column in examples[IDS[i]].items()} for i in numbers)


def _write_sqlite(path: Path) -> None:
    from fedcore.simulation.datasets import save_sqlite

    save_sqlite(_data(), path)


def _sqlite_by_hand(path: Path):
    connection = sqlite3.connect(path)
    query = "SELECT content FROM clients WHERE split_name = 'all' AND client_id = ?"

    def read(numbers):
        for i in numbers:
            (content,) = connection.execute(query, (IDS[i],)).fetchone()
            pixels = np.frombuffer(content, np.float32, offset=4 * ROWS).reshape(ROWS, PIXELS)
            yield {"label": np.frombuffer(content, np.int32, ROWS), "pixels": pixels}

    return read


def _write_published_sqlite(path: Path) -> None:
    import tensorflow as tf

    columns = _columns()
    protos = [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                    "pixels": tf.train.Feature(float_list=tf.train.FloatList(value=pixels)),
                }
            )
        ).SerializeToString()
        for label, pixels in zip(columns["label"], columns["pixels"], strict=True)
    ]
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        connection.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        rows = (("all", IDS[i // ROWS], proto) for i, proto in enumerate(protos))
        connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
        connection.executemany("INSERT INTO client_metadata VALUES (?, 'all', ?)", ((i, ROWS) for i in IDS))
        connection.execute("CREATE INDEX by_client ON examples (client_id)")
    connection.close()


def _open_published_sqlite(path: Path):
    import tensorflow as tf

    from fedcore.simulation.datasets import load_and_parse_sql_client_data

    spec = {"label": tf.TensorSpec([], tf.int32), "pixels": tf.TensorSpec([PIXELS], tf.float32)}
    return load_and_parse_sql_client_data(path, spec, "all")


def _published_sqlite_by_hand(path: Path):
    import tensorflow as tf

    connection = sqlite3.connect(path)
    query = "SELECT serialized_example_proto FROM examples WHERE client_id = ?"
    features = {"label": tf.io.FixedLenFeature([], tf.int64), "pixels": tf.io.FixedLenFeature([PIXELS], tf.float32)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def parse(protos):
        return tf.io.parse_example(protos, features)

    def read(numbers):
        for i in numbers:
            protos = [proto for (proto,) in connection.execute(query, (IDS[i],))]
            yield {name: column.numpy() for name, column in parse(tf.constant(protos)).items()}

    return read


def _open_hdf5(path: Path):
    from fedcore.simulation.datasets import HDF5ClientData

    return HDF5ClientData(path)


def _open_sqlite(path: Path):
    from fedcore.simulation.datasets import SqlClientData

    return SqlClientData(path)


FORMATS = {
    "HDF5, save_hdf5": Format(_write_hdf5, _open_hdf5, _hdf5_by_hand),
    "SQLite, save_sqlite": Format(_write_sqlite, _open_sqlite, _sqlite_by_hand),
    "HDF5, TFF's": Format(_write_published_hdf5, _open_hdf5, _published_hdf5_by_hand),
    "SQLite, TFF's": Format(_write_published_sqlite, _open_published_sqlite, _published_sqlite_by_hand),
}
