"""A model as pure functions over weights and batches: what the algorithms are written on."""

from collections.abc import Callable

import attrs

from fedcore.types import Type


@attrs.frozen
class BatchOutput:
    """What one forward pass gives: `<loss=float32,predictions=…,num_examples=int64>`; the loss is the batch's mean."""

    loss: object
    predictions: object
    num_examples: object


@attrs.frozen
class FunctionalModel:
    """A model without variables. All functions take and return tensors, inside a graph.

    Args:
        initial_weights: () -> ModelWeights.
        forward_pass: (ModelWeights, batch, training) -> (BatchOutput, new non-trainable weights).
        initial_metrics: () -> the metrics' state, a dict of tuples.
        update_metrics: (state, batch, BatchOutput) -> state.
        finalize_metrics: state -> a dict of scalars.
        batch_type: the type of a batch.
    """

    initial_weights: Callable
    forward_pass: Callable
    initial_metrics: Callable
    update_metrics: Callable
    finalize_metrics: Callable
    batch_type: Type
