"""An operation, or a function of several, that runs for one client and, by batching rules, for several at once."""

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

import fedcore.graphs.batched.batching_rules  # noqa: F401  registers the rules
from fedcore.compiler.host_target import host_target
from fedcore.errors import Location
from fedcore.graphs import private_api
from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue, Padding, batching_rules
from fedcore.graphs.batched.batching_policy import ISAS_OF_EQUAL_ROWS
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.batched.own_rows import EACH, JOINED
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.capture.graph_import import call_leaves
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, Value, new_region
from fedcore.graphs.emission.region_function import region_function
from fedcore.graphs.frontend.function_tracing import trace_function
from fedcore.graphs.graphdef.form.captured_graph import captured_graph
from fedcore.graphs.graphdef.form.checked_operations import add_operation, emit
from fedcore.graphs.graphdef.form.operand_checks import CHECKED
from fedcore.graphs.graphdef.form.operations import operations_of
from fedcore.graphs.tensors.cancellation import Cancellation
from fedcore.graphs.tensors.specs import tensor_type
from fedcore.testing.rule_layouts import Form, Layout
from fedcore.testing.trial_process import run_trial
from fedcore.types import StructType


def rule_place(op: str) -> str:
    """The file and line of an operation's batching rule."""
    code = getattr(batching_rules[op], "__code__", None)
    if code is None:
        return batching_rules[op].__module__
    return str(Location(shown_path(code.co_filename), code.co_firstlineno))


def shown_path(file: str) -> str:
    """The path as seen from the working directory, or the bare name of a file outside it."""
    path = os.path.relpath(file)
    return os.path.basename(path) if path.startswith("..") else path.replace(os.sep, "/")


@attrs.frozen
class Operation:
    """One operation.

    Args:
        roundings: by how many roundings of the largest entry a float may differ from that of the client alone.
    """

    name: str
    attributes: Mapping[str, object]
    roundings: int = 64

    @property
    def title(self) -> str:
        """The name with the place of the batching rule."""
        return f"the batching rule of {self.name} ({rule_place(self.name)})"

    def alone(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of one client.

        Raises:
            OperandsRefused: TensorFlow does not take the operands.
        """
        return run_trial(self, arrays)

    @functools.cached_property
    def _guarded(self) -> Any:
        return tf.function(lambda *tensors: emit(self.name, tensors, self.attributes), autograph=False)

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of one client, by a kernel that may end the process: `run_trial` calls it in a child."""
        with tf.device("CPU:0"):
            new_region([], lambda: emit(self.name, [*map(ops.constant, arrays)], self.attributes))  # its shape function
            tensors = [tf.constant(a) for a in arrays]
            if self.name in CHECKED:  # its checks are those of a graph
                specs = [tf.TensorSpec(None, t.dtype) for t in tensors]  # a graph for each shape would take most time
                results = self._guarded.get_concrete_function(*specs)(*tensors)
            else:
                results = add_operation(self.name, tensors, self.attributes)
            return [np.asarray(t.numpy(), t.dtype.as_numpy_dtype) for t in self._written(results)]

    def batched(self, evaluation: BatchedEvaluation, values: list[BatchedValue]) -> list[BatchedValue]:
        """The results of several clients, in the block being built."""
        node = Node(self.name, (), dict(self.attributes))
        return self._written(evaluation.evaluate(node, values))

    def _written(self, results: list) -> list:
        """The results that every kernel writes: batch normalisation reserves memory for a gradient in training only."""
        is_normalisation = self.name in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
        return results[:3] if is_normalisation and not self.attributes["is_training"] else results


@attrs.frozen(eq=False)
class Function:
    """A function of tensors.

    Args:
        name: in messages.
        specs: of its arguments; sizes that are unknown may be a batch's.
    """

    name: str
    fn: Callable
    specs: tuple[tf.TensorSpec, ...]
    roundings: int = 4096  # of several operations, each of which may enlarge a difference

    @property
    def title(self) -> str:
        return f"{self.name} ({_shown_rules(self.graph)})"

    @functools.cached_property
    def graph(self) -> TracedGraph:
        types = [(None, tensor_type(s)) for s in self.specs]
        return trace_function(self.fn, StructType(types), spread=True)

    @functools.cached_property
    def _client(self) -> Callable:
        graph = self.graph
        return tf.function(
            lambda *tensors: call_leaves(graph.with_name("client"), graph.data, tensors),
            input_signature=self.specs,
            autograph=False,
        )

    def alone(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        with private_api.quick_operations():
            return [t.numpy() for t in self._client(*map(tf.constant, arrays))]

    def batched(self, evaluation: BatchedEvaluation, values: list[BatchedValue]) -> list[BatchedValue]:
        return evaluation.run(captured_graph(self.graph, self.graph.data).main, values)


def _shown_rules(graph: TracedGraph) -> str:
    """The rules of others that a graph uses, with their places; the built-in ones where there are no others."""
    names = sorted(op for op in operations_of(graph.digest, graph.data) if op in batching_rules)
    others = [op for op in names if not batching_rules[op].__module__.startswith("fedcore.graphs.")]
    return "rules: " + ", ".join(f"{op} at {rule_place(op)}" for op in others or names[:8])


Subject = Operation | Function
"""The subject of a check: it runs for one client, and as nodes of a region for several."""


@attrs.frozen(eq=False)
class BatchedRun:
    """A run for some clients at once.

    Args:
        arrays: of each operand: [clients, …] if clients have their own, else […].
        sizes: rows of the clients' batches.
        occupied: whether a lane has a client.
    """

    subject: Subject
    arrays: Sequence[np.ndarray]
    layout: Layout
    sizes: Sequence[int]
    occupied: Sequence[bool]

    def build(self, lengths: Value | None, tensors: Iterator[Value]) -> tuple[list[Value], list[BatchedValue]]:
        """The tensors of the results, and the results, in the block being built."""
        sizes = None if self.layout.rows is None else lengths
        evaluation = BatchedEvaluation(
            len(self.sizes),
            self.layout.rows,
            sizes,
            occupied=None if all(self.occupied) else lambda: ops.constant(list(self.occupied)),
            products=_products(),
        )
        operands = [_operand(self.layout, i, a, tensors) for i, a in enumerate(self.arrays)]
        results = self.subject.batched(evaluation, operands)
        return [evaluation.tensor(x) for x in results], results

    def arguments(self) -> list[tf.Tensor]:
        """The lengths, and the operands that are no constants."""
        pairs = zip(self.arrays, self.layout.places, strict=True)
        tensors = [a for a, p in pairs if p.form is not Form.CONSTANT]
        return [tf.constant(list(self.sizes), tf.int64), *map(tf.constant, tensors)]


Results = list[tuple[np.ndarray, BatchedValue]]
"""The results of a batched run: each array, with its `BatchedValue`."""


def run_batched(runs: Sequence[BatchedRun]) -> list[Results | Exception]:
    """The results of runs, or the error of each, by one TensorFlow function: its first call takes most time."""
    arguments = [run.arguments() for run in runs]
    built: list[list[BatchedValue] | Exception] = []

    def body(*values: Value) -> list[Value]:
        operand_iterator = iter(values)
        tensors: list[Value] = []
        for run, each in zip(runs, arguments, strict=True):
            lengths, *operands = itertools.islice(operand_iterator, len(each))
            try:
                run_tensors, results = run.build(lengths, iter(operands))
            except Exception as error:
                built.append(error)
                continue
            built.append(results)
            tensors += run_tensors
        return tensors

    try:
        tensors = [*itertools.chain(*arguments)]
        region = new_region([(t.dtype, t.shape) for t in tensors], body)
        results = iter(Cancellation().call(region_function(region, name="batched"), tensors))
    except Exception as error:
        return [error] if len(runs) == 1 else [run_batched([run])[0] for run in runs]
    return [b if isinstance(b, Exception) else [(next(results).numpy(), value) for value in b] for b in built]


def _products() -> str:
    return JOINED if host_target().isa in ISAS_OF_EQUAL_ROWS else EACH


def _operand(layout: Layout, position: int, array: np.ndarray, tensors: Iterator[tf.Tensor]) -> BatchedValue:
    place = layout.places[position]
    if place.form is Form.CONSTANT:
        return BatchedValue(None, form=KnownValue.from_constant(array))
    tensor, is_own = next(tensors), place.form is Form.OWN
    if place.axis is None:
        return BatchedValue(tensor, is_own)
    padding = layout.padding if is_own else Padding.UNKNOWN
    return BatchedValue(tensor, is_own, place.axis, layout.entries_per_row, padding=padding)
