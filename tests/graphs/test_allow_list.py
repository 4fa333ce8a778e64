"""Every operation of TensorFlow has one class; what is not allowed is refused by name, wherever it stands."""

import re

import attrs
import pytest
import tensorflow as tf
from elsewhere import module_of, with_graph
from tensorflow.core.framework import graph_pb2, op_def_pb2
from tensorflow.python.client import pywrap_tf_session

import fedcore as fc
from fedcore.computation.computation import Computation
from fedcore.errors import FedcoreError
from fedcore.graphs.graphdef.analysis import op_classes
from fedcore.graphs.graphdef.analysis.op_classes import op_class
from fedcore.graphs.graphdef.form.captured_graph import captured_graph
from fedcore.graphs.graphdef.validation.allow_list import check_graphs
from fedcore.ir import Module, bundle, parse_module
from fedcore.ir.module import digest_of


def registered() -> list[op_def_pb2.OpDef]:
    data = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    return list(op_def_pb2.OpList.FromString(data).op)


OPS = registered()


def test_every_operation_of_the_installed_tensorflow_has_a_class():
    assert [op.name for op in OPS if op_class(op.name) == "unknown"] == []


def test_no_allowed_operation_matches_a_pattern_of_refused_ones():
    both = [n for n in op_classes._allowed_operations() if any(p.fullmatch(n) for p in op_classes._patterns.values())]
    assert both == []


def test_every_allowed_name_is_an_operation():
    assert sorted(op_classes._allowed_operations() - {op.name for op in OPS}) == []


def test_no_name_is_listed_twice():
    names = [n for line in op_classes._ALLOWED.splitlines() if not line.startswith("#") for n in line.split()]
    assert sorted(names) == sorted(set(names))


def test_what_is_allowed_and_stateful_is_a_call_a_variable_a_check_or_a_dataset():
    stateful = {op.name for op in OPS if op.is_stateful and op_class(op.name) == "allowed"}
    variables = re.compile(r".*Variable(Op|Shape)|VarHandleOp|VarIsInitializedOp|DestroyResourceOp|Resource.*")
    assert {n for n in stateful if not variables.fullmatch(n)} == {
        *("Assert", "Case", "CheckNumerics", "DeviceIndex", "If", "StatefulPartitionedCall", "While"),
        *("CudnnRNNBackpropV2", "CudnnRNNBackpropV3", "CudnnRNNV2", "CudnnRNNV3", "StatelessRandomGetAlg"),
        *("DatasetToSingleElement", "RangeDataset", "ReduceDataset", "TensorDataset", "TensorSliceDataset"),
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
        ("TensorSliceDataset", "allowed"),
        ("TFRecordDatasetV2", "file"),
        ("CacheDatasetV2", "file"),
        ("SnapshotDatasetV2", "file"),
        ("DataServiceDatasetV4", "network"),
        ("ParallelMapDatasetV2", "dataset"),
        ("IteratorGetNext", "dataset"),
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


def saved(tmp_path, fn):
    bundle.write(module_of(fn), tmp_path / "from_elsewhere.fed")
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


def total(dataset, x):
    return dataset.reduce(x, lambda a, b: a + tf.reduce_sum(tf.cast(b, tf.int32)))


def reads_records(x):
    return total(tf.data.TFRecordDataset("secret.records").map(tf.strings.length), x)


def caches_in_a_file(x):
    return total(tf.data.Dataset.range(3).cache("there"), x)


def maps_in_threads(x):
    return total(tf.data.Dataset.range(3).map(lambda i: i, num_parallel_calls=2), x)


def batches_by_an_argument(x):
    return total(tf.data.Dataset.range(3).padded_batch(tf.cast(x, tf.int64)), x)  # ends the process for 2**40


def batches_all(x):
    return total(tf.data.Dataset.range(3).batch(1 << 60, drop_remainder=True), x)  # ends the process


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
        (reads_records, "TFRecordDataset at 'n[0-9]+' in the function f_[0-9a-f]+: it reads or writes files"),
        (caches_in_a_file, "CacheDatasetV2 at 'n[0-9]+' in the graph: it reads or writes files"),
        (maps_in_threads, "ParallelMapDatasetV2 at 'n[0-9]+' in the graph: it is of a dataset that has threads"),
        (
            batches_by_an_argument,
            "PaddedBatchDatasetV2 at 'n[0-9]+' in the graph: its size is no constant of at most 1048576",
        ),
        (batches_all, "BatchDatasetV2 at 'n[0-9]+' in the graph: its size is no constant of at most"),
        (writes, "WriteFile at 'n[0-9]+' in the graph: it reads or writes files"),
        (prints, "PrintV2 at 'n[0-9]+' in the graph: it prints"),
        (calls_python, "EagerPyFunc at 'n[0-9]+' in the graph: it calls Python"),
    ],
)
def test_a_file_is_refused_whose_graph(tmp_path, fn, says):
    path = saved(tmp_path, fn)
    with pytest.raises(FedcoreError, match=says) as raised:
        fc.load(path)
    assert "holds operations that a file from elsewhere may not" in str(raised.value)
    assert "trusted=True" in str(raised.value)


@pytest.mark.parametrize("fn", [reads, reads_in_a_dataset, writes, prints, calls_python])
def test_a_trusted_file_may_hold_anything(tmp_path, fn):
    path = saved(tmp_path, fn)
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


def sums_batches(x):
    data = tf.data.Dataset.from_tensor_slices([x, x + 1, x + 2]).map(lambda y: y * x).repeat(2).skip(1).batch(2)
    return total(data.prefetch(1 << 60), 0)


def chooses_elements(x):
    some = tf.data.Dataset.range(9).filter(lambda i: i % 2 == 0).take_while(lambda i: i < 7).shard(2, 1)
    pairs = tf.data.Dataset.zip((some.concatenate(some), tf.data.Dataset.from_tensors(x).repeat()))
    return total(pairs.map(lambda i, y: tf.cast(i, tf.int32) + y), 0)


def takes_windows(x):
    windows = tf.data.Dataset.range(7).window(3).flat_map(lambda w: w.padded_batch(4)).unbatch()
    return total(windows, x) + tf.cast(windows.take(1).get_single_element(), tf.int32)


def loops_over_a_dataset(x):
    for i in tf.data.Dataset.range(5).batch(2):
        x += tf.reduce_sum(tf.cast(i, tf.int32))
    return x


@pytest.mark.parametrize(
    "fn",
    [
        *(draws, asserts, loops, steps_over_a_list, differentiates),
        *(sums_batches, chooses_elements, takes_windows, loops_over_a_dataset),
    ],
)
def test_a_file_is_loaded_and_runs_whose_graph(tmp_path, fn):
    built = fc.tf_computation("int32")(fn)
    assert fc.load(saved(tmp_path, fn))(3) == built(3)


GRAPH = fc.tf_computation("float32")(lambda x: tf.cond(x > 1.0, lambda: x * 2.0, lambda: x)).module


def changed(change) -> Module:
    """GRAPH after a change of its GraphDef, in place or by its bytes."""
    (graph,) = GRAPH.graphs
    graph_def = graph_pb2.GraphDef.FromString(GRAPH.blob(graph.digest))
    data = change(graph_def) or graph_def.SerializeToString()
    graph = attrs.evolve(graph, digest=digest_of(data))
    return attrs.evolve(GRAPH, graphs=(graph,), blobs={graph.digest: data})


def node(graph_def, op: str):
    return next(n for n in graph_def.node if n.op == op)


def recursive(graph_def):
    functions = graph_def.library.function
    call = functions[0].node_def.add(name="again", op=functions[0].signature.name, input=["a0"])
    call.input[:] = [a.name for a in functions[0].signature.input_arg]


def without_argument(graph_def):
    """A constant in the place of the argument."""
    placeholder = node(graph_def, "Placeholder")
    constant = graph_def.node.add(name="one", op="Const")
    constant.attr["dtype"].type = 1
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1.0))
    for other in graph_def.node:
        other.input[:] = ["one" if i == placeholder.name else i for i in other.input]
    graph_def.node.remove(placeholder)


def renamed(name):
    """Adds a node of the name."""

    def add(graph_def):
        graph_def.node.add().CopyFrom(node(graph_def, "Const"))
        graph_def.node[-1].name = name

    return add


def old_variable(graph_def):
    """A variable of TensorFlow 1, whose result is a reference."""
    made = graph_def.node.add(name="old", op="VariableV2")
    made.attr["dtype"].type = 1
    made.attr["shape"].shape.SetInParent()
    made.attr["container"].s = b""
    made.attr["shared_name"].s = b""


CHANGES = {
    "bytes that are none": (lambda g: b"\xff\xff\xff", "its bytes are no GraphDef"),
    "nothing in it": (lambda g: b"\n\x00", "malformed"),
    "an input that is not there": (
        lambda g: node(g, "Greater").input.__setitem__(0, "nowhere"),
        "'nowhere' does not exist",
    ),
    "an output that is not there": (
        lambda g: node(g, "Greater").input.__setitem__(0, "arg0:7"),
        "'arg0:7' does not exist",
    ),
    "an input too few": (lambda g: node(g, "Greater").input.pop(), "it has 1 inputs, not 2"),
    "a circle": (lambda g: node(g, "Greater").input.append("^ret0"), "needs its own result"),
    "an unknown operation": (lambda g: setattr(node(g, "Greater"), "op", "Greatest"), "no operation of that name"),
    "a missing attribute": (lambda g: node(g, "Greater").attr.clear(), "the attribute 'T' is missing"),
    "an attribute more": (
        lambda g: node(g, "Greater").attr["U"].CopyFrom(node(g, "Greater").attr["T"]),
        "no attribute 'U'",
    ),
    "an attribute of another kind": (lambda g: setattr(node(g, "Greater").attr["T"], "i", 1), "'T' is no type"),
    "a type that is not allowed": (lambda g: setattr(node(g, "Greater").attr["T"], "type", 7), "'T' is no type"),
    "another type": (lambda g: setattr(node(g, "Greater").attr["T"], "type", 2), "is of another type"),
    "two nodes of one name": (lambda g: g.node.add().CopyFrom(node(g, "Greater")), "two nodes of one name"),
    "no result": (lambda g: setattr(g.node[-1], "name", "other"), "'ret0' is not its result of type float32"),
    "a placeholder more": (
        lambda g: g.node.add(name="arg1", op="Placeholder").attr["dtype"].__setattr__("type", 1),
        "the placeholder 'arg1' is no argument",
    ),
    "a node called as an argument": (renamed("arg00"), "'arg00' has the name of an argument or a result, and is none"),
    "a node called as a result": (renamed("ret00"), "'ret00' has the name of an argument or a result, and is none"),
    "a node called as the seed": (renamed("seed"), "'seed' has the name of an argument or a result, and is none"),
    "an argument too few": (without_argument, "it lacks the argument 'arg0'"),
    "gradients": (lambda g: g.library.gradient.add(function_name="f", gradient_func="g"), "registers gradients"),
    "a function of open types": (
        lambda g: setattr(g.library.function[0].signature.input_arg[0], "type_attr", "T"),
        "is not of fixed types",
    ),
    "an operation over references": (
        old_variable,
        "it passes references, which functions cannot",
    ),
    "a function that is not there": (lambda g: g.library.ClearField("function"), "which its library lacks"),
    "a function that calls itself": (recursive, "calls itself"),
    "a function twice": (lambda g: g.library.function.add().CopyFrom(g.library.function[0]), "is defined twice"),
    "a function of other types": (
        lambda g: setattr(g.library.function[0].signature.output_arg[0], "type", 2),
        "takes or returns other types|does not return",
    ),
    "a function that returns nothing": (lambda g: g.library.function[0].ret.clear(), "does not return"),
    "a constant of a huge shape": (
        lambda g: node(g, "Const").attr["value"].tensor.tensor_shape.dim.add(size=2**40),
        "more than 2147483647 bytes",
    ),
    "a constant of a negative shape": (
        lambda g: node(g, "Const").attr["value"].tensor.tensor_shape.dim.add(size=-1),
        "its value has no shape",
    ),
    "a control input before another": (
        lambda g: node(g, "Greater").input.insert(0, "^arg0"),
        "a control input precedes a data input",
    ),
    "two arguments of one name": (
        lambda g: g.library.function[0].signature.input_arg.append(g.library.function[0].signature.input_arg[0]),
        "has two arguments of one name",
    ),
    "a constant of another type": (
        lambda g: setattr(node(g, "Const").attr["value"].tensor, "dtype", 3),
        "its value is of another type|is written as one of another type",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("trusted", [False, True])
def test_a_graph_is_malformed_with(what, trusted):
    change, says = CHANGES[what]

    def apply(graph_def):
        made = change(graph_def)
        return made if isinstance(made, bytes) else None

    with pytest.raises(FedcoreError, match=says):
        check_graphs(changed(apply), trusted=trusted)


def test_functions_that_double_with_every_call_are_refused():
    def doubling(graph_def):
        first = graph_def.library.function[0]
        names = [a.name for a in first.signature.input_arg]
        for i in range(40):
            function = graph_def.library.function.add()
            function.CopyFrom(first)
            function.signature.name = f"d{i}"
            called = f"d{i - 1}" if i else first.signature.name
            for k in range(2):
                function.node_def.add(name=f"call{k}", op=called, input=names)

    with pytest.raises(FedcoreError, match="has more than 2000000 nodes"):
        check_graphs(changed(doubling), trusted=True)


def assigns(x):
    total = tf.Variable(1.0)
    total.assign_add(tf.cast(x, tf.float32))
    return tf.cast(total.read_value(), tf.int32)


def assigns_in_a_loop(x):
    total, count = tf.Variable(1.0), tf.Variable(1)
    tf.while_loop(
        lambda i: i < x, lambda i: (i + count.assign_add(1) + tf.cast(total.assign_add(1.0), tf.int32),), (0,)
    )
    return tf.cast(total.read_value(), tf.int32) + count


def assigns_in_a_case(x):
    total = tf.Variable(1.0)

    @tf.function
    def chosen():
        branches = [lambda: tf.cond(x > 0, lambda: total.assign_add(1.0), lambda: total.assign(0.0)), lambda: 1.0]
        return tf.switch_case(x, branches)

    return tf.cast(chosen(), tf.int32) + tf.cast(total.read_value(), tf.int32)


def assigns_by_a_dataset(x):
    total = tf.Variable(1.0)
    for i in tf.data.Dataset.range(3):
        total.assign_add(tf.cast(i, tf.float32))
    return tf.cast(total.read_value(), tf.int32) + x


def all_nodes(graph_def):
    return [*graph_def.node, *(n for function in graph_def.library.function for n in function.node_def)]


def whole_numbers(graph_def):
    """Variables of int32."""
    for each in all_nodes(graph_def):
        if each.op == "VarHandleOp":
            each.attr["dtype"].type = 3


def swapped(graph_def):
    """The two variables of a loop change their places in each iteration."""
    name = next(n.attr["body"].func.name for n in all_nodes(graph_def) if n.op == "While")
    body = next(f for f in graph_def.library.function if f.signature.name == name)
    first, second = (o.name for o in body.signature.output_arg if o.type == 20)
    body.ret[first], body.ret[second] = body.ret[second], body.ret[first]


@pytest.mark.parametrize(
    ("fn", "change", "says"),
    [
        (assigns, whole_numbers, "AssignAddVariableOp: its variable holds int32, and it wants float32"),
        (assigns_in_a_loop, whole_numbers, "AssignAddVariableOp: its variable holds int32, and it wants float32"),
        (assigns_in_a_case, whole_numbers, "AssignAddVariableOp: its variable holds int32, and it wants float32"),
        (assigns_by_a_dataset, whole_numbers, "AssignAddVariableOp: its variable holds int32, and it wants float32"),
        (assigns_in_a_loop, swapped, "while: it goes on with variables of other types"),
    ],
)
def test_a_variable_of_another_type_than_it_is_used_with_is_refused(fn, change, says):
    module = fc.tf_computation("int32")(fn).module
    check_graphs(module, trusted=False)
    with pytest.raises(FedcoreError, match=says):
        check_graphs(with_graph(module, change), trusted=False)


@pytest.mark.parametrize("device", ["/job:worker/task:1", "/job:localhost/replica:0/task:0/device:CPU:0", "elsewhere"])
def test_a_node_that_asks_for_a_device_elsewhere_is_refused(device):
    module = changed(lambda g: setattr(node(g, "Greater"), "device", device))
    with pytest.raises(FedcoreError, match=f"Greater at 'n[0-9]+' in the graph: it asks for the device '{device}'"):
        check_graphs(module, trusted=False)


def test_a_result_of_another_shape_than_declared_is_an_error_of_ours(tmp_path):
    built = fc.tf_computation(("float32", (2,)))(lambda x: x).module
    (graph,) = built.graphs
    lying = attrs.evolve(graph, type=fc.FunctionType(("float32", (2,)), ("float32", (3,))))
    module = parse_module(str(attrs.evolve(built, graphs=(lying,))).replace(": float32[2]\n", ": float32[3]\n"))
    text = str(module).replace("-> float32[2] {", "-> float32[3] {").replace(") : float32[2]", ") : float32[3]")
    path = tmp_path / "lying.fed"
    path.write_bytes(bundle.to_bytes(attrs.evolve(parse_module(text), blobs=built.blobs)))
    with pytest.raises(FedcoreError, match=r"says that result 0 is float32\[3\], but makes \(2,\)"):
        fc.load(path)([1.0, 2.0])


def test_a_condition_that_returns_two_tensors_is_refused():
    def two(graph_def):
        loop = next(n for n in graph_def.node if n.op in ("While", "StatelessWhile"))
        name = loop.attr["cond"].func.name
        condition = next(f for f in graph_def.library.function if f.signature.name == name)
        (first,) = condition.signature.output_arg
        condition.signature.output_arg.add(name="second", type=first.type)
        condition.ret["second"] = condition.ret[first.name]

    module = module_of(lambda x: tf.while_loop(lambda y: y < 9, lambda y: (y + 1,), (x,))[0])
    with pytest.raises(FedcoreError, match="its condition does not return one tensor"):
        check_graphs(with_graph(module, two), trusted=True)


def test_a_graph_whose_shapes_cannot_be_is_an_error_of_ours(tmp_path):
    def longer(graph_def):
        shape = next(n for n in graph_def.node if n.op == "Const").attr["value"].tensor
        shape.CopyFrom(tf.make_tensor_proto([7], tf.int32))

    def reshapes(x):
        return tf.reduce_sum(tf.reshape(x, [1]))

    path = tmp_path / "misshapen.fed"
    bundle.write(with_graph(module_of(reshapes), longer), path)
    with pytest.raises(FedcoreError, match=r"TensorFlow cannot import the graph @reshapes: .*[Rr]eshape"):
        fc.load(path)(1)


def test_a_graph_that_no_tracing_makes_runs_as_it_stands():
    """A function has no name, and the result is no Identity."""

    def change(graph_def):
        unnamed = graph_def.library.function.add()
        unnamed.CopyFrom(graph_def.library.function[0])
        unnamed.signature.name = ""
        next(n for n in graph_def.node if n.name == "ret0").op = "Neg"

    module = with_graph(module_of(lambda x: tf.cond(x > 1, lambda: x * 2, lambda: x)), change)
    check_graphs(module, trusted=False)
    assert Computation(module)(3) == -6
    (graph,) = module.graphs
    (result,) = captured_graph(graph, module.blob(graph.digest)).main.results
    assert result.node.op == "Neg"
