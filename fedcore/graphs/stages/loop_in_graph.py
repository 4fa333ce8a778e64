"""A block of clients as one graph with a loop over clients; several iterations run at once.

The fold's partial is the loop's variable, so clients are folded in order, with the bits of `realize_block`. An
iteration waits for the partial only where the fold reads it; the training before that overlaps with other clients'.
"""

from collections.abc import Sequence

import tensorflow as tf

from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.stages.kernels import interpreter
from fedcore.graphs.stages.onednn import with_kernels_of
from fedcore.graphs.stages.realize import Realized, profiler_name
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.module import Module
from fedcore.types import StructType, TensorType, Type, leaves, tensor_leaves


def loop_specs(types: Sequence[Type], layouts: Sequence[Layout | None]) -> list[list[tf.TensorSpec]]:
    """For each leaf of the clients' arguments the specs of the tensors that `pack_for_loop` returns."""
    flat = [leaf for t in types for _, leaf in leaves(t)]
    specs = []
    for leaf, layout in zip(flat, layouts, strict=True):
        if layout is None:
            (of_tensor,) = [spec(t) for t in tensor_leaves(leaf)]
            specs.append([tf.TensorSpec([None, *of_tensor.shape], of_tensor.dtype)])
        else:
            specs.append([*layout.specs(), tf.TensorSpec([None], tf.int64)])
    return specs


def realize_loop(
    module: Module, zero: str, stage: str, broadcasts: int, layouts: Sequence[Layout | None], *, parallel: int
) -> Realized:
    """The function of a block: (seeds int64 [clients], broadcasts, tensors of `pack_for_loop`) -> <partial>.

    Args:
        zero: name of the function that makes the initial partial.
        broadcasts: number of the stage's parameters that all clients share.
        layouts: for each leaf of a client's arguments the layout of its sequence; None for a tensor.
        parallel: clients that are computed at once.
    """
    function = module.function(stage)
    broadcast_types = [p.type for p in function.parameters[1 : 1 + broadcasts]]
    client_types = [p.type for p in function.parameters[1 + broadcasts :]]
    shared_specs = [spec(t) for type_ in broadcast_types for t in tensor_leaves(type_)]
    of_leaves = loop_specs(client_types, layouts)
    partial_type = module.function(zero).result_type
    shapes = [tf.TensorShape(t.shape) for t in tensor_leaves(partial_type)]
    run = interpreter(module, xla=bool(function.attributes.get("xla")))

    def body(seeds, *tensors):
        rest = list(tensors)
        broadcast = [unflatten([rest.pop(0) for _ in leaves(t)], t) for t in broadcast_types]
        groups = [[rest.pop(0) for _ in of_leaf] for of_leaf in of_leaves]

        def fold(k, *partial):
            values = [of_client(k, layout, group) for layout, group in zip(layouts, groups, strict=True)]
            client = [unflatten([values.pop(0) for _ in leaves(t)], t) for t in client_types]
            before = unflatten(list(partial), partial_type)
            after = run.run(function, before, *broadcast, *client, seed=tensor_seed(seeds[k]))
            return k + 1, *_with_shapes(flatten(after), shapes)

        start = _with_shapes(flatten(run.run(module.function(zero), *broadcast)), shapes)
        _, *partial = tf.while_loop(
            lambda k, *_: k < tf.size(seeds, tf.int64),
            fold,
            (tf.constant(0, tf.int64), *start),
            shape_invariants=(tf.TensorShape([]), *shapes),
            parallel_iterations=parallel,
        )
        return [tf.identity(t) for t in partial]

    body.__name__ = profiler_name(module, stage)
    specs = [tf.TensorSpec([None], tf.int64), *shared_specs, *(s for of_leaf in of_leaves for s in of_leaf)]
    traced = tf.function(body, autograph=False, input_signature=specs)
    call = with_kernels_of(function, traced.get_concrete_function())
    return Realized(call, StructType([(None, partial_type)]), in_order=True)


def is_loopable(module: Module, stage: str, broadcasts: int) -> bool:
    """Whether the tensors of a stage's clients have one size, so that they can be stacked."""
    types = [p.type for p in module.function(stage).parameters[1 + broadcasts :]]
    tensors = [leaf for t in types for _, leaf in leaves(t) if isinstance(leaf, TensorType)]
    return all(t.shape is not None and None not in t.shape and t.dtype.name != "str" for t in tensors)


def of_client(k: tf.Tensor, layout: Layout | None, tensors: list[tf.Tensor]):
    """Client k's tensor, or its sequence over the columns of all clients."""
    if layout is None:
        return tensors[0][k]
    *opened, splits = tensors
    columns = opened[: len(layout.column_specs())]
    of_client = [t[splits[k] : splits[k + 1]] for t in opened[len(columns) :]]
    return layout.open([*columns, *of_client])


def _with_shapes(tensors: list, shapes: list[tf.TensorShape]) -> list[tf.Tensor]:
    found = [tf.convert_to_tensor(t) for t in tensors]
    for tensor, shape in zip(found, shapes, strict=True):
        tensor.set_shape(shape)
    return found
