"""Export of a client's work to programs that need TensorFlow or LiteRT only, such as an app on a phone."""

import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from fedcore.computation import Computation
from fedcore.data.sequence_values import columns_of
from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.file_errors import as_os_errors
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.sequences.streams import Stream
from fedcore.graphs.stages.exported import ClientFunction, client_function
from fedcore.intrinsics.planned import split_operands
from fedcore.intrinsics.sent_values import Sent, sent_by
from fedcore.ir.module import Module, Operation, Ref, Symbol
from fedcore.types import SequenceType, Type, leaves
from fedcore.whole_files import write_whole

__all__ = ["save_client_work", "save_client_work_for_litert"]

INTERFACE = "interface.json"
"""File beside the SavedModel that names the inputs and outputs of its signatures, with their types."""


def save_client_work(computation: Computation, client: Any, path: str | os.PathLike) -> dict[str, Any]:
    """Saves a client's work as a SavedModel that needs TensorFlow only: no fedcore, and no code of the model.

    The work is the plan's client stage, so it holds the local training and the client's share of the aggregation (such
    as clipping) up to the values that the client sends. The SavedModel has the signatures:

        train          one client's work: named tensors -> named tensors, the values that cross to the server
        reading_order  (count, batch_size, epochs: int64) -> the rows and sizes of batches in order, without a shuffle;
                       only for data in batches

    Types, for a stage (<B,C> -> S) of broadcasts B, client values C and sent values S:
        train  <seed=int64,B,C> -> S, leaf by leaf

    The inputs of `train` are the tensors that the server broadcasts; for each sequence its columns, `…_rows` (int64
    [batches,rows], the rows of each batch) and `…_sizes` (int64 [batches], the rows in use); and `seed` (int64). Where
    examples differ in shape, a column has all their values, and `…_shapes` and `…_starts` say where each one is.

    Args:
        computation: a computation with one client stage, such as `process.next`.
        client: the values that an example client holds: one, or a tuple of several. Of a dataset, the exported
            function keeps the element type, whether it is batched, and the maps; not the examples, and neither the
            batch size nor the order, which are inputs.
        path: directory of the SavedModel.
    Returns:
        The interface, which also stands in `interface.json`: the shape and dtype of each input and output.
    Raises:
        FedcoreError: the computation has no client stage, or several.
        TypeMismatch: the client's value does not fit the computation, or `computation` is none.
    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as path:
        ...     interface = fc.export.save_client_work(process.next, client_a, path)
        >>> sorted(interface["outputs"])[-1]
        'weight'
    """
    function, batched = _export_function(computation, client)
    module = tf.Module()
    module.train = function.call
    signatures: dict[str, Any] = {"train": function.call.get_concrete_function()}
    if batched:
        module.reading_order = _reading_order
        signatures["reading_order"] = _reading_order.get_concrete_function()
    with as_os_errors(path):
        tf.saved_model.save(module, os.fspath(path), signatures=signatures)
    interface = {
        "inputs": {s.name: {"shape": s.shape.as_list(), "dtype": s.dtype.name} for s in function.inputs},
        "outputs": {name: {"type": str(type_)} for name, type_ in function.outputs.items()},
    }
    write_whole(Path(path) / INTERFACE, json.dumps(interface, indent=2) + "\n")
    return interface


def save_client_work_for_litert(computation: Computation, client: Any, path: str | os.PathLike) -> list[str]:
    """Saves a client's work as a LiteRT (TFLite) flat file with the signature `train` of `save_client_work`.

    Types: those of `save_client_work`.

    Args:
        computation, client: as for `save_client_work`.
        path: the file, such as `client.tflite`.
    Returns:
        Names of the operations that LiteRT lacks and runs by TensorFlow's kernels: an app needs the Flex delegate
        (SELECT_TF_OPS) for them. Gradients and random numbers are among them in most models.
    Raises:
        FedcoreError: the work cannot be converted, even with TensorFlow's kernels; the message names the reason.
    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as path:
        ...     flex = fc.export.save_client_work_for_litert(process.next, client_a, f"{path}/client.tflite")
        >>> "FlexBroadcastGradientArgs" in flex
        True
    """
    with tempfile.TemporaryDirectory() as directory:
        save_client_work(computation, client, directory)
        converter = tf.lite.TFLiteConverter.from_saved_model(directory, signature_keys=["train"])
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        try:
            data = converter.convert()
        except Exception as error:  # the converter raises classes of its own, and any of TensorFlow's
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise FedcoreError(f"LiteRT cannot run the client work of {computation.__name__}: {reason}") from None
    write_whole(path, data)
    return sorted({name.decode() for name in re.findall(rb"Flex[A-Z][A-Za-z0-9]+", data)})


def _export_function(computation: Computation, client: Any) -> tuple[ClientFunction, bool]:
    """The function of the computation's client stage, and whether it reads batches."""
    if not isinstance(computation, Computation):
        raise TypeMismatch(f"a computation is exported, such as process.next, not {brief(computation)}")
    module = computation.to_module("planned")
    op = _client_operation(module, computation.__name__)
    stage = module.function(_stage_of(op))
    types = module.main.types()
    operand_types = [types[o.name] for o in op.operands if isinstance(o, Ref)]
    broadcasts = split_operands(operand_types)
    first_operand = len(stage.parameters) - len(operand_types)  # a fold's partial comes before
    client_types = [p.type for p in stage.parameters[first_operand + broadcasts :]]
    layouts = _layouts(client_types, client)
    if op.kind == "fold":
        sent = sent_by(module, op)
    else:
        sent = {stage.result.name: Sent("result", stage.result_type)}
    function = client_function(module, stage, broadcasts, layouts, sent)
    return function, any(layout is not None and layout.batched for layout in layouts)


def _client_operation(module: Module, name: str) -> Operation:
    """The operation of a planned module that runs the client stage.

    Raises:
        FedcoreError: the computation `name` has no client stage, or several.
    """
    operations = [op for op in module.main.operations if op.kind in ("fold", "collect")]
    if len(operations) != 1:
        stages = ", ".join(f"@{_stage_of(op)}" for op in operations) or "none"
        raise FedcoreError(
            f"a computation with one client stage can be exported; {name} has {len(operations)}: {stages}"
        )
    return operations[0]


def _stage_of(op: Operation) -> str:
    """Name of the client stage of a fold (whose operands begin with the zero and the stage) or of a collect."""
    return [o.name for o in op.operands if isinstance(o, Symbol)][-1]


def _layouts(types: Sequence[Type], client: Any) -> list[Layout | None]:
    """For each leaf of the client's values the layout of the example's sequence; None for a tensor.

    Args:
        types: of the values that a client holds.
        client: the example, as for `save_client_work`.
    """
    values = client if isinstance(client, tuple) else (client,)
    if len(values) != len(types):
        raise TypeMismatch(f"the clients hold {len(types)} values, and the example client has {len(values)}")
    layouts: list[Layout | None] = []
    for type_, value in zip(types, values, strict=True):
        for path, leaf in leaves(type_):
            if not isinstance(leaf, SequenceType):
                layouts.append(None)
            elif path:
                raise FedcoreError(f"the client's value holds a sequence in a struct ({path}); that is not exported")
            else:
                sequence = columns_of(value, leaf, "client").draw(0)
                layouts.append((sequence.read() if isinstance(sequence, Stream) else sequence).layout)
    return layouts


@tf.function(
    autograph=False, input_signature=[tf.TensorSpec([], tf.int64, n) for n in ("count", "batch_size", "epochs")]
)
def _reading_order(count: tf.Tensor, batch_size: tf.Tensor, epochs: tf.Tensor) -> dict[str, tf.Tensor]:
    """The rows of each batch of `repeat(epochs).batch(batch_size)`, padded with row 0, and the sizes of the batches."""
    total = count * epochs
    batches = (total + batch_size - 1) // batch_size
    numbers = tf.range(batches * batch_size)
    rows = tf.where(numbers < total, numbers % tf.maximum(count, 1), 0)
    sizes = tf.minimum(total - tf.range(batches) * batch_size, batch_size)
    return {"rows": tf.reshape(rows, [batches, batch_size]), "sizes": sizes}
