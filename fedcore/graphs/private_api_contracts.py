"""Contracts for the private parts of TensorFlow and Keras: small programs that fail if a part is gone or has changed.

`fedcore doctor` and the tests run them.
"""

import functools
import inspect
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, types_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.autograph.operators import variables
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from fedcore.graphs import private_api, private_api_keras
from fedcore.graphs.capture.keras_seeds import default_seeds
from fedcore.graphs.emission.onednn_kernels import with_onednn_kernels
from fedcore.graphs.private_api_shapes import encode_attribute
from fedcore.graphs.sequences import symbolic_dataset

CONTRACTS: dict[str, Callable[[], None]] = {}
"""Contracts by the name of the part that they check, as in `private_api.PARTS`."""


class BrokenContract(Exception):
    """A private part behaves differently than fedcore relies on."""


def contract(check: Callable[[], None]) -> Callable[[], None]:
    """Registers a contract; it has the name of the part that it checks."""
    CONTRACTS[check.__name__] = check
    return check


def broken() -> dict[str, str]:
    """The contracts that fail with the installed TensorFlow and Keras -> the reason."""
    failures = {}
    for name, check in CONTRACTS.items():
        try:
            check()
        except Exception as error:  # a changed private part may raise any exception
            failures[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return failures


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise BrokenContract(problem)


def _doubling_function(name: str) -> function_pb2.FunctionDef:
    """The definition, under this name, of a function float32 -> float32 that doubles a number."""
    traced = tf.function(lambda x: x + x, input_signature=[tf.TensorSpec([], tf.float32)], autograph=False)
    definition = function_pb2.FunctionDef.FromString(traced.get_concrete_function().function_def.SerializeToString())
    definition.signature.name = name
    return definition


@contract
def is_defined() -> None:
    _require(not private_api.is_defined("fedcore_contract_absent"), "an unknown function is said to be defined")


@contract
def define_function() -> None:
    if not private_api.is_defined("fedcore_contract_add"):
        private_api.define_function(_doubling_function("fedcore_contract_add"))
    _require(private_api.is_defined("fedcore_contract_add"), "a function that was defined is not known")


@contract
def defined_function() -> None:
    define_function()
    definition = private_api.defined_function("fedcore_contract_add")
    _require(definition.signature.name == "fedcore_contract_add", "a defined function is given back under another name")


@contract
def forget_function() -> None:
    private_api.define_function(_doubling_function("fedcore_contract_forgotten"))
    private_api.forget_function("fedcore_contract_forgotten")
    _require(not private_api.is_defined("fedcore_contract_forgotten"), "a forgotten function is still defined")


@contract
def has_onednn() -> None:
    if not private_api.has_onednn():
        return

    def layer(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, kernel, 1, "VALID"), [-1.0]))

    images, kernel = tf.reshape([1.0, 2.0, 3.0, 4.0], [1, 2, 2, 1]), tf.reshape([1.0, 2.0, 3.0, 4.0], [2, 2, 1, 1])
    traced = tf.function(layer, autograph=False).get_concrete_function(images, kernel)
    function = function_pb2.FunctionDef()
    function.CopyFrom(traced.function_def)
    _require(with_onednn_kernels(function), "a convolution is not replaced by that of oneDNN")
    function.signature.name = "fedcore_contract_onednn"
    if not private_api.is_defined(function.signature.name):
        private_api.define_function(function)
    attributes, manager = private_api.call_attributes(private_api.call_config()), private_api.cancellation_manager()
    (output,) = private_api.execute(function.signature.name, 1, [images, kernel], attributes, manager)
    _require(bool(tf.reduce_all(output == 29.0)), f"a convolution of four terms, and its bias, are {output}, not 29")


@contract
def has_started() -> None:
    tf.constant(0)
    _require(private_api.has_started(), "TensorFlow is said not to have started")


@contract
def op_definition() -> None:
    definition = private_api.op_definition("MatMul")
    _require(definition and [a.name for a in definition.input_arg] == ["a", "b"], "MatMul is not defined as it was")
    _require(private_api.op_definition("FedcoreNoSuchOp") is None, "an unknown operation has a definition")


@contract
def cancellation_manager() -> None:
    manager = private_api.cancellation_manager()
    manager.start_cancel()
    _require(manager.is_cancelled, "a cancelled manager does not say so")


@contract
def execute() -> None:
    define_function()
    attributes = private_api.call_attributes(private_api.call_config())
    operand, manager = tf.constant(1.0), private_api.cancellation_manager()
    (two,) = private_api.execute("fedcore_contract_add", 1, [operand], attributes, manager)
    _require(float(two) == 2.0, "a function gives another result when it is executed by name")
    manager.start_cancel()
    try:
        private_api.execute("fedcore_contract_add", 1, [operand], attributes, manager)
    except tf.errors.CancelledError:
        return
    raise BrokenContract("a cancelled call ran")


@contract
def call_config() -> None:
    config_pb2.ConfigProto.FromString(private_api.call_config())


@contract
def call_attributes() -> None:
    config = config_pb2.ConfigProto(allow_soft_placement=True)
    attributes = private_api.call_attributes(config.SerializeToString())
    by_name = dict(zip(attributes[::2], attributes[1::2], strict=True))
    decoded = config_pb2.ConfigProto.FromString(by_name.get("config_proto", b""))
    _require(decoded.allow_soft_placement, "the attributes of a call lose its config")


@contract
def call_config_set_to() -> None:
    old_config = private_api.call_config()
    config = config_pb2.ConfigProto.FromString(old_config)
    config.graph_options.rewrite_options.optimizers[:] = ["pruning"]
    with private_api.call_config_set_to(config):
        inside = config_pb2.ConfigProto.FromString(private_api.call_config())
    _require(list(inside.graph_options.rewrite_options.optimizers) == ["pruning"], "the config was not set")
    _require(private_api.call_config() == old_config, "the config was not restored")


@contract
def unordered_function() -> None:
    def body(x: tf.Tensor) -> tf.Tensor:
        tf.raw_ops.Merge(inputs=[x, x])  # automatic control dependencies would make the result wait for it
        return x * 2

    function = private_api.unordered_function(body, [tf.TensorSpec([], tf.float32)], name="contract")
    controlled = [op.name for op in function.graph.get_operations() if op.control_inputs]
    _require(not controlled, "a function's operations have automatic control dependencies")
    _require(function.function_def.attr["_noinline"].b, "a function may be inlined")
    _require("contract" in str(function.name), "a function has another name than it was given")
    _require(float(function(tf.constant(3.0))) == 6.0, "a function gives another result")


@contract
def call_without_inference() -> None:
    inner = private_api.unordered_function(lambda x: x[:, :1], [tf.TensorSpec([None, 2], tf.float32)])
    nodes: list = []

    @tf.function(autograph=False)
    def outer(x: tf.Tensor) -> tf.Tensor:
        (result,) = private_api.call_without_inference(inner, [x])
        nodes.append((result.op.node_def, result.shape.as_list()))
        return result

    _require(outer(tf.constant([[3.0, 4.0]])).numpy().tolist() == [[3.0]], "a call gives another result")
    ((node, shape),) = nodes
    _require(node.attr["_disable_call_shape_inference"].b, "a call does not say that no shapes are inferred")
    _require(shape == [None, 1], "the result of a call has another shape than in the function")


@contract
def is_unordered() -> None:
    flags: list[bool] = []

    def body() -> tf.Tensor:
        flags.append(private_api.is_unordered(tf.compat.v1.get_default_graph()))
        return tf.constant(0)

    tf.function(body, autograph=False).get_concrete_function()
    private_api.unordered_function(body, [])
    _require(flags == [False, True], "the graph of an unordered function is not recognised")


@contract
def infer_shapes() -> None:
    attributes = ("T", encode_attribute(tf.float32, "type")), ("Tshape", encode_attribute(tf.int32, "type"))
    shapes = private_api.infer_shapes("Reshape", attributes, [(4, 6), (2,)], [None, np.array([3, -1], np.int32)])
    _require(shapes == [(3, 8)], f"the shape of a Reshape is {shapes}, not [3, 8]")
    shapes = private_api.infer_shapes("Reshape", attributes, [None, (2,)], [None, None])
    _require(shapes == [(-1, -1)], f"the shape of a Reshape to two unknown sizes is {shapes}")


@contract
def optimize_graph() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [], "x")
        tf.identity(x * (tf.constant(2.0) + tf.constant(3.0)), "y")
    meta = meta_graph_pb2.MetaGraphDef(graph_def=graph.as_graph_def())
    meta.collection_def["train_op"].node_list.value.extend(["x", "y"])
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    optimized = private_api.optimize_graph(config, meta)
    _require({"x", "y"} <= {n.name for n in optimized.node}, "nodes that were to be kept are gone")
    _require(not any(n.op.startswith("Add") for n in optimized.node), "constants are not folded")


@contract
def quick_operations() -> None:
    def nodes() -> list:
        signature = [tf.TensorSpec([3, 4], tf.float32)]
        function = tf.function(
            lambda x: tf.stack([tf.reshape(x, [4, 3]) * 2]), autograph=False, input_signature=signature
        )
        return list(function.get_concrete_function().graph.as_graph_def(add_shapes=True).node)

    with private_api.quick_operations():
        quick = nodes()
    _require(quick == nodes(), "operations that are created quickly differ")
    importing = tf.Graph()
    with importing.as_default(), private_api.quick_operations():
        tf.graph_util.import_graph_def(graph_pb2.GraphDef(node=quick), name="")
    names = sorted(op.name for op in importing.get_operations())
    _require(names == sorted(n.name for n in quick), "a graph that is imported quickly differs")


@contract
def add_operation() -> None:
    bools = [(name, attr_value_pb2.AttrValue(b=False)) for name in ("transpose_a", "transpose_b")]
    dtype = ("T", attr_value_pb2.AttrValue(type=types_pb2.DT_FLOAT))
    attributes = [(name, value.SerializeToString()) for name, value in (*bools, dtype)]
    shapes: list[tf.TensorShape] = []

    def body(x: tf.Tensor) -> list[tf.Tensor]:
        results = private_api.add_operation("MatMul", [x, x], attributes) or []
        shapes.extend(t.shape for t in results)
        return list(results)

    with private_api.quick_operations():
        function = private_api.unordered_function(body, [tf.TensorSpec([2, 2], tf.float32)])
    _require(shapes == [[2, 2]], "an operation that is added has no shape")
    _require(
        np.array_equal(function(tf.ones([2, 2]))[0], [[2, 2], [2, 2]]), "an operation that is added has another result"
    )


@contract
def is_eager() -> None:
    flags = []
    tf.function(lambda x: flags.append(private_api.is_eager(x)), autograph=False)(tf.constant(0))
    _require(private_api.is_eager(tf.constant(0)) and flags == [False], "eager and symbolic tensors are not told apart")


@contract
def eager_mode() -> None:
    values = []

    def body() -> None:
        with private_api.eager_mode():
            values.append(tf.constant(3).numpy())

    tf.function(body, autograph=False).get_concrete_function()
    _require(values == [3], "an operation in eager mode has no value while a graph is built")


@contract
def init_scope_with_tapes() -> None:
    gradients = []

    def body() -> None:
        with private_api.init_scope_with_tapes():
            x = tf.constant(3.0)
            with tf.GradientTape() as tape:
                tape.watch(x)
                square = x * x
            gradients.append(tape.gradient(square, x).numpy())

    tf.function(body, autograph=False).get_concrete_function()
    _require(gradients == [6.0], "a tape inside of init_scope records nothing")


@contract
def functions_traced_anew() -> None:
    traces = []

    def note(x: tf.Tensor) -> tf.Tensor:
        traces.append(x)
        return x

    function = tf.function(note, autograph=False)

    def body() -> None:
        with private_api.functions_traced_anew():
            function(tf.constant(0))
            function(tf.constant(0))

    tf.function(body, autograph=False).get_concrete_function()
    _require(len(traces) == 2, "a function is traced once for two calls")


@contract
def outputs_of() -> None:
    layer, open_type = keras.layers.Dense(3), tf.TensorSpec([None, 2])
    with tf.variable_creator_scope(lambda next_creator, **options: next_creator(**options)):
        outputs = private_api_keras.outputs_of(lambda x: {"y": layer(x)}, open_type)
    _require(outputs == {"y": tf.TensorSpec([None, 3])}, "outputs have other specs")
    _require(layer.kernel.numpy().shape == (2, 3), "variables are not made outside of the graph")


@contract
def note_read() -> None:
    variable, value = keras.Variable(1.0), tf.constant(3.0)
    private_api_keras.use_tensors_as_handles()
    with keras.StatelessScope([(variable, value)]), tf.GradientTape() as tape:
        private_api_keras.note_read(variable)
        cube = variable.value**3
        gradient = tape.gradient(cube, variable)
    _require(float(gradient) == 27.0, "a tape does not watch a variable whose value is a tensor")


@contract
def use_tensors_as_handles() -> None:
    variable, value = keras.Variable(1.0), tf.constant(3.0)
    private_api_keras.use_tensors_as_handles()
    with keras.StatelessScope([(variable, value)]):
        _require(variable.handle is value, "the handle of a variable is not the tensor in its place")
    _require(variable.handle is variable.value.handle, "the handle of a variable is not that of its tf.Variable")


@contract
def creation_number() -> None:
    first, second = tf.constant(0), tf.constant(1)
    _require(private_api.creation_number(first) < private_api.creation_number(second), "numbers do not grow")


@contract
def handle_types() -> None:
    variable = tf.Variable([1.0, 2.0])
    (handle_data,) = private_api.handle_types(variable.handle)
    _require(tf.as_dtype(handle_data.dtype) == tf.float32, "a variable's handle does not tell its type")
    _require(tf.TensorShape(handle_data.shape) == [2], "a variable's handle does not tell its shape")


@contract
def uninitialized_variable() -> None:
    variable = private_api.uninitialized_variable(shape=[2], dtype=tf.float32)
    _require(not tf.raw_ops.VarIsInitializedOp(resource=variable.handle), "the variable has a value")


@contract
def set_input() -> None:
    with tf.Graph().as_default():
        old_input, new_input = tf.constant(1.0), tf.constant(2.0)
        copied = tf.raw_ops.Identity(input=old_input)
        private_api.set_input(copied.op, 0, new_input)
        _require(copied.op.inputs[0] is new_input, "an operation kept its input")


@contract
def functions_of() -> None:
    def body(x: tf.Tensor) -> list[tf.Tensor]:
        return tf.while_loop(lambda y: y < 3.0, lambda y: [tf.sqrt(y)], [x])

    graph = tf.function(body, autograph=False).get_concrete_function(tf.TensorSpec([])).graph
    names = {f.signature.name for f in graph.as_graph_def().library.function}
    _require(set(private_api.functions_of(graph)) == names, "the functions of a graph are others")


@contract
def captured_arguments() -> None:
    def body(x: tf.Tensor) -> list[tf.Tensor]:
        y = x * 2
        return tf.while_loop(lambda i: i < 3.0, lambda i: [i + y], [x])

    graph = tf.function(body, autograph=False).get_concrete_function(tf.TensorSpec([])).graph
    numbers = {tuple(captured) for name, captured in private_api.captured_arguments(graph).items() if "body" in name}
    _require(numbers == {(3,)}, f"the captures of a loop behind its three variables are {numbers}")


@contract
def discards_recurrent_step() -> None:
    steps = []

    class Cell(keras.layers.SimpleRNNCell):
        def call(self, sequence: tf.Tensor, states: list, training: bool = False) -> tuple:
            steps.append(private_api.discards_recurrent_step())
            return super().call(sequence, states, training)

    for unroll, expected in ((False, [True, False]), (True, [False, False])):
        steps.clear()
        layer = keras.layers.RNN(Cell(1), unroll=unroll)
        layer.build((1, 2, 1))
        tf.function(layer, autograph=False).get_concrete_function(tf.TensorSpec([1, 2, 1]))
        _require(steps == expected, f"the steps of a layer with unroll={unroll} that are discarded are {steps}")


@contract
def is_of_autograph() -> None:
    _require(private_api.is_of_autograph(variables.Undefined("y")), "a variable without a value is not AutoGraph's")
    _require(not private_api.is_of_autograph(tf.constant(1.0)), "a tensor counts as AutoGraph's")


@contract
def is_in_vectorized_map() -> None:
    inside = []

    def body(x: tf.Tensor) -> tf.Tensor:
        inside.append(private_api.is_in_vectorized_map())
        return x

    tf.function(lambda x: tf.vectorized_map(body, x), autograph=False).get_concrete_function(tf.TensorSpec([2]))
    _require(inside == [True] and not private_api.is_in_vectorized_map(), f"functions of a vectorized map: {inside}")


@contract
def in_lines_of_source() -> None:
    def doubled(x: tf.Tensor) -> tf.Tensor:
        return tf.add(x, x)

    converted = private_api.in_lines_of_source(tf.autograph.to_graph(doubled))
    _require(float(converted(tf.constant(2.0))) == 4.0, "a converted function computes something else")


@contract
def lines_of_operations() -> None:
    scope: dict = {}
    exec(compile("import tensorflow as tf\ndef doubled(x):\n  return tf.add(x, x)", "users_file.py", "exec"), scope)
    with private_api.quick_operations(with_stacks=True):
        graph = tf.function(scope["doubled"], autograph=False).get_concrete_function(tf.TensorSpec([])).graph
    lines = private_api.lines_of_operations(graph)
    _require("Add" in lines and lines["Add"].user == ("users_file.py", 3), f"operations have the lines {lines}")


@contract
def is_autograph_on() -> None:
    flags = []

    def body() -> None:
        flags.append(private_api.is_autograph_on())

    tf.function(body, autograph=False).get_concrete_function()
    _require(flags == [False], "AutoGraph is said to be on where it is off")


@contract
def while_statement() -> None:
    state = {"i": tf.constant(0)}

    def set_state(values: tuple) -> None:
        (state["i"],) = values

    def step() -> None:
        state["i"] = state["i"] + 1

    def body() -> tf.Tensor:
        state["i"] = tf.constant(0)
        private_api.while_statement()(lambda: state["i"] < 3, step, lambda: (state["i"],), set_state, ("i",), {})
        return state["i"]

    _require(int(tf.function(body, autograph=False)()) == 3, "a while statement over tensors does not count to 3")


class _Counted:
    """A class that is iterable only through AutoGraph's registries."""


def _run_body_once(
    iterated: _Counted,
    extra_test: Callable | None,
    body: Callable,
    get_state: Callable,
    set_state: Callable,
    names: tuple[str, ...],
    opts: dict,
) -> None:
    """Handles `for x in counted`, with the parameters that AutoGraph passes: one iteration, in which x is 5."""
    body(tf.constant(5))


def _use_of_registries(counted: Any) -> tuple[tf.Tensor, int]:
    total = tf.constant(0)
    for x in counted:
        total += x
    return total, len(counted)


@contract
def register_for() -> None:
    _require(_use_registries()[0] == 5, "`for` does not reach a registered handler")


@contract
def register_builtins() -> None:
    _require(_use_registries()[1] == 7, "`len` does not reach a registered function")


@functools.cache
def _use_registries() -> tuple[int, int]:
    private_api.register_for(_Counted, _run_body_once)
    private_api.register_builtins(
        _Counted, length=lambda counted: tf.constant(7), enumerated=lambda counted, start=0: []
    )
    converted_use = tf.autograph.to_graph(_use_of_registries)  # AutoGraph leaves fedcore's functions alone otherwise
    total, length = tf.function(lambda: converted_use(_Counted()), autograph=False)()
    return int(total), int(length)


@contract
def replace_next() -> None:
    private_api.replace_next(symbolic_dataset.next_element)  # the process has one replacement only
    _require(next(iter([1])) == 1, "Python's `next` changed")


def _source_file() -> str:
    """The file of this function's code; a function that AutoGraph converted has a generated file."""
    frame = inspect.currentframe()
    return frame.f_code.co_filename if frame else ""


@contract
def keep_from_autograph() -> None:
    private_api.keep_from_autograph("fedcore")
    source_files = []

    def body() -> None:
        source_files.append(_source_file())

    tf.function(body)()
    _require(source_files == [__file__], "AutoGraph converts functions of a package that it was told to leave alone")


@contract
def ignore_warnings_in_conversions() -> None:
    private_api.ignore_warnings_in_conversions()

    def negative(x: tf.Tensor) -> tf.Tensor:
        if x < 0.0:
            return -x
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _require(float(tf.function(negative)(tf.constant(-2.0))) == 2.0, "AutoGraph warns of more than gast does")


@contract
def replace_dataset_zip() -> None:
    calls = []

    def wrap(original: Callable) -> Callable:
        def call(*args: object, datasets: object = None, name: object = None) -> object:
            calls.append(args)
            return original(*args, datasets=datasets, name=name)

        return call

    original = tf.data.Dataset.zip
    private_api.replace_dataset_zip(wrap)
    try:
        zipped = tf.data.Dataset.zip((tf.data.Dataset.range(2), tf.data.Dataset.range(3)))
        _require([tuple(map(int, pair)) for pair in zipped] == [(0, 0), (1, 1)], "a replaced zip gives other pairs")
    finally:
        tf.data.Dataset.zip = staticmethod(original)
    _require(len(calls) == 1, "tf.data.Dataset.zip does not run its replacement")


@contract
def replace_function_call() -> None:
    called = []

    def make_call(original: Callable) -> Callable:
        def call(self: polymorphic_function.Function, *args: Any) -> Any:
            called.append(args)
            return original(self, *args)

        return call

    original = polymorphic_function.Function.__call__
    private_api.replace_function_call(make_call)
    try:
        _require(int(tf.function(lambda x: x + 1)(2)) == 3 and called == [(2,)], "a replaced call is not called")
    finally:
        polymorphic_function.Function.__call__ = original


def _table() -> tf.lookup.StaticHashTable:
    """A table with the entry "a" -> 7."""
    entries = tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([7]))
    return tf.lookup.StaticHashTable(entries, -1)


@contract
def table_entries() -> None:
    entries = private_api.table_entries(_table())
    if entries is None:
        raise BrokenContract("a table does not tell its entries")
    keys, values = entries
    _require(keys.numpy().tolist() == [b"a"] and values.numpy().tolist() == [7], "a table tells other entries")


@contract
def replace_table_methods() -> None:
    calls = []

    def size(table: tf.lookup.StaticHashTable, name: str | None = None) -> tf.Tensor:
        calls.append(table)
        return originals["size"](table, name)

    originals = private_api.replace_table_methods({"size": size})
    try:
        _require(int(_table().size()) == 1 and calls, "a replaced method of tables is not called")
    finally:
        private_api.replace_table_methods(originals)


@contract
def LazyDataset() -> None:
    class Three(private_api.LazyDataset):
        @property
        def element_spec(self) -> tf.TensorSpec:
            return tf.TensorSpec([], tf.int64)

        def _real(self) -> tf.data.Dataset:
            return tf.data.Dataset.range(3)

    _require(next(iter(Three().batch(3).as_numpy_iterator())).tolist() == [0, 1, 2], "a lazy dataset has no real one")


@contract
def dataset_part() -> None:
    source = tf.data.Dataset.range(3)
    batched = source.batch(2, drop_remainder=True)
    _require(private_api.dataset_part(batched, "_input_dataset") is source, "a dataset does not tell what it reads")
    _require(int(private_api.dataset_part(batched, "_batch_size")) == 2, "a batch does not tell its size")
    mapped = source.map(lambda x: x)
    _require(private_api.dataset_part(mapped, "_map_func") is not None, "a map does not tell its function")


@contract
def dataset_function() -> None:
    added = 1

    def fn(x: tf.Tensor) -> tuple:
        return x + added, {"a": x}

    function = private_api.dataset_function(tf.data.Dataset.range(3).map(fn), "_map_func")
    added = 2
    if function is None or function.python is not fn:
        raise BrokenContract("a map does not tell its function")
    total, others = function.traced(tf.constant(1, tf.int64))
    _require(int(total) == 2 and int(others["a"]) == 1, "a map does not tell the graph of its function")


@contract
def map_element() -> None:
    leaves = private_api.map_element(type, ([1, 2], {"a": (3, None)}))
    _require(leaves == (list, {"a": (int, type(None))}), "a list within an element of tf.data is no leaf")


@contract
def dataset_function_graphs() -> None:
    (graph_def,) = private_api.dataset_function_graphs(tf.data.Dataset.range(3).map(lambda x: x + 1))
    _require(any(node.op == "AddV2" for node in graph_def.node), "a dataset does not show its function")


def _model() -> "keras.Model":
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dropout(0.5)])


@contract
def takes_training() -> None:
    _require(private_api.takes_training(_model()), "a model's argument `training` is not seen")


@contract
def layers_within() -> None:
    names = [type(layer).__name__ for layer in private_api.layers_within(_model())]
    _require({"Dense", "Dropout"} <= set(names), f"the layers of a model are {names}")


@contract
def is_defined_by_keras() -> None:
    ours = private_api.is_defined_by_keras(keras.losses.MeanSquaredError), private_api.is_defined_by_keras(contract)
    _require(ours == (True, False), "Keras' own classes are not told from others")


@contract
def learning_rate() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    rate = private_api.learning_rate(keras.optimizers.SGD(schedule))
    _require(rate is schedule, "an optimizer does not give back its schedule")


@contract
def excludes_from_weight_decay() -> None:
    optimizer = keras.optimizers.AdamW()
    _require(not private_api.excludes_from_weight_decay(optimizer), "an optimizer excludes variables by itself")
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    _require(private_api.excludes_from_weight_decay(optimizer), "exclusions from weight decay are not seen")


@contract
def variables_without_weight_decay() -> None:
    optimizer, variable = keras.optimizers.AdamW(), keras.Variable([1.0])
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    _require(not private_api.variables_without_weight_decay(optimizer), "a name counts as a variable")
    optimizer.exclude_from_weight_decay(var_list=[variable])
    _require(private_api.variables_without_weight_decay(optimizer), "an excluded variable is not seen")


@contract
def replace_keras_global() -> None:
    old_value = private_api.replace_keras_global("fedcore_contract", 1)
    _require(private_api.replace_keras_global("fedcore_contract", old_value) == 1, "a global of Keras was not kept")


@contract
def default_name() -> None:
    old_counts = private_api.replace_keras_global("object_name_uids", None)
    try:
        names = [keras.metrics.AUC().name for _ in range(2)]
        counts = private_api.replace_keras_global("object_name_uids", None)
    finally:
        private_api.replace_keras_global("object_name_uids", old_counts)
    name = private_api.default_name(keras.metrics.AUC)
    _require(names == [name, f"{name}_1"] and counts[name] == 2, f"metrics are named {names}, and counted as {counts}")


@contract
def replace_keras_randint() -> None:
    seeds = []
    for _ in range(2):
        with default_seeds():
            seeds.append([int(keras.random.SeedGenerator().state[0]) for _ in range(2)])
    _require(seeds[0] == seeds[1] and seeds[0][0] != seeds[0][1], "Keras' default seeds do not come from fedcore")


@contract
def compile_loss() -> None:
    losses = private_api_keras.compile_loss({"a": "mse", "b": "mse"}, {"a": 1.0, "b": 0.5}, ["a", "b"])
    ones, two = tf.ones([2, 1]), tf.fill([2, 1], 2.0)
    loss = losses({"a": ones, "b": ones}, {"a": two, "b": two}, None)
    _require(float(loss) == 1.5, f"the weighted losses of two outputs are {loss}, not 1.5")
    _require([m.name for m in losses.metrics] == ["a_loss", "b_loss"], "losses of outputs are not counted")


@contract
def flat_losses() -> None:
    losses = private_api_keras.compile_loss(["mse", None], None, None)
    _require(private_api_keras.flat_losses(losses) == [], "losses are made before a call")
    losses([tf.ones([2, 1])] * 2, [tf.ones([2, 1])] * 2, None)
    _require(len(private_api_keras.flat_losses(losses)) == 1, "not each output with a loss has one")


@contract
def compile_metrics() -> None:
    metrics = private_api_keras.compile_metrics(["mae", "mae"], ["mae"], None)
    ones = tf.ones([2, 1])
    metrics.build(ones, ones)
    names = ["mae", "mae_1", "weighted_mae"]
    _require(list(metrics.result()) == names and len(metrics.metrics) == 3, f"the metrics are {metrics.result()}")


@contract
def metric_operands() -> None:
    metrics = private_api_keras.compile_metrics({"b": ["mae"]}, {"a": ["mse"]}, ["a", "b"])
    a, b = tf.ones([2, 1]), tf.ones([2, 3])
    metrics.build([a, b], [a, b])
    operands = [(m.name, y is p) for m, y, p in private_api_keras.metric_operands(metrics, [a, b], [a, b])]
    _require(operands == [("mae", True), ("mse", True)], f"metrics come as {operands}")


@contract
def loss_object() -> None:
    loss = private_api_keras.loss_object("ce", tf.ones([2], tf.int32), tf.ones([2, 3]))
    _require(loss.name == "ce" and loss.reduction == "sum_over_batch_size", "a name is not made a loss")
    function = private_api_keras.wrapped_function(loss)
    _require(getattr(function, "__name__", "") == "sparse_categorical_crossentropy", "'ce' is not resolved by shapes")


@contract
def metric_object() -> None:
    metric = private_api_keras.metric_object("acc", tf.ones([2, 1]), tf.ones([2, 1]))
    _require(isinstance(metric, keras.metrics.BinaryAccuracy) and metric.name == "acc", "'acc' is not resolved")


@contract
def wrapped_function() -> None:
    function = private_api_keras.wrapped_function(keras.metrics.MeanSquaredError())
    _require(function is keras.losses.mean_squared_error, f"a metric calls {function}")
    _require(private_api_keras.wrapped_function(keras.metrics.AUC()) is None, "AUC calls a function")


@contract
def compile_state() -> None:
    model, loss = _model(), private_api_keras.compile_loss("mse", None, None)
    tracked = list(model.metrics)
    with private_api_keras.compile_state(model, loss):
        x = tf.ones([2, 1])
        total = model.compute_loss(x, x, 2 * x, None)
    _require(float(total) == 1.0, f"compute_loss gives {total}, not 1.0")
    _require(not model.compiled and model.metrics == tracked, "a model stays compiled")


@contract
def compile_arguments() -> None:
    model = _model()
    _require(private_api_keras.compile_arguments(model) == {}, "a model without compile() has arguments of it")
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    arguments = private_api_keras.compile_arguments(model)
    _require(arguments["loss"] == "mse", f"the loss of compile() is {arguments['loss']}")
    _require(arguments["weighted_metrics"] == ["mae"], f"the metrics are {arguments['weighted_metrics']}")


@contract
def build_compiled_metrics() -> None:
    model = _model()
    model.compile("sgd", "mse", metrics=["mae"])
    spec = tf.TensorSpec([None, 1])
    private_api_keras.build_compiled_metrics(model, spec, spec)
    names = [metric.name for group in model.metrics if hasattr(group, "metrics") for metric in group.metrics]
    _require(names == ["mae"], f"the metrics of compile() are {names}")


@contract
def class_weights() -> None:
    labels, weights = private_api_keras.class_weights({1: 3.0}, None, tf.constant([0, 1]))
    _require(labels.numpy().tolist() == [0, 1], f"the labels are {labels}")
    _require(weights.numpy().tolist() == [1.0, 3.0], f"the weights of classes are {weights}")


@contract
def loss_method() -> None:
    class Model(keras.Model):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
            return x

    _require(private_api_keras.loss_method(Model())(1, 2, 3, None, training=True) == 1, "compute_loss is not called")


@contract
def pure_class() -> None:
    optimizer, make = keras.optimizers.Nadam(0.5, weight_decay=0.1), private_api_keras.WeightPlaceholder.make
    weight = make([1.0], "net/base/kernel")
    object.__setattr__(optimizer, "__class__", private_api_keras.pure_class(keras.optimizers.Nadam))
    optimizer.build([weight])
    with keras.StatelessScope(state_mapping=[(weight, tf.constant([2.0]))]) as scope:
        optimizer.apply_gradients([(tf.constant([1.0]), weight)])
    moved = float(scope.get_current_value(weight)[0])
    _require(moved < 2.0 and float(weight.value[0]) == 1.0, f"a step of Keras takes 2.0 to {moved}")
    _require((weight.name, weight.path) == ("kernel", "net/base/kernel"), f"the weight is named {weight.name}")


@contract
def tracks_containers() -> None:
    optimizer = keras.optimizers.SGD()
    optimizer.slots = []
    wrappers = [optimizer._tracker, optimizer.slots]
    _require(all(map(private_api_keras.tracks_containers, wrappers)), f"lists are tracked by {wrappers}")
    _require(not private_api_keras.tracks_containers(optimizer), "an optimizer is taken for a container")


@contract
def copy_exclusions() -> None:
    first, second = keras.optimizers.AdamW(), keras.optimizers.AdamW()
    first.exclude_from_weight_decay(var_names=["bias"])
    private_api_keras.copy_exclusions(first, second)
    _require(private_api.excludes_from_weight_decay(second), "what is excluded from the decay is not copied")


@contract
def is_seed_state() -> None:
    _require(private_api_keras.is_seed_state(keras.random.SeedGenerator(1).state), "a seed's state has another name")
    _require(not private_api_keras.is_seed_state(keras.Variable([1.0])), "each variable is taken for a seed's state")


@contract
def tensorflow_variable() -> None:
    held = private_api_keras.tensorflow_variable(keras.Variable([1.0]))
    _require(isinstance(held, tf.Variable), f"a variable holds {held}")
    with keras.StatelessScope():
        held = private_api_keras.tensorflow_variable(keras.Variable("zeros", shape=[1]))
        _require(held is None, f"a variable of a scope holds {held}")


@contract
def plain_learning_rate() -> None:
    def rate() -> float:
        return 0.5

    optimizer = keras.optimizers.SGD(rate)
    with private_api_keras.plain_learning_rate(optimizer) as original_rate:
        config = optimizer.get_config()
    _require(original_rate is rate, f"the learning rate is {original_rate}")
    _require("learning_rate" in config and not callable(config["learning_rate"]), "a rate of 0 has no configuration")
    _require(float(optimizer.learning_rate) == 0.5, "the learning rate is not put back")


@contract
def learning_rate_variable() -> None:
    optimizer, schedule = keras.optimizers.SGD(0.5), keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    rate = float(private_api_keras.learning_rate_variable(optimizer).value)
    _require(rate == 0.5, f"the rate of an optimizer is {rate}")
    variable = private_api_keras.learning_rate_variable(keras.optimizers.SGD(schedule))
    _require(variable is None, "a schedule is a variable")


@contract
def optimizer_choice() -> None:
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        return  # before Keras 3.15
    first, second = keras.optimizers.SGD(1.0), keras.optimizers.SGD(2.0)
    multi = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(first, {"net/.*": second}))
    choose = private_api_keras.optimizer_choice(multi)
    chosen = [choose(types.SimpleNamespace(path=path)) for path in ("net/kernel", "kernel")]
    _require(chosen[0] is second and chosen[1] is first, f"the optimizers {chosen} are chosen")


@contract
def step_counter() -> None:
    optimizer = keras.optimizers.SGD(1.0)
    for _ in range(2):
        optimizer.apply([tf.constant([1.0])], [keras.Variable([2.0])] if not optimizer.built else None)
    steps = int(private_api_keras.step_counter(optimizer).value)
    _require(steps == 2, f"{steps} steps are counted, not 2")


@contract
def vectorized_loop() -> None:
    images, kernel = tf.random.stateless_normal([3, 1, 6, 5, 2], [1, 2]), tf.ones([3, 2, 2, 4])

    def gradient(number: tf.Tensor, padding: str) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            loss = tf.reduce_sum(tf.square(tf.nn.conv2d(tf.gather(images, number), kernel, 1, padding)))
        return tape.gradient(loss, kernel)

    for padding in ("SAME", "VALID"):

        @tf.function(autograph=False)
        def gradients(padding: str = padding) -> tf.Tensor:
            return private_api.vectorized_loop(lambda number: gradient(number, padding), tf.constant(3))

        expected = tf.stack([gradient(tf.constant(i), padding) for i in range(3)])
        _require(np.allclose(gradients(), expected, rtol=1e-4), f"gradients of images differ, {padding}")
        names = {op.type for op in gradients.get_concrete_function().graph.get_operations()}
        _require("While" not in names and "StatelessWhile" not in names, "images are computed one by one")
    bits = tf.function(lambda: private_api.vectorized_loop(lambda i: tf.bitcast(i, tf.uint32), tf.constant(3)))
    _require(bits().numpy().tolist() == [0, 1, 2], f"numbers are cast to {bits()}")


@contract
def call_before_threads_end() -> None:
    program = (
        "import threading; ended = threading.Event(); "
        "threading._register_atexit(ended.set); threading.Thread(target=ended.wait).start()"
    )
    ended = subprocess.run([sys.executable, "-I", "-c", program], timeout=30, capture_output=True)
    _require(ended.returncode == 0, f"the program ended with {ended.returncode}")
