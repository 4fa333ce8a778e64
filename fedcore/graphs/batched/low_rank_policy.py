"""Whether a training step keeps the kernels of dense layers low-rank, and from which rank on: by shapes and operations.

In:  the graph of a step, (carry, batch) -> carry. Out: the rank that the plan names, 0 for none, 1 for clients of one
step only.

The analysis follows the operations that keep the form (`batching_rules/low_rank.py`) without building a graph: a kernel
is kept if its new value is a sum of multiples of kernels and of products of two batches over their rows.

Example: in a step of plain gradient descent, `w + (-rate) * (x^T g)` keeps w, and in a step of FedSGD,
`sum + rows * (x^T g)` keeps the sum. In a step of Adam the change is divided by a matrix, and no kernel is kept.

Clients of one step keep the factors of small kernels too: they exist anyway, and no later step reads them.
"""

from collections.abc import Container, Iterable, Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.dataflow.graph import PASS_THROUGH, Node, Region, Value
from fedcore.types import Type, tensor_leaves

MIN_ENTRIES = 1 << 14
"""Entries of the smallest kernel that is kept; for smaller ones, more operations cost more than less memory saves."""

MIN_ENTRIES_OF_ONE_STEP = 1 << 12
"""Entries of the smallest kernel that is kept for clients of one step: only the fold multiplies their factors."""

ONE_STEP = 1
"""The rank of plans whose kernels are kept where a client takes one step."""

_OF_NUMBERS = frozenset(
    {
        *("Neg", "Mul", "Add", "AddV2", "Sub", "RealDiv", "DivNoNan", "Cast"),
        *("Sqrt", "Rsqrt", "Pow", "Square", "Exp", "Maximum", "Minimum"),
    }
)
"""Operations whose result has no axes if no operand has any."""

_OF_VECTORS = frozenset({"Identity", "Cast", "StridedSlice"})
"""Operations whose result is a vector if their first operand is one."""

_TO_NUMBERS = frozenset({"Prod", "Sum", "Max", "Min"})
"""Reductions of a vector to a number."""


def break_even_rank(shape: Sequence[int | None] | tf.TensorShape | None, least_entries: int = MIN_ENTRIES) -> int:
    """The largest rank r whose factors [r, n] and [r, m] have no more entries than the kernel [n, m]: n m // (n + m).

    0 if the kernel is always dense: its shape is not static or no matrix, it has less than `least_entries` entries, or
    r is 1, as of [n, 2], where one row would fill the factors, so that each step would add them to the kernel.
    """
    if shape is None or len(shape) != 2 or None in (sizes := list(shape)):
        return 0
    n, m = (int(s) for s in sizes if s is not None)
    rank = n * m // (n + m) if n * m >= least_entries else 0
    return rank if rank > 1 else 0


def is_kept(shape: Sequence[int | None] | tf.TensorShape | None, rank: int) -> bool:
    """Whether a plan of that rank keeps a kernel [n, m], as far as shapes tell."""
    if rank == ONE_STEP:
        return break_even_rank(shape, MIN_ENTRIES_OF_ONE_STEP) > 0
    return break_even_rank(shape) >= rank


@attrs.frozen
class LowRankKernels:
    """The kernels that a step keeps low-rank.

    Args:
        rank: their least break-even rank; 1 for clients of one step only, 0 if no kernel is kept.
        size_bytes: of the kernels of one client, as matrices.
    """

    rank: int = 0
    size_bytes: int = 0


def low_rank_kernels(region: Region, carry: Type, first: int, shared: Iterable[int]) -> LowRankKernels:
    """The kernels that a step keeps; kernels with less than half of the largest break-even rank are dense.

    Args:
        region: of the step's graph. Its first results are the leaves of the carry.
        first: position of the carry's first leaf among the arguments.
        shared: positions of arguments that all clients share, such as the weights that local training started with.
    """
    ranks = {
        i: break_even_rank(t.shape)
        for i, t in enumerate(tensor_leaves(carry))
        if t.dtype.name == "float32" and is_kept(t.shape, ONE_STEP)
    }
    if not ranks:
        return LowRankKernels()
    scalars = {region.arguments[first + i] for i, t in enumerate(tensor_leaves(carry)) if t.shape == ()}
    kernels = {region.arguments[first + i]: i for i in ranks}
    low_rank = _find_low_rank(region, kernels, scalars, {region.arguments[i] for i in shared})
    break_evens = [ranks[i] for i in low_rank]  # 0 for kernels that are kept for one step only
    large = [r for r in break_evens if r and 2 * r >= max(break_evens)]
    rank = min(large, default=ONE_STEP if low_rank else 0)
    shapes = [tf.TensorShape(t.shape) for t in tensor_leaves(carry)]
    return LowRankKernels(rank, sum(4 * shapes[i].num_elements() for i in low_rank if is_kept(shapes[i], rank)))


def _find_low_rank(region: Region, kernels: dict[Value, int], scalars: set[Value], shared: set[Value]) -> list[int]:
    """The kernels whose new values keep the form, and of which no operation needs the dense matrix.

    The form is a sum of multiples of kernels and of products of two batches over their rows. Each node's result is, by
    the first of these that applies, a number, a vector, of the form, or shared by all clients. Any other operation
    needs the values of the form that it reads as dense matrices, except for a product x @ kernel: that is computed from
    the factors.

    Returns:
        Positions of the kernels in the carry.

    Args:
        region: of the step's graph.
        kernels: argument -> position in the carry.
        scalars: arguments of the carry that are numbers.
        shared: arguments that all clients share.
    """
    # A value of the form -> the kernels and products of which it is a sum.
    forms: dict[Value, set[Value]] = {kernel: {kernel} for kernel in kernels}
    # Numbers scale a value of the form; vectors are shapes, of whose entries a step computes such numbers.
    numbers = {*scalars}
    vectors: set[Value] = set()
    shared_matrices = {*shared}
    dense: set[Value] = set()  # kernels and products that an operation needs as a dense matrix
    for node in region.nodes:
        if not node.outputs:
            continue
        result = node.outputs[0]
        if _is_number(node, numbers, vectors):
            numbers.add(result)
        elif _is_vector(node, numbers, vectors) and node.inputs[0] not in forms:
            vectors.add(result)
        elif _is_gradient(node, forms):
            forms[result] = {result}
        elif _keeps_form(node, forms, numbers, shared_matrices):
            forms[result] = set().union(*(forms.get(i, set()) for i in node.inputs))
        elif node.op in PASS_THROUGH and node.inputs[0] in shared_matrices:
            shared_matrices.add(result)
        elif node.op != "MatMul" or node.inputs[0] in forms or node.get("transpose_a", False):  # not x @ kernel
            dense.update(*(forms.get(i, set()) for i in node.reads))
    low_rank = []
    for kernel, i in kernels.items():
        parts = forms.get(region.results[i], set())
        if kernel in parts and not parts & dense:
            low_rank.append(i)
    return low_rank


def _is_number(node: Node, numbers: Container, vectors: Container) -> bool:
    """Whether a node's result has no axes, such as the number of a batch's rows."""
    if node.op == "Const":
        return node["value"].ndim == 0
    if node.inputs and node.inputs[0] in vectors:
        one_entry = node.op == "StridedSlice" and node.get("shrink_axis_mask") == 1
        return one_entry or (node.op in _TO_NUMBERS and not node.get("keep_dims", False))
    return node.op in _OF_NUMBERS.union(PASS_THROUGH) and bool(node.inputs) and all(i in numbers for i in node.inputs)


def _is_vector(node: Node, numbers: Container, vectors: Container) -> bool:
    """Whether a node's result is a shape, or a part of one."""
    if node.op in _OF_VECTORS:
        return node.inputs[0] in vectors
    return node.op == "Shape" or (node.op == "Pack" and all(i in numbers for i in node.inputs))


def _is_gradient(node: Node, forms: Container) -> bool:
    """Whether the node is a product of two batches over their rows, or may be one."""
    if node.op != "MatMul" or any(i in forms for i in node.inputs):
        return False
    return node.get("transpose_a", False) and not node.get("transpose_b", False)


def _keeps_form(node: Node, forms: Container, numbers: Container, shared_matrices: Container) -> bool:
    """Whether the result of a node is a sum of multiples of kernels and products, since an operand is.

    Args:
        forms: values that are such sums.
        numbers: values without axes.
        shared_matrices: matrices that all clients share.
    """
    has_form = [i in forms for i in node.inputs]
    if not any(has_form):
        return False
    if node.op in PASS_THROUGH or node.op == "Neg":
        return True
    if node.op in ("Add", "AddV2", "Sub", "AddN"):
        return all(is_form or i in shared_matrices for is_form, i in zip(has_form, node.inputs, strict=True))
    if node.op == "Mul":
        return any(i in numbers for i in node.inputs)
    return node.op in ("RealDiv", "DivNoNan") and has_form[0] and node.inputs[1] in numbers
