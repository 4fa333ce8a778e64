"""Stateless random numbers: emitted once for each client, so that a client has the numbers that it has alone.

Words: see `batched_value`.
"""

from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, batching_rule
from fedcore.graphs.batched.batching_rules.convolutions import per_client, unrolled_over_clients
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node
from fedcore.graphs.graphdef.form.checked_operations import emit


@batching_rule("StatelessRandomGetKeyCounter")
def random_state_rule(evaluation: BatchedEvaluation, node: Node, seed: BatchedValue) -> list[BatchedValue]:
    """The key and the counter that follow from each client's seed."""
    return [BatchedValue(t, True) for t in unrolled_over_clients(evaluation, node, [per_client(evaluation, seed)])]


@batching_rule(
    *("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2"),
    *("StatelessRandomUniformIntV2", "StatelessRandomUniformFullIntV2"),
    *("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"),
    *("StatelessRandomUniformInt", "StatelessRandomUniformFullInt"),
)
def random_numbers_rule(
    evaluation: BatchedEvaluation, node: Node, shape: BatchedValue, *operands: BatchedValue
) -> BatchedValue:
    """Random numbers of each client's seed; one tensor for all clients if they share the seed.

    A random number depends only on the seed and its position, so padding a batch along the leading axis does not change
    the numbers of its rows.

    Raises:
        NoBatchingRule: the shape depends on a client's data, or the batch is not the leading axis.
    """
    known_shape = evaluation.known_value(shape)
    if known_shape is None:
        raise NoBatchingRule(node.op, "its shape is not known")
    axis, entries_per_row = evaluation.batch_axis(node, known_shape)
    if axis not in (None, 0):
        raise NoBatchingRule(node.op, "the batch is not the leading axis")
    if any(x.padded_axis is not None for x in operands):
        raise NoBatchingRule(node.op, "its seed or its bounds are a batch")
    sizes = ops.constant(known_shape.at_padded_size)
    if not any(x.batched for x in operands):
        (tensor,) = emit(node.op, [sizes, *(evaluation.tensor(x) for x in operands)], node.attributes)
        return BatchedValue(tensor, False, axis, entries_per_row)
    (tensor,) = unrolled_over_clients(evaluation, node, [sizes, *(per_client(evaluation, x) for x in operands)])
    return BatchedValue(tensor, True, axis, entries_per_row)


@batching_rule("StatelessMultinomial", "StatelessParameterizedTruncatedNormal", "StatelessShuffle")
def random_rule_without_batch(evaluation: BatchedEvaluation, node: Node, *operands: BatchedValue) -> BatchedValue:
    """Random numbers for each client, of an operand that is no batch: its padding would change the numbers.

    Raises:
        NoBatchingRule: an operand is a batch, or clients differ in an operand on whose values the kernel raises errors:
            the values of a lane without a client would fail the call.
    """
    if any(x.padded_axis is not None for x in operands):
        raise NoBatchingRule(node.op, "an operand has a batch axis")
    if node.op == "StatelessMultinomial" and operands[1].batched:
        raise NoBatchingRule(node.op, "its number of samples differs between clients")
    is_normal = node.op == "StatelessParameterizedTruncatedNormal"
    if is_normal and any(x.batched for i, x in enumerate(operands) if i != 1):  # operand 1 is the seed
        raise NoBatchingRule(node.op, "its shape or its parameters differ between clients")
    (tensor,) = unrolled_over_clients(evaluation, node, [per_client(evaluation, x) for x in operands])
    return BatchedValue(tensor, True)
