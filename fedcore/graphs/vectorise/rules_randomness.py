"""Random numbers: each client draws from its own seed what it would draw alone."""

import tensorflow as tf

from fedcore.graphs.vectorise.call import Call
from fedcore.graphs.vectorise.lanes import Lane, NoRule, rule
from fedcore.graphs.vectorise.nodes import Node, emit
from fedcore.graphs.vectorise.rules_convolutions import client_by_client, own


@rule("StatelessRandomGetKeyCounter", "StatelessRandomGetAlg")
def _(call: Call, node: Node, seed: Lane) -> list[Lane]:
    return [Lane(t, True) for t in client_by_client(call, node, [own(call, seed)])]


@rule(
    *("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2"),
    *("StatelessRandomUniformIntV2", "StatelessRandomUniformFullIntV2"),
    *("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"),
    *("StatelessRandomUniformInt", "StatelessRandomUniformFullInt"),
)
def _(call: Call, node: Node, shape: Lane, *operands: Lane) -> Lane:
    """The leading rows of a padded batch are what the batch alone would draw."""
    known = call.known(shape)
    if known is None:
        raise NoRule(node.op, "a shape is not known")
    axis, times = call.batch_axis(node, known)
    if axis not in (None, 0):
        raise NoRule(node.op, "the batch is not the leading axis")
    sizes = tf.constant(known.values[0])
    if not any(x.stacked for x in operands):
        (tensor,) = emit(node.op, [sizes, *(call.tensor(x) for x in operands)], node.attributes)
        return Lane(tensor, False, axis, times)
    (tensor,) = client_by_client(call, node, [sizes, *(own(call, x) for x in operands)])
    return Lane(tensor, True, axis, times)


@rule("StatelessMultinomial", "StatelessParameterizedTruncatedNormal", "StatelessShuffle")
def _(call: Call, node: Node, *operands: Lane) -> Lane:
    if any(x.ragged is not None for x in operands):
        raise NoRule(node.op, "a padded batch would be drawn from")
    (tensor,) = client_by_client(call, node, [own(call, x) for x in operands])
    return Lane(tensor, True)
