"""The data of a site: tables in files, and functions of its owner."""

import sqlite3

import numpy as np
import pytest
import tensorflow as tf

from fedcore.deployment.site_settings import read_settings
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.types import to_type

ROWS = to_type("<x=float32[?,2],y=int32[?]>*")
AGES, HEIGHTS, LABELS = [41, 25, 70], [1.5, 2.25, 1.75], [0, 1, 0]
ELEMENTS = '[data.elements]\nx = ["age", "height"]\ny = "label"\n'


def settings_of(folder, data, elements=ELEMENTS):
    (folder / "policy.toml").write_text("clients = 2\n")
    (folder / "site.toml").write_text(f'kit = "kit"\npolicy = "policy.toml"\n[data]\n{data}batch = 2\n{elements}')
    return read_settings(folder / "site.toml")


def check(data):
    batches = [*data.dataset(ROWS)]

    assert np.concatenate([b["x"] for b in batches]).tolist() == [[41, 1.5], [25, 2.25], [70, 1.75]]
    assert [b["y"].numpy().tolist() for b in batches] == [[0, 1], [0]]


def test_a_csv_file(tmp_path):
    rows = [f"{a},{h},{label}" for a, h, label in zip(AGES, HEIGHTS, LABELS, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["age,height,label", *rows]))

    check(settings_of(tmp_path, 'file = "table.csv"\n').data)


def test_a_sqlite_file(tmp_path):
    with sqlite3.connect(tmp_path / "table.sqlite") as database:
        database.execute("create table patients (age integer, height real, label integer)")
        rows = zip(AGES, HEIGHTS, LABELS, strict=True)
        database.executemany("insert into patients values (?, ?, ?)", rows)
    database.close()

    check(settings_of(tmp_path, 'file = "table.sqlite"\ntable = "patients"\n').data)


def test_an_hdf5_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "table.h5", "w") as file:
        file.update({"age": AGES, "height": HEIGHTS, "label": LABELS})

    check(settings_of(tmp_path, 'file = "table.h5"\n').data)


def test_a_parquet_file(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"age": AGES, "height": HEIGHTS, "label": LABELS}), tmp_path / "table.parquet")

    check(settings_of(tmp_path, 'file = "table.parquet"\n').data)


def test_a_folder_of_images(tmp_path):
    for label, value in (("ill", 7), ("well", 9)):
        (tmp_path / "scans" / label).mkdir(parents=True)
        image = np.full([4, 6, 1], value, np.uint8)
        (tmp_path / "scans" / label / "a.png").write_bytes(tf.io.encode_png(image).numpy())
    elements = '[data.elements]\nx = "image"\ny = "label"\n'

    data = settings_of(tmp_path, 'file = "scans"\nimage_size = [2, 3]\n', elements).data

    (batch,) = data.dataset(to_type("<x=float32[?,2,3,1],y=int32[?]>*"))
    assert np.array_equal(batch["x"], np.broadcast_to([[[[7.0]]], [[[9.0]]]], [2, 2, 3, 1]))
    assert batch["y"].numpy().tolist() == [0, 1]


def test_a_function_of_the_owner(tmp_path):
    (tmp_path / "own.py").write_text(
        "import numpy as np\ndef load():\n"
        f"    x = np.array([{AGES}, {HEIGHTS}], np.float32).T\n"
        f"    return {{'x': x, 'y': np.array({LABELS}, np.int32)}}\n"
    )

    check(settings_of(tmp_path, 'function = "own.py:load"\n', "").data)


def test_values_that_would_change_are_refused_without_being_quoted(tmp_path):
    (tmp_path / "table.csv").write_text("age,height,label\n41,1.5,0.5\n")
    data = settings_of(tmp_path, 'file = "table.csv"\n').data

    with pytest.raises(TypeMismatch, match=r"^the site's column label has values that are no int32$"):
        data.dataset(ROWS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('file = "table.xls"\n', "a site's table is a file .csv"),
        ('fil = "table.csv"\n', "there is no setting data.fil"),
        ("", "has a file .a table., or a function"),
        ('function = "own.py:load"\n', "data.function is a file and a function"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, data, message):
    with pytest.raises(FedcoreError, match=message):
        settings_of(tmp_path, data)
