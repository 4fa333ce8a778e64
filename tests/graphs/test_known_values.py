"""Operations on known values: those that numpy runs have TensorFlow's results, at each of three sizes of a batch."""

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs.batched import known_values
from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue, NoBatchingRule
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.batched.known_values import MAX_ENTRIES, fold
from fedcore.graphs.dataflow.graph import Block, Node, building
from fedcore.graphs.graphdef.form.checked_operations import emit

MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
MATRIX = np.arange(12, dtype=np.int64).reshape(3, 4)


def slices(*masks) -> dict:
    return dict(zip(MASKS, masks, strict=True))


PROBES = BatchedEvaluation(4, rows=20).sampled_sizes


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Pack", [np.int32(3), np.int32(4)], {"axis": 0, "N": 2}),
        ("Pack", [MATRIX, MATRIX], {"axis": -1, "N": 2}),
        ("Tile", [np.float32([3]), np.int32([5])], {}),
        ("Tile", [np.float32(3), np.zeros(0, np.int32)], {}),
        ("Tile", [MATRIX, np.int32([0, 2])], {}),
        ("StridedSlice", [MATRIX, np.int32([1]), np.int32([2]), np.int32([1])], slices(0, 0, 0, 0, 1)),
        ("StridedSlice", [MATRIX, np.int32([-1]), np.int32([0]), np.int32([1])], slices(0, 0, 0, 0, 1)),
        ("StridedSlice", [MATRIX, np.int32([0, 1]), np.int32([2, 9]), np.int32([1, 2])], slices(0, 0, 0, 0, 0)),
        ("StridedSlice", [MATRIX, np.int32([7, 2]), np.int32([0, 7]), np.int32([-1, -2])], slices(1, 2, 0, 0, 0)),
        ("StridedSlice", [MATRIX, np.int32([0, 1]), np.int32([0, 2]), np.int32([1, 1])], slices(0, 0, 1, 0, 2)),
        ("StridedSlice", [MATRIX, np.int32([0, 1]), np.int32([0, 2]), np.int32([1, 1])], slices(0, 0, 0, 1, 2)),
        ("StridedSlice", [MATRIX, np.int32([3]), np.int32([4]), np.int32([1])], slices(0, 0, 0, 0, 1)),
    ],
)
def test_folding_gives_the_results_of_tensorflow(op, operands, attributes):
    operands = [np.asarray(o) for o in operands]
    values = [BatchedValue(None, False, form=KnownValue.from_constant(o)) for o in operands]
    found = fold(Node(op, (), attributes), values, PROBES)
    try:
        (wanted,) = emit(op, [tf.constant(o) for o in operands], attributes)
    except tf.errors.InvalidArgumentError:
        assert found is None
        return
    (value,) = found[0].samples[:1]
    assert value.dtype == wanted.numpy().dtype
    np.testing.assert_array_equal(value, wanted.numpy(), strict=True)


def test_entries_of_shapes_are_moved_without_tensorflow(monkeypatch):
    monkeypatch.setattr(known_values, "emit", None)
    shape = BatchedValue(None, False, form=KnownValue.from_constant(np.int32([20, 7])))
    bounds = [BatchedValue(None, False, form=KnownValue.from_constant(np.int32([i]))) for i in (1, 2, 1)]
    (size,) = fold(Node("StridedSlice", (), slices(0, 0, 0, 0, 1)), [shape, *bounds], PROBES)
    assert size.samples[0] == 7


# --- at three sizes ---


def constant(value, dtype=np.int32) -> KnownValue:
    return KnownValue.from_constant(np.asarray(value, dtype))


def of_size(fn) -> KnownValue:
    """The value that a function has at each probed size."""
    return KnownValue.from_samples([np.asarray(fn(n), np.int32) for n in PROBES])


SIZE = of_size(lambda n: n)
SHAPE = of_size(lambda n: [n, 7])


def folded(op, *operands: KnownValue, **attributes) -> KnownValue | None:
    results = fold(Node(op, (), attributes), [BatchedValue(None, form=k) for k in operands], PROBES)
    return None if results is None else results[0]


AFFINE = {
    "sum": (lambda: folded("AddV2", SIZE, constant(3)), 1, 3),
    "difference": (lambda: folded("Sub", constant(3), SIZE), -1, 3),
    "multiple": (lambda: folded("Mul", SIZE, constant(3)), 3, 0),
    "product of sizes": (lambda: folded("Prod", SHAPE, constant([0]), keep_dims=False), 7, 0),
    "sum of sizes": (lambda: folded("Sum", SHAPE, constant([0]), keep_dims=False), 1, 7),
    "pack": (lambda: folded("Pack", SIZE, constant(7), axis=0, N=2), [1, 0], [0, 7]),
    "concatenation": (lambda: folded("ConcatV2", SHAPE, constant([5]), constant(0), N=2), [1, 0, 0], [0, 7, 5]),
    "entry": (
        lambda: folded("StridedSlice", SHAPE, *(constant([i]) for i in (0, 1, 1)), **slices(0, 0, 0, 0, 1)),
        1,
        0,
    ),
    "cast": (lambda: folded("Cast", SIZE, SrcT=tf.int32, DstT=tf.int64, Truncate=False), 1, 0),
}


@pytest.mark.parametrize("name", AFFINE)
def test_values_that_are_affine_at_three_sizes_are_so_at_all(name):
    fold_it, slope, start = AFFINE[name]
    known = fold_it()
    assert not known.is_constant
    have = known.affine(PROBES)
    np.testing.assert_array_equal(have[0], slope)
    np.testing.assert_array_equal(have[1], start)
    for value, n in zip(known.samples, PROBES, strict=True):
        np.testing.assert_array_equal(value, np.multiply(slope, n) + start)


def test_a_difference_of_equal_sizes_is_a_constant():
    assert folded("Sub", SIZE, SIZE).is_constant
    assert folded("Mul", SIZE, constant(0)).is_constant


def test_polynomials_that_are_equal_at_three_sizes_are_equal():
    assert folded("Equal", SIZE, SIZE, incompatible_shape_error=True).is_constant
    assert not folded("Equal", SIZE, constant(20), incompatible_shape_error=True).is_constant


@pytest.mark.parametrize(
    ("op", "other"), [("Maximum", 2), ("Minimum", 10**6), ("Greater", 0), ("FloorDiv", 10**6), ("FloorMod", 10**6)]
)
def test_other_operations_that_agree_at_three_sizes_may_differ_at_a_fourth(op, other):
    """Of an empty batch, `n > 0` is false."""
    known = folded(op, SIZE, constant(other))
    assert not known.is_constant
    assert known.affine(PROBES) is None
    of_that = known if known.samples[0].dtype == bool else folded("AddV2", known, constant(1))
    assert of_that.affine(PROBES) is None


def test_a_value_that_agrees_at_three_sizes_is_not_the_constant_of_its_samples():
    evaluation = BatchedEvaluation(4, rows=20)
    with building(Block()):
        evaluation.tensor(BatchedValue.from_known(constant(3)))
        with pytest.raises(NoBatchingRule, match="by more than sums and products"):
            evaluation.tensor(BatchedValue.from_known(folded("Minimum", SIZE, constant(3))))


@pytest.mark.parametrize("dtype", [tf.bool, tf.uint8, tf.int32])
def test_a_cast_that_rounds_or_wraps_is_no_polynomial(dtype):
    """From 5 rows on, 0.95 + 0.01 n is 1 when it is rounded down; a size of 8 bits wraps at 256."""
    floats = KnownValue.from_samples([np.float32(0.95 + 0.01 * n) for n in PROBES])
    number, source = (floats, tf.float32) if dtype == tf.int32 else (SIZE, tf.int32)
    known = folded("Cast", number, SrcT=source, DstT=dtype, Truncate=False)
    assert not known.is_constant
    assert not known.polynomial


def test_a_square_is_not_affine():
    assert folded("Mul", SIZE, SIZE).affine(PROBES) is None


def test_a_batch_of_one_row_is_not_broadcast():
    """The padded size may be 1, where a shape [1] would broadcast to any other."""
    sampled_sizes = BatchedEvaluation(4, rows=1).sampled_sizes
    rows = KnownValue.from_samples([np.int32([n, 7]) for n in sampled_sizes])
    results = fold(
        Node("BroadcastGradientArgs", (), {"T": tf.int32}),
        [BatchedValue(None, form=k) for k in (rows, constant([7]))],
        sampled_sizes,
    )
    assert [k.samples[0].tolist() for k in results] == [[], [0]]
    assert all(k.is_constant for k in results)


def test_values_whose_shapes_differ_between_sizes_are_not_folded():
    assert folded("Fill", SHAPE, constant(0)) is None
    assert folded("Range", constant(0), SIZE, constant(1), Tidx=tf.int32) is None


def test_large_values_unknown_ones_and_errors_are_not_folded():
    assert folded("Fill", constant([MAX_ENTRIES]), constant(0)) is not None
    assert folded("Fill", constant([MAX_ENTRIES + 1]), constant(0)) is None
    assert folded("Range", constant(0), constant(MAX_ENTRIES + 1), constant(1), Tidx=tf.int32) is None
    assert folded("Reshape", constant([1, 2, 3]), constant([2, 2])) is None
    assert folded("Tanh", constant(0.5, np.float32)) is None
    unknown = [BatchedValue(None, form=SIZE), BatchedValue(tf.constant(1))]
    assert fold(Node("AddV2", (), {"T": tf.int32}), unknown, PROBES) is None


@pytest.mark.parametrize("op", ["FloorDiv", "TruncateDiv"])
def test_a_quotient_without_remainders_is_a_polynomial(op):
    exact = folded(op, folded("Mul", SIZE, constant(6)), constant(3))
    assert exact.affine(PROBES) == (2, 0)
    for numerator, divisor in ((SIZE, constant(2)), (folded("AddV2", SIZE, constant(3)), constant(3))):
        assert not folded(op, numerator, divisor).polynomial
    assert not folded(op, constant(60), SIZE).polynomial
