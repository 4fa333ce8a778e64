"""The intermediate values of one client's work: its stage is computed again for it alone, operation by operation.

In:  a client stage, and the arguments of one client. Out: each value of its operations and of the nodes of its graphs,
in the order in which they are computed, with the training step.

Nothing is traced or compiled: TensorFlow runs each operation eagerly, and loops are loops of Python. So the values are
those of a client that runs alone, which a stage that computes clients side by side has up to rounding.

Decision 0276.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.capture.graph_import import graph_callable
from fedcore.graphs.dataflow.graph import Node, Region
from fedcore.graphs.dataflow.graph import Value as RegionValue
from fedcore.graphs.graphdef.form.canonical_form import PRINT
from fedcore.graphs.graphdef.form.captured_graph import CapturedGraph, captured_graph
from fedcore.graphs.graphdef.form.checked_operations import add_operation
from fedcore.graphs.graphdef.form.sequence_operands import ACCESS_PREFIX, is_element_access
from fedcore.graphs.sequences import layout
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.stages.kernels import evaluate
from fedcore.graphs.stages.realize import pack, unpack
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.ir.interpret import Interpreter, Seed
from fedcore.ir.module import Graph, NodeSource, Operation, Symbol, digest_of
from fedcore.types import Type

_CASE = frozenset({"Case", "StatelessCase"})

DATA = "data"
"""The operation of what a client has before it computes anything."""

_PASSED_ON = frozenset({"Const", "Identity", "NoOp", "StopGradient"})
"""Nodes that compute nothing."""


@attrs.frozen
class ClientValue:
    """An intermediate value of a client's work.

    Args:
        operation: that computes it, an operation of the IR or of TensorFlow.
        source: the user's code that the operation comes from; its name is that of the operation if it is not known.
        step: number of the element of the client's data that it is computed from, counted from 0; None outside of a
            loop over elements.
        inputs: the operation's operands.
        value: a numpy array.
        iterations: the numbers of the iterations of TensorFlow's loops that it is computed in, outermost first, counted
            from 0; without loops over elements.
    """

    operation: str
    source: NodeSource
    step: int | None
    inputs: tuple[np.ndarray, ...] = attrs.field(repr=False)
    value: np.ndarray = attrs.field(repr=False)
    iterations: tuple[int, ...] = ()


@attrs.frozen
class Printed:
    """A value that `fc.debug.print` prints.

    Args:
        label: of the user.
        line: of the user, such as `train.py:34`; empty if it is not known.
        step, iterations: as in `ClientValue`.
        breakpoint_number: of the breakpoint that the value is for; empty for a print.
    """

    label: str
    line: str
    step: int | None
    value: tf.Tensor = attrs.field(repr=False)
    iterations: tuple[int, ...] = ()
    breakpoint_number: str = ""


class ClientReplay:
    """Computes the work of clients of a stage again, one by one.

    Args:
        stage: whose work is computed.
        note: gets each value; it may raise to end the replay. None: values are not looked at.
        note_printed: gets what the client prints.
    """

    def __init__(
        self,
        stage: ClientStage,
        note: Callable[[ClientValue], None] | None,
        note_printed: Callable[[Printed], None],
    ) -> None:
        self._stage = stage
        self._note = note
        self._note_printed = note_printed
        self._step: int | None = None
        self._sequences: list[layout.Sequence] = []  # of the graph that runs
        self._named: Mapping[Symbol, Region] = {}  # its functions that operations name
        self._iterations: tuple[int, ...] = ()
        self._interpreter = Interpreter(stage.module, self._evaluate, self._replaying)

    def run(self, broadcasts: Sequence, client: tuple, numbers: Sequence[range], seed: int) -> None:
        """Computes the work of one client.

        Args:
            broadcasts: the values that all clients get.
            client: its values.
            numbers: of the leaves of its values, as in `ClientWork`.
            seed: of the client.
        """
        shared = [_eager(value) for value in broadcasts]
        arguments = []
        for parameter, value, draw_numbers in zip(self._stage.client_parameters, client, numbers, strict=True):
            layouts, tensors = pack(value, seed, draw_numbers.start)
            opened = unpack(parameter.type, layouts, list(map(tf.convert_to_tensor, tensors)))
            leaves = [self._counted(leaf) if isinstance(leaf, layout.Sequence) else leaf for leaf in flatten(opened)]
            arguments.append(unflatten(leaves, parameter.type))
            self._note_data(leaves, parameter.name)
        stage = self._stage
        note, self._note = self._note, None
        zero = () if stage.zero is None else self._interpreter.run(stage.module.function(stage.zero), *shared)
        self._note, self._step = note, None
        stage.run_client(self._interpreter, zero, [*shared, *arguments], tf.constant(seed, tf.int64))

    def _counted(self, sequence: layout.Sequence) -> layout.Sequence:
        """The sequence, which sets the step to the number of each element that is read, and notes the element."""

        def element(i: tf.Tensor) -> Nested:
            self._step = int(i)
            value = sequence.element(i)
            self._note_data(flatten(value), "batch")
            return value

        return layout.Sequence(sequence.count, element)

    def _note_data(self, leaves: Sequence, name: str) -> None:
        """Notes the tensors among some leaves of the client's data.

        Args:
            name: of the parameter that they belong to, or "batch" for an element of a sequence.
        """
        if self._note is None:
            return
        for leaf in leaves:
            if isinstance(leaf, tf.Tensor):
                self._note(ClientValue(DATA, NodeSource(name, None), self._step, (), leaf.numpy()))

    def _evaluate(self, op: Operation, types: list[Type], values: list, seed: Seed | None) -> Nested:
        """The result of an operation of the IR; notes its tensors, unless the operation computes nothing by itself."""
        result = evaluate(op, types, values, seed)
        if op.kind == "sequence_reduce":
            self._step = None
        calls_graph = op.kind == "call" and isinstance(op.operands[0], Symbol)  # the nodes of the graph are noted
        if self._note is not None and not calls_graph and op.kind not in ("struct", "item", "literal", "bind"):
            tensors = [t for t in flatten(result) if isinstance(t, tf.Tensor)]
            inputs = tuple(t.numpy() for v in values for t in _tensors(v))
            for tensor in tensors:
                source = NodeSource(op.kind, op.location)
                self._note(ClientValue(op.kind, source, self._step, inputs, tensor.numpy()))
        return result

    def _replaying(self, graph: Graph, data: bytes) -> Callable:
        """A function that computes a graph node by node, and notes their values.

        A graph whose operations run functions, as MapDataset does, is computed whole, and nothing in it is noted.
        """
        captured = _captured(graph, data)

        def call(*arguments: Nested, seed: tf.Tensor | None = None) -> Nested:
            leaves = flatten(arguments)
            if captured is None:
                body = functools.partial(graph_callable(graph, data), *arguments, seed=seed)
                return tf.function(lambda: body(), autograph=False)()
            outer = self._sequences, self._named, self._step
            self._sequences = [leaf for leaf in leaves if isinstance(leaf, layout.Sequence)]
            operands = [tensor for leaf in leaves for tensor in _operands(leaf)] + ([] if seed is None else [seed])
            if graph.prints is not None:
                self._print(graph, graph.prints, operands)
            results = self._run_main(captured, operands)
            self._sequences, self._named, self._step = outer
            return unflatten(results, graph.type.result)

        return call

    def _print(self, graph: Graph, prints: bytes, operands: list) -> None:
        """Computes what a graph prints, and notes nothing else of it.

        Args:
            prints: the graph whose nodes print.
            operands: the arguments of `graph`.
        """
        captured = _captured(Graph(graph.name, graph.type, digest_of(prints)), prints)
        assert captured is not None  # the trace refuses prints in other graphs
        note, step = self._note, self._step
        self._note = None
        self._run_main(captured, operands)
        self._note, self._step = note, step

    def _run_main(self, captured: CapturedGraph, operands: list) -> list:
        """The results of a graph, of which `operands` may have more than it reads."""
        self._named = captured.named
        return self._run_region(captured.main, operands[: len(captured.main.arguments)], {})

    def _run_region(self, region: Region, arguments: Sequence, outer: Mapping[RegionValue, tf.Tensor]) -> list:
        """The results of a region, computed node by node.

        Args:
            outer: the values of the regions around it.
        """
        values = dict(outer)
        values.update(zip(region.arguments, arguments, strict=True))
        for node in region.nodes:
            operands = [values[v] for v in node.inputs]
            results = self._run_node(node, operands, values)
            values.update(zip(node.outputs, results, strict=True))
            if self._note is not None and node.op not in _PASSED_ON and not node.regions:
                self._note_node(node, operands, results)
        return [values[v] for v in region.results]

    def _note_node(self, node: Node, operands: list, results: Sequence) -> None:
        """Notes the results of a node that have a value in numpy; lists and handles have none."""
        assert self._note is not None
        source = node.source or NodeSource(node.op, None)
        inputs = tuple(t.numpy() for t in operands if t.dtype not in (tf.resource, tf.variant))
        for result in results:
            if result.dtype not in (tf.resource, tf.variant):
                value = ClientValue(node.op, source, self._step, inputs, result.numpy(), self._iterations)
                self._note(value)

    def _run_node(self, node: Node, operands: list, values: Mapping[RegionValue, tf.Tensor]) -> Sequence:
        """The results of a node, which may be a loop, a branch, a print or the read of an element of a sequence.

        Args:
            operands: the values of the node's inputs.
            values: those of the region so far, which the regions of loops and branches may read.
        """
        if node.op == "while":
            test, body = node.regions
            outer, iteration = self._iterations, 0
            while bool(self._run_region(test, operands, values)[0]):
                if not any(_is_element_access(n) for n in body.nodes):  # a loop over elements sets the step instead
                    self._iterations = (*outer, iteration)
                operands = self._run_region(body, operands, values)
                self._iterations, iteration = outer, iteration + 1
            return operands
        if node.op == "if":
            condition, *_ = operands
            return self._run_region(node.regions[0 if bool(condition) else 1], [], values)
        if node.op in _CASE:
            index, *operands = operands
            branches = node["branches"]
            branch = branches[int(index) if 0 <= int(index) < len(branches) else -1]
            return self._run_region(self._named[branch], operands, {})
        if node.op == PRINT:
            # `debug_prints.add_print` has put the user's line and the number of the breakpoint into `debug_urls`.
            label, (line, breakpoint_number) = node["tensor_name"], node["debug_urls"]
            (value,) = operands
            texts = label.decode(), line.decode()
            self._note_printed(Printed(*texts, self._step, value, self._iterations, breakpoint_number.decode()))
            return operands
        if _is_element_access(node):
            # A call of `fedcore_draw_k(handle, index)` for the k-th sequence of the graph, see `sequence_operands`.
            sequence_number, (_handle, index) = int(node["f"].name.removeprefix(ACCESS_PREFIX)), operands
            return flatten(self._sequences[sequence_number].element(index))
        return add_operation(node.op, operands, node.attributes)


def _is_element_access(node: Node) -> bool:
    """Whether a node reads an element of the client's data."""
    return is_element_access(getattr(node.get("f"), "name", ""))


def _operands(leaf: Any) -> list[tf.Tensor]:
    """The arguments of a graph for a leaf; the handle of a sequence is not used, since its element is asked here."""
    return [tf.constant(0), leaf.count] if isinstance(leaf, layout.Sequence) else [leaf]


def _captured(graph: Graph, data: bytes) -> CapturedGraph | None:
    """The graph; None if an operation that only TensorFlow can run names functions, as MapDataset does.

    These are the functions of the graph that no case names.
    """
    captured = captured_graph(graph, data)
    regions = (captured.main, *captured.named.values())
    return captured if {s for r in regions for s in _symbols_of_cases(r)} == captured.named.keys() else None


def _symbols_of_cases(region: Region) -> Iterator[Symbol]:
    """The functions that the cases of a region name."""
    for node in region.nodes:
        if node.op in _CASE:
            yield from node["branches"]
        for body in node.regions:
            yield from _symbols_of_cases(body)


def _eager(value: Any) -> Any:
    """A nested tuple of numpy arrays as one of eager tensors."""
    return tuple(map(_eager, value)) if isinstance(value, tuple) else tf.convert_to_tensor(value)


def _tensors(value: Any) -> list[tf.Tensor]:
    """The tensors in an operand; sequences and functions have none."""
    leaves = flatten(value) if isinstance(value, tuple) else [value]
    return [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
