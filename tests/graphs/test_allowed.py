"""Every operation of TensorFlow has one class; what is not allowed is refused by name, wherever it stands."""

import re

import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

import fedcore as fc
from fedcore.errors import FedcoreError
from fedcore.graphs import op_classes
from fedcore.graphs.op_classes import op_class


def registered() -> list[op_def_pb2.OpDef]:
    data = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    return list(op_def_pb2.OpList.FromString(data).op)


OPS = registered()


def test_every_operation_of_the_installed_tensorflow_has_a_class():
    assert [op.name for op in OPS if op_class(op.name) == "unknown"] == []


def test_no_allowed_operation_matches_a_pattern_of_refused_ones():
    both = [n for n in op_classes._allowed() if any(p.fullmatch(n) for p in op_classes._patterns.values())]
    assert both == []


def test_every_allowed_name_is_an_operation():
    assert sorted(op_classes._allowed() - {op.name for op in OPS}) == []


def test_no_name_is_listed_twice():
    names = [n for line in op_classes._ALLOWED.splitlines() if not line.startswith("#") for n in line.split()]
    assert sorted(names) == sorted(set(names))


def test_what_is_allowed_and_stateful_is_a_call_a_variable_or_a_check():
    stateful = {op.name for op in OPS if op.is_stateful and op_class(op.name) == "allowed"}
    variables = re.compile(r".*Variable(Op|Shape)|VarHandleOp|VarIsInitializedOp|DestroyResourceOp|Resource.*")
    assert {n for n in stateful if not variables.fullmatch(n)} == {
        *("Assert", "Case", "CheckNumerics", "DeviceIndex", "If", "StatefulPartitionedCall", "While"),
        *("CudnnRNNBackpropV2", "CudnnRNNBackpropV3", "CudnnRNNV2", "CudnnRNNV3", "StatelessRandomGetAlg"),
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ReadFile", "file"),
        ("ImmutableConst", "file"),
        ("PyFunc", "python"),
        ("PyFuncStateless", "python"),
        ("PrintV2", "print"),
        ("RpcCall", "network"),
        ("CollectiveReduceV2", "network"),
        ("HashTableV2", "table"),
        ("RandomUniform", "random"),
        ("Abort", "process"),
        ("TensorSliceDataset", "dataset"),
        ("Enter", "loop"),
        ("DecodeJpeg", "codec"),
        ("MatMul", "allowed"),
        ("StatelessRandomUniformV2", "allowed"),
        ("AssignVariableOp", "allowed"),
        ("NobodyHasHeardOfIt", "unknown"),
    ],
)
def test_an_operation_is_in_its_class(name, kind):
    assert op_class(name) == kind


def saved(tmp_path, fn, *types):
    fc.save(fc.tf_computation(*types)(fn), tmp_path / "from_elsewhere.fed")
    return tmp_path / "from_elsewhere.fed"


def reads(x):
    return tf.strings.length(tf.io.read_file("secret.txt")) + x


def reads_in_a_branch(x):
    return tf.cond(x > 0, lambda: reads(x), lambda: x)


def reads_in_a_function(x):
    return tf.function(lambda y: tf.function(reads)(y) * 2)(x)


def reads_in_a_loop(x):
    return tf.while_loop(lambda y: y < 3, lambda y: (reads(y),), (x,))[0]


def reads_in_a_dataset(x):
    return tf.data.Dataset.range(3).map(lambda i: reads(tf.cast(i, tf.int32))).reduce(x, lambda a, b: a + b)


def writes(x):
    with tf.control_dependencies([tf.io.write_file("there.txt", "text")]):
        return tf.identity(x)


def prints(x):
    tf.print(x)
    return x


def calls_python(x):
    return tf.ensure_shape(tf.py_function(lambda y: y, [x], tf.int32), ())


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (reads, "ReadFile at 'n[0-9]+' in the graph: it reads or writes files"),
        (reads_in_a_branch, "ReadFile at 'n[0-9]+' in the function f_[0-9a-f]+: it reads or writes files"),
        (reads_in_a_function, "ReadFile at 'n[0-9]+' in the function f_[0-9a-f]+: it reads or writes files"),
        (reads_in_a_loop, "ReadFile at 'n[0-9]+' in the function f_[0-9a-f]+: it reads or writes files"),
        (reads_in_a_dataset, "ReadFile at 'n[0-9]+' in the function f_[0-9a-f]+: it reads or writes files"),
        (reads_in_a_dataset, "MapDataset at 'n[0-9]+' in the graph: it is of a dataset"),
        (writes, "WriteFile at 'n[0-9]+' in the graph: it reads or writes files"),
        (prints, "PrintV2 at 'n[0-9]+' in the graph: it prints"),
        (calls_python, "EagerPyFunc at 'n[0-9]+' in the graph: it calls Python"),
    ],
)
def test_a_file_is_refused_whose_graph(tmp_path, fn, says):
    path = saved(tmp_path, fn, "int32")
    with pytest.raises(FedcoreError, match=says) as raised:
        fc.load(path)
    assert "holds operations that a file from elsewhere may not" in str(raised.value)
    assert "trusted=True" in str(raised.value)


@pytest.mark.parametrize("fn", [reads, reads_in_a_dataset, writes, prints, calls_python])
def test_a_trusted_file_may_hold_anything(tmp_path, fn):
    path = saved(tmp_path, fn, "int32")
    assert fc.load(path, trusted=True).type_signature == fc.FunctionType("int32", "int32")


def draws(x):
    return x + tf.random.stateless_uniform((), (1, 2), 0, 9, tf.int32)


def asserts(x):
    tf.debugging.assert_less(x, 100)
    return x


def loops(x):
    return tf.while_loop(lambda y: y < 9, lambda y: (tf.cond(y > 3, lambda: y * 2, lambda: y + 1),), (x,))[0]


def steps_over_a_list(x):
    return tf.reduce_sum(tf.map_fn(lambda y: y * x, tf.range(4)))


def differentiates(x):
    y = tf.cast(x, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(y)
        z = tf.cond(y > 1.0, lambda: tf.sin(y) * y, lambda: tf.exp(y))
    return tf.cast(tape.gradient(z, y), tf.int32)


@pytest.mark.parametrize("fn", [draws, asserts, loops, steps_over_a_list, differentiates])
def test_a_file_is_loaded_and_runs_whose_graph(tmp_path, fn):
    built = fc.tf_computation("int32")(fn)
    assert fc.load(saved(tmp_path, fn, "int32"))(3) == built(3)
