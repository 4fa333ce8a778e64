import re

import numpy as np
import pytest

import fedcore as fc


def plus(a, b):
    return a + b


def same(a):
    return a


def test_a_sum_passes():
    fc.testing.check_aggregation(0.0, plus, plus, same, [1.0, 2.5, -3.0])


def test_a_mean_of_structs_passes():
    fc.testing.check_aggregation(
        {"n": 0, "sum": 0.0},
        lambda s, x: {"n": s["n"] + 1, "sum": s["sum"] + x["v"]},
        lambda a, b: {"n": a["n"] + b["n"], "sum": a["sum"] + b["sum"]},
        lambda s: s["sum"] / s["n"],
        [{"v": 1.0}, {"v": 2.0}, {"v": 6.0}],
    )


def test_vectors_of_graphs_pass():
    largest = fc.tf_computation(lambda a, b: fc_max(a, b))
    zero = np.full(2, -np.inf, np.float32)
    values = [np.float32([k, -k]) for k in range(4)]
    fc.testing.check_aggregation(zero, largest, largest, same, values)


def fc_max(a, b):
    import tensorflow as tf

    return tf.maximum(a, b)


def broken(*args, **kwargs) -> str:
    with pytest.raises(fc.testing.LawBroken) as raised:
        fc.testing.check_aggregation(*args, **kwargs)
    return str(raised.value)


def test_a_merge_that_forgets_the_right_side_is_found():
    text = broken(0.0, plus, lambda a, b: a, same, [1.0, 2.0, 3.0])
    assert text.startswith("the law is broken: merge(zero, partial) is the partial\n")
    assert re.search(r"the report is array\(0\..*, not array\(6\.", text)
    assert "inputs: [1.0, 2.0, 3.0]" in text
    assert "federated_aggregate" in text


def test_a_merge_that_forgets_the_left_side_is_found():
    assert "merge(partial, zero) is the partial" in broken(0.0, plus, lambda a, b: b, same, [1.0, 2.0, 3.0])


def test_a_zero_that_is_not_neutral_is_found():
    assert "merge(partial, zero) is the partial" in broken(1.0, plus, plus, same, [1.0, 2.0, 3.0])


def test_a_merge_that_weighs_its_sides_is_found():
    text = broken(
        0.0,
        plus,
        lambda a, b: fc.where(fc.equal(b, 0.0), a, fc.where(fc.equal(a, 0.0), b, a + b * 2.0)),
        same,
        [1.0, 2.0, 3.0],
    )
    assert "merging the folds of the first 1 and the other 2 is the fold of all" in text


def test_a_fold_that_depends_on_where_it_starts_is_found():
    def accumulate(state, x):
        return state * 2.0 + x  # later clients count more: no merge can know how many came after

    assert "merging the folds" in broken(0.0, accumulate, plus, same, [1.0, 2.0, 3.0])


def test_too_few_values_are_refused():
    with pytest.raises(ValueError, match="wants at least three values, not 2"):
        fc.testing.check_aggregation(0.0, plus, plus, same, [1.0, 2.0])


def test_a_merge_that_loses_nan_is_found():
    import tensorflow as tf

    larger = fc.tf_computation(lambda a, b: tf.maximum(a, b), "float32", "float32")
    unless_larger = fc.tf_computation(lambda a, b: tf.where(b > a, b, a), "float32", "float32")
    text = broken(0.0, larger, unless_larger, same, [1.0, 2.0, 3.0])
    assert "is the fold of all, as to whether it is finite, where a value is NaN\n" in text
    assert "inputs: [array(1., dtype=float32), array(nan, dtype=float32), array(3., dtype=float32)]" in text


def test_a_merge_in_fewer_bits_is_found():
    halves = fc.federated_computation(lambda x: fc.cast(fc.cast(x, "float16"), "float32"), "float32")
    text = broken(0.0, plus, lambda a, b: plus(halves(a), b), same, [1.0, 2.0, 3.0])
    assert "is the fold of all, where floats are a little nearer to 0\n" in text


def test_values_for_which_a_function_raises_are_left_out():
    import tensorflow as tf

    checked = fc.tf_computation(lambda a, b: a + tf.debugging.check_numerics(b, "b"), "float32", "float32")
    fc.testing.check_aggregation(0.0, checked, plus, same, [1.0, 2.0, 3.0])
