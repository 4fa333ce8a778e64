"""Random numbers: each client draws from its own seed what it would draw alone."""

import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, batching_rule
from fedcore.graphs.batched.batching_rules.convolutions import client_by_client, own
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Node, emit


@batching_rule("StatelessRandomGetKeyCounter", "StatelessRandomGetAlg")
def _(call: BatchedEvaluation, node: Node, seed: BatchedValue) -> list[BatchedValue]:
    return [BatchedValue(t, True) for t in client_by_client(call, node, [own(call, seed)])]


@batching_rule(
    *("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2"),
    *("StatelessRandomUniformIntV2", "StatelessRandomUniformFullIntV2"),
    *("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"),
    *("StatelessRandomUniformInt", "StatelessRandomUniformFullInt"),
)
def _(call: BatchedEvaluation, node: Node, shape: BatchedValue, *operands: BatchedValue) -> BatchedValue:
    """The leading rows of a padded batch are what the batch alone would draw."""
    known = call.known(shape)
    if known is None:
        raise NoBatchingRule(node.op, "a shape is not known")
    axis, times = call.batch_axis(node, known)
    if axis not in (None, 0):
        raise NoBatchingRule(node.op, "the batch is not the leading axis")
    sizes = tf.constant(known.values[0])
    if not any(x.stacked for x in operands):
        (tensor,) = emit(node.op, [sizes, *(call.tensor(x) for x in operands)], node.attributes)
        return BatchedValue(tensor, False, axis, times)
    (tensor,) = client_by_client(call, node, [sizes, *(own(call, x) for x in operands)])
    return BatchedValue(tensor, True, axis, times)


@batching_rule("StatelessMultinomial", "StatelessParameterizedTruncatedNormal", "StatelessShuffle")
def _(call: BatchedEvaluation, node: Node, *operands: BatchedValue) -> BatchedValue:
    if any(x.padded_axis is not None for x in operands):
        raise NoBatchingRule(node.op, "a padded batch would be drawn from")
    (tensor,) = client_by_client(call, node, [own(call, x) for x in operands])
    return BatchedValue(tensor, True)
