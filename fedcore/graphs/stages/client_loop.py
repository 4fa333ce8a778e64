"""A block of clients as one graph with a loop over clients; several iterations run at once.

The fold's partial is the loop's variable, so clients are folded in order, and no more than `parallel` of them are in
memory. An iteration waits for the partial only where the fold reads it; the training before that overlaps with other
clients'.
"""

from collections.abc import Sequence

import tensorflow as tf

from fedcore.graphs.capture.graph_import import call_leaves
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.graphdef.analysis.side_effects import is_stateful
from fedcore.graphs.graphdef.form.operations import operations_of_graphs
from fedcore.graphs.sequences.layout import GraphCall, Layout
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.stages.kernels import interpreter
from fedcore.graphs.stages.onednn import with_kernels_of
from fedcore.graphs.stages.realize import Realized, stage_function
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.purity import effectful_symbols, stateful_symbols
from fedcore.types import TensorType, leaves, tensor_leaves

_CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})


def client_specs(stage: ClientStage, layouts: Sequence[Layout | None]) -> list[list[tf.TensorSpec]]:
    """For each leaf of the clients' arguments the specs of the tensors that `pack_for_loop` returns for it.

    Args:
        layouts: for each leaf the layout of its sequence; None for a tensor.
    """
    specs = []
    for leaf, layout in zip(stage.client_leaves, layouts, strict=True):
        if layout is None:
            (tensor_spec,) = [spec(t) for t in tensor_leaves(leaf)]
            specs.append([tf.TensorSpec([None, *tensor_spec.shape], tensor_spec.dtype)])
        else:
            specs.append([*layout.specs(), tf.TensorSpec([None], tf.int64)])
    return specs


def client_arguments(
    stage: ClientStage,
    layouts: Sequence[Layout | None],
    leaf_tensors: Sequence[list],
    k: tf.Tensor | Value,
    call: GraphCall = call_leaves,
) -> list:
    """The arguments of client k, whose sequences read the columns of all clients.

    Args:
        layouts: for each leaf the layout of its sequence; None for a tensor.
        leaf_tensors: for each leaf the tensors of `client_specs`.
        call: applies the graphs of the sequences' maps.
    """
    values: list = []
    for layout, tensors in zip(layouts, leaf_tensors, strict=True):
        if layout is None:
            values.append(ops.gather(tensors[0], k))
            continue
        *sequence_tensors, splits = tensors
        columns = sequence_tensors[: len(layout.column_specs())]
        orders = [t[splits[k] : splits[k + 1]] for t in sequence_tensors[len(columns) :]]
        values.append(layout.open([*columns, *orders], call))
    return [unflatten([values.pop(0) for _ in leaves(p.type)], p.type) for p in stage.client_parameters]


def is_loopable(stage: ClientStage) -> bool:
    """Whether a graph can loop over a stage's clients.

    It can if all of these hold:
      - The tensors of the clients have static shapes, and none holds strings. Sequences may have any length.
      - The values kept of each client are tensors of static shapes.
      - No graph has variables, which the iterations would share, or prints, which would come in any order.
    """
    tensors = [leaf for leaf in stage.client_leaves if isinstance(leaf, TensorType)]
    kept_leaves = [] if stage.kept_type is None else [leaf for _, leaf in leaves(stage.kept_type)]
    if not all(isinstance(leaf, TensorType) for leaf in kept_leaves):
        return False
    stacked = [*tensors, *(leaf for leaf in kept_leaves if isinstance(leaf, TensorType))]
    have_static_shapes = all(t.shape is not None and None not in t.shape for t in stacked)
    return have_static_shapes and all(t.dtype.name != "str" for t in tensors) and _has_no_effects_but_checks(stage)


def _has_no_effects_but_checks(stage: ClientStage) -> bool:
    """Whether the only operations of the stage with effects or state are checks, which do nothing but fail."""
    if stage.name not in effectful_symbols(stage.module) | stateful_symbols(stage.module):
        return True
    return all(op in _CHECKS for op in operations_of_graphs(stage.module) if is_stateful(op))


def realize_loop(stage: ClientStage, layouts: Sequence[Layout | None], *, parallel: int) -> Realized:
    """The function of a block: (broadcasts, seeds int64 [clients], tensors of clients) -> <partial, kept, bits, <>>.

    The tensors of the clients are those of `pack_for_loop`.

    Args:
        layouts: for each leaf of a client's arguments the layout of its sequence; None for a tensor.
        parallel: clients that are computed at once.
    """
    specs = client_specs(stage, layouts)
    shapes = [tf.TensorShape(t.shape) for t in tensor_leaves(stage.partial_type)]
    run = interpreter(stage.module, xla=stage.is_compiled)
    kept_types = () if stage.kept_type is None else tuple(tensor_leaves(stage.kept_type))
    type_ = stage.stacked_result_type(None)

    def body(*tensors: tf.Tensor) -> list[tf.Tensor]:
        """The leaves of the partial of all clients, then the kept values and the bits, stacked over the clients."""
        arguments = list(tensors)
        broadcasts, seeds = stage.unpack_broadcasts(arguments), arguments.pop(0)
        leaf_tensors = [[arguments.pop(0) for _ in leaf] for leaf in specs]
        count = tf.size(seeds)

        def fold(
            k: tf.Tensor, partial: list[tf.Tensor], arrays: list[tf.TensorArray]
        ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.TensorArray]]:
            """An iteration: adds client k to the partial, and writes its kept values and bits to the arrays."""
            client = client_arguments(stage, layouts, leaf_tensors, k)
            old_partial = unflatten(list(partial), stage.partial_type)
            new_partial, kept_value, bits = stage.run_client(run, old_partial, [*broadcasts, *client], seeds[k])
            results = [*([] if kept_value is None else flatten(kept_value)), *([tf.stack(bits)] if bits else [])]
            written = [array.write(k, value) for array, value in zip(arrays, results, strict=True)]
            return k + 1, _with_shapes([] if new_partial is None else flatten(new_partial), shapes), written

        zero = [] if stage.zero is None else flatten(run.run(stage.module.function(stage.zero), *broadcasts))
        zero = [_filled_at_run_time(t, count) for t in zero]
        arrays = [_array(spec(t).dtype, count) for t in kept_types]
        arrays += [_array(tf.int64, count)] if stage.measured_count else []
        _, partial, arrays = tf.while_loop(
            lambda k, *_: k < count,
            fold,
            (tf.constant(0), _with_shapes(zero, shapes), arrays),
            shape_invariants=(tf.TensorShape([]), shapes, [tf.TensorShape([]) for _ in arrays]),
            parallel_iterations=parallel,
        )
        return [tf.identity(t) for t in (*partial, *(array.stack() for array in arrays))]

    signature = [*stage.shared_specs, tf.TensorSpec([None], tf.int64), *(s for leaf in specs for s in leaf)]
    function = stage_function(stage.module, stage.name, body, signature)
    return Realized(with_kernels_of(stage.function, function), type_, stacks_kept=True)


def _filled_at_run_time(tensor: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """The tensor; if it is a Fill, one whose shape TensorFlow does not know in advance.

    Of a known shape, it would become a constant that is alive between calls, which the first sum could not overwrite.
    So the shape gets an addend that is 0 in each call: min(count, 0).

    Args:
        count: int32, not negative.
    """
    if not isinstance(tensor, tf.Tensor) or tensor.op.type != "Fill":
        return tensor
    shape, value = tensor.op.inputs
    return tf.ensure_shape(tf.fill(shape + tf.cast(tf.minimum(count, 0), shape.dtype), value), tensor.shape)


def _array(dtype: tf.DType, count: tf.Tensor) -> tf.TensorArray:
    return tf.TensorArray(dtype, count, infer_shape=False, element_shape=None)


def _with_shapes(tensors: list, shapes: list[tf.TensorShape]) -> list[tf.Tensor]:
    converted = [tf.convert_to_tensor(t) for t in tensors]
    for tensor, shape in zip(converted, shapes, strict=True):
        tensor.set_shape(shape)
    return converted
