"""`image_folders`: client data from images in files."""

import doctest
import pickle
import struct

import numpy as np
import pytest
import tensorflow as tf

from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError
from fedcore.simulation.datasets import image_files, image_folders

FILES = ("ann/cat/0.png", "ann/dog/0.jpg", "ann/dog/1.JPG", "bob/dog/0.bmp", "bob/dog/1.gif")
# One black pixel: the headers, and a row of four bytes.
BMP = struct.pack("<2sIHHI IiiHHIIiiII", b"BM", 58, 0, 0, 54, 40, 1, 1, 1, 24, 0, 4, 0, 0, 0, 0) + bytes(4)
GIF = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
)


def write(root, *files):
    for number, file in enumerate(files):
        image = tf.constant(np.full((3 + number, 5, 3), 10 * number + 10), tf.uint8)
        ending = file.lower().rpartition(".")[2]
        content = {
            "png": lambda: tf.io.encode_png(image).numpy(),  # noqa: B023
            "jpg": lambda: tf.io.encode_jpeg(image, quality=100).numpy(),  # noqa: B023
            "bmp": lambda: BMP,
            "gif": lambda: GIF,
        }[ending]()
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(content)
    return root


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "README.txt").write_text("no image")
    return write(tmp_path, *FILES)


def examples(data, client_id):
    dataset = data.create_tf_dataset_for_client(client_id)
    assert isinstance(dataset, ClientDataset)
    images, labels = zip(*dataset.as_numpy_iterator(), strict=True)
    return np.stack(images), [int(label) for label in labels]


def test_folders_are_clients_and_labels(folder):
    data = image_folders(folder, image_size=(4, 6))
    assert (data.client_ids, data.class_names) == (["ann", "bob"], ["cat", "dog"])
    images, labels = examples(data, "ann")
    assert (images.shape, images.dtype, labels) == ((3, 4, 6, 3), np.float32, [0, 1, 1])
    np.testing.assert_allclose(images[:, 0, 0, 0], [10, 20, 30], atol=1)
    assert examples(data, "bob")[1] == [1, 1]


def test_images_are_those_of_keras(folder):
    import keras

    (images, _), *_ = keras.utils.image_dataset_from_directory(
        folder / "ann", image_size=(4, 6), shuffle=False, verbose=False
    )
    np.testing.assert_array_equal(examples(image_folders(folder, image_size=(4, 6)), "ann")[0], images)


def test_a_table_has_labels_or_clients(tmp_path):
    pandas = pytest.importorskip("pandas")
    folder = write(tmp_path, "ann/0.png", "ann/1.png", "bob/0.png")
    table = pandas.DataFrame({"file": ["ann/0.png", "ann/1.png", "bob/0.png"], "label": [7, 3, 7]})
    data = image_folders(folder, labels=table.set_index("file")["label"], image_size=(2, 2))
    assert (data.class_names, examples(data, "ann")[1]) == ([], [7, 3])
    by_name = image_folders(folder, clients=lambda file: file[-5], image_size=(2, 2))
    assert (by_name.client_ids, by_name.class_names, examples(by_name, "0")[1]) == (["0", "1"], ["ann", "bob"], [0, 1])
    flat = image_folders(folder, labels=dict.fromkeys(table.file, "x"), clients=dict.fromkeys(table.file, 5))
    assert flat.client_ids == ["5"]


def test_gray_images_have_one_channel(folder):
    assert examples(image_folders(folder, image_size=(2, 2), color_mode="grayscale"), "ann")[0].shape == (3, 2, 2, 1)


def test_opening_reads_no_image_and_a_copy_opens_elsewhere(folder):
    (folder / "ann/cat/0.png").write_bytes(b"no image")
    data = image_folders(folder, image_size=(2, 2))
    assert data.is_in_files
    assert examples(pickle.loads(pickle.dumps(data)), "bob")[1] == [1, 1]


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n cut"])
def test_a_bad_image_is_named_by_its_path(folder, content):
    path = folder / "ann/cat/0.png"
    path.write_bytes(content)
    with pytest.raises(FedcoreError, match=f"image_folders: {path} cannot be read: "):
        image_folders(folder).create_tf_dataset_for_client("ann")


def test_an_image_that_has_gone_is_named(folder):
    data = image_folders(folder)
    (folder / "bob/dog/0.bmp").unlink()
    with pytest.raises(FedcoreError, match=r"dog/0\.bmp cannot be read: .*No such file"):
        data.create_tf_dataset_for_client("bob")
    with pytest.raises(KeyError, match="no client 'eve' among 2"):
        data.create_tf_dataset_for_client("eve")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "nothing"}, "there is no directory .*nothing"),
        ({"path": "empty"}, r"there is no image \(\.bmp, \.gif, \.jpeg, \.jpg, \.png\) in"),
        ({"path": "ann"}, r"cat/0\.png is not in two folders, CLIENT/LABEL\n  fix: labels={path: label} if the folder"),
        ({"path": "ann/cat", "labels": {"0.png": 1}}, r"0\.png is in no folder; fix: clients={path: …}"),
        (
            {"labels": {"cat/0.png": 1}},
            r"labels has none for 5 of 5 images, such as 'ann/cat/0.png'; its keys are paths such as 'cat/0.png'",
        ),
        ({"labels": dict.fromkeys(FILES, 0.5)}, "a label is a whole number, 0 or more, not 0.5"),
        ({"clients": ["ann"]}, r"clients is a dict from paths or a function of a path, not \['ann'\]"),
        ({"image_size": 8}, r"image_size is a pair \(height, width\), not 8"),
        ({"image_size": (0, 2)}, r"image_size\[0\] is a whole number, 1 or more, not 0"),
        ({"color_mode": "gray"}, "color_mode is grayscale, rgb, rgba, not 'gray'"),
    ],
)
def test_what_does_not_fit_is_named(folder, options, message):
    (folder / "empty").mkdir()
    with pytest.raises(FedcoreError, match=message):
        image_folders(folder / options.pop("path", "."), **options)


def test_the_example_of_the_docs_runs(tmp_path):
    names = {"folder": write(tmp_path, "ann/cat/0.png", "bob/dog/0.png")}
    assert doctest.testmod(image_files, extraglobs=names).failed == 0
