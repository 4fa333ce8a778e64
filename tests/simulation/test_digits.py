import doctest
import math
import sys

import numpy as np
import pytest

from fedcore.errors import FedcoreError
from fedcore.simulation.datasets import digits

ALL = 1797


def examples(data):
    """Every example as one row, label first; read from the columns, so that it needs no data set."""
    columns = data._columns
    return np.column_stack([columns["label"], columns["pixels"].reshape(len(columns["label"]), -1)])


def sizes(data):
    return [stop - start for start, stop in data._ranges.values()]


def as_sorted_rows(rows):
    return rows[np.lexsort(rows.T)]


def test_every_example_is_used_exactly_once():
    from sklearn.datasets import load_digits

    raw = load_digits()
    wants = np.column_stack([raw.target, raw.data / 16]).astype(np.float32)
    have = np.concatenate([examples(data) for data in digits.load_data()])
    np.testing.assert_array_equal(as_sorted_rows(have), as_sorted_rows(wants))


def test_every_client_has_an_example_and_the_ranges_cover_all():
    train, test = digits.load_data()
    assert len(train.client_ids) == 100
    assert min(sizes(train)) >= 1
    assert sum(sizes(train)) + sum(sizes(test)) == ALL


def test_the_test_data_has_every_label_in_proportion():
    train, test = digits.load_data(test_fraction=0.2)
    assert sum(sizes(test)) == math.ceil(0.2 * ALL)
    counts = [np.bincount(data._columns["label"], minlength=10) for data in (train, test)]
    np.testing.assert_allclose(counts[1] / counts[1].sum(), counts[0] / counts[0].sum(), atol=0.01)


def test_one_seed_gives_one_split():
    for one, other in zip(digits.load_data(seed=3), digits.load_data(seed=3), strict=True):
        np.testing.assert_array_equal(examples(one), examples(other))
        assert one._ranges == other._ranges


def test_another_seed_gives_another_split():
    assert not np.array_equal(examples(digits.load_data(seed=3)[1]), examples(digits.load_data(seed=4)[1]))


def test_pixels_run_from_0_to_1():
    pixels = digits.load_data()[0]._columns["pixels"]
    assert (pixels.min(), pixels.max()) == (0.0, 1.0)


def test_ids_sort_by_number():
    assert digits.load_data(num_clients=12)[0].client_ids[-1] == "client_11"


def test_real_and_synthetic_digits_have_one_type():
    wants = digits.load_data()[0].element_type_structure
    assert digits.get_synthetic().element_type_structure == wants
    assert (wants["pixels"].shape, wants["label"].dtype.name) == ([8, 8, 1], "int32")


def test_synthetic_digits_show_each_label_in_its_own_place():
    columns = digits.get_synthetic()._columns
    bright = {tuple(np.flatnonzero(image == 1.0)) for image in columns["pixels"]}
    assert len(bright) == len(set(columns["label"].tolist())) == 10


def test_a_missing_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(FedcoreError, match=r"pip install 'fedcore\[data\]'"):
        digits.load_data()


def test_the_examples_of_the_docs_run():
    assert doctest.testmod(digits).failed == 0
