"""Imports canonical graphs into the graph being built, and runs them eagerly."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fedcore.errors import FedcoreError
from fedcore.graphs import private_api
from fedcore.graphs.capture.debug_prints import traced_prints
from fedcore.graphs.capture.node_sources import note_imported
from fedcore.graphs.graphdef.analysis.sum_terms import sums_explode
from fedcore.graphs.graphdef.form.canonical_form import with_content_names
from fedcore.graphs.graphdef.form.function_calls import operations_in
from fedcore.graphs.graphdef.form.operand_guards import checks_operands, guard_graph
from fedcore.graphs.graphdef.form.process_functions import define
from fedcore.graphs.graphdef.form.sequence_operands import (
    Operand,
    SequenceOperand,
    bind,
    from_tensor_lists,
    operand,
    operand_specs,
    sequence_specs,
    to_tensor_lists,
)
from fedcore.graphs.tensors.cancellation import Cancellation
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.ir.module import Graph, NodeKey
from fedcore.lru_cache import LruCache
from fedcore.types import SequenceType, leaves, tensor_leaves


@attrs.frozen(eq=False)
class _Importable:
    """A graph as it is imported.

    Args:
        graph_def: without the placeholders of its arguments and seed; its functions have content names.
        used: the names of the nodes that are an input of another node.
        is_inlined: whether its nodes are copied into the graph around, rather than called as a function.
        canonical_keys: for each node of a function its key in the canonical graph.
    """

    graph_def: graph_pb2.GraphDef
    used: frozenset[str]
    is_inlined: bool
    canonical_keys: Mapping[NodeKey, NodeKey] = attrs.field(factory=dict)

    @property
    def arguments(self) -> set[str]:
        """The names of the arguments that are used, and of the seed."""
        return {name for name in self.used if name.startswith(("arg", "seed"))}

    def add(self, inputs: Mapping[str, tf.Tensor], operands: list[Operand], name: str, results: int) -> list[tf.Tensor]:
        """Adds the nodes to the graph being built, and returns the results.

        Args:
            inputs: by the names of arguments.
            operands: the sequences among the arguments.
            name: of the graph.
            results: their number.
        """
        graph_def = with_content_names(bind(self.graph_def, operands)) if operands else self.graph_def
        define(graph_def.library.function)
        return tf.graph_util.import_graph_def(
            graph_def,
            input_map={f"{argument}:0": tensor for argument, tensor in inputs.items() if argument in self.used},
            return_elements=[f"ret{i}:0" for i in range(results)],
            name=scope(name),
        )


_importable: LruCache[tuple[str, bool], _Importable] = LruCache(256)
"""Parsed graphs by digest, and by whether their operands are checked."""

NOT_INLINED = "MaxPoolGrad"
"""Prefix of operations that get their fast kernel only after their MaxPool in a graph without cycles."""


def _parse(data: bytes) -> _Importable:
    """Prepares a serialized canonical graph for its imports: guards operands, and names functions by their content."""
    source_def = graph_pb2.GraphDef.FromString(data)
    imported_keys: dict[NodeKey, NodeKey] = {}
    guarded_def = guard_graph(source_def) if checks_operands() else source_def
    graph_def = with_content_names(guarded_def, canonical_names=imported_keys)
    used = frozenset(i.split(":")[0].lstrip("^") for n in graph_def.node for i in n.input)
    is_inlined = not any(op.startswith(NOT_INLINED) for op in operations_in(graph_def))
    nodes = [n for n in graph_def.node if not (n.op == "Placeholder" and n.name.startswith(("arg", "seed")))]
    del graph_def.node[:]
    graph_def.node.extend(nodes)
    canonical_keys = {imported: canonical for canonical, imported in imported_keys.items()}
    return _Importable(graph_def, used, is_inlined, canonical_keys)


def keys_on_path(graph: Graph, data: bytes, path: Sequence[str]) -> Iterator[NodeKey]:
    """The keys in the canonical graph of a chain of nodes of the imported graph, up to a node that it does not have.

    Args:
        path: a name in the graph, then one in the function that this node calls, and so on: `n3`, `n7` of `n3/n7`.
    """
    importable = _importable.get((graph.digest, checks_operands()), lambda: _parse(data))
    bodies = {"": importable.graph_def.node}
    bodies |= {f.signature.name: f.node_def for f in importable.graph_def.library.function}
    function = ""  # the graph itself
    for name in path:
        yield importable.canonical_keys.get((function, name), (function, name))
        node = next((node for node in bodies.get(function, ()) if node.name == name), None)
        if node is None:
            return
        function = node.attr["f"].func.name if "f" in node.attr else node.op  # a call has its function in `f`, or is it


def call_leaves(
    graph: Graph, data: bytes, values: Sequence, seed: tf.Tensor | None = None, *, xla: bool = False
) -> list[tf.Tensor]:
    """Imports a graph into the one being built, applied to `values`; returns the leaves of its result.

    What the graph prints is a graph of its own on these values, which is imported too where prints are traced.

    Args:
        values: the leaves of its parameter: tensors, and sequences (objects with a `count` and an `element`).
        seed: int64, for a seeded graph.
        xla: XLA compiles the graph, once for every shape of its arguments.
    """
    importable = _importable.get((graph.digest, checks_operands()), lambda: _parse(data))
    current = tf.compat.v1.get_default_graph()
    tensors, sequences = _arguments(values)
    if graph.attributes.get("seeded") and seed is None:
        raise FedcoreError(f"@{graph.name} draws random numbers, and is called without a seed")
    printing = traced_prints()
    prints = None if graph.prints is None or printing is None else _parse(graph.prints)
    used = importable.used | (prints.used if prints is not None else frozenset())
    feed = {f"arg{i}": t for i, t in enumerate(tensors)} | ({} if seed is None else {"seed": seed})
    feed = {name: current.capture(t) for name, t in feed.items() if name in used}
    result_types = tensor_leaves(graph.type.result)

    def import_graph(*inputs: tf.Tensor) -> list[tf.Tensor]:
        """Imports the graph, and the graph of its prints, on the tensors of `feed`."""
        named_inputs = dict(zip(feed, inputs, strict=True))
        results = importable.add(named_inputs, sequences, graph.name, len(result_types))
        if graph.sources and results:
            note_imported(graph, results[0].op.name.removesuffix("/ret0"))
        if prints is not None and prints.arguments <= set(feed):  # not if only they need the seed, and there is none
            assert printing is not None
            printing.are_imported = True
            prints.add(named_inputs, sequences, f"{graph.name}_prints", 0)
        return results

    arguments = list(feed.values())
    try:
        out = (
            import_graph(*arguments)
            if importable.is_inlined and not xla
            else call_as_function(import_graph, arguments, xla=xla)
        )
        shapes = [tensor.shape for tensor in out]  # raises where a dimension is negative
    except (ValueError, tf.errors.OpError) as error:
        raise FedcoreError(f"TensorFlow cannot import the graph @{graph.name}: {error}") from None
    for i, (tensor, shape, type_) in enumerate(zip(out, shapes, result_types, strict=True)):
        if not shape.is_compatible_with(type_.shape):
            raise FedcoreError(f"the graph @{graph.name} says that result {i} is {type_}, but makes {shape}")
        tensor.set_shape(type_.shape)
    return out


def _arguments(values: Sequence) -> tuple[list[tf.Tensor], list[Operand]]:
    """The tensors `arg0`, … of a graph for the leaves of its parameter, and the sequences among the leaves.

    A sequence has two tensors, its handle and its count.
    """
    tensors: list[tf.Tensor] = []
    sequences: list[Operand] = []
    for value in values:
        if hasattr(value, "element"):
            sequences.append(operand(value))
            tensors += [sequences[-1].handle, sequences[-1].count]
        else:
            tensors.append(value)
    return tensors, sequences


def scope(name: str) -> str:
    """A name as a legal name scope of TensorFlow: ASCII, without a leading underscore."""
    legal = re.sub(r"[^A-Za-z0-9_.]", "_", name[:MAX_SCOPE])
    return legal if legal[:1].isalnum() else f"fn{legal}"


MAX_SCOPE = 100
"""Maximal length of a name scope, since the names of all operations in it repeat it."""


def call_as_function(body: Callable, operands: list[tf.Tensor], *, xla: bool = False) -> list[tf.Tensor]:
    """Calls the body as a function that TensorFlow does not inline, or that XLA compiles."""
    options: dict = {"jit_compile": True} if xla else {"experimental_attributes": {"_noinline": True}}
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in operands]
    return tf.function(body, autograph=False, input_signature=specs, **options)(*operands)


def call_unordered(body: Callable, operands: list[tf.Tensor]) -> list[tf.Tensor]:
    """Calls the body as a function whose operations have no automatic control dependencies."""
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in operands]
    return private_api.call_without_inference(private_api.unordered_function(body, specs), operands)


def graph_callable(graph: Graph, data: bytes, *, xla: bool = False) -> Callable:
    """The graph as a function over nested tuples of tensors, for use inside a graph being built."""

    def call(*arguments: Nested, seed: tf.Tensor | None = None) -> Nested:
        return unflatten(call_leaves(graph, data, flatten(arguments), seed, xla=xla), graph.type.result)

    return call


def eager_callable(graph: Graph, data: bytes) -> Callable:
    """The graph as a compiled function over nested tuples of numpy arrays; a sequence is a list of them."""
    parameter = graph.type.parameter
    types = [] if parameter is None else [leaf for _, leaf in leaves(parameter)]

    def main(seed: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """The leaves of the result, for tensors; a sequence has two, as `to_tensor_lists` returns them."""
        operands, values = iter(tensors), []
        for type_ in types:
            value = next(operands)
            if isinstance(type_, SequenceType):
                elements = from_tensor_lists(value, type_.element, sequence_specs(type_, spec))
                value = SequenceOperand(next(operands), elements)
            values.append(value)
        return call_leaves(graph, data, values, seed)

    signature = [tf.TensorSpec([], tf.int64), *operand_specs(parameter)]
    compiled = tf.function(main, autograph=False, input_signature=signature)

    @functools.cache
    def concrete() -> tuple[Callable, bool]:
        """The traced function, and whether Grappler would make too large a sum in it."""
        return compiled.get_concrete_function(), sums_explode(graph, data)

    def call(*arguments: Nested, seed: int = 0) -> Nested:
        tensors: list = []
        for value, type_ in zip(flatten(arguments), types, strict=True):
            if isinstance(type_, SequenceType):
                tensors.extend(to_tensor_lists(value, sequence_specs(type_, spec)))
            else:
                (only,) = map(spec, tensor_leaves(type_))
                tensors.append(tf.constant(value, dtype=only.dtype))
        (function, explodes), inputs = concrete(), [tf.constant(seed, tf.int64), *tensors]
        out = Cancellation().call(function, inputs) if explodes else function(*inputs)
        return unflatten([t.numpy() for t in out], graph.type.result)

    return call
