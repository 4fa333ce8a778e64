"""Stages of a plan as TensorFlow functions: one for a stage, a data layout, and a number of clients."""

from collections.abc import Sequence as SequenceOf

import attrs
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.capture.graph_import import scope
from fedcore.graphs.graphdef.sum_terms import sums_explode
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.sequences.sequence_results import result_tensors, result_value
from fedcore.graphs.stages.kernels import interpreter
from fedcore.graphs.tensors.cancellation import Cancellation
from fedcore.graphs.tensors.sizes import measured_bits, unsized
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.module import Function, Module
from fedcore.ir.purity import pure_symbols, seeded_symbols
from fedcore.types import StructType, TensorType, Type, leaves, tensor_leaves

Layouts = tuple[Layout | None, ...]
"""For each leaf of a value: how its sequence is laid out, or None where it is a tensor."""


@attrs.frozen
class Realized:
    """A compiled function over flat tensors.

    Args:
        call: takes the flat tensors of all arguments; returns flat tensors.
        pure: the same tensors give the same result, whatever the seed, and nothing else happens.
        optimised: made of optimised graphs, and so large that optimising it again would take a second.
        in_order: TensorFlow is not to regroup the sums, since they add clients one after the other, or since the
            regrouped ones would explode.
    """

    call: tf.types.experimental.ConcreteFunction
    result: Type
    pure: bool = False
    optimised: bool = False
    in_order: bool = False

    def __call__(self, tensors: SequenceOf, cancellation: Cancellation) -> tuple:
        out = cancellation.call(self.call, tensors, optimised=self.optimised, in_order=self.in_order)
        return result_value(list(out), self.result)

    def get_ready(self, tensors: SequenceOf) -> None:
        """Has TensorFlow compile the function for the device of this scope, without running it."""
        cancelled = Cancellation()
        cancelled.cancel()
        try:
            self(tensors, cancelled)
        except tf.errors.CancelledError:
            pass


def pack(value, seed: int, first: int = 0) -> tuple[Layouts, list]:
    """A nested tuple's layouts and its flat tensors: a sequence gives its columns and the rows that it draws.

    Args:
        first: the number of its first leaf among those of the call's arguments. A sequence draws by its own, so it
            draws the same in every stage, strategy and runtime.
    """
    layouts: list[Layout | None] = []
    tensors: list = []
    for position, leaf in enumerate(flatten(value)):
        if not isinstance(leaf, Columns):
            layouts.append(None)
            tensors.append(leaf)
            continue
        drawn = leaf.read(seed, first + position)
        layouts.append(leaf.layout)
        tensors.extend([*leaf.arrays, drawn.rows, *([drawn.sizes] if leaf.layout.batched else [])])
    return tuple(layouts), tensors


def _specs(type_: Type, layouts: Layouts) -> list[tf.TensorSpec]:
    found = []
    for (_, leaf), layout in zip(leaves(type_), layouts, strict=True):
        found.extend([spec(t) for t in tensor_leaves(leaf)] if layout is None else layout.specs())
    return found


def _unpack(type_: Type, layouts: Layouts, tensors: list):
    """The nested tuple inside the graph; takes its tensors from the front of the list."""
    values = []
    for layout in layouts:
        if layout is None:
            values.append(tensors.pop(0))
            continue
        count = len(layout.specs())
        given, tensors[:count] = tensors[:count], []
        values.append(layout.open(given))
    return unflatten(values, type_)


def profiler_name(module: Module, stage: str) -> str:
    """What TensorFlow's profiler shows for a stage of a computation."""
    return scope(f"{module.main.name}_{stage}")


def realize_stage(module: Module, name: str, layouts: SequenceOf[Layouts]) -> Realized:
    """A server stage, or the joining of two partials: takes a seed (int64), then the arguments' tensors."""
    function = module.function(name)
    run = interpreter(module)
    types = [p.type for p in function.parameters]
    specs = [s for t, given in zip(types, layouts, strict=True) for s in _specs(t, given)]

    def body(seed, *tensors):
        rest = list(tensors)
        arguments = [_unpack(t, given, rest) for t, given in zip(types, layouts, strict=True)]
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
    keeps: bool,
    continues: bool = False,
    measured: SequenceOf[str] = (),
) -> Realized:
    """A block of clients: starts from `zero`, folds the clients in order, returns the partial.

    Takes one seed a client (an int64 vector), the tensors of the broadcasts, then those of each client.

    Args:
        zero: the stage that makes the first partial; None where nothing is folded.
        clients: for each client of the block the layouts of its arguments.
        keeps: the stage also returns a value per client.
        continues: it starts from a partial, whose tensors come last, and not from `zero`.
        measured: names of values in the stage whose sizes are wanted.
    Returns:
        A function whose result is <partial,kept of each client,bits>, without what the stage does not give; `bits`
        holds, client by client, those of each measured leaf of an open size.
    """
    function = module.function(stage)
    first = 0 if zero is None else 1
    shared = [p.type for p in function.parameters[first : first + broadcasts]]
    own = [p.type for p in function.parameters[first + broadcasts :]]
    specs = [spec(t) for type_ in shared for t in tensor_leaves(type_)]
    for layouts in clients:
        specs.extend(s for t, given in zip(own, layouts, strict=True) for s in _specs(t, given))
    before = module.function(zero).result_type if zero is not None and continues else None
    if before is not None:
        specs.extend(_specs(before, (None,) * len(leaves(before))))
    run = interpreter(module, xla=bool(function.attributes.get("xla")))
    sizes = sum(len(unsized(function.types()[name])) for name in measured)
    type_ = _block_type(module, zero, function, len(clients), keeps=keeps, sizes=sizes)

    def body(seeds, *tensors):
        rest = list(tensors)
        common = [_unpack(t, (None,) * len(leaves(t)), rest) for t in shared]
        given_to = [[_unpack(t, given, rest) for t, given in zip(own, layouts, strict=True)] for layouts in clients]
        if before is not None:
            partial = _unpack(before, (None,) * len(leaves(before)), rest)
        else:
            partial = None if zero is None else run.run(module.function(zero), *common)
        kept, bits = [], []
        for k, mine in enumerate(given_to):
            given = [*([] if zero is None else [partial]), *common, *mine]
            known = dict(zip([p.name for p in function.parameters], given, strict=True))
            types = {p.name: p.type for p in function.parameters}
            run.operations(function.operations, known, types, tensor_seed(seeds[k]))
            out = known[function.result.name]
            bits.append([size for name in measured for size in measured_bits(known[name], types[name])])
            if zero is None:
                kept.append(out)
            elif keeps:
                partial = out[0]
                kept.append(out[1])
            else:
                partial = out
        result = [
            *([] if zero is None else [partial]),
            *([tuple(kept)] if keeps or zero is None else []),
            *([tf.reshape(tf.convert_to_tensor(bits, tf.int64), [len(clients), sizes])] if measured else []),
        ]
        return [tf.identity(t) for t in result_tensors(tuple(result), type_)]

    body.__name__ = profiler_name(module, stage)
    traced = tf.function(body, autograph=False, input_signature=[tf.TensorSpec([len(clients)], tf.int64), *specs])
    return _realized(traced, type_, in_order=len(clients) > 1)


def _realized(traced, result: Type, *, pure: bool = False, in_order: bool = False) -> Realized:
    concrete = traced.get_concrete_function()
    in_order = in_order or sums_explode(concrete.graph.as_graph_def())
    return Realized(concrete, result, pure=pure, in_order=in_order)


def _block_type(
    module: Module, zero: str | None, function: Function, clients: int, *, keeps: bool, sizes: int
) -> StructType:
    if zero is None:
        return StructType([(None, StructType([(None, function.result_type)] * clients))])
    partial = module.function(zero).result_type
    bits: list[tuple[None, Type]] = [(None, TensorType("int64", (clients, sizes)))] if sizes else []
    if not keeps:
        return StructType([(None, partial), *bits])
    pair = function.result_type
    if not isinstance(pair, StructType):
        raise FedcoreError(f"@{function.name} keeps a value per client, so it returns <partial,kept>, not {pair}")
    return StructType([(None, partial), (None, StructType([(None, pair.types[1])] * clients)), *bits])
