"""Functions of one client's strings, in eager mode and in a computation."""

import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError

data = fc.analytics.data_processing
WORDS = tf.data.Dataset.from_tensor_slices(["a", "bcd", "a", "é", "bcde", "a"]).batch(2)


def plain(x):
    return [y.decode() if isinstance(y, bytes) else y for y in x.numpy().tolist()]


def test_all_elements_come_in_order_and_cut():
    assert plain(data.get_all_elements(WORDS)) == ["a", "bcd", "a", "é", "bcde", "a"]
    assert data.get_all_elements(WORDS, 1).numpy().tolist() == [b"a", b"b", b"a", b"\xc3", b"b", b"a"]


def test_a_cap_takes_whole_batches():
    assert plain(data.get_capped_elements(WORDS, 3, batch_size=2)) == ["a", "bcd"]
    strings, counts = data.get_capped_elements_with_counts(WORDS, 5, batch_size=2, string_max_bytes=3)
    assert (plain(strings), plain(counts)) == (["a", "bcd", "é"], [2, 1, 1])


def test_unique_elements_have_counts_after_the_cut():
    strings, counts = data.get_unique_elements_with_counts(WORDS, 3)
    assert (plain(strings), plain(counts)) == (["a", "bcd", "é"], [3, 2, 1])
    assert plain(data.get_unique_elements(WORDS)) == ["a", "bcd", "é", "bcde"]


def test_top_elements_are_the_most_frequent_and_ties_come_in_order():
    strings, counts = data.get_top_elements_with_counts(WORDS, 2)
    assert (plain(strings), plain(counts)) == (["a", "bcd"], [3, 1])
    assert plain(data.get_top_elements(WORDS, 9)) == ["a", "bcd", "é", "bcde"]
    assert plain(data.get_top_multi_elements(WORDS, 2)) == ["a", "a", "a", "bcd"]


def test_they_run_in_a_computation_and_without_elements():
    top = fc.tf_computation(fc.SequenceType(fc.TensorType("str", [None])))(
        lambda words: data.get_top_elements_with_counts(words, 2)
    )
    assert top([["x", "y"], ["y"]])[0].tolist() == [b"y", b"x"]
    assert top([])[1].tolist() == []


def test_clipped_counts_take_the_first_words_or_the_most_frequent():
    strings, counts = data.clipped_counts(WORDS, 4, True, 2)
    assert (plain(strings), plain(counts)) == (["a", "bcd", "é"], [2, 1, 1])
    strings, counts = data.clipped_counts(WORDS, 1, False)
    assert (plain(strings), plain(counts)) == (["a"], [1])


def test_elements_are_stacked_leaf_by_leaf():
    pairs = tf.data.Dataset.from_tensor_slices({"a": [1, 2], "b": [["x"], ["y"]]})
    found = data.to_stacked_tensor(pairs)
    assert (plain(found["a"]), found["b"].shape) == ([1, 2], [2, 1])
    assert data.to_stacked_tensor(pairs.take(0))["b"].shape == [0, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.get_all_elements(WORDS.unbatch()), r"batches of strings, str\[\?\], not <TensorSpec str"),
        (lambda: data.get_all_elements(tf.data.Dataset.range(3).batch(1)), "batches of strings"),
        (lambda: data.get_capped_elements([["a"]], 1), "batches of strings"),
        (lambda: data.get_all_elements(WORDS, 0), "string_max_bytes is a whole number, 1 or more, not 0"),
        (lambda: data.get_capped_elements(WORDS, 0), "max_user_contribution is a whole number, 1 or more, not 0"),
        (lambda: data.get_capped_elements(WORDS, 1, 0), "batch_size is a whole number, 1 or more, not 0"),
        (lambda: data.get_top_elements(WORDS, 0), "max_user_contribution is a whole number, 1 or more, not 0"),
        (lambda: data.to_stacked_tensor(WORDS), "elements are of known shapes, .* batch with drop_remainder=True"),
        (lambda: data.to_stacked_tensor([1]), "to_stacked_tensor takes a dataset"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(FedcoreError, match=message):
        call()


def test_small_values_of_a_histogram_are_left_out():
    keys, values = fc.analytics.histogram_processing.threshold_histogram(["a", "b", "c"], [1.0, 2.0, 3.0], 2.0)
    assert (plain(keys), plain(values)) == (["b", "c"], [2.0, 3.0])
