"""Whether a training step keeps the kernels of dense layers low-rank, and from which rank on: by shapes and operations.

In:  the graph of a step, (carry, batch) -> carry. Out: the rank that the plan names, 0 for none.

The analysis follows the operations that keep the form (`batching_rules/low_rank.py`) without building a graph: a kernel
is kept if its new value is a sum of multiples of kernels and of products of two batches over their rows.

Example: in a step of plain gradient descent, `w + (-rate) * (x^T g)` keeps w. In a step of Adam the change is divided by
a matrix, and no kernel is kept.
"""

from collections.abc import Sequence

import tensorflow as tf

from fedcore.graphs.graphdef.parsed_graph import Body, Node
from fedcore.types import TensorType, Type, tensor_leaves

MIN_ENTRIES = 1 << 14
"""Entries of the smallest kernel that is kept; for smaller ones, more operations cost more than less memory saves."""

_SCALAR_OPS = frozenset("Neg Mul Add AddV2 Sub RealDiv DivNoNan Cast Sqrt Rsqrt Pow Square Exp Maximum Minimum".split())
_SAME = frozenset({"Identity", "StopGradient", "PreventGradient", "Snapshot"})


def break_even_rank(shape: Sequence[int | None] | tf.TensorShape | None) -> int:
    """Rank at which the factors of a kernel [n, m] have as many entries as the kernel; 0 if it is not kept."""
    if shape is None or len(shape) != 2 or None in (sizes := list(shape)):
        return 0
    n, m = (int(s) for s in sizes if s is not None)
    return n * m // (n + m) if n * m >= MIN_ENTRIES else 0


def low_rank_of(body: Body, carry: Type) -> int:
    """The least break-even rank of the kernels that a step keeps; those with less than half of the largest are not kept.

    Args:
        body: of the step's graph, whose first arguments and results are the leaves of the carry.
    """
    ranks = {
        i: rank
        for i, t in enumerate(tensor_leaves(carry))
        if isinstance(t, TensorType) and t.dtype.name == "float32" and (rank := break_even_rank(t.shape))
    }
    kept = [ranks[i] for i in _kept(body, set(ranks), carry)] if ranks else []
    return min((r for r in kept if 2 * r >= max(kept)), default=0)


def _kept(body: Body, kernels: set[int], carry: Type) -> list[int]:
    """The kernels whose new values keep the form."""
    names = {body.arguments[i] for i in kernels}
    forms = {(name, 0) for name in names}  # multiples and sums of kernels and of products over rows
    kernel_of = {(body.arguments[i], 0): {i} for i in kernels}
    scalars = {(body.arguments[i], 0) for i, t in enumerate(tensor_leaves(carry)) if t.shape == ()}
    for node in body.nodes:
        result = (node.name, 0)
        if node.op == "Const" and not tf.TensorShape(node["value"].tensor_shape).rank:
            scalars.add(result)
        elif node.op in _SCALAR_OPS | _SAME and node.inputs and all(i in scalars for i in node.inputs):
            scalars.add(result)
        elif _keeps(node, forms, scalars):
            forms.add(result)
            kernel_of[result] = set().union(*(kernel_of.get(i, set()) for i in node.inputs))
    return [i for i in kernels if body.results[i] in forms and i in kernel_of[body.results[i]]]


def _keeps(node: Node, forms: set, scalars: set) -> bool:
    of_form = [i in forms for i in node.inputs]
    if node.op == "MatMul":
        return not any(of_form) and node.get("transpose_a", False) and not node.get("transpose_b", False)
    if node.op in _SAME or node.op == "Neg":
        return of_form[:1] == [True]
    if node.op in ("Add", "AddV2", "Sub", "AddN"):
        return all(of_form)
    if node.op == "Mul":
        return any(of_form) and any(i in scalars for i in node.inputs)
    return node.op == "RealDiv" and of_form[0] and node.inputs[1] in scalars
