"""`check_batching_rule` accepts every built-in batching rule.

The other tests of batching rules say what single rules do; this one checks each in all layouts of its operands.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs.batched.batched_value import batching_rules
from fedcore.graphs.batched.batching_rules import (
    arrays,
    control_flow,
    convolutions,
    elementwise,
    gathers,
    matmul,
    randomness,
    reductions,
    shapes,
    tensor_lists,
)
from fedcore.graphs.batched.evaluation import _ALWAYS_BY_RULE
from fedcore.testing import check_batching_rule, operand_search, rule_gradients, rule_layouts, rule_runs
from fedcore.testing.rule_layouts import padded_layouts, unpadded_layouts
from fedcore.testing.rule_operands import cases_of_operation

BUILT_IN = sorted(op for op, rule in batching_rules.items() if rule.__module__.startswith("fedcore.graphs."))


def floats(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype(np.float32)


def indices(most: int, *shape) -> np.ndarray:
    return np.random.default_rng(1).integers(0, most, shape).astype(np.int32)


def ints(*values) -> np.ndarray:
    return np.array(values, np.int32)


IMAGES, PIXELS = {"strides": [1, 2, 2, 1], "padding": "SAME"}, {"strides": [1, 2, 2, 2, 1], "padding": "SAME"}
WINDOW = {"ksize": [1, 2, 2, 1], **IMAGES}
BOX = {"ksize": [1, 2, 2, 2, 1], **PIXELS}
KEY, COUNTER, ALGORITHM = np.array([3], np.uint64), np.array([5, 7], np.uint64), np.int32(1)
SEED, FLOAT, INT = np.array([3, 5], np.int32), {"dtype": tf.float32}, {"dtype": tf.int32}
FLOAT_NUMBERS = ("RandomUniform", "RandomNormal", "TruncatedNormal")
RANGE = (np.int32(2), np.int32(9))

CASES = {
    "AvgPoolGrad": [(ints(6, 4, 4, 2), floats(6, 2, 2, 2), WINDOW)],
    "AvgPool3DGrad": [(ints(2, 4, 4, 4, 2), floats(2, 2, 2, 2, 2), BOX)],
    "MaxPoolGrad": [(floats(6, 4, 4, 2), floats(6, 2, 2, 2), floats(6, 2, 2, 2, seed=1), WINDOW)],
    **{
        f"{how}Bound": [(np.sort(floats(2, 9)), floats(2, 5)), (ints([1, 3, 3]), ints([3, 0]))]
        for how in ("Lower", "Upper")
    },
    **{op: [((1 + 2j) * floats(6, 4).astype(np.complex64),)] for op in ("FFT", "IFFT")},
    "RFFT": [(floats(6, 4), ints(4))],
    "IRFFT": [(floats(6, 3).astype(np.complex64), ints(4))],
    "CheckNumerics": [(floats(6, 3), {"message": "wrong"})],
    "Conv2DBackpropInput": [(ints(6, 4, 4, 2), floats(3, 3, 2, 4), floats(6, 2, 2, 4), IMAGES)],
    "Conv2DBackpropFilter": [(floats(6, 4, 4, 2), ints(3, 3, 2, 4), floats(6, 2, 2, 4), IMAGES)],
    "Conv3DBackpropInputV2": [(ints(2, 4, 4, 4, 2), floats(3, 3, 3, 2, 4), floats(2, 2, 2, 2, 4), PIXELS)],
    "Conv3DBackpropFilterV2": [(floats(2, 4, 4, 4, 2), ints(3, 3, 3, 2, 4), floats(2, 2, 2, 2, 4), PIXELS)],
    "DepthwiseConv2dNativeBackpropInput": [(ints(6, 4, 4, 2), floats(3, 3, 2, 2), floats(6, 2, 2, 4), IMAGES)],
    "DepthwiseConv2dNativeBackpropFilter": [(floats(6, 4, 4, 2), ints(3, 3, 2, 2), floats(6, 2, 2, 4), IMAGES)],
    "Einsum": [
        ([floats(6, 3), floats(3, 4)], {"equation": "ij,jk->ik"}),
        ([floats(6, 3), floats(6, 4)], {"equation": "ij,ik->jk"}),
        ([floats(4, 6, 3)], {"equation": "abc->cb"}),
        ([floats(4, 6, 3), floats(4, 3, 2)], {"equation": "abc,acd->abd"}),
    ],
    "EnsureShape": [
        (floats(6, 3), {"shape": tf.TensorShape([6, 3])}),
        (floats(6, 3), {"shape": tf.TensorShape([None, 3])}),
    ],
    "ScatterNd": [(indices(4, 6, 1), floats(6, 3), ints(4, 3)), (indices(4, 6, 2), floats(6), ints(4, 5))],
    **{f"TensorScatter{how}": [(floats(4, 3), indices(4, 6, 1), floats(6, 3, seed=1))] for how in ("Add", "Sub")},
    "TensorScatterUpdate": [(floats(6, 3), ints([2], [0], [5]), floats(3, 3, seed=1))],
    "SplitV": [
        (floats(6, 3), ints(1, 2), np.int32(1), {"num_split": 2}),
        (floats(6, 3), ints(4, 2), np.int32(0), {"num_split": 2}),
    ],
    "Unpack": [
        (floats(6, 3), {"num": 3, "axis": 1}),
        (floats(6, 3), {"num": 6}),
        (floats(2, 6), {"num": 6, "axis": -1}),
    ],
    "StridedSliceGrad": [
        (ints(6, 3), ints(1, 0), ints(5, 3), ints(2, 1), floats(2, 3)),
        (ints(6, 3), ints(4, 1), ints(0, 2), ints(-1, 1), floats(4), {"shrink_axis_mask": 2}),
        (ints(6, 3), ints(0, 0), ints(2, 3), ints(1, 1), floats(2, 3), {"end_mask": 2}),
    ],
    "StatelessRandomGetKeyCounter": [(SEED,)],
    **{f"Stateless{how}V2": [(ints(6, 3), KEY, COUNTER, ALGORITHM, FLOAT)] for how in FLOAT_NUMBERS},
    "StatelessRandomUniformIntV2": [(ints(6), KEY, COUNTER, ALGORITHM, *RANGE, INT)],
    "StatelessRandomUniformFullIntV2": [(ints(6), KEY, COUNTER, ALGORITHM, INT)],
    **{f"Stateless{how}": [(ints(6, 3), SEED, FLOAT)] for how in FLOAT_NUMBERS},
    "StatelessRandomUniformInt": [(ints(6), SEED, *RANGE, INT)],
    "StatelessRandomUniformFullInt": [(ints(6), SEED, INT)],
    "StatelessMultinomial": [(floats(2, 5), np.int32(7), SEED)],
    "StatelessShuffle": [(floats(6, 2), KEY, COUNTER, ALGORITHM)],
    "StatelessParameterizedTruncatedNormal": [(ints(3), SEED, *np.array([0.0, 1.0, -1.0, 1.0], np.float32), FLOAT)],
}
"""Operands of operations for which the definition says too little."""


def stored_in_lists(x, y):
    """Elements of an array, written and read in another order, in a loop and outside of it."""
    array = tf.TensorArray(tf.float32, 3, element_shape=[None, 3]).write(0, x).write(1, y).write(2, x * y)
    total = tf.while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, t + array.read(2 - i)), (0, tf.zeros_like(x)))[1]
    return total, array.stack()


def unstacked_lists(x):
    array = tf.TensorArray(tf.float32, 4, element_shape=[3]).unstack(x)
    return array.read(3) - array.read(1), array.stack(), array.size()


def pushed_and_popped(x, y):
    handle = tf.raw_ops.EmptyTensorList(element_shape=[3], max_num_elements=-1, element_dtype=tf.float32)
    handle = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=x)
    handle = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=y)
    shape = tf.raw_ops.TensorListElementShape(input_handle=handle, shape_type=tf.int32)
    popped = tf.raw_ops.TensorListPopBack(input_handle=handle, element_shape=[3], element_dtype=tf.float32)
    return popped.tensor * 2.0, tf.raw_ops.TensorListLength(input_handle=popped.output_handle), shape


def gradient_of_a_loop(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, tf.tanh(t * x)), (0, x))[1]
    return tape.gradient(y, x)


FUNCTIONS = {
    stored_in_lists: [tf.TensorSpec([None, 3])] * 2,
    unstacked_lists: [tf.TensorSpec([4, 3])],
    pushed_and_popped: [tf.TensorSpec([3])] * 2,
    gradient_of_a_loop: [tf.TensorSpec([None, 3])],
}
"""Functions of operations whose operands no client has: lists of tensors, and functions."""

IN_FUNCTIONS = {
    *(op for op in BUILT_IN if "TensorList" in op or op in _ALWAYS_BY_RULE),
    *("BroadcastGradientArgs", "Range"),
}
"""The results of the last are known while the graph is built."""

MODULES = (arrays, control_flow, convolutions, elementwise, gathers)
MODULES += (matmul, randomness, reductions, shapes, tensor_lists)


def test_the_rules_of_every_module_are_checked():
    assert {batching_rules[op].__module__ for op in BUILT_IN} == {module.__name__ for module in MODULES}


BY_THEMSELVES = [op for op in BUILT_IN if op not in IN_FUNCTIONS]
ELEMENTWISE = [op for op in BY_THEMSELVES if batching_rules[op].__module__ == elementwise.__name__]
REPRESENTATIVES = {batching_rules[op].__code__: op for op in reversed(ELEMENTWISE)}.values()
"""Of each rule that elementwise operations share, one."""

OLD_VERSIONS = {f"FusedBatchNorm{how}" for how in ("", "V2", "Grad", "GradV2")}
"""TensorFlow reads these, and adds the third."""


def is_checked_widely(op: str) -> bool:
    return op not in OLD_VERSIONS and (op not in ELEMENTWISE or op in REPRESENTATIVES)


@pytest.mark.parametrize("op", [op for op in BY_THEMSELVES if is_checked_widely(op)])
def test_a_rule_gives_each_client_what_it_has_alone(op, monkeypatch):
    shapes = ((), (6,), (6, 3), (4, 6, 3), (6, 4, 4, 2), (2, 4, 4, 4, 2))
    monkeypatch.setattr(operand_search, "RANKED_SHAPES", shapes)
    monkeypatch.setattr(operand_search, "LONG_SHAPES", ((37, 19),))
    monkeypatch.setattr(operand_search, "MOST_FOUND", 1)
    monkeypatch.setattr(operand_search, "_OTHER_DTYPES", (tf.int32,))
    monkeypatch.setattr(rule_layouts, "MOST_PADDED", 4)
    monkeypatch.setattr(rule_gradients, "MOST_CASES", 1)
    monkeypatch.setattr(rule_runs, "WIDTHS", (8,))
    assert check_batching_rule(op, cases=CASES.get(op, ())).layouts > 0


@pytest.mark.soak
@pytest.mark.parametrize("op", BY_THEMSELVES)
def test_a_rule_gives_each_client_what_it_has_alone_whatever_the_rank(op):
    assert check_batching_rule(op, cases=CASES.get(op, ())).layouts > 0


@pytest.fixture(scope="module")
def elementwise_runs() -> dict[str, list[rule_runs.Run]]:
    """Runs of every elementwise operation on a matrix: of clients' own, and of batches padded in each way."""
    runs = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operand_search, "RANKED_SHAPES", ((6, 3),))
        patch.setattr(operand_search, "LONG_SHAPES", ())
        patch.setattr(operand_search, "MOST_FOUND", 1)
        patch.setattr(operand_search, "_OTHER_DTYPES", ())
        for op in ELEMENTWISE:
            subject, case = cases_of_operation(op, CASES.get(op, ()))[0]
            padded = itertools.islice(padded_layouts(case, subject.alone), 3)
            layouts = [next(unpadded_layouts(case)), *padded]
            runs[op] = [rule_runs.Run(subject, case, layout) for layout in layouts]
    rule_runs.run_all([run for runs_of_operation in runs.values() for run in runs_of_operation])
    return runs


@pytest.mark.parametrize("op", [op for op in ELEMENTWISE if op not in REPRESENTATIVES])
def test_a_shared_elementwise_rule_gives_each_client_what_it_has_alone(op, elementwise_runs):
    assert len(elementwise_runs[op]) > 1
    for run in elementwise_runs[op]:
        run.check()


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_rules_of_lists_and_loops_do(fn):
    assert check_batching_rule(fn, FUNCTIONS[fn]).layouts > 0


def least(x):
    """A size that follows the size of the batch only up to 2."""
    return tf.minimum(tf.shape(x)[0], 2)


SHAPES_BY_THE_BATCH = [
    lambda x, v: tf.reshape(v, [least(x), -1]),
    lambda x, v: tf.reshape(v, [1 + tf.shape(x)[0] % 2, -1]),
    lambda x, v: tf.reshape(v, tf.where(tf.shape(x)[0] > 1, [2, 2], [4, 1])),
    lambda x, v: tf.range(least(x)),
    lambda x, v: tf.zeros([least(x)]),
    lambda x, v: tf.ones([tf.maximum(tf.shape(x)[0], 3)]) * v[0],
    lambda x, v: tf.fill([(tf.shape(x)[0] + 5) // 6 * 6], v[0]),
    lambda x, v: tf.sequence_mask([1, 2], least(x)),
    lambda x, v: tf.linspace(0.0, 1.0, least(x)),
    lambda x, v: tf.tile(v, [least(x)]),
    lambda x, v: tf.broadcast_to(v[:1], [least(x), 1]),
    lambda x, v: tf.scatter_nd([[0]], v[:1], [least(x)]),
    lambda x, v: tf.slice(v, [0], [least(x)]),
    lambda x, v: x[: least(x)],
    lambda x, v: v[least(x)],
    lambda x, v: tf.pad(v, [[least(x), 0]]),
    lambda x, v: tf.one_hot([0, 1], least(x)),
    lambda x, v: tf.repeat(v, least(x)),
    lambda x, v: tf.range(tf.cast(tf.shape(x)[0], tf.float32) + 0.5),
]
"""Sizes that are no sums and products of the batch size: samples at large sizes do not tell those at small ones."""


@pytest.mark.parametrize("fn", SHAPES_BY_THE_BATCH)
def test_a_shape_that_follows_the_batch_in_steps_is_each_clients_own(fn):
    assert check_batching_rule(fn, [tf.TensorSpec([None, 3]), tf.TensorSpec([4])]).layouts > 0
