"""Matrices of K clients as sums of few terms, for weights that local training changes by outer products only.

A step of gradient descent changes the kernel of a dense layer by x^T g, with x [rows, n] and g [rows, m]: a matrix of
rank at most `rows`. After t steps the kernel of client k is W_0 + U_k^T V_k, where U_k [t * rows, n] stacks the inputs
of the layer and V_k [t * rows, m] the scaled gradients of its outputs. Then

    x W_k = x W_0 + (x U_k^T) V_k

holds without W_k: no kernel of a client is made, read or written in a step.

A `LowRank` holds such a matrix. Example with K = 4, n = 784, m = 200 and batches of 20 rows, in the third step:

    terms    ((W_0 [784, 200], 1.0),)
    factors  ((U [4, 40, 784], V [4, 40, 200]),)

Operations whose results are such sums again (products with a matrix, scaling, sums) have rules in
`batching_rules/low_rank.py`. Every other operation takes the dense tensor [4, 784, 200].

Decision 0166.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeAlias, TypeVar

import attrs

from fedcore.graphs.batched.known_inputs import StepInputs
from fedcore.graphs.batched.own_rows import JOINED, own_rows_of, product_with_shared
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import computed_if
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.dataflow.selection import select_by_client

NARROW = 16
"""Columns of the widest product whose transpose is computed: as many as a vector register holds on AVX-512."""

Coefficient: TypeAlias = float | Value
"""A number: one float for all clients, or a tensor [K] with one for each client."""


@attrs.frozen(eq=False)
class LowRank:
    """A matrix of each of K clients: the sum of coefficient * matrix over the terms, and of left^T right over the
    factors.

    Letters: n and m are the rows and columns of the matrix of one client; r is the number of rows of a factor, which
    bounds the rank of its product.

    Args:
        shape: (n, m).
        clients: K.
        terms: matrices, [n, m] shared by all clients or [K, n, m], each with its coefficient. No matrix stands twice.
        factors: pairs (left [K, r, n], right [K, r, m]). No left factor stands twice.
        exists: bool; where it is false, matrices [K, n, m] are empty and count as zeros. None: no matrix is empty.
        inputs: inputs of layers whose products are computed before the loop over steps. None: no product is.
        products: how a shared matrix is multiplied, see `own_rows`.
        rows: int64 [K], the number of rows of each client's factors; the rows behind them are zeros, and other
            clients decide how many there are. None: all rows are the client's own.
    """

    shape: tuple[int, int]
    clients: int
    terms: tuple[tuple[Value, Coefficient], ...] = ()
    factors: tuple[tuple[Value, Value], ...] = ()
    exists: Value | None = None
    inputs: StepInputs | None = None
    products: str = JOINED
    rows: Value | None = None

    @property
    def only_factors(self) -> tuple[Value, Value] | None:
        """The factors, if the matrices are one product of factors and nothing else; otherwise None."""
        return self.factors[0] if len(self.factors) == 1 and not self.terms else None

    def tensors(self) -> list[Value]:
        """The tensors that the matrices consist of: the terms, their coefficients, and the factors."""
        numbers = [c for _, c in self.terms if not isinstance(c, float)]
        return [*(m for m, _ in self.terms), *numbers, *(t for pair in self.factors for t in pair)]

    def map_tensors(self, fn: Callable[[Value], Value]) -> Self:
        """The matrices with `fn` applied to each of these tensors."""
        terms = tuple((fn(m), c if isinstance(c, float) else fn(c)) for m, c in self.terms)
        return attrs.evolve(self, terms=terms, factors=tuple((fn(left), fn(right)) for left, right in self.factors))

    def map_linear(self, fn: Callable[[Any], Any]) -> "LowRank":
        """The image of the matrices under a linear function such as scaling.

        By linearity it is enough to apply the function to coefficients and to right factors, which are small.
        """
        factors = tuple((left, fn(right)) for left, right in self.factors)
        return attrs.evolve(self, terms=tuple((m, fn(c)) for m, c in self.terms), factors=factors)

    def plus(self, other: "LowRank") -> "LowRank":
        """The sum of two low-rank matrices. A matrix, or a left factor, that both hold stands once in it.

        A term whose coefficient is the number 0 is dropped: the change of a client, W_k - W, then has no term.
        """
        return attrs.evolve(
            self,
            terms=tuple((m, c) for m, c in _add_by_tensor([*self.terms, *other.terms]) if not _is_number(c, 0)),
            factors=tuple(_add_by_tensor([*self.factors, *other.factors])),
            exists=other.exists if self.exists is None else self.exists,
            products=self.products or other.products,
            rows=other.rows if self.rows is None else self.rows,
        )

    def product_with(self, x: Value, *, transposed: bool = False) -> Value:
        """x @ matrix, or x @ matrix^T, for each client: [K, rows, m], or [K, rows, n].

        The factors are multiplied one after the other, so that no matrix [K, n, m] is built. Products that `inputs`
        knows from before the loop are read from there.

        Args:
            x: [K, rows, n], or [K, rows, m] for a transposed matrix.
        """
        out = self.shape[0] if transposed else self.shape[1]
        inputs = None if transposed else self.inputs
        total = None
        for matrix, coefficient in self.terms:
            early_product = None if inputs is None else inputs.product(x, matrix)
            if early_product is not None or self._always_exists(matrix):
                product = self._product(x, matrix, adj_y=transposed) if early_product is None else early_product
                total = _add_to(total, _scale(product, coefficient))
            else:
                total_so_far = zero_rows(x, out) if total is None else total
                total = self._compute_if_exists(
                    lambda sum_, y, m, c=coefficient: sum_ + _scale(self._product(y, m, adj_y=transposed), c),
                    [total_so_far, x],
                    matrix,
                    total_so_far,
                )
        for left, right in self.factors:
            inner, outer = (right, left) if transposed else (left, right)
            gram = None if inputs is None else inputs.gram(x, left)
            total = _add_to(total, self._product(self._product(x, inner, adj_y=True) if gram is None else gram, outer))
        total = zero_rows(x, out) if total is None else total
        total.set_shape([self.clients, x.shape[1], out])
        return total

    def dense(self) -> Value:
        """The matrices of all clients, [K, n, m]: factors are multiplied, and terms added.

        Matrices that may be empty (`exists`) are added by a branch of the graph.
        """
        total = None
        for left, right in self.factors:
            total = _add_to(total, self._product_of_factors(left, right))
        shape = [self.clients, *self.shape]
        for matrix, coefficient in self.terms:
            if self._always_exists(matrix):
                scaled = _scale(matrix, coefficient)
                total = ops.broadcast_to(scaled, shape) if total is None else total + scaled
            else:
                total_so_far = ops.zeros(shape) if total is None else total
                matrix_coefficient = _broadcast_to_matrices(coefficient)
                total = self._compute_if_exists(
                    lambda sum_, m, c=matrix_coefficient: sum_ + _scale(m, c), [total_so_far], matrix, total_so_far
                )
        total = ops.zeros(shape) if total is None else total
        total.set_shape(shape)
        return total

    def finiteness_of_sum(self, assumed_finite: list[Value] | None = None) -> Value:
        """float32 [K] in the place of the sums of the clients' entries, for readers that ask only if they are finite.

        Factors are not multiplied: an upper bound of the sum of their product's entries is added instead
        (`_bound_or_sum`). Near the largest float the answer may differ from that for the sum.

        Args:
            assumed_finite: list that gets the left factors, which are then not read: whoever gives the list watches
                them otherwise (`client_groups.py`). None: all factors are read.
        """
        total = ops.zeros([self.clients])
        for left, right in self.factors:
            if assumed_finite is not None:
                assumed_finite.append(left)
                continue
            total += self._bound_or_sum(left, right)
        for matrix, coefficient in self.terms:
            if self._always_exists(matrix):
                total += coefficient * ops.reduce_sum(matrix, [-2, -1])
            else:
                total = self._compute_if_exists(
                    lambda t, m, c=coefficient: t + c * ops.reduce_sum(m, [-2, -1]), [total], matrix, total
                )
        return total

    def _bound_or_sum(self, left: Value, right: Value) -> Value:
        """float32 [K]: bounds of the sums of the entries of products left.T @ right [n, m], or these sums.

        The product is the sum over rows r of the outer products of left_r and right_r, so by the inequality of Cauchy
        and Schwarz its entries add up to at most sqrt(n m) times the sum of |left_r| |right_r|. If the bound of any
        client is not finite, the factors of all clients are multiplied.
        """
        norms = ops.reduce_euclidean_norm(left, 2) * ops.reduce_euclidean_norm(right, 2)
        upper_bound = ops.reduce_sum(norms, 1) * math.sqrt(math.prod(self.shape))
        has_finite_bounds = ops.reduce_all(ops.is_finite(upper_bound))
        (bound_or_sum,) = computed_if(
            ~has_finite_bounds,
            lambda x, y: [ops.reduce_sum(product_of_factors(x, y), [1, 2])],
            [left, right],
            [upper_bound],
        )
        return bound_or_sum

    def or_zero(self, condition: Value, assumed_finite: Iterable[Value] = ()) -> "LowRank":
        """The matrices of the clients whose condition (bool [K] or []) holds; zeros for the other clients.

        Matrices that all clients share must be finite, since they are multiplied by 0. For a single client the factors
        lose their rows instead, so that a product of the joined factors of several clients is that of the others.

        Args:
            assumed_finite: left factors that are taken to be finite, and are not replaced.
        """
        finite_ids = {id(left) for left in assumed_finite}
        condition = ops.broadcast_to(condition, [self.clients])

        def select(*tensors: Value) -> list[Value]:
            """Each of the tensors [K, …] with zeros for the clients whose condition does not hold."""
            return select_by_client(condition, tensors, [ops.zeros([]) for _ in tensors])

        def select_term(matrix: Value, coefficient: Coefficient) -> tuple[Value, Coefficient]:
            """The term for the clients whose condition holds.

            A shared matrix gets a coefficient 0 for the others, since all clients read the one tensor.
            """
            if matrix.shape.rank == 2:
                return matrix, ops.where(condition, coefficient, ops.zeros([]))
            if self._always_exists(matrix):
                return select(matrix)[0], coefficient
            assert self.exists is not None  # otherwise the matrix always exists
            (selected,) = computed_if(self.exists, select, [matrix], [matrix])
            return selected, coefficient

        tensors = [t for pair in self.factors for t in pair if id(t) not in finite_ids]
        if self.clients == 1:
            results = [t[:, : ops.where(condition[0], ops.shape(t)[1], 0)] for t in tensors]
        else:
            results = select(*tensors)
        selected = dict(zip(map(id, tensors), results, strict=True))
        factors = tuple((selected.get(id(left), left), selected[id(right)]) for left, right in self.factors)
        return attrs.evolve(self, terms=tuple(select_term(*pair) for pair in self.terms), factors=factors)

    def _product_of_factors(self, left: Value, right: Value) -> Value:
        """left^T right for each client, [K, n, m].

        With `rows`, each client's product has its own rows only, so that other clients do not decide its bits.
        """
        if self.clients == 1:
            return self._product(left, right, adj_x=True)
        if self.rows is None:
            return product_of_factors(left, right)
        own_factors = zip(own_rows_of(left, self.rows), own_rows_of(right, self.rows), strict=True)
        return ops.stack([ops.operation("MatMul", u, v, transpose_a=True) for u, v in own_factors])

    def _product(self, x: Value, y: Value, *, adj_x: bool = False, adj_y: bool = False) -> Value:
        """x @ y for each client; for one client by MatMul, which is faster where x has few rows."""
        if self.clients > 1 and y.shape.rank == 2:
            return product_with_shared(self.products, x, y, transposed=adj_y)
        if self.clients > 1:
            return _product(x, y, adj_x=adj_x, adj_y=adj_y)
        a, b = (ops.squeeze(t, 0) if t.shape.rank == 3 else t for t in (x, y))
        return ops.operation("MatMul", a, b, transpose_a=adj_x, transpose_b=adj_y)[None]

    def _always_exists(self, matrix: Value) -> bool:
        """Whether a matrix has entries without a look at `exists`: shared matrices [n, m] always do."""
        return self.exists is None or matrix.shape.rank == 2

    def _compute_if_exists(self, fn: Callable, operands: list[Value], matrix: Value, otherwise: Value) -> Value:
        """`fn(*operands, matrix)` if the matrix [K, n, m] is not empty, else `otherwise`, a value of that shape."""

        def compute(*tensors: Value) -> list[Value]:
            tensors[-1].set_shape([self.clients, *self.shape])
            return [fn(*tensors)]

        assert self.exists is not None  # callers have tested `_always_exists`
        (result,) = computed_if(self.exists, compute, [*operands, matrix], [otherwise])
        return result


def zero_rows(like: Value, size: int) -> Value:
    """Zeros [K, rows, size], with as many rows as the tensor `like`, [K, rows, …]."""
    clients, rows = like.shape[:2]
    return ops.zeros([clients, ops.shape(like)[1] if rows is None else rows, size])


def multiply_by(number: Value) -> Callable:
    """The linear function x -> number * x for `LowRank.map_linear`; the number is [], or one for each client, [K]."""
    return lambda x: (
        number if _is_number(x, 1) else x * (_broadcast_to_matrices(number) if _is_right_factor(x) else number)
    )


def divide_by(divisor: Value) -> Callable:
    """The linear function x -> x / divisor for `LowRank.map_linear`; the divisor is [] or [K]."""
    return lambda x: x / (_broadcast_to_matrices(divisor) if _is_right_factor(x) else divisor)


def divide_no_nan(divisor: Value) -> Callable:
    """The linear function x -> x / divisor for `LowRank.map_linear`, or zero where the divisor, [] or [K], is zero."""
    return lambda x: ops.divide_no_nan(x, _broadcast_to_matrices(divisor) if _is_right_factor(x) else divisor)


def negative(x: Value | float) -> Value | float:
    """The linear function x -> -x for `LowRank.map_linear`."""
    return -x


def _is_right_factor(x: Value | float) -> bool:
    """Whether a linear function gets a right factor [K, r, m], and not a coefficient."""
    return not isinstance(x, float) and x.shape.rank == 3


def _is_number(x: Coefficient, number: float) -> bool:
    """Whether a coefficient is the given number while the graph is built."""
    return isinstance(x, float) and x == number


def _broadcast_to_matrices(coefficient: Coefficient) -> Coefficient:
    """A coefficient in a shape that broadcasts to [K, n, m]: a float stays one, [K] becomes [K, 1, 1]."""
    return coefficient if isinstance(coefficient, float) else ops.reshape(coefficient, [-1, 1, 1])


def product_of_factors(left: Value, right: Value) -> Value:
    """left^T right for each client, [K, n, m], of left [K, r, n] and right [K, r, m]."""
    return sum_of_products(left, right, lambda products: products)


def sum_of_products(left: Value, right: Value, add: Callable[[Value], Value]) -> Value:
    """Sums [blocks, n, m] of the products left^T right of clients, of left [K, r, n] and right [K, r, m].

    Where m is small, the transposed products right^T left are computed and added up: a kernel's inner loop runs over
    the longer side. The small factor is transposed before, since a kernel that transposes it takes longer.

    Args:
        add: products of clients [K, …] -> sums of some of them, [blocks, …].
    """
    if right.shape[2] > NARROW or right.shape[2] >= left.shape[2]:
        return add(_product(left, right, adj_x=True))
    return ops.matrix_transpose(add(_product(ops.matrix_transpose(right), left)))


def _product(x: Value, y: Value, *, adj_x: bool = False, adj_y: bool = False) -> Value:
    """x @ y for each client, of tensors with a client axis, where `adj_` transposes an operand."""
    return ops.operation("BatchMatMulV2", x, y, adj_x=adj_x, adj_y=adj_y)


def _add_to(total: Value | None, addend: Value) -> Value:
    """The total with an addend; without a total, the addend, so that no zeros are added."""
    return addend if total is None else total + addend


def _scale(matrix: Value, coefficient: Coefficient) -> Value:
    """The matrices times their coefficient; a coefficient 1 adds no operation."""
    return matrix if _is_number(coefficient, 1) else matrix * _broadcast_to_matrices(coefficient)


def _add_by_tensor(pairs: Iterable[tuple[Value, Any]]) -> list[tuple[Value, Any]]:
    """Adds up the coefficients, or right factors, that stand beside the same tensor; tensors are compared by identity.

    Example: [(W, 1.0), (D, c), (W, -1.0)] -> [(W, 0.0), (D, c)].
    """
    sums: dict[int, tuple] = {}
    for tensor, addend in pairs:
        entry = sums.get(id(tensor))
        sums[id(tensor)] = (tensor, addend if entry is None else entry[1] + addend)
    return list(sums.values())


Rule = TypeVar("Rule", bound=Callable)

low_rank_rules: dict[str, Callable] = {}
"""TensorFlow operation type -> the rule that computes it on low-rank matrices, see `low_rank_rule`."""


def low_rank_rule(*ops: str) -> Callable[[Rule], Rule]:
    """Registers a rule that computes TensorFlow operation types on low-rank matrices.

    A rule takes (evaluation: BatchedEvaluation, node: Node, *operands: BatchedValue) and returns a BatchedValue. It
    returns None where it does not apply; the batching rule of the type then takes dense operands.
    """

    def register(fn: Rule) -> Rule:
        low_rank_rules.update(dict.fromkeys(ops, fn))
        return fn

    return register
