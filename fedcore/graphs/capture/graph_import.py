"""Canonical graphs put into the graph being built, and run eagerly."""

import functools
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fedcore.errors import FedcoreError
from fedcore.graphs.graphdef.canonical_form import with_content_names
from fedcore.graphs.graphdef.operand_guards import guarded
from fedcore.graphs.graphdef.process_functions import define
from fedcore.graphs.graphdef.sequence_operands import (
    SequenceOperand,
    bind,
    from_listed,
    listed,
    operand,
    operand_specs,
    sequence_specs,
)
from fedcore.graphs.graphdef.sum_terms import sums_explode
from fedcore.graphs.tensors.cancellation import Cancellation
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.module import Graph
from fedcore.types import SequenceType, leaves, tensor_leaves


class _ParsedGraphs:
    """Parsed GraphDefs by digest, the 256 used last: importing needs the message, not the bytes.

    Their functions have content names.
    """

    def __init__(self, max_entries: int = 256):
        self._parsed: OrderedDict[str, tuple] = OrderedDict()
        self._max_entries = max_entries

    def get(self, digest: str, data: bytes) -> tuple[graph_pb2.GraphDef, frozenset[str]]:
        if digest not in self._parsed:
            graph_def = guarded(with_content_names(graph_pb2.GraphDef.FromString(data)))
            used = frozenset(i.split(":")[0].lstrip("^") for n in graph_def.node for i in n.input)
            kept = [n for n in graph_def.node if not (n.op == "Placeholder" and n.name.startswith(("arg", "seed")))]
            del graph_def.node[:]
            graph_def.node.extend(kept)
            self._parsed[digest] = (graph_def, used)
            if len(self._parsed) > self._max_entries:
                self._parsed.popitem(last=False)
        return self._parsed[digest]


_parsed_graphs = _ParsedGraphs()


NOT_IN_LOOPS = b"MaxPoolGrad"
"""An operation that gets its quick kernel only where it stands behind its MaxPool in a graph without cycles."""


def call_leaves(
    graph: Graph, data: bytes, values: Sequence, seed: tf.Tensor | None = None, *, xla: bool = False
) -> list[tf.Tensor]:
    """Puts the graph into the one being built, fed with `values`; returns its result's leaves.

    Args:
        values: the leaves of its parameter: tensors, and for sequences what has a `count` and an `element`.
        seed: int64, for a seeded graph.
        xla: it is compiled by XLA, anew for every size of its tensors.
    """
    graph_def, used = _parsed_graphs.get(graph.digest, data)
    current = tf.compat.v1.get_default_graph()
    tensors: list = []
    operands = []
    for value in values:
        if hasattr(value, "element"):
            operands.append(operand(value))
            tensors += [operands[-1].handle, operands[-1].count]
        else:
            tensors.append(value)
    if operands:
        graph_def = with_content_names(bind(graph_def, operands))
    define(graph_def.library.function)
    feed = {f"arg{i}:0": current.capture(t) for i, t in enumerate(tensors) if f"arg{i}" in used}
    if graph.attributes.get("seeded"):
        if seed is None:
            raise FedcoreError(f"@{graph.name} draws random numbers, and is called without a seed")
        if "seed" in used:
            feed["seed:0"] = current.capture(seed)
    result = tensor_leaves(graph.type.result)

    def imported(*fed: tf.Tensor) -> list[tf.Tensor]:
        names = [f"ret{i}:0" for i in range(len(result))]
        mapped = dict(zip(feed, fed, strict=True))
        return tf.graph_util.import_graph_def(
            graph_def, input_map=mapped, return_elements=names, name=scope(graph.name)
        )

    fed = list(feed.values())
    try:
        out = called(imported, fed, xla=xla) if xla or NOT_IN_LOOPS in data else imported(*fed)
    except (ValueError, tf.errors.OpError) as error:
        raise FedcoreError(f"TensorFlow cannot import the graph @{graph.name}: {error}") from None
    for i, (tensor, type_) in enumerate(zip(out, result, strict=True)):
        if not tensor.shape.is_compatible_with(type_.shape):
            raise FedcoreError(f"the graph @{graph.name} says that result {i} is {type_}, but makes {tensor.shape}")
        tensor.set_shape(type_.shape)
    return out


def scope(name: str) -> str:
    """A name as TensorFlow takes it for a scope: ASCII, and no underscore in front."""
    legal = re.sub(r"[^A-Za-z0-9_.]", "_", name[:MAX_SCOPE])
    return legal if legal[:1].isalnum() else f"fn{legal}"


MAX_SCOPE = 100
"""Characters of a name that are shown in TensorFlow's graphs: every operation of a graph repeats them."""


def called(body: Callable, operands: list[tf.Tensor], *, xla: bool = False) -> list[tf.Tensor]:
    """The body as a function that TensorFlow, or XLA, calls and does not copy into the graph around."""
    options: dict = {"jit_compile": True} if xla else {"experimental_attributes": {"_noinline": True}}
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in operands]
    return tf.function(body, autograph=False, input_signature=specs, **options)(*operands)


def graph_callable(graph: Graph, data: bytes, *, xla: bool = False) -> Callable:
    """The graph as a function over nested tuples of tensors, for use inside a graph being built."""

    def call(*arguments, seed=None):
        return unflatten(call_leaves(graph, data, flatten(arguments), seed, xla=xla), graph.type.result)

    return call


def eager_callable(graph: Graph, data: bytes) -> Callable:
    """The graph as a compiled function over nested tuples of numpy arrays; a sequence is a list of them."""
    parameter = graph.type.parameter
    types = [] if parameter is None else [leaf for _, leaf in leaves(parameter)]

    def main(seed, *tensors):
        rest, values = list(tensors), []
        for type_ in types:
            value = rest.pop(0)
            if isinstance(type_, SequenceType):
                value = SequenceOperand(rest.pop(0), from_listed(value, type_.element, sequence_specs(type_, spec)))
            values.append(value)
        return call_leaves(graph, data, values, seed)

    signature = [tf.TensorSpec([], tf.int64), *operand_specs(parameter)]
    compiled = tf.function(main, autograph=False, input_signature=signature)

    @functools.cache
    def concrete():
        made = compiled.get_concrete_function()
        return made, sums_explode(made.graph.as_graph_def())

    def call(*arguments, seed=0):
        tensors: list = []
        for value, type_ in zip(flatten(arguments), types, strict=True):
            if isinstance(type_, SequenceType):
                tensors.extend(listed(value, sequence_specs(type_, spec)))
            else:
                (only,) = map(spec, tensor_leaves(type_))
                tensors.append(tf.constant(value, dtype=only.dtype))
        (made, explodes), given = concrete(), [tf.constant(seed, tf.int64), *tensors]
        out = Cancellation().call(made, given, in_order=True) if explodes else made(*given)
        return unflatten([t.numpy() for t in out], graph.type.result)

    return call
