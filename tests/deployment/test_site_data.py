"""The data of a site: tables in files, and functions of its owner."""

import os
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


def test_other_data_have_another_version(tmp_path):
    file = tmp_path / "table.csv"
    file.write_text("age,height,label\n41,1.5,0\n")
    times, data = (file.stat().st_atime_ns, file.stat().st_mtime_ns), settings_of(tmp_path, 'file = "table.csv"\n').data
    version = data.version
    file.write_text("age,height,label\n42,1.5,0\n")
    os.utime(file, ns=times)  # as restored from a copy

    assert data.version != version
    assert data.rows()["age"].tolist() == [42]


def test_rows_in_the_journal_of_a_database_make_another_version(tmp_path):
    database = sqlite3.connect(tmp_path / "table.sqlite")
    with database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table patients (age integer, height real, label integer)")
    data = settings_of(tmp_path, 'file = "table.sqlite"\ntable = "patients"\n').data
    versions = [data.version]
    for row in ([41, 1.5, 0], [25, 2.25, 1]):
        with database:
            database.execute("insert into patients values (?, ?, ?)", row)
        versions.append(data.version)
        assert len(data.rows()["age"]) == len(versions) - 1
    database.close()

    assert len({*versions}) == 3


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

    data = settings_of(tmp_path, 'file = "scans"\nimage_size = [2, 3]\nlabels = ["ill", "well"]\n', elements).data

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

    with pytest.raises(TypeMismatch, match=r"^the site's column label has values that are no int32: 1 of 1$"):
        data.dataset(ROWS)


def test_numbers_that_a_dtype_has_as_infinite_are_counted(tmp_path):
    data = read(tmp_path, ["41,1e300,0", "25,-4e38,0", "70,inf,0", "1,3e38,0"])

    with pytest.raises(TypeMismatch, match=r"^the site's column height has values that are no float32: 2 of 4$"):
        data.dataset(ROWS)


def read(folder, rows, data="", elements=ELEMENTS):
    (folder / "table.csv").write_text("\n".join(["age,height,label", *rows]))
    return settings_of(folder, f'file = "table.csv"\n{data}', elements).data


def test_blank_cells_are_counted_with_a_remedy_that_works(tmp_path):
    rows = ["41,1.5,0", ",2,1", "7, ,0", "70,,1", "25,2.25,1"]

    with pytest.raises(TypeMismatch) as raised:
        read(tmp_path, rows).dataset(ROWS)

    assert str(raised.value) == (
        "columns of the site have blank cells, of 5 rows: age 1, height 2\n"
        '  fix: data.missing = "drop" in site.toml leaves these rows out'
    )
    (batch,) = read(tmp_path, rows, 'missing = "drop"\n').dataset(ROWS)
    assert batch["x"].numpy().tolist() == [[41, 1.5], [25, 2.25]]
    assert batch["y"].numpy().tolist() == [0, 1]


def test_texts_are_counted_with_a_remedy_that_works(tmp_path):
    rows = ["41,1.5,well", "25,2.25,ill", "70,1.75,1"]
    with pytest.raises(TypeMismatch, match=r"^2 of 3 cells of the site's column label are no numbers.*int32\n  fix: "):
        read(tmp_path, rows).dataset(ROWS)

    categories = '[data.categories]\nlabel = ["well", "ill", "1"]\n'
    batches = read(tmp_path, rows, elements=f"{ELEMENTS}{categories}").dataset(ROWS)

    assert [label for batch in batches for label in batch["y"].numpy().tolist()] == [0, 1, 2]


def test_an_element_has_structs_as_a_model_of_several_inputs_takes_them(tmp_path):
    elements = '[data.elements]\nx = { both = ["age", "height"], age = "age" }\ny = "label"\n'
    data = read(tmp_path, ["41,1.5,0", "25,2.25,1"], elements=elements)

    (batch,) = data.dataset(to_type("<x=<both=float32[?,2],age=int32[?]>,y=int32[?]>*"))

    assert batch["x"]["both"].numpy().tolist() == [[41, 1.5], [25, 2.25]]
    assert batch["x"]["age"].numpy().tolist() == [41, 25]
    assert data.columns_of("x.both") == ("age", "height")


def test_rows_that_are_held_out_are_those_that_training_does_not_read_each_once(tmp_path):
    rows = [f"{age},1.5,0" for age in (1, 2, 3, 4, "", 5, 6)]
    data = read(tmp_path, rows, 'missing = "drop"\nheld_out_every = 3\nrepeat = 2\nshuffle = 9\n')

    def ages(**options):
        return [age for batch in data.dataset(ROWS, **options) for age in batch["x"].numpy()[:, 0].tolist()]

    assert sorted(ages()) == [1, 1, 2, 2, 4, 4, 5, 5]
    assert ages(held_out=True) == [3, 6]


def test_a_text_that_is_no_category_is_counted(tmp_path):
    data = read(tmp_path, ["41,1.5,well", "2,2,dead"], elements=f'{ELEMENTS}[data.categories]\nlabel = ["well"]\n')

    with pytest.raises(TypeMismatch, match=r"^1 of 2 cells of the site's column label are none of data.categories"):
        data.dataset(ROWS)


def test_numbers_that_are_missing_in_a_parquet_file_are_blank_cells(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"age": [41, None], "height": [1.5, 2.0], "label": [0, 1]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "table.parquet")

    with pytest.raises(TypeMismatch, match=r"blank cells, of 2 rows: age 1\n"):
        settings_of(tmp_path, 'file = "table.parquet"\n').data.dataset(ROWS)


def test_missing_values_in_a_sqlite_file_are_blank_cells(tmp_path):
    with sqlite3.connect(tmp_path / "table.sqlite") as database:
        database.execute("create table patients (age integer, height real, label text)")
        database.executemany("insert into patients values (?, ?, ?)", [(41, None, "0"), (25, 2.25, "1")])
    database.close()
    data = settings_of(tmp_path, 'file = "table.sqlite"\ntable = "patients"\nmissing = "drop"\n').data

    (batch,) = data.dataset(ROWS)

    assert batch["x"].numpy().tolist() == [[25, 2.25]]


def write_images(folder, *labels):
    for label in labels:
        (folder / "scans" / label).mkdir(parents=True)
        image = tf.io.encode_png(np.zeros([2, 2, 1], np.uint8)).numpy()
        (folder / "scans" / label / "a.png").write_bytes(image)


IMAGES = to_type("<x=float32[?,2,2,1],y=int32[?]>*"), '[data.elements]\nx = "image"\ny = "label"\n'


def test_a_site_without_a_class_has_the_numbers_of_the_others(tmp_path):
    write_images(tmp_path, "well")
    data = settings_of(tmp_path, 'file = "scans"\nlabels = ["ill", "well"]\n', IMAGES[1]).data

    (batch,) = data.dataset(IMAGES[0])

    assert batch["y"].numpy().tolist() == [1]


def test_labels_of_images_without_numbers_are_refused_with_a_fix(tmp_path):
    write_images(tmp_path, "well", "ill")

    with pytest.raises(FedcoreError, match=r'data.labels = \["ill", "well"\] in site.toml, in one order at all sites'):
        settings_of(tmp_path, 'file = "scans"\n', IMAGES[1]).data.dataset(IMAGES[0])


def test_a_folder_of_images_that_is_no_label_is_named(tmp_path):
    write_images(tmp_path, "well", "unsure")

    with pytest.raises(FedcoreError, match=r"none of data.labels: unsure"):
        settings_of(tmp_path, 'file = "scans"\nlabels = ["well"]\n', IMAGES[1]).data.dataset(IMAGES[0])


def test_a_row_with_too_many_cells_is_named_by_its_line(tmp_path):
    with pytest.raises(FedcoreError, match=r"table.csv:3: the row has more cells"):
        read(tmp_path, ["41,1.5,0", "25,2,25,1"]).dataset(ROWS)


def test_an_unknown_column_is_told_with_those_that_there_are(tmp_path):
    (tmp_path / "table.csv").write_text("age;height;label\n41;1,5;0\n")

    with pytest.raises(TypeMismatch, match=r"has no column age; it has 'age;height;label'"):
        settings_of(tmp_path, 'file = "table.csv"\n').data.dataset(ROWS)


@pytest.mark.parametrize(
    ("name", "least"),
    [("run_timeout_s", 1), ("data.batch", 1), ("data.repeat", 1), ("data.shuffle", 0), ("data.held_out_every", 2)],
)
def test_a_number_may_be_its_least_and_no_less(tmp_path, name, least):
    (tmp_path / "policy.toml").write_text("clients = 2\n")
    file, settings = tmp_path / "site.toml", 'kit = "kit"\npolicy = "policy.toml"\ndata.file = "table.csv"\n'
    file.write_text(f"{settings}{name} = {least}\n{ELEMENTS}")
    read_settings(file)
    for value, said in ((least - 1, least - 1), ("true", True)):
        file.write_text(f"{settings}{name} = {value}\n{ELEMENTS}")
        with pytest.raises(FedcoreError, match=f"{name} is a whole number, {least} or more, not {said}"):
            read_settings(file)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('file = "table.xls"\n', "a site's table is a file .csv"),
        ('fil = "table.csv"\n', "there is no setting data.fil"),
        ("", "has a file .a table., or a function"),
        ('function = "own.py:load"\n', "data.function is a file and a function"),
        ('file = "table.csv"\nmissing = "zero"\n', 'data.missing is "drop", not'),
        ('file = "table.csv"\nheld_out_every = 1\n', "data.held_out_every is a whole number, 2 or more, not 1"),
        ('file = "table.csv"\nlabels = ["a"]\n', "data.labels are the folders of a folder of images"),
        ('file = "table.csv"\ncategories = {weight = ["a"]}\n', "data.categories.weight is of no column"),
        ('file = "table.csv"\ncategories = {age = ["a", "a"]}\n', "data.categories.age is a list of different texts"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, data, message):
    with pytest.raises(FedcoreError, match=message):
        settings_of(tmp_path, data)


EXCLUDED = '[data.elements]\nage = "age"\nincome = "income"\nnotes = "notes"\n'


@pytest.mark.parametrize("income", ["float32[?]", "int8[?]", "bool[?]"])
def test_columns_that_may_not_be_read_decide_nothing(tmp_path, income):
    """Their blank cells left out rows, and a plan found by its dtypes what they hold."""
    (tmp_path / "table.csv").write_text("age,income,notes\n1,500,a\n2,,\n3,700,b\n")
    data = settings_of(tmp_path, 'file = "table.csv"\nmissing = "drop"\n', EXCLUDED).data
    type_ = to_type(f"<age=int32[?],income={income},notes=str[?]>*")
    rows = [*data.only(frozenset({"age"})).dataset(type_)]

    assert np.concatenate([row["age"] for row in rows]).tolist() == [1, 2, 3]
    assert not np.concatenate([row["income"] for row in rows]).any()
    assert {text for row in rows for text in row["notes"].numpy().tolist()} == {b""}
    assert len([*data.only(frozenset()).dataset(type_)]) == 2


def test_a_vector_with_a_column_that_may_not_be_read_is_zeros(tmp_path):
    (tmp_path / "table.csv").write_text("age,height,label\n41,1.5,0\n25,,1\n")
    data = settings_of(tmp_path, 'file = "table.csv"\n').data
    (batch,) = data.only(frozenset({"age", "label"})).dataset(ROWS)

    assert (batch["x"].numpy().tolist(), batch["y"].numpy().tolist()) == ([[0, 0], [0, 0]], [0, 1])


@pytest.mark.parametrize(
    ("name", "table"), [("table.sqlite", "patients"), ("table.h5", None), ("table.parquet", None), ("table.csv", None)]
)
def test_a_damaged_file_is_told_by_its_name(tmp_path, name, table):
    if name == "table.parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(b"\x80damaged" * 100)
    line = "" if table is None else f'table = "{table}"\n'
    data = settings_of(tmp_path, f'file = "{name}"\n{line}').data

    with pytest.raises(FedcoreError, match=name):
        data.dataset(ROWS)


def test_a_table_that_is_not_in_its_file_is_told(tmp_path):
    sqlite3.connect(tmp_path / "table.sqlite").close()
    h5py = pytest.importorskip("h5py")
    h5py.File(tmp_path / "table.h5", "w").close()
    for name, problem in {"table.sqlite": "has no table patients", "table.h5": "cannot read"}.items():
        with pytest.raises(FedcoreError, match=problem):
            settings_of(tmp_path, f'file = "{name}"\ntable = "patients"\n').data.dataset(ROWS)
