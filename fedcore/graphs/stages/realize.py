"""Realizes stages of a plan: one TensorFlow function for each stage, data layout and number of clients.

In:  a function of the planned module, and the layout of each of its arguments.
Out: a `Realized` over flat tensors.

Example: a client stage `<partial, weights, batches> -> partial` for a block of 3 clients, with weights float32[7] and
batches of rows float32[7]. The function takes seeds int64 [3]; the weights [7]; and for each client its column [n, 7],
row numbers [steps, rows] and batch sizes [steps]. It folds the clients in order and returns the partial's leaves.
"""

from collections.abc import Sequence as SequenceOf
from typing import Any

import attrs
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs import private_api
from fedcore.graphs.capture.graph_import import scope
from fedcore.graphs.graphdef.sum_terms import sums_explode
from fedcore.graphs.sequences.columns import Columns, drawn
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.sequences.sequence_results import result_tensors, result_value
from fedcore.graphs.stages.kernels import interpreter
from fedcore.graphs.stages.onednn import TracedFunction, with_kernels_of
from fedcore.graphs.tensors.cancellation import Cancellation
from fedcore.graphs.tensors.sizes import measured_bits, unsized
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.interpret import Interpreter
from fedcore.ir.module import Function, Module
from fedcore.ir.purity import pure_symbols, seeded_symbols
from fedcore.types import StructType, TensorType, Type, leaves, tensor_leaves

Layouts = tuple[Layout | None, ...]
"""For each leaf of a value the layout of its sequence; None for a tensor."""


@attrs.frozen
class Realized:
    """A compiled function over flat tensors.

    Args:
        call: takes the flat tensors of all arguments and returns flat tensors.
        result: type of the result.
        pure: the result depends on the tensors only, not on the seed, and there are no side effects.
        optimised: the graphs inside are optimised already; a second optimisation would take about a second.
        in_order: TensorFlow must not regroup sums: they add clients in order, or regrouping would make the graph
            explode.
        assumes_finite: numbers of the partial's leaves. If one of them is not finite, the function may have taken for
            finite what is not, and its result does not count.
        joined_sizes: of a function that adds one client to a partial: the columns of the factors that it takes and
            returns.
        products: makes the last operand; None if any tensor will do, or there is no such operand.
    """

    call: TracedFunction
    result: Type
    pure: bool = False
    optimised: bool = False
    in_order: bool = False
    assumes_finite: tuple[int, ...] = ()
    joined_sizes: tuple[int, ...] = ()
    products: "Products | None" = None

    def __call__(self, tensors: SequenceOf, cancellation: Cancellation) -> tuple:
        out = cancellation.call(self.call, tensors, optimised=self.optimised, in_order=self.in_order)
        return result_value(list(out), self.result)

    def get_ready(self, tensors: SequenceOf) -> None:
        """Compiles the function for the device of this scope without running it: a cancelled call only compiles."""
        cancelled = Cancellation()
        cancelled.cancel()
        try:
            self(tensors, cancelled)
        except tf.errors.CancelledError:
            pass


@attrs.frozen
class Products:
    """What an executable takes that depends on the clients' data only.

    Args:
        function: computes it.
        operands: numbers of its operands among the clients' tensors.
    """

    function: Realized
    operands: tuple[int, ...]


def pack(value, seed: int, first: int = 0) -> tuple[Layouts, list]:
    """Layouts and flat tensors of a nested tuple; a sequence becomes its columns, row numbers and batch sizes.

    Args:
        first: number of the value's first leaf among the leaves of the call's arguments. The rows of a shuffled
            sequence depend on the number of its leaf, so they are the same in every stage, strategy and runtime.
    """
    layouts: list[Layout | None] = []
    tensors: list = []
    for position, leaf in enumerate(flatten(value)):
        leaf = drawn(leaf, seed, first + position)
        if not isinstance(leaf, Columns):
            layouts.append(None)
            tensors.append(leaf)
            continue
        rows = leaf.read(seed, first + position)
        layouts.append(leaf.layout)
        tensors.extend([*leaf.arrays, rows.rows, *([rows.sizes] if leaf.layout.batched else [])])
    return tuple(layouts), tensors


def _specs(type_: Type, layouts: Layouts) -> list[tf.TensorSpec]:
    specs: list[tf.TensorSpec] = []
    for (_, leaf), layout in zip(leaves(type_), layouts, strict=True):
        specs.extend([spec(t) for t in tensor_leaves(leaf)] if layout is None else layout.specs())
    return specs


def _unpack(type_: Type, layouts: Layouts, tensors: list):
    """The nested tuple of a value in the graph; its tensors are removed from the front of the list."""
    values = []
    for layout in layouts:
        if layout is None:
            values.append(tensors.pop(0))
            continue
        count = len(layout.specs())
        of_sequence, tensors[:count] = tensors[:count], []
        values.append(layout.open(of_sequence))
    return unflatten(values, type_)


def profiler_name(module: Module, stage: str) -> str:
    """Name of a stage in TensorFlow's profiler."""
    return scope(f"{module.main.name}_{stage}")


def realize_stage(module: Module, name: str, layouts: SequenceOf[Layouts]) -> Realized:
    """The function of a server stage or of a merge: (seed int64, tensors of the arguments) -> result."""
    function = module.function(name)
    run = interpreter(module)
    types = [p.type for p in function.parameters]
    specs = [s for t, of_type in zip(types, layouts, strict=True) for s in _specs(t, of_type)]

    def body(seed, *tensors):
        rest = list(tensors)
        arguments = [_unpack(t, of_type, rest) for t, of_type in zip(types, layouts, strict=True)]
        out = run.run(function, *arguments, seed=tensor_seed(seed))
        return [tf.identity(t) for t in result_tensors(out, function.result_type)]

    body.__name__ = profiler_name(module, name)
    traced = tf.function(body, autograph=False, input_signature=[tf.TensorSpec([], tf.int64), *specs])
    pure = name in pure_symbols(module) and name not in seeded_symbols(module)
    return _realized(traced, function.result_type, pure=pure)


def realize_block(
    module: Module,
    zero: str | None,
    stage: str,
    broadcasts: int,
    clients: SequenceOf[SequenceOf[Layouts]],
    *,
    has_client_values: bool,
    from_partial: bool = False,
    measured: SequenceOf[str] = (),
) -> Realized:
    """The function that folds a block of clients, one after the other.

    It takes one seed for each client (int64 [clients]), the tensors of the broadcasts, and the tensors of each client.

    Args:
        zero: name of the function that makes the initial partial; None if the stage has no partial.
        broadcasts: number of the stage's parameters that all clients share.
        clients: for each client of the block the layouts of its arguments.
        has_client_values: the stage also returns a value for each client.
        from_partial: the fold starts from a partial, not from `zero`; the tensors of the partial are the last operands.
        measured: names of values in the stage whose sizes are measured.
    Returns:
        A function whose result is <partial, client values, bits>, without the parts that the stage does not have.
        `bits` is int64 [clients, n]: the sizes of the n measured leaves whose types leave their sizes open.
    """
    function = module.function(stage)
    first = 0 if zero is None else 1
    broadcast_types = [p.type for p in function.parameters[first : first + broadcasts]]
    client_types = [p.type for p in function.parameters[first + broadcasts :]]
    specs = [spec(t) for type_ in broadcast_types for t in tensor_leaves(type_)]
    for layouts in clients:
        specs.extend(s for t, of_type in zip(client_types, layouts, strict=True) for s in _specs(t, of_type))
    partial_type = module.function(zero).result_type if zero is not None and from_partial else None
    if partial_type is not None:
        specs.extend(_specs(partial_type, _no_sequences(partial_type)))
    run = interpreter(module, xla=bool(function.attributes.get("xla")))
    sizes = sum(len(unsized(function.types()[name])) for name in measured)
    type_ = _block_type(module, zero, function, len(clients), has_client_values=has_client_values, sizes=sizes)

    def body(seeds, *tensors):
        rest = list(tensors)
        broadcast = [_unpack(t, _no_sequences(t), rest) for t in broadcast_types]
        of_clients = [
            [_unpack(t, of_type, rest) for t, of_type in zip(client_types, layouts, strict=True)] for layouts in clients
        ]
        if partial_type is not None:
            partial = _unpack(partial_type, _no_sequences(partial_type), rest)
        else:
            partial = None if zero is None else run.run(module.function(zero), *broadcast)
        client_values, bits = [], []
        for k, of_client in enumerate(of_clients):
            before = [] if zero is None else [partial]
            arguments = [*before, *broadcast, *of_client]
            result, bits_of_client = _run_client(run, function, arguments, seeds[k], measured)
            bits.append(bits_of_client)
            if zero is None:
                client_values.append(result)
            elif has_client_values:
                partial = result[0]
                client_values.append(result[1])
            else:
                partial = result
        results = [
            *([] if zero is None else [partial]),
            *([tuple(client_values)] if has_client_values or zero is None else []),
            *([tf.reshape(tf.convert_to_tensor(bits, tf.int64), [len(clients), sizes])] if measured else []),
        ]
        return [tf.identity(t) for t in result_tensors(tuple(results), type_)]

    body.__name__ = profiler_name(module, stage)
    traced = tf.function(body, autograph=False, input_signature=[tf.TensorSpec([len(clients)], tf.int64), *specs])
    realized = _realized(traced, type_, in_order=len(clients) > 1)
    return attrs.evolve(realized, call=with_kernels_of(function, realized.call))


def _run_client(
    run: Interpreter,
    function: Function,
    arguments: list,
    seed: tf.Tensor,
    measured: SequenceOf[str],
) -> tuple[Any, list]:
    """A client stage's result for one client, and the sizes of its measured leaves in bits."""
    values = dict(zip([p.name for p in function.parameters], arguments, strict=True))
    types = {p.name: p.type for p in function.parameters}
    run.operations(function.operations, values, types, tensor_seed(seed))
    bits = [size for name in measured for size in measured_bits(values[name], types[name])]
    return values[function.result.name], bits


def _no_sequences(type_: Type) -> Layouts:
    """Layouts of a value that holds tensors only."""
    return (None,) * len(leaves(type_))


def _realized(traced, result: Type, *, pure: bool = False, in_order: bool = False) -> Realized:
    with private_api.quick_operations(shares_constants=True):
        concrete = traced.get_concrete_function()
    in_order = in_order or sums_explode(concrete.graph.as_graph_def())
    return Realized(concrete, result, pure=pure, in_order=in_order)


def _block_type(
    module: Module, zero: str | None, function: Function, clients: int, *, has_client_values: bool, sizes: int
) -> StructType:
    """Type of the result of a block; see `realize_block`."""
    if zero is None:
        return StructType([(None, StructType([(None, function.result_type)] * clients))])
    partial = module.function(zero).result_type
    bits: list[tuple[None, Type]] = [(None, TensorType("int64", (clients, sizes)))] if sizes else []
    if not has_client_values:
        return StructType([(None, partial), *bits])
    pair = function.result_type
    if not isinstance(pair, StructType):
        raise FedcoreError(f"@{function.name} keeps a value per client, so it returns <partial,kept>, not {pair}")
    return StructType([(None, partial), (None, StructType([(None, pair.types[1])] * clients)), *bits])
