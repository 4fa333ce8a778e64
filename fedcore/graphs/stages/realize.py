"""Realizes stages of a plan: one TensorFlow function for a server stage, or for one client of a client stage.

In:  a function of the planned module, and the layout of each of its arguments.
Out: a `Realized` over flat tensors.

Example: a client stage `<partial, weights, batches> -> partial`, with weights float32[7] and batches of rows
float32[7]. The function of a client takes the weights [7]; its seed; its column [n, 7], row numbers [steps, rows] and
batch sizes [steps]. It returns the leaves of the partial.

Executables of stages without effects have no automatic control dependencies, which take a seventh of a trace.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import attrs
import tensorflow as tf

from fedcore.collection_pause import without_collection
from fedcore.graphs import private_api
from fedcore.graphs.capture.graph_import import scope
from fedcore.graphs.sequences.columns import Columns, draw_values
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.sequences.sequence_results import result_tensors, result_value
from fedcore.graphs.sequences.streams import Stream, is_copied, is_large
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.stages.kernels import interpreter
from fedcore.graphs.stages.onednn import TracedFunction, with_kernels_of
from fedcore.graphs.tensors.cancellation import Cancellation
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.ir.module import Module
from fedcore.ir.purity import effectful_symbols, pure_symbols, seeded_symbols, stateful_symbols
from fedcore.types import SequenceType, Type, leaves, tensor_leaves

Layouts = tuple[Layout | None, ...]
"""For each leaf of a value the layout of its sequence; None for a tensor."""


@attrs.frozen
class Realized:
    """A compiled function over flat tensors.

    Args:
        call: takes the flat tensors of all arguments and returns flat tensors.
        result: type of the result.
        pure: the result depends on the tensors only, not on the seed, and there are no side effects.
        assumes_finite: numbers of the partial's leaves. If one of them is not finite, the function may have taken for
            finite what is not, and its result does not count.
        from_partial: the function adds one client to a partial, which it takes behind the client's tensors.
        joined_sizes: of `StageFold.next_client`: the columns of the factors that it takes and returns; None for others.
        products: makes the last operand; None if any tensor will do, or there is no such operand.
        unchanged: (number of a result leaf, number of the argument tensor that it is), for a stage without sequences in
            its result.
        stacks_kept: the kept values are tensors [clients, …], see `ClientStage.stacked_result_type`.
    """

    call: TracedFunction
    result: Type
    pure: bool = False
    assumes_finite: tuple[int, ...] = ()
    from_partial: bool = False
    joined_sizes: tuple[int, ...] | None = None
    products: "Products | None" = None
    unchanged: tuple[tuple[int, int], ...] = ()
    stacks_kept: bool = False

    @property
    def name(self) -> str | bytes:
        """Its name in TensorFlow."""
        return self.call.name

    def __call__(self, tensors: SequenceOf, cancellation: Cancellation) -> tuple:
        out = cancellation.call(self.call, tensors)
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
    """Products that an executable takes, which depend on the clients' data only.

    Args:
        function: computes it.
        operands: numbers of its operands among the clients' tensors.
    """

    function: Realized
    operands: tuple[int, ...]


def pack(value: Nested, seed: int, first: int = 0, *, streams: bool = False) -> tuple[Layouts, list]:
    """Layouts and flat tensors of a nested tuple; a sequence becomes its columns, row numbers and batch sizes.

    Args:
        streams: large sequences that are not in TensorFlow's memory are read by the graph while it runs.
        first: number of the value's first leaf among the leaves of the call's arguments. The rows of a shuffled
            sequence depend on the number of its leaf, so they are the same in every stage, strategy and runtime.
    """
    layouts: list[Layout | None] = []
    tensors: list = []
    for position, leaf in enumerate(flatten(value)):
        leaf = draw_values(leaf, seed, first + position)
        if isinstance(leaf, Stream) and not streams:
            leaf = leaf.read()
        elif streams and isinstance(leaf, Columns) and is_large(leaf) and is_copied(leaf):
            leaf = Stream.from_columns(leaf, leaf.read(seed, first + position))
        if isinstance(leaf, Stream):
            layouts.append(leaf.layout)
            tensors.extend(leaf.tensors())
            continue
        if not isinstance(leaf, Columns):
            layouts.append(None)
            tensors.append(leaf)
            continue
        rows = leaf.read(seed, first + position)
        layouts.append(leaf.layout)
        tensors.extend([*leaf.arrays, rows.rows, *([rows.sizes] if leaf.layout.batched else [])])
    return tuple(layouts), tensors


def _specs(type_: Type, layouts: Layouts) -> list[tf.TensorSpec]:
    """Specs of the flat tensors that `pack` makes of a value of the type."""
    specs: list[tf.TensorSpec] = []
    for (_, leaf), layout in zip(leaves(type_), layouts, strict=True):
        specs.extend([spec(t) for t in tensor_leaves(leaf)] if layout is None else layout.specs())
    return specs


def unpack(type_: Type, layouts: Layouts, tensors: list) -> Nested:
    """The nested tuple of a value in the graph, made of the first tensors of a list, which are removed from it."""
    values = []
    for layout in layouts:
        if layout is None:
            values.append(tensors.pop(0))
            continue
        count = len(layout.specs())
        sequence_tensors, tensors[:count] = tensors[:count], []
        values.append(layout.open(sequence_tensors))
    return unflatten(values, type_)


def profiler_name(module: Module, stage: str) -> str:
    """Name of a stage in TensorFlow's profiler."""
    return scope(f"{module.main.name}_{stage}")


def realize_stage(module: Module, name: str, layouts: SequenceOf[Layouts]) -> Realized:
    """The function of a server stage or of a merge: (seed int64, tensors of the arguments) -> result.

    Args:
        layouts: for each argument the layouts of its leaves.
    """
    function = module.function(name)
    run = interpreter(module)
    types = [p.type for p in function.parameters]
    specs = [s for t, type_layouts in zip(types, layouts, strict=True) for s in _specs(t, type_layouts)]

    def body(seed: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
        operands = list(tensors)
        arguments = [unpack(t, type_layouts, operands) for t, type_layouts in zip(types, layouts, strict=True)]
        out = run.run(function, *arguments, seed=tensor_seed(seed))
        return [tf.identity(t) for t in result_tensors(out, function.result_type)]

    call = stage_function(module, name, body, [tf.TensorSpec([], tf.int64), *specs])
    pure = name in pure_symbols(module) and name not in seeded_symbols(module)
    realized = Realized(call, function.result_type, pure=pure)
    if any(isinstance(leaf, SequenceType) for _, leaf in leaves(function.result_type)):
        return realized
    return attrs.evolve(realized, unchanged=_unchanged_results(call))


def _unchanged_results(function: tf.types.experimental.ConcreteFunction) -> tuple[tuple[int, int], ...]:
    """(number of a result, number of the operand behind the seed that it is), of each result that is an operand."""
    operands = {tensor.ref(): number for number, tensor in enumerate(function.inputs[1:])}
    sources = [_source(result).ref() for result in function.outputs]
    return tuple((number, operands[source]) for number, source in enumerate(sources) if source in operands)


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor that `Identity` operations give on."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def realize_client(stage: ClientStage, layouts: SequenceOf[Layouts], *, from_partial: bool = False) -> Realized:
    """The function of one client: (broadcasts, seeds int64 [1], tensors of the client) -> <partial, kept, bits, <>>.

    Args:
        layouts: for each of the client's arguments the layouts of its leaves.
        from_partial: the client is added to a partial, which the last operands are, and not to that of no clients.
    """
    run = interpreter(stage.module, xla=stage.is_compiled)
    client_types = [p.type for p in stage.client_parameters]
    specs = [*stage.shared_specs, tf.TensorSpec([1], tf.int64)]
    specs += [s for t, type_layouts in zip(client_types, layouts, strict=True) for s in _specs(t, type_layouts)]
    type_ = stage.result_type(1)

    def body(*tensors: tf.Tensor) -> list[tf.Tensor]:
        operands = list(tensors)
        broadcasts = stage.unpack_broadcasts(operands)
        seed = operands.pop(0)[0]
        client = [unpack(t, type_layouts, operands) for t, type_layouts in zip(client_types, layouts, strict=True)]
        if from_partial:
            partial = unflatten(operands, stage.partial_type)
        else:
            partial = () if stage.zero is None else run.run(stage.module.function(stage.zero), *broadcasts)
        partial, kept_value, bits = stage.run_client(run, partial, [*broadcasts, *client], seed)
        results = (
            () if partial is None else partial,
            () if stage.kept_type is None else (kept_value,),
            tf.convert_to_tensor([bits], tf.int64) if bits else (),
            (),
        )
        return [tf.identity(t) for t in result_tensors(results, type_)]

    if from_partial:
        specs += map(spec, tensor_leaves(stage.partial_type))
    streams = any(layout is not None and layout.streamed for leaf in layouts for layout in leaf)
    function = stage_function(stage.module, stage.name, body, specs, is_ordered=streams)
    return Realized(with_kernels_of(stage.function, function), type_, from_partial=from_partial)


def stage_function(
    module: Module, stage: str, body: Callable, specs: SequenceOf[tf.TensorSpec], *, is_ordered: bool = False
) -> tf.types.experimental.ConcreteFunction:
    """The TensorFlow function of a stage.

    Effects keep their order by automatic control dependencies, for which TensorFlow looks at each operation, a seventh
    of the time of a trace; other stages have none.

    Args:
        is_ordered: the body has effects that the stage has not, such as iterators of streams.
    """
    name = profiler_name(module, stage)
    with private_api.quick_operations(shares_constants=True), without_collection():
        if not is_ordered and stage not in effectful_symbols(module) | stateful_symbols(module):
            return private_api.unordered_function(body, specs, name=name)
        body.__name__ = name
        return tf.function(body, autograph=False, input_signature=specs).get_concrete_function()
