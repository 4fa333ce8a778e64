"""The one door to private parts of TensorFlow and Keras: a function for each part, which says what it relies on.

No other module of fedcore imports `tensorflow.python` or `keras.src`, reads `tf.__internal__`, or touches an
underscore attribute of a TensorFlow or Keras object; `tests/graphs/test_private_api.py` reads all sources for that.
Three parts have modules of their own behind this door: `private_api_operations.py`, which is long,
`private_api_shapes.py`, which calls TensorFlow's C API, and `private_api_keras.py`, of losses and metrics. Each
function has a contract of the same name in `private_api_contracts.py`. The tests run the contracts, and so does
`fedcore doctor`.

    part       function, class or attribute of TensorFlow or Keras that has no public form
    contract   small program that fails if the part has gone or does something else

Where the installed version lacks a part, its first use raises `UnsupportedVersion`, which names the part, the installed
versions and the versions that fedcore is tested with.
"""

import contextlib
import contextvars
import functools
import importlib
import importlib.metadata
import itertools
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import attrs
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2

from fedcore.context_values import set_inside
from fedcore.errors import FedcoreError
from fedcore.ir.locations import CallingLines

if TYPE_CHECKING:
    import keras

P = ParamSpec("P")
R = TypeVar("R")


class UnsupportedVersion(FedcoreError, RuntimeError):
    """The installed TensorFlow or Keras lacks a private part that fedcore relies on."""


PARTS: dict[str, str] = {}
"""The private part that each function of this module relies on, by the function's name."""


def part(relies_on: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Registers a function of this module; where its part is missing, the function raises `UnsupportedVersion`."""

    def register(fn: Callable[P, R]) -> Callable[P, R]:
        PARTS[fn.__name__] = relies_on

        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return fn(*args, **kwargs)
            except (ImportError, AttributeError) as error:
                raise UnsupportedVersion(unsupported_message(relies_on, error)) from error

        return call

    return register


def unsupported_message(relies_on: str, why: object) -> str:
    """The message for a missing part: the part, the installed versions, the versions to install."""
    installed = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow", "keras"))
    return (
        f"fedcore relies on {relies_on}, which {installed} does not provide: {why}\n"
        f"  fedcore is tested with {tested_versions()}; install one of these, or report this with the output of "
        "`fedcore doctor`"
    )


def tested_versions() -> str:
    """The bounds of fedcore's own requirements, such as `tensorflow>=2.18,<2.22`."""
    try:
        required = importlib.metadata.requires("fedcore") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "the versions in pyproject.toml"
    return " and ".join(r for r in required if r.startswith(("tensorflow", "keras")) and ";" not in r)


# --- functions of the process ---


def _initialized_context() -> Any:
    """TensorFlow's eager context, which makes its devices and threads here if it has not yet."""
    context = _context()
    context.ensure_initialized()
    return context


def _context() -> Any:
    """TensorFlow's eager context, which may not have made its devices yet."""
    from tensorflow.python.eager import context

    return context.context()


@part("threading._register_atexit: calls a function before Python waits for threads that have not ended")
def call_before_threads_end(function: Callable[[], None]) -> None:
    """Has Python call a function when the main thread ends, as it ends the pools of `concurrent.futures`."""
    threading._register_atexit(function)  # type: ignore[attr-defined]


@part("tensorflow.python.eager.context: Context.has_function")
def is_defined(name: str) -> bool:
    """Whether the process has a function of that name. TensorFlow keeps the first definition of a name."""
    return _initialized_context().has_function(name)


@part("tensorflow.python.eager.context: Context.add_function_def")
def define_function(function: function_pb2.FunctionDef) -> None:
    """Makes a library function known to the process, since an imported graph's library stays in that graph only."""
    _initialized_context().add_function_def(function)


@part("tensorflow.python.eager.context: Context.get_function_def")
def defined_function(name: str) -> function_pb2.FunctionDef:
    """The definition that the process has under a name."""
    return _initialized_context().get_function_def(name)


@part("tensorflow.python.eager.context: Context.remove_function")
def forget_function(name: str) -> None:
    """Makes the process forget a function."""
    _initialized_context().remove_function(name)


@part("FuncGraph._functions, AtomicFunction.graph")
def functions_of(graph: tf.Graph) -> dict[str, tf.Graph]:
    """The graphs of the functions that operations of a traced graph call, and of those that these call, by name."""
    graphs: dict[str, tf.Graph] = {}
    stack = [graph]
    while stack:
        for name, function in stack.pop()._functions.items():
            body = getattr(function, "graph", None)  # an imported library function has none
            if body is not None and name not in graphs:
                graphs[name] = body
                stack.append(body)
    return graphs


@part("tf.Graph of a function: inputs, captures")
def captured_arguments(graph: tf.Graph) -> dict[str, set[int]]:
    """For each function of `functions_of` the numbers of its arguments that are tensors of the code around it."""
    numbers = {}
    for name, body in functions_of(graph).items():
        captures = {id(inner) for _, inner in body.captures}
        numbers[name] = {i for i, argument in enumerate(body.inputs) if id(argument) in captures}
    return numbers


@part("tensorflow.python.eager.context: Context._context_handle")
def has_started() -> bool:
    """Whether TensorFlow has made its devices and threads; asking does not start it."""
    return _context()._context_handle is not None


@part("tensorflow.python.framework.op_def_registry: get")
def op_definition(op: str) -> Any:  # op_def_pb2.OpDef | None; of an operation that exists it is read without a test
    """The registered definition (OpDef) of an operation; None where there is none."""
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(op)


@part("the operations _MklNativeFusedConv2D, _MklNativeConv2D, … with kernels of the label MklNameChangeOp")
def has_onednn() -> bool:
    """Whether this TensorFlow was built with oneDNN, whose kernels are operations of their own."""
    return op_definition("_MklNativeFusedConv2D") is not None


# --- running functions ---


@part("tensorflow.python.eager.cancellation: CancellationManager")
def cancellation_manager() -> Any:
    """A manager with `start_cancel()` and `is_cancelled`, which cancels the calls that it was passed to."""
    from tensorflow.python.eager import cancellation

    return cancellation.CancellationManager()


@part("tensorflow.python.eager.execute: execute_with_cancellation")
def execute(
    name: str, output_count: int, inputs: Sequence[tf.Tensor], attributes: tuple, manager: Any
) -> list[tf.Tensor]:
    """Runs a function of the process by name. TensorFlow's public call has one cancellation manager for all threads.

    Args:
        attributes: of the call, as `call_attributes` returns them.
        manager: the `cancellation_manager` that can cancel this call.
    """
    options = {"attrs": attributes, "ctx": _context(), "cancellation_manager": manager}
    try:
        return _execute_with_cancellation()(name, num_outputs=output_count, inputs=inputs, **options)
    except UnicodeDecodeError as error:  # a message that quotes bytes of the data, which are no UTF-8
        raise tf.errors.UnknownError(None, None, error.object.decode(errors="replace")) from None


@functools.cache  # every graph call asks for it
def _execute_with_cancellation() -> Callable:
    from tensorflow.python.eager import execute as module

    return module.execute_with_cancellation


@part("tensorflow.python.eager.context: Context.function_call_options, FunctionCallOptions.config_proto_serialized")
def call_config() -> bytes:
    """The serialized ConfigProto with which this process runs functions."""
    return _context().function_call_options.config_proto_serialized


@part("tensorflow.python.eager.context: FunctionCallOptions.as_attrs")
def call_attributes(config: bytes) -> tuple:
    """The attributes of a call that runs with a serialized ConfigProto: (name, value, name, value, …)."""
    from tensorflow.python.eager import context

    options = context.FunctionCallOptions(config_proto=config_pb2.ConfigProto.FromString(config))
    return tuple(itertools.chain(*options.as_attrs().items()))


@part("tensorflow.python.eager.context: Context.function_call_options (assignable), FunctionCallOptions")
def call_config_set_to(config: config_pb2.ConfigProto) -> contextlib.AbstractContextManager[None]:
    """Inside, TensorFlow calls functions with this ConfigProto, and functions that are traced call others with it."""
    from tensorflow.python.eager import context

    eager_context = _context()
    executor_type = eager_context.function_call_options.executor_type
    return _call_options_set(eager_context, context.FunctionCallOptions(executor_type, config))


@contextlib.contextmanager
def _call_options_set(eager_context: Any, options: Any) -> Iterator[None]:
    """Inside, TensorFlow's context has these FunctionCallOptions.

    A function of its own, so that `part` does not take an AttributeError of the `with` block for a missing part.
    """
    old_options, eager_context.function_call_options = eager_context.function_call_options, options
    try:
        yield
    finally:
        eager_context.function_call_options = old_options


@part(
    "tensorflow.python.eager.wrap_function: VariableHolder, WrappedFunction(graph, variables, attrs); "
    "tensorflow.python.framework.func_graph: FuncGraph, func_graph_from_py_func(func_graph, add_control_dependencies)"
)
def unordered_function(
    body: Callable, specs: Sequence[tf.TensorSpec], *, name: str = "unordered"
) -> tf.types.experimental.ConcreteFunction:
    """A function without automatic control dependencies, so that it may hold loops of TensorFlow 1.

    As `tf.compat.v1.wrap_function`, but TensorFlow does not inline it into its caller, which such loops forbid.
    """
    from tensorflow.python.eager import wrap_function
    from tensorflow.python.framework import func_graph

    graph = func_graph.func_graph_from_py_func(
        name,
        body,
        args=None,
        kwargs=None,
        signature=specs,
        func_graph=_unordered_graph()(name, collections={}),
        add_control_dependencies=False,
    )
    variables = wrap_function.VariableHolder(body)
    return wrap_function.WrappedFunction(graph, variables, attrs={"_noinline": True}, signature=specs)


@part("tensorflow.python.eager.context: Context.function_call_options, FunctionCallOptions.as_attrs()")
def call_without_inference(function: tf.types.experimental.ConcreteFunction, operands: Sequence) -> list[tf.Tensor]:
    """Calls a function in a graph; its results have the shapes that are known in the function.

    TensorFlow would infer the shapes in the function again, for the operands, and fails ("Missing src context") where a
    shape in a loop depends on a loop variable of unknown size.
    """
    graph, options = tf.compat.v1.get_default_graph(), _context().function_call_options.as_attrs()
    function.add_to_graph(graph)
    operands = [*map(tf.convert_to_tensor, operands), *function.captured_inputs]
    attributes = {
        "Tin": _types_attribute(operands),
        "Tout": _types_attribute(function.outputs),
        "f": attr_value_pb2.AttrValue(func=attr_value_pb2.NameAttrList(name=function.name)),
        "config_proto": attr_value_pb2.AttrValue(s=options["config_proto"]),
        "executor_type": attr_value_pb2.AttrValue(s=options["executor_type"].encode()),
        "_disable_call_shape_inference": attr_value_pb2.AttrValue(b=True),
    }
    kind = "StatefulPartitionedCall" if function.function_def.signature.is_stateful else "PartitionedCall"
    results = graph.create_op(kind, operands, [t.dtype for t in function.outputs], name=kind, attrs=attributes).outputs
    for result, inner in zip(results, function.outputs, strict=True):
        result.set_shape(inner.shape)
    return list(results)


def _types_attribute(tensors: Sequence[tf.Tensor]) -> attr_value_pb2.AttrValue:
    """The dtypes of tensors as the value of an attribute of the kind `list(type)`."""
    types = [t.dtype.as_datatype_enum for t in tensors]
    return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(type=types))


@functools.cache
def _unordered_graph() -> type:
    from tensorflow.python.framework import func_graph

    class Unordered(func_graph.FuncGraph):
        """The graph of an `unordered_function`."""

    return Unordered


@part("tensorflow.python.framework.func_graph: FuncGraph")
def is_unordered(graph: tf.Graph) -> bool:
    """Whether the graph is that of an `unordered_function`."""
    return isinstance(graph, _unordered_graph())


@part("libtensorflow_cc: TFE_NewOp, TFE_OpSetAttrValueProto, TFE_InferShapes, TF_NewShapeAndTypeList, …")
def infer_shapes(
    op: str,
    attributes: tuple[tuple[str, bytes], ...],
    shapes: Sequence[tuple[int, ...] | None],
    values: Sequence[np.ndarray | None],
) -> list[tuple[int, ...] | None]:
    """The shapes of an operation's results, by its shape function: -1 for an unknown size, None for an unknown rank.

    Args:
        attributes: all of them, each with its serialized AttrValue.
        shapes: of the operands.
        values: of the operands, where they are known.
    Raises:
        ValueError: the operands do not fit.
    """
    from fedcore.graphs import private_api_shapes

    return private_api_shapes.inferred_shapes(op, attributes, shapes, values)


@part("tensorflow.python.grappler.tf_optimizer: OptimizeGraph")
def optimize_graph(config: config_pb2.ConfigProto, meta: meta_graph_pb2.MetaGraphDef) -> graph_pb2.GraphDef:
    """The graph after Grappler's passes."""
    from tensorflow.python.grappler import tf_optimizer

    return tf_optimizer.OptimizeGraph(config, meta)


# --- tensors, variables, operations ---


@part(
    "tensorflow.python.framework: op_def_library._apply_op_helper, ops.Operation._from_c_op, "
    "ops._create_graph_constant, func_graph.FuncGraph, auto_control_deps._get_resource_inputs, "
    "importer._ProcessNewOps; "
    "tensorflow.python.client.pywrap_tf_session"
)
def quick_operations(
    *, with_stacks: bool = False, shares_constants: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Inside, this thread adds operations to graphs in a quarter of TensorFlow's time.

    Args:
        with_stacks: operations know the Python frames that created them, which errors about users' functions show.
        shares_constants: a graph has one operation for equal small constants, for graphs that run and are not kept.
    """
    from fedcore.graphs import private_api_operations

    return private_api_operations.quickly(with_stacks=with_stacks, shares_constants=shares_constants)


def lines_of_caller() -> CallingLines | None:
    """The lines of Python code that run now; those of functions that AutoGraph converted are lines of their sources."""
    from fedcore.graphs import private_api_operations

    return private_api_operations.lines_of(sys._getframe(1))


@part("keras.src.backend.tensorflow.rnn: rnn with a variable `unroll`, which calls its steps in a function _step")
def discards_recurrent_step() -> bool:
    """Whether the code that runs is a recurrent layer's step that Keras calls before the loop, for its shapes only."""
    frame: FrameType | None = sys._getframe(1)
    is_in_loop = False  # outwards from this call, `_step` comes before the `rnn` that builds the loop
    while frame is not None:
        if frame.f_globals.get("__name__") == "keras.src.backend.tensorflow.rnn":
            if frame.f_code.co_name == "rnn" and not is_in_loop and not frame.f_locals["unroll"]:
                return True
            is_in_loop = frame.f_code.co_name == "_step"
        frame = frame.f_back
    return False


@part("tensorflow.python.autograph: classes of its own values, such as Undefined")
def is_of_autograph(value: object) -> bool:
    """Whether a value in a function that AutoGraph converted is AutoGraph's: that of a variable not yet assigned."""
    return type(value).__module__.startswith("tensorflow.python.autograph.")


@part("tensorflow.python.ops.parallel_for.control_flow_ops, which calls the function of tf.vectorized_map")
def is_in_vectorized_map() -> bool:
    """Whether the code that runs is a function that TensorFlow vectorises: it is traced for one element."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "tensorflow.python.ops.parallel_for.control_flow_ops":
            return True
        frame = frame.f_back
    return False


@part("tensorflow.python.ops.parallel_for: control_flow_ops.pfor, pfor._pfor_converter_registry, wrap")
def vectorized_loop(fn: Callable[[tf.Tensor], Any], count: tf.Tensor) -> Any:
    """The results of fn(0), fn(1), …, fn(count - 1), stacked: `tf.vectorized_map` over a number of iterations.

    `tf.vectorized_map` computes that number as the maximum of its operands' lengths, and converts three operations
    badly: Bitcast and Conv2DBackpropFilter to loops, MaxPoolGrad to a slow kernel. Here they have converters of their
    own, which return None where they leave the operands to TensorFlow's converter.
    """
    control_flow = importlib.import_module("tensorflow.python.ops.parallel_for.control_flow_ops")
    pfor = importlib.import_module("tensorflow.python.ops.parallel_for.pfor")
    registry = pfor._pfor_converter_registry
    kernel_gradients, pool_gradients = registry["Conv2DBackpropFilter"], registry["MaxPoolGrad"]
    converters = {
        "Bitcast": lambda each: pfor.wrap(tf.bitcast(each.stacked_input(0), each.get_attr("type")), True),
        "Conv2DBackpropFilter": lambda each: _convert_kernel_gradients(each, pfor.wrap) or kernel_gradients(each),
        "MaxPoolGrad": lambda each: _convert_pool_gradients(each, pfor.wrap) or pool_gradients(each),
    }
    with _registry_lock:
        original_converters = dict(registry)
        registry.update({name: lambda each, *_, convert=convert: convert(each) for name, convert in converters.items()})
        try:
            return control_flow.pfor(fn, count, warn=False)
        finally:
            registry.clear()
            registry.update(original_converters)


_registry_lock = threading.RLock()  # TensorFlow has one registry for all threads


def _convert_pool_gradients(pfor_input: Any, wrap: Callable) -> Any:
    """Converts `MaxPoolGrad` in a vectorised loop to one on the very tensors that the pooling read and returned.

    oneDNN's kernel runs on these tensors only. TensorFlow's converter reshapes both anew, and then TensorFlow's own
    kernel runs, which takes ten times as long. None, for TensorFlow's own converter, unless each iteration has one
    image and a vectorised MaxPool computed the results.

    Args:
        pfor_input: the operation; `input(i)` is operand i, whose `t` has the iterations as axis 0 if it `is_stacked`.
        wrap: (result, whether it is stacked) -> the converted result.
    """
    images, results, changes = (pfor_input.input(i) for i in range(3))
    if not (images.is_stacked and results.is_stacked and changes.is_stacked) or results.t.op.type != "Reshape":
        return None
    pool = results.t.op.inputs[0].op
    if pool.type != "MaxPool" or images.t.shape[1] != 1:
        return None
    names = ("ksize", "strides", "padding", "explicit_paddings", "data_format")
    options = {name: pool.get_attr(name) for name in names}
    change = tf.squeeze(changes.t, 1)
    gradients = tf.raw_ops.MaxPoolGrad(orig_input=pool.inputs[0], orig_output=pool.outputs[0], grad=change, **options)
    return wrap(tf.expand_dims(gradients, 1), True)


def _convert_kernel_gradients(pfor_input: Any, wrap: Callable) -> Any:
    """Converts `Conv2DBackpropFilter` in a vectorised loop over images: [images, height, width, channels, filters].

    One product for each row of the kernel: the windows [images, pixels, width * channels], transposed, times the
    gradients of its output [images, pixels, filters]. None, for TensorFlow's own converter, for strides or dilations
    above 1, other paddings or data formats, several images in an iteration, and kernels of unknown shape.

    Args:
        pfor_input, wrap: as for `_convert_pool_gradients`.
    """
    kernel = pfor_input.op.outputs[0].shape
    strides_and_dilations = [list(pfor_input.get_attr(name)) for name in ("strides", "dilations")]
    images, has_images, _ = pfor_input.input(0)
    padding = pfor_input.get_attr("padding").decode()
    if (
        not has_images
        or not kernel.is_fully_defined()
        or strides_and_dilations != [[1] * 4] * 2
        or pfor_input.get_attr("data_format") != b"NHWC"
        or padding not in ("SAME", "VALID")
        or images.shape[1] != 1
    ):
        return None
    pfor_input.stack_inputs(stack_indices=[2])
    height, width, channels, filters = kernel
    padding_sizes = [(n - 1) if padding == "SAME" else 0 for n in (height, width)]
    margins = [[0, 0], *([n // 2, n - n // 2] for n in padding_sizes), [0, 0]]
    padded = tf.pad(tf.squeeze(images, 1), margins) if any(padding_sizes) else tf.squeeze(images, 1)
    gradients = tf.squeeze(pfor_input.stacked_input(2), 1)
    rows, columns = (n if n is not None else tf.shape(gradients)[i] for i, n in enumerate(gradients.shape[1:3], 1))
    count = tf.shape(gradients)[0]
    shifted = tf.concat([padded[:, :, first : first + columns] for first in range(width)], 3)
    pixels = tf.reshape(gradients, [count, rows * columns, filters])
    windows = (shifted[:, first : first + rows] for first in range(height))
    sums = [tf.matmul(tf.reshape(w, [count, -1, width * channels]), pixels, transpose_a=True) for w in windows]
    return wrap(tf.reshape(tf.stack(sums, 1), [count, height, width, channels, filters]), True)


@part("tensorflow.python.util.tf_stack: _source_mapper_stacks, _get_thread_key")
def lines_of_operations(graph: tf.Graph) -> dict[str, CallingLines]:
    """The lines of Python code that created the operations of a graph inside `quick_operations(with_stacks=True)`."""
    from fedcore.graphs import private_api_operations

    return private_api_operations.lines_of_operations(graph)


@part("tensorflow.python.framework: ops.Operation._from_c_op; tensorflow.python.client.pywrap_tf_session")
def add_operation(
    op: str, operands: list, attributes: Sequence[tuple[str, bytes]], name: str = ""
) -> Sequence[tf.Tensor] | None:
    """The results of a further operation of the graph being built; None outside of `quick_operations`, and where only
    TensorFlow's own functions can add it.

    Args:
        operands: tensors, and lists of them where the definition has a list.
        attributes: all of them, each with its serialized AttrValue.
        name: of the operation, which TensorFlow makes unique. Default: `op`.
    """
    from fedcore.graphs import private_api_operations

    return private_api_operations.add_operation(op, operands, attributes, name or op)


@part("tf.__internal__.EagerTensor")
def is_eager(tensor: object) -> bool:
    """Whether a tensor is eager rather than symbolic."""
    return isinstance(tensor, tf.__internal__.EagerTensor)


@part("tf.__internal__.eager_context.eager_mode")
def eager_mode() -> contextlib.AbstractContextManager:
    """Inside, operations run eagerly, also while a graph is being built."""
    return tf.__internal__.eager_context.eager_mode()


@part("tensorflow.python.eager.tape: pywrap_tfe.TFE_Py_TapeSet{RestartOnThread,StopOnThread}, as stop_recording")
def init_scope_with_tapes() -> contextlib.AbstractContextManager[None]:
    """Like `tf.init_scope`, in which no tape records; inside of this one the tapes of the user's code do."""
    tapes = importlib.import_module("tensorflow.python.eager.tape").pywrap_tfe
    return _init_scope_between(tapes.TFE_Py_TapeSetRestartOnThread, tapes.TFE_Py_TapeSetStopOnThread)


@contextlib.contextmanager
def _init_scope_between(restart: Callable[[], None], stop: Callable[[], None]) -> Iterator[None]:
    """`tf.init_scope` in which the tapes of this thread record: `restart` starts them, `stop` pauses them again."""
    with tf.init_scope():
        restart()
        try:
            yield
        finally:
            stop()


_traces_anew: contextvars.ContextVar[bool] = contextvars.ContextVar("fedcore_traces_functions_anew", default=False)


@part("tf.function: its class has _clone(None), an untraced copy")
def functions_traced_anew() -> contextlib.AbstractContextManager:
    """Inside, this thread traces a `tf.function` in every call: earlier traces have captured other values of variables.

    TensorFlow would use such a trace again, since it compares the arguments alone.
    """
    _replace_call_of_functions()
    return set_inside(_traces_anew, True)


@functools.cache
def _replace_call_of_functions() -> None:
    """Makes calls of a `tf.function` obey `functions_traced_anew`, once a process; others are as before."""

    def anew(call: Callable) -> Callable:
        return lambda function, *args, **kwargs: call(
            function._clone(None) if _traces_anew.get() else function, *args, **kwargs
        )

    replace_function_call(anew)


@part("Tensor._id")
def creation_number(tensor: tf.Tensor) -> int:
    """A number that grows from each eager tensor of the process to the next."""
    return tensor._id


@part("Tensor._handle_data")
def handle_types(handle: tf.Tensor) -> list:
    """The dtype and shape (`.dtype`, `.shape`) of the variable behind a resource; empty for other resources."""
    data = handle._handle_data
    return [] if data is None else list(data.shape_and_type)


@part("tensorflow.python.ops.resource_variable_ops: UninitializedVariable")
def uninitialized_variable(**options: Any) -> tf.Variable:
    """A variable without a value; every public constructor wants one."""
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    return UninitializedVariable(**options)


@part("Operation._update_input")
def set_input(operation: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Replaces an input of an operation; so a loop's Merge gets its NextIteration as an input."""
    operation._update_input(index, tensor)


# --- AutoGraph ---


@part("tensorflow.python.autograph.impl.api: StackTraceMapper(converted function)")
def in_lines_of_source(converted: Callable) -> Callable:
    """A function that AutoGraph converted, so that operations know the lines of the function that the user wrote."""
    from tensorflow.python.autograph.impl.api import StackTraceMapper

    @functools.wraps(converted)
    def call(*args: Any, **kwargs: Any) -> Any:
        with StackTraceMapper(converted):
            return converted(*args, **kwargs)

    return call


@part("tensorflow.python.autograph.core.ag_ctx: control_status_ctx, Status.ENABLED")
def is_autograph_on() -> bool:
    """Whether the Python code that runs now was converted by AutoGraph."""
    from tensorflow.python.autograph.core import ag_ctx

    return ag_ctx.control_status_ctx().status is ag_ctx.Status.ENABLED


@part(
    "tensorflow.python.autograph.operators.control_flow: _tf_while_stmt(test, body, get_state, set_state, names, opts)"
)
def while_statement() -> Callable:
    """AutoGraph's `while` over tensors."""
    from tensorflow.python.autograph.operators import control_flow

    return control_flow._tf_while_stmt


@part("tensorflow.python.autograph.operators.control_flow: for_loop_registry")
def register_for(kind: type, loop: Callable) -> None:
    """Makes AutoGraph use `loop` for `for` statements over objects of a class."""
    from tensorflow.python.autograph.operators import control_flow

    control_flow.for_loop_registry.register(kind, loop)


@part("tensorflow.python.autograph.operators.py_builtins: len_registry, enumerate_registry")
def register_builtins(kind: type, *, length: Callable, enumerated: Callable) -> None:
    """Makes AutoGraph use these functions for `len` and `enumerate` of objects of a class."""
    from tensorflow.python.autograph.operators import py_builtins

    py_builtins.len_registry.register(kind, length)
    py_builtins.enumerate_registry.register(kind, enumerated)


@part("tensorflow.python.autograph.operators.py_builtins: SUPPORTED_BUILTINS, BUILTIN_FUNCTIONS_MAP")
def replace_next(fn: Callable) -> None:
    """Makes AutoGraph call `fn` for `next`. Its registry for `next` has no effect, since `next` is not converted."""
    from tensorflow.python.autograph.operators import py_builtins

    if next not in py_builtins.SUPPORTED_BUILTINS:
        py_builtins.SUPPORTED_BUILTINS += (next,)
    py_builtins.BUILTIN_FUNCTIONS_MAP["next"] = fn


@part("tensorflow.python.autograph.core.config: DoNotConvert, CONVERSION_RULES")
def keep_from_autograph(package: str) -> None:
    """Makes AutoGraph call a package's functions, and their callees, unconverted."""
    from tensorflow.python.autograph.core import config

    rule = config.DoNotConvert(package)
    if not any(str(other) == str(rule) for other in config.CONVERSION_RULES):
        config.CONVERSION_RULES = (rule, *config.CONVERSION_RULES)


@part("tensorflow.python.autograph.impl.api: _convert_actual(entity, program_ctx)")
def ignore_warnings_in_conversions() -> None:
    """Makes AutoGraph convert functions where warnings are errors, as under pytest.

    On Python 3.13 its syntax trees (gast) warn of a deprecation. As an error that ends a conversion, and the function
    would run unconverted.
    """
    from tensorflow.python.autograph.impl import api

    convert = api._convert_actual
    if hasattr(convert, "__wrapped__"):
        return

    @functools.wraps(convert)
    def convert_quietly(entity: Callable, program_ctx: Any) -> Callable:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"gast\b")
            return convert(entity, program_ctx)

    api._convert_actual = convert_quietly


@part("tensorflow.python.eager.polymorphic_function.polymorphic_function: Function")
def replace_function_call(wrap: Callable[[Callable], Callable]) -> None:
    """Replaces the call of every `tf.function` by `wrap(original call)`."""
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    polymorphic_function.Function.__call__ = wrap(polymorphic_function.Function.__call__)


@part("tf.data.Dataset: zip")
def replace_dataset_zip(wrap: Callable[[Callable], Callable]) -> None:
    """Replaces `tf.data.Dataset.zip` by `wrap(original function)` in the whole process."""
    tf.data.Dataset.zip = staticmethod(wrap(tf.data.Dataset.zip))


# --- lookup tables ---


@part("tf.lookup.StaticHashTable: _initialize")
def replace_table_methods(methods: Mapping[str, Callable]) -> dict[str, Callable]:
    """Replaces methods of TensorFlow's static tables in the whole process; returns the methods before."""
    originals = {name: getattr(tf.lookup.StaticHashTable, name) for name in methods}
    for name, method in methods.items():
        setattr(tf.lookup.StaticHashTable, name, method)
    return originals


@part("tf.lookup.StaticHashTable: _initializer; tf.lookup.KeyValueTensorInitializer: _keys, _values")
def table_entries(table: tf.lookup.StaticHashTable) -> tuple[tf.Tensor, tf.Tensor] | None:
    """The keys and values that initialise a table; None if they come from a file."""
    initializer = table._initializer
    if not isinstance(initializer, tf.lookup.KeyValueTensorInitializer):
        return None
    return initializer._keys, initializer._values


# --- tf.data ---


class LazyDataset(tf.data.Dataset):
    """A `tf.data.Dataset` whose real dataset is created at its first use by TensorFlow.

    Relies on `Dataset._variant_tensor`, `_inputs`, `_options_attr` and `_variant_tensor_attr`. The constructor
    of `tf.data.Dataset` is not called, since it needs the variant tensor.
    """

    def __init__(self) -> None:
        self._options_attr = tf.data.Options()

    def _real(self) -> tf.data.Dataset:
        """The real dataset."""
        raise NotImplementedError  # abstract

    @property
    def _variant_tensor(self) -> tf.Tensor:
        if not hasattr(self, "_variant_tensor_attr"):
            self._real_dataset = self._real()
            self._variant_tensor_attr = self._real_dataset._variant_tensor
        return self._variant_tensor_attr

    def _inputs(self) -> list[tf.data.Dataset]:
        self._variant_tensor  # noqa: B018  makes the real dataset
        return [self._real_dataset]


def dataset_part(dataset: tf.data.Dataset, name: str) -> Any:
    """A private attribute of a dataset, such as `_count`; None if it has no such attribute.

    A missing attribute is no error: the import of datasets is best effort, and iterates them otherwise.
    """
    return getattr(dataset, name, None)


@part(
    "tf.data's classes: _map_func and _predicate with _func, function, _input_structure and output_structure; "
    "structure.to_tensor_list, from_tensor_list"
)
def dataset_function(dataset: tf.data.Dataset, name: str) -> "DatasetFunction | None":
    """The function that a dataset applies, by the attribute that holds it; None if there is none, or none is traced."""
    from tensorflow.python.data.util import structure

    wrapper: Any = getattr(dataset, name, None)
    if getattr(wrapper, "_func", None) is None:
        return None
    element_spec, result_spec, graph_function = wrapper._input_structure, wrapper.output_structure, wrapper.function

    def call(*parts: Any) -> Any:
        element = parts if type(element_spec) is tuple else parts[0]
        tensors = graph_function(*structure.to_tensor_list(element_spec, element))
        return structure.from_tensor_list(result_spec, tensors)

    return DatasetFunction(wrapper._func, call, graph_function, str(result_spec))


@attrs.frozen(eq=False)
class DatasetFunction:
    """A function of a dataset, which was traced when the dataset was made.

    Args:
        python: the user's function. What it refers to may have changed since.
        traced: calls `graph_function` with an element, whose parts are separate arguments if it is a tuple.
        graph_function: takes and returns flat tensors.
        result: the text of the result's type.
    """

    python: Callable
    traced: Callable
    graph_function: tf.types.experimental.ConcreteFunction
    result: str


@part("tf.data.Dataset._functions, and the graphs of these functions")
def dataset_function_graphs(dataset: tf.data.Dataset) -> list:
    """The GraphDefs of the functions that the last step of a dataset applies."""
    return [wrapper.function.graph.as_graph_def() for wrapper in dataset._functions()]


@part("tensorflow.python.data.util.nest: lists are leaves of an element")
def map_element(fn: Callable, element: Any) -> Any:
    """Applies a function to the leaves of an element of `tf.data`, which are tensors and what becomes one tensor."""
    from tensorflow.python.data.util import nest

    return nest.map_structure(fn, element)


PARTS["dataset_part"] = (
    "tf.data's classes: _input_dataset, _count, _batch_size, _drop_remainder, _seed, _seed2, _buffer_size, "
    "_reshuffle_each_iteration, _variant_tensor"
)
PARTS["LazyDataset"] = "tf.data.Dataset: _variant_tensor, _variant_tensor_attr, _inputs, _options_attr"


# --- Keras ---


@part("keras.Model._call_has_training_arg")
def takes_training(model: "keras.Model") -> bool:
    """Whether a model's call has an argument `training`."""
    return model._call_has_training_arg


@part("keras.Layer._flatten_layers")
def layers_within(model: "keras.Model") -> list:
    """A model and all layers inside it, at any depth."""
    return list(model._flatten_layers())


@part("the modules that define Keras' classes and functions: keras.src")
def is_defined_by_keras(thing: object) -> bool:
    """Whether a class or a function is one of Keras' own."""
    return str(getattr(thing, "__module__", "")).startswith("keras.src.") and hasattr(thing, "__name__")


def variables_of_own_layers(model: "keras.Model") -> list:
    """The variables without gradients that a layer of the user's own class may assign, whether it trains or not."""
    layers = layers_within(model)
    keras_layers = [layer for layer in layers if all(is_defined_by_keras(type(part)) for part in layers_within(layer))]
    keras_variables = {id(v) for layer in keras_layers for v in layer.non_trainable_variables}
    return [v for v in model.non_trainable_variables if id(v) not in keras_variables]


@part("keras.optimizers.Optimizer._learning_rate")
def learning_rate(optimizer: "keras.optimizers.Optimizer") -> Any:
    """A Keras optimizer's learning rate as the user passed it: a number, a variable, a schedule or a function."""
    return optimizer._learning_rate


def excludes_from_weight_decay(optimizer: "keras.optimizers.Optimizer") -> bool:
    """Whether a Keras optimizer excludes variables from weight decay."""
    return bool(
        getattr(optimizer, "_exclude_from_weight_decay", None)
        or getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    )


@part("keras.optimizers.Optimizer._exclude_from_weight_decay")
def variables_without_weight_decay(optimizer: "keras.optimizers.Optimizer") -> bool:
    """Whether a Keras optimizer excludes variables from weight decay that are given themselves, not by name."""
    return bool(getattr(optimizer, "_exclude_from_weight_decay", None))


PARTS["excludes_from_weight_decay"] = (
    "keras.optimizers.Optimizer: _exclude_from_weight_decay, _exclude_from_weight_decay_pattern"
)


@part("keras.src.backend.common.global_state: get_global_attribute, set_global_attribute")
def replace_keras_global(name: str, value: object) -> Any:
    """Sets one of Keras' global values; returns the value before."""
    state = importlib.import_module("keras.src.backend.common.global_state")
    old_value = state.get_global_attribute(name)
    state.set_global_attribute(name, value)
    return old_value


@part("keras.src.utils.naming: to_snake_case, auto_name with the global value object_name_uids")
def default_name(kind: type) -> str:
    """The name, without a number, that Keras gives to objects of a class for which no other is given."""
    return importlib.import_module("keras.src.utils.naming").to_snake_case(kind.__name__)


class _Random:
    """Python's `random` with `randint` replaced."""

    def __init__(self, randint: Callable[[int, int], int]) -> None:
        self.randint = randint

    def __getattr__(self, name: str) -> Any:
        return getattr(random, name)


@part("keras.src.random.seed_generator: python_random, make_default_seed")
def replace_keras_randint(randint: Callable[[int, int], int]) -> None:
    """Makes Keras sample default seeds with `randint`.

    Raises:
        UnsupportedVersion: Keras samples default seeds in another way, so that the replacement would have no effect.
    """
    module = importlib.import_module("keras.src.random.seed_generator")
    calls: list[int] = []

    def probe(low: int, high: int) -> int:
        calls.append(low)
        return low

    vars(module)["python_random"] = _Random(probe)
    module.make_default_seed()
    vars(module)["python_random"] = _Random(randint)
    if not calls:  # `part` makes an `UnsupportedVersion` of the error
        raise AttributeError("default seeds are not drawn from seed_generator.python_random.randint")
