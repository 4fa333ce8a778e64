"""What a tf_computation refuses, and with which words."""

import re

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TracingError

outside = tf.Variable(1.0, name="outside")


def calls_python(x):
    return tf.py_function(lambda v: v, [x], tf.float32)


def calls_numpy(x):
    return tf.numpy_function(lambda v: v, [x], tf.float32)


def calls_python_in_a_branch(x):
    return tf.cond(x > 0, lambda: tf.numpy_function(lambda v: v, [x], tf.float32), lambda: x)


def looks_up(x):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)
    return table.lookup(tf.constant(["a"]))[0] + x


def reads_a_file(x):
    return tf.strings.to_number(tf.io.read_file("numbers.txt")) + x


def captures_a_variable(x):
    return outside * x


REFUSED = {
    calls_python: "calls Python while it runs (op EagerPyFunc, from tf.py_function or tf.numpy_function)",
    calls_numpy: "calls Python while it runs (op PyFunc, from tf.py_function or tf.numpy_function)",
    calls_python_in_a_branch: "calls Python while it runs",
    looks_up: "uses a lookup table that may change (op ",
    reads_a_file: "reads or writes files while it runs (op ReadFile). Read before",
    captures_a_variable: "uses outside:0, made outside of it. Make variables (and Keras models) inside the function",
}


@pytest.mark.parametrize("fn", REFUSED, ids=lambda fn: fn.__name__)
def test_what_cannot_leave_the_process_is_refused(fn):
    with pytest.raises(TracingError, match=f"`{fn.__name__}` .*test_refused_bodies.py:.*{re.escape(REFUSED[fn])}"):
        fc.tf_computation("float32")(fn)


def test_a_tensor_of_another_graph_is_refused():
    with tf.Graph().as_default():
        other = tf.constant(1.0)

    def borrows(x):
        return x + other

    with pytest.raises((TracingError, ValueError, TypeError)):
        fc.tf_computation("float32")(borrows)


def test_a_tensor_of_an_enclosing_trace_is_refused():
    @tf.function(autograph=False)
    def enclosing(y):
        def borrows(x):
            return x + y

        return fc.tf_computation("float32")(borrows) and y

    with pytest.raises(
        TracingError, match=r"`borrows` .*uses a tensor of another graph \(y:0\); pass it as an argument"
    ):
        enclosing(tf.constant(1.0))


def test_a_captured_dataset_is_refused():
    dataset = tf.data.Dataset.range(3)

    def folds():
        return dataset.reduce(np.int64(0), lambda a, b: a + b)

    with pytest.raises(
        TracingError, match=r"uses a dataset .* made outside of it; pass it as an argument of a sequence"
    ):
        fc.tf_computation(folds)


def draws_in_a_dataset(x):
    drawn = tf.data.Dataset.range(3).map(lambda i: tf.random.uniform([]))
    return drawn.reduce(x, lambda a, b: a + b)


def test_a_draw_where_no_seed_is_handed_on_is_refused():
    says = "draws random numbers in a function of the op MapDataset, which passes no seed on. Draw outside of it"
    with pytest.raises(TracingError, match=f"`draws_in_a_dataset` .*{says}"):
        fc.tf_computation("float32")(draws_in_a_dataset)


@tf.autograph.experimental.do_not_convert
def loops_unseen(xs):
    total = 0.0
    for x in xs:
        total += x
    return total


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda xs: float(len(xs)), r"how many elements a sequence has is not known while it is traced; \.cardinality"),
        (lambda xs: 1.0 if xs else 0.0, "how many elements a sequence has is not known while it is traced"),
        (
            lambda xs: sum(xs),
            r"a sequence is iterated in Python code whose source cannot be read, .*; use \.reduce\(\)",
        ),
        (lambda xs: max(xs), "a sequence is iterated in Python code whose source cannot be read"),
        (lambda xs: xs[0], r"the elements of a sequence have no index: \.skip\(n\)\.take\(1\)"),
        (loops_unseen, "a sequence is iterated in Python code whose source cannot be read"),
    ],
    ids=["len", "bool", "sum", "max", "index", "for"],
)
def test_what_a_sequence_cannot_do_in_a_body_says_what_can_be_done(fn, says):
    with pytest.raises(TracingError, match=says):
        fc.tf_computation(fc.SequenceType("float32"))(fn)


@pytest.mark.parametrize(
    "runtime", [fc.runtime.local(workers_per_device=1), fc.runtime.reference()], ids=["local", "ref"]
)
def test_a_print_shows_in_every_call(runtime, capfd):
    @fc.tf_computation("int32")
    def shown(x):
        tf.print("seen", x)
        return x + 1

    assert dict(shown.module.graphs[0].attributes) == {"effects": True}
    with fc.use(runtime):
        shown(4)
        shown(4)
        shown(5)
    assert capfd.readouterr().err.split("\n")[:3] == ["seen 4", "seen 4", "seen 5"]


def test_a_constant_of_2_gib_is_refused_with_a_fix():
    huge = np.broadcast_to(np.float32(1), (2**29,))  # takes no memory
    with pytest.raises(TracingError) as error:
        fc.tf_computation("float32")(lambda x: x + tf.reduce_sum(huge))
    assert "has a constant of 2 GiB or more" in str(error.value)
    assert "fix: give the array as an argument" in str(error.value)
    assert "fc.federated_broadcast(fc.federated_value(array, fc.SERVER)) sends it once" in str(error.value)
