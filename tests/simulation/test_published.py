"""The published data sets, from small files in their two published formats."""

import hashlib
import io
import json
import lzma
import tarfile

import attrs
import h5py
import pytest
import tensorflow as tf

from fedcore.simulation.datasets import cifar100, emnist, save_to_sql_client_data, shakespeare, stackoverflow

EMNIST = {"label": tf.TensorSpec([], tf.int32), "pixels": tf.TensorSpec([28, 28], tf.float32)}
CIFAR = {
    "coarse_label": tf.TensorSpec([], tf.int64),
    "image": tf.TensorSpec([32, 32, 3], tf.uint8),
    "label": tf.TensorSpec([], tf.int64),
}
STACK_OVERFLOW = {
    name: tf.TensorSpec([], tf.int64 if name == "score" else tf.string)
    for name in ("creation_date", "score", "tags", "title", "tokens", "type")
}
# module, arguments of load_data, type of an example, name of what is published, splits in the database
DATASETS = {
    "emnist digits": (emnist, {}, EMNIST, "_DIGITS", ["digits_only_train", "digits_only_test"]),
    "emnist": (emnist, {"only_digits": False}, EMNIST, "_ALL", ["all_train", "all_test"]),
    "cifar100": (cifar100, {}, CIFAR, "_PUBLISHED", ["train", "test"]),
    "shakespeare": (shakespeare, {}, {"snippets": tf.TensorSpec([], tf.string)}, "_PUBLISHED", ["train", "test"]),
    "stackoverflow": (stackoverflow, {}, STACK_OVERFLOW, "_PUBLISHED", ["train", "heldout", "test"]),
}
each_dataset = pytest.mark.parametrize(
    ("module", "arguments", "spec", "published", "splits"), DATASETS.values(), ids=DATASETS
)


def columns_of(data, client_id):
    return data.create_tf_dataset_for_client(client_id).stored_rows


def assert_equal_clients(have, want):
    assert have.client_ids == want.client_ids
    for client_id in want.client_ids:
        tf.nest.map_structure(
            lambda a, b: tf.debugging.assert_equal(a, b), columns_of(have, client_id), columns_of(want, client_id)
        )


@each_dataset
def test_synthetic_data_has_the_documented_type(module, arguments, spec, published, splits):
    have = module.get_synthetic().element_type_structure
    assert have == spec
    assert list(have) == list(spec)


@each_dataset
def test_the_archive_of_hdf5_files_is_read(module, arguments, spec, published, splits, tmp_path, monkeypatch):
    synthetic = module.get_synthetic()
    described = getattr(module, published)
    with tarfile.open(tmp_path / described.archive.name, "w:bz2") as archive:
        for i, member in enumerate(described.archive.members):
            content = io.BytesIO()
            with h5py.File(content, "w") as file:
                for client_id in synthetic.client_ids[i:]:
                    for name, column in columns_of(synthetic, client_id).items():
                        file[f"examples/{client_id}/{name}"] = column
            info = tarfile.TarInfo(f"datasets/{member}")
            info.size = len(content.getvalue())
            archive.addfile(info, io.BytesIO(content.getvalue()))
    checksum = hashlib.sha256((tmp_path / described.archive.name).read_bytes()).hexdigest()
    monkeypatch.setattr(
        module, published, attrs.evolve(described, archive=attrs.evolve(described.archive, sha256=checksum))
    )
    loaded = module.load_data(**arguments, cache_dir=tmp_path)
    assert len(loaded) == len(splits)
    for i, data in enumerate(loaded):
        assert data.element_type_structure == spec
        assert_equal_clients(data, synthetic.select(synthetic.client_ids[i:]))


@each_dataset
def test_the_database_is_read_if_it_is_in_the_cache(module, arguments, spec, published, splits, tmp_path):
    synthetic = module.get_synthetic()
    ids = synthetic.client_ids
    path = tmp_path / getattr(module, published).database
    save_to_sql_client_data(
        ids,
        synthetic.create_tf_dataset_for_client,
        path,
        split_names_by_client_id={i: splits[min(n, len(splits) - 1)] for n, i in enumerate(ids)},
    )
    if module is shakespeare:  # also as it is published: packed
        path.with_name(path.name + ".lzma").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
    loaded = module.load_data(**arguments, cache_dir=tmp_path)
    for n, data in enumerate(loaded):
        assert data.element_type_structure == spec
        assert_equal_clients(data, synthetic.select(ids[n:] if n == len(splits) - 1 else ids[n : n + 1]))


def test_the_counts_of_words_and_tags_come_in_order(tmp_path):
    (tmp_path / "stackoverflow.word_count").write_text("the 30\ni 20\nto 10\n")
    (tmp_path / "stackoverflow.tag_count").write_text(json.dumps({"css": 2, "python": 7}))
    assert list(stackoverflow.load_word_counts(tmp_path).items()) == [("the", 30), ("i", 20), ("to", 10)]
    assert list(stackoverflow.load_word_counts(tmp_path, vocab_size=2)) == ["the", "i"]
    assert list(stackoverflow.load_tag_counts(tmp_path).items()) == [("python", 7), ("css", 2)]


@pytest.mark.parametrize("size", [0, 1.5])
def test_a_vocabulary_has_at_least_one_word(size, tmp_path):
    with pytest.raises((ValueError, TypeError), match="vocab_size is a whole number, 1 or more"):
        stackoverflow.load_word_counts(tmp_path, vocab_size=size)


def test_synthetic_counts_are_those_of_the_synthetic_data():
    words, tags = stackoverflow.get_synthetic_word_counts(), stackoverflow.get_synthetic_tag_counts()
    everything = stackoverflow.get_synthetic().create_tf_dataset_from_all_clients(seed=0).stored_rows
    assert sum(words.values()) == sum(len(text.split()) for text in everything["tokens"])
    assert tags["python"] == sum(b"python" in text.split(b"|") for text in everything["tags"])
    assert list(words.values()) == sorted(words.values(), reverse=True)


def test_synthetic_digits_are_all_different_and_dark_on_light():
    columns = columns_of(emnist.get_synthetic(), "synthetic1")
    assert len({image.tobytes() for image in columns["pixels"]}) == 10
    assert columns["pixels"][:, 0].min() == 1.0
    assert columns["pixels"].min() == 0.0
