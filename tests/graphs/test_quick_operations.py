"""Operations that are created quickly make the graph that TensorFlow's own functions make, and raise its errors."""

import inspect
import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.util import tf_stack

from fedcore.graphs import private_api
from fedcore.graphs.graphdef.form.canonical_form import canonical_graph


def _loop(x):
    return tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, tf.tanh(v) * 2.0), [0, x])[1]


def _gradient(x):
    w = tf.constant(np.arange(12, dtype=np.float32).reshape(4, 3))
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.reduce_mean(tf.nn.softmax(tf.matmul(x, w), -1) ** 2)
    return tape.gradient(loss, w)


def _gradient_of_a_loop(x):
    def body(i, v):
        return i + 1, tf.tanh(v * tf.reduce_mean(v, 0)) + tf.cast(tf.shape(v)[0], tf.float32)

    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.while_loop(lambda i, v: i < 3, body, [0, x])[1])
    return tape.gradient(loss, x)


def _gradient_of_branches(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.reduce_sum(tf.exp(x) * x), lambda: tf.reduce_sum(x))
    return tape.gradient(loss, x)


def _named(x):
    with tf.name_scope("outer"):
        y = tf.add(x, 1, name="sum")
    with tf.device("/CPU:0"), tf.control_dependencies([tf.identity(y, name="sum")]):
        return tf.reshape(y, [-1], name="sum")


def _variables(x):
    before = COUNT.read_value()
    COUNT.assign_add(1.0)
    return x + before + COUNT * tf.cond(before > 0.0, lambda: COUNT.assign(3.0), lambda: COUNT.read_value())


def _dataset(x):
    rows = iter(tf.data.Dataset.from_tensor_slices(x).map(lambda row: row + COUNT.assign_add(1.0)))
    return next(rows) + next(rows) * COUNT


def _list_of_tensors(x):
    rows = tf.TensorArray(tf.float32, 2).write(0, x).write(1, x * 2)
    return rows.stack()


def _constants(x):
    """Constants that Python or numpy takes for equal, each made twice: the second comes from a cache."""
    made = []
    for _ in range(2):
        made += [tf.constant(v) for v in (True, 1, 1.0, 0.0, -0.0, [1, 0], (1, 0), [True, False], [], b"a", 3.0 + 0j)]
        made += [tf.constant(v) for v in (np.float32(-0.0), np.float64(1), np.array([0.0, -0.0], np.float32))]
        made += [tf.constant(v) for v in (np.array([[1, 2]], np.int8), np.array([[1], [2]], np.int8), np.bool_(True))]
        made += [tf.constant(1, dtype) for dtype in (None, tf.int64, tf.float32, "float64", np.float16, tf.bfloat16)]
        made += [tf.constant(2.0, shape=shape) for shape in ([], [2, 3], (1,), tf.TensorShape([2]))]
        made += [tf.constant(np.arange(100)), tf.constant([1, 2, 3, 4], shape=[2, 2], name="scope/named")]
    return [x, *made]


OUTSIDE = tf.range(1000.0)
COUNT = tf.Variable(0.0)

FUNCTIONS = {
    "arithmetic": lambda x: x * 2 - 1 / (x + tf.constant(3.0)),
    "shapes": lambda x: tf.reshape(x, [4, -1]) + tf.cast(tf.shape(x)[0], tf.float32),
    "lists": lambda x: tf.concat([x, tf.stack([x[0], x[1]])], 0),
    "list of numbers and tensors": lambda x: tf.reshape(x, [tf.shape(x)[0], 2, 2]),
    "empty list": lambda x: tf.reshape(x[0, 0], []),
    "dtypes": lambda x: tf.gather(x, np.array([0, 2], np.int64)) + tf.cast(tf.argmax(x, 1)[:1], tf.float32),
    "attributes": lambda x: tf.nn.conv2d(x[None, :, :, None], tf.ones([2, 2, 1, 3]), [1, 1, 1, 1], "SAME"),
    "signed zeros": lambda x: (
        tf.raw_ops.LeakyRelu(features=x, alpha=0.0) + tf.raw_ops.LeakyRelu(features=x, alpha=-0.0)
    ),
    "strings": lambda x: tf.strings.length(tf.constant(["a", "bc"])),
    "loop": _loop,
    "branches": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x),
    "gradient": _gradient,
    "gradient of a loop": _gradient_of_a_loop,
    "gradient of branches": _gradient_of_branches,
    "names, devices and control": _named,
    "random": lambda x: x + tf.random.stateless_normal(tf.shape(x), [1, 2]),
    "constants": _constants,
    "eager tensor": lambda x: x[0, 0] + OUTSIDE,
    "variables": _variables,
    "dataset": _dataset,
    "list of tensors": _list_of_tensors,
    "side effects": lambda x: (tf.print(x), tf.debugging.assert_all_finite(x, "not finite"))[1],
}


def _graph(fn, *, quickly: bool, shape=(3, 4)):
    def build():
        return tf.function(fn, autograph=False).get_concrete_function(tf.TensorSpec(shape, tf.float32)).graph

    if not quickly:
        return build()
    with private_api.quick_operations():
        return build()


def _nodes(graph) -> list:
    """The nodes with their names. TensorFlow numbers the functions of a process."""
    text = str(graph.as_graph_def(add_shapes=True).node)
    return re.sub(
        r'"(while|cond|__inference)_[A-Za-z_0-9]+"', lambda name: re.sub(r"_\d+", "", name[0]), text
    ).splitlines()


def _canonical(graph) -> bytes:
    """The graph with its functions, under names of their contents."""
    results = [(t.name, t.dtype.as_datatype_enum) for t in graph.outputs]
    return canonical_graph(graph.as_graph_def(), [t.op.name for t in graph.inputs], results, [])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_graph_is_tensorflows(name):
    fn = FUNCTIONS[name]
    for shape in ((3, 4), (None, 4)):
        quick, slow = (_graph(fn, quickly=quickly, shape=shape) for quickly in (True, False))
        assert _nodes(quick) == _nodes(slow)
        assert _canonical(quick) == _canonical(slow)


MISTAKES = {
    "shapes": lambda x: tf.matmul(x, x),
    "shapes behind a constant": lambda x: tf.reshape(x, [5, 5]),
    "dtypes": lambda x: tf.add(x, tf.constant(1)),
    "dtypes of a list": lambda x: tf.raw_ops.Pack(values=[x, tf.cast(x, tf.int32)]),
    "not allowed": lambda x: tf.raw_ops.Sign(x=tf.strings.as_string(x)),
    "shape of a constant": lambda x: tf.constant([1, 2], shape=[3]),
    "no value": lambda x: tf.raw_ops.AddV2(x=x, y=None),
    "too small": lambda x: tf.raw_ops.AddN(inputs=[]),
    "attribute": lambda x: tf.raw_ops.Conv2D(input=x, filter=x, strides=[1], padding="SIDEWAYS"),
    "after a mistake": lambda x: [_fails(lambda: tf.add(x, "one")), tf.matmul(x, x)],
}


def _fails(call) -> None:
    with pytest.raises((TypeError, ValueError)):
        call()


@pytest.mark.parametrize("name", MISTAKES)
def test_errors_are_tensorflows(name):
    raised = []
    for quickly in (True, False):
        with pytest.raises((TypeError, ValueError)) as error:
            _graph(MISTAKES[name], quickly=quickly)
        raised.append((error.type, str(error.value)))
    assert raised[0] == raised[1]


def test_only_this_context_is_quick_and_stacks_are_kept_on_request(monkeypatch):
    monkeypatch.setattr(tf_stack, "extract_stack", inspect.unwrap(tf_stack.extract_stack))

    def stack(x):
        found.append(str(tf.add(x, x).op.traceback))
        return x

    found: list = []
    _graph(stack, quickly=False)
    _graph(stack, quickly=True)
    with private_api.quick_operations(with_stacks=True):
        _graph(stack, quickly=False)
    assert ["in stack" in frames for frames in found] == [True, False, True]


def test_only_operations_with_handles_are_searched_for_them(monkeypatch):
    search = auto_control_deps_utils.get_read_write_resource_inputs
    searched = []
    monkeypatch.setattr(
        auto_control_deps_utils, "get_read_write_resource_inputs", lambda op: searched.append(op.type) or search(op)
    )
    _graph(lambda x: tf.tanh(x) * x + tf.stack([x, x]) + COUNT.assign_add(1.0), quickly=True)
    assert set(searched) == {"AssignAddVariableOp", "ReadVariableOp"}


def _shared(fn):
    with private_api.quick_operations(shares_constants=True):
        return tf.function(fn, autograph=False).get_concrete_function(tf.TensorSpec([3, 4], tf.float32))


def _bits(tensors) -> list[bytes]:
    return [tf.io.serialize_tensor(t).numpy() for t in tf.nest.flatten(tensors)]


def test_equal_constants_are_one_operation_and_no_other_ones():
    x, shared = tf.zeros([3, 4]), _shared(_constants)
    assert _bits(shared(x)) == _bits(tf.function(_constants, autograph=False)(x))
    _, *made = [t.op.inputs[0] for t in shared.graph.outputs]
    first, again = made[: len(made) // 2], made[len(made) // 2 :]
    apart = [a.dtype.name for a, b in zip(first, again, strict=True) if a is not b]
    assert apart == ["bool", "string", "complex128", "float64", "float16", "float32", "int64"]  # rare or large
    assert len({t.name for t in first}) == len(first) - 1  # 1 and 1 without a dtype


NOT_REPEATABLE = {"dataset"}  # reads ahead while a variable changes


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in NOT_REPEATABLE])
def test_graphs_with_shared_constants_compute_the_same(name):
    x = tf.reshape(tf.range(12.0), [3, 4])
    results = []
    for shares in (True, False):
        COUNT.assign(1.0)
        with private_api.quick_operations(shares_constants=shares):
            results.append(_bits(tf.function(FUNCTIONS[name], autograph=False)(x)))
    assert results[0] == results[1]


def test_a_constant_with_control_inputs_is_not_shared():
    def body(x):
        with tf.control_dependencies([tf.identity(x)]):
            after = tf.constant(7.0)
        return after + tf.constant(7.0), after

    graph = _shared(body).graph
    constants = [op for op in graph.get_operations() if op.type == "Const"]
    assert [len(op.control_inputs) for op in constants] == [1, 0]
