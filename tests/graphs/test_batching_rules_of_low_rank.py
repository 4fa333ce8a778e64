"""Operations that keep the form of a LowRank give the matrices that they give of dense matrices."""

import numpy as np
import pytest
import tensorflow as tf
from rules_by_client import CLIENTS, SIZES, normal
from run_region import run_region

from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue, batched, shared
from fedcore.graphs.batched.batching_rules import low_rank
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.batched.low_rank import LowRank, low_rank_rules
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, new_region

N, M, R = 6, 4, max(SIZES)
F = {"T": tf.float32}
OWN = (np.arange(R) < np.array(SIZES)[:, None])[..., None]
W, U, V, X, G, Z = (
    normal(*shape, seed=i)
    for i, shape in enumerate(
        [(N, M), (CLIENTS, R, N), (CLIENTS, R, M), (CLIENTS, R, N), (CLIENTS, R, M), (CLIENTS, N, M)]
    )
)
NUMBERS = np.float32([0.5, 0.0, -2.0, 3.0])
DENSE = W + np.einsum("krn,krm->knm", U, V)
EACH = NUMBERS[:, None, None]


class Values:
    """The values of the arrays above in a region; `matrix` is a LowRank of `DENSE`."""

    def __init__(self, w, u, v, x, g, z, numbers, sizes):
        self.matrix = BatchedValue(None, True, form=LowRank((N, M), CLIENTS, ((w, 1.0),), ((u, v),)))
        self.w, self.z, self.numbers = shared(w), batched(z), batched(numbers)
        self.x, self.g = batched(x, 0), batched(g, 0)
        self.evaluation = BatchedEvaluation(CLIENTS, R, sizes)
        self.evaluation.low_rank_shapes.add((N, M))

    def evaluate(self, op, *operands, **attributes) -> BatchedValue:
        node = Node(op, (), {**F, **attributes})
        (result,) = self.evaluation.evaluate(node, list(operands))
        return result


def results(fn) -> tuple[np.ndarray, bool]:
    """The tensor of `fn` of the values, and whether the value is a LowRank."""
    kept = []

    def body(*tensors):
        values = Values(*tensors)
        value = fn(values)
        kept.append(value.low_rank is not None)
        return [values.evaluation.tensor(value)]

    (found,) = run_region(body, W, U, V, X, G, Z, NUMBERS, np.array(SIZES))
    return found, kept[0]


def number(value) -> BatchedValue:
    return BatchedValue(None, form=KnownValue.from_constant(np.float32(value)))


KEPT = {
    "Identity": (lambda v: v.evaluate("Identity", v.matrix), DENSE),
    "StopGradient": (lambda v: v.evaluate("StopGradient", v.matrix), DENSE),
    "PreventGradient": (lambda v: v.evaluate("PreventGradient", v.matrix), DENSE),
    "Snapshot": (lambda v: v.evaluate("Snapshot", v.matrix), DENSE),
    "MatMul of two batches": (
        lambda v: v.evaluate("MatMul", v.x, v.g, transpose_a=True, transpose_b=False),
        np.einsum("krn,krm->knm", X * OWN, G * OWN),
    ),
    "Mul": (lambda v: v.evaluate("Mul", v.matrix, number(3)), 3 * DENSE),
    "Mul of the other operand": (lambda v: v.evaluate("Mul", v.numbers, v.matrix), EACH * DENSE),
    "RealDiv": (lambda v: v.evaluate("RealDiv", v.matrix, number(4)), DENSE / 4),
    "DivNoNan": (
        lambda v: v.evaluate("DivNoNan", v.matrix, v.numbers),
        np.where(EACH, DENSE / np.where(EACH, EACH, 1), 0),
    ),
    "Neg": (lambda v: v.evaluate("Neg", v.matrix), -DENSE),
    "Add": (lambda v: v.evaluate("Add", v.matrix, v.w), DENSE + W),
    "AddV2": (lambda v: v.evaluate("AddV2", v.w, v.matrix), DENSE + W),
    "AddN": (lambda v: v.evaluate("AddN", v.matrix, v.w, v.matrix, N=3), 2 * DENSE + W),
    "Sub": (lambda v: v.evaluate("Sub", v.matrix, v.w), DENSE - W),
    "Sub of the other operand": (lambda v: v.evaluate("Sub", v.w, v.matrix), W - DENSE),
}
LOST = {
    "AddV2 of matrices of clients": (lambda v: v.evaluate("AddV2", v.matrix, v.z), DENSE + Z),
    "Mul of two matrices": (lambda v: v.evaluate("Mul", v.matrix, v.w), DENSE * W),
    "Square": (lambda v: v.evaluate("Square", v.matrix), DENSE**2),
    "MatMul": (
        lambda v: v.evaluate("MatMul", v.x, v.matrix, transpose_a=False, transpose_b=False),
        X @ DENSE,
    ),
    "MatMul with the transposed": (
        lambda v: v.evaluate("MatMul", v.g, v.matrix, transpose_a=False, transpose_b=True),
        G @ DENSE.transpose(0, 2, 1),
    ),
    "MatMul of another shape": (
        lambda v: v.evaluate("MatMul", v.g, v.x, transpose_a=True, transpose_b=False),
        np.einsum("krm,krn->kmn", G * OWN, X * OWN),
    ),
    "MatMul of a matrix": (
        lambda v: v.evaluate("MatMul", v.matrix, v.z, transpose_a=False, transpose_b=True),
        DENSE @ Z.transpose(0, 2, 1),
    ),
}


def test_every_rule_of_the_module_is_tested():
    assert {rule.__module__ for rule in low_rank_rules.values()} == {low_rank.__name__}
    of_tables = {"GatherV2", "UnsortedSegmentSum"}  # see test_tables_of_rows.py
    assert {name.split()[0] for name in KEPT} | {"Sum", "SelectV2"} | of_tables == set(low_rank_rules)


@pytest.mark.parametrize("name", [*KEPT, *LOST])
def test_the_result_is_that_of_dense_matrices(name):
    fn, want = (KEPT | LOST)[name]
    found, is_kept = results(fn)
    assert is_kept == (name in KEPT)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("adds", [False, True])
def test_a_choice_of_zeros_by_one_condition_for_each_client_keeps_the_form(adds):
    def chosen(v):
        condition = batched(v.numbers.tensor > 0.0)
        other = v.z if adds else shared(ops.zeros([N, M]))
        return v.evaluate("SelectV2", condition, v.matrix, other)

    found, is_kept = results(chosen)
    assert is_kept != adds
    np.testing.assert_allclose(found, np.where(EACH > 0, DENSE, Z if adds else 0), rtol=1e-5, atol=1e-5)


def sum_of(v, factor=1.0, user="IsFinite"):
    """Whether the sum of a matrix is finite, in a body that asks for nothing else."""

    def read(x):
        return [ops.operation(user, ops.operation("Sum", x, ops.constant([0, 1])))]

    body = new_region([(tf.float32, [N, M])], read)
    matrix = v.evaluate("Mul", v.matrix, number(factor))
    return v.evaluation.run(body, [matrix])[0]


def test_a_sum_of_which_only_being_finite_is_asked_for_multiplies_no_factors():
    operations = []

    def counted(v):
        result = sum_of(v)
        operations.extend(n.op for n in ops.current_block().nodes)
        return result

    assert results(counted)[0].all()
    assert "BatchMatMulV2" not in operations  # but where the bound overflows
    assert not results(lambda v: sum_of(v, np.inf))[0].any()


def test_the_sum_of_a_matrix_for_other_users_is_the_sum():
    found, _ = results(lambda v: sum_of(v, user="Neg"))
    np.testing.assert_allclose(found, -DENSE.sum((1, 2)), rtol=1e-4, atol=1e-4)


def test_factors_that_are_taken_for_finite_are_told():
    told = []

    def body(*tensors):
        values = Values(*tensors)
        values.evaluation.assumed_finite = told
        sum_of(values)
        assert told == [values.matrix.low_rank.factors[0][0]]
        return []

    arrays = (W, U, V, X, G, Z, NUMBERS, np.array(SIZES))
    new_region([(tf.as_dtype(a.dtype), a.shape) for a in arrays], body)


def test_one_client_without_an_axis_has_the_form_too():
    def body(w, x, g):
        evaluation = BatchedEvaluation(1)
        evaluation.low_rank_shapes.add((N, M))

        def product(a, b, **transposed):
            (result,) = evaluation.evaluate(Node("MatMul", (), {**F, **transposed}), [a, b])
            return result

        gradient = product(shared(x), shared(g), transpose_a=True)
        assert gradient.low_rank is not None
        (changed,) = evaluation.evaluate(Node("AddV2", (), F), [shared(w), gradient])
        return [evaluation.tensor(gradient), evaluation.tensor(changed), product(shared(x), changed).tensor]

    gradient, changed, product = run_region(body, W, X[0], G[0])
    np.testing.assert_allclose(gradient, X[0].T @ G[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(changed, W + X[0].T @ G[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(product, X[0] @ (W + X[0].T @ G[0]), rtol=1e-4, atol=1e-4)
