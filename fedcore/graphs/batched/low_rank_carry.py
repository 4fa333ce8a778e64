"""The loop variables of a local training whose kernels are kept as `LowRank`s.

In:  the carry (the loop variables) of a `sequence_reduce`, and a step that is evaluated on `LowRank`s in the place of
     the kernels.
Out: the kernels after the last step, with their factors.

A kernel that starts as the shared W is

    W + U^T V                         for the first `low_rank_steps` steps
    W + D + U^T V                     behind them, where D [K, n, m] is the sum of the factors of earlier steps

Each step appends the rows of its batch to U and to V. After each `low_rank_steps` steps the factors are added to D and
start anew, so that their rank never costs more than the kernel. Kernels whose steps append the same rows, as a kernel
and its momentum do, share U. A step may also scale the matrices (decay, momentum): their coefficients are then loop
variables.

In the code, W is a kernel's *shared* matrix, D its *own* matrix, U its *left* and V its *right* factor; a *scale* is a
coefficient that is a loop variable; kernels that share U are a *group*. Matrices are compared by identity: two kernels
hold one matrix if their terms hold one `Value`.

The inputs of a first layer depend on the clients' data only, so they are known before the loop (`known_inputs`). A U
that holds such inputs of all earlier steps is no loop variable. A group is *decided* once a step has told which it is.

A `LowRankCarry` says which kernels share U, which coefficients are loop variables, and which U are known before the
loop. It is found as a fixed point: the loop is built for a carry, and its step tells which carry its results need
(`CarriedKernels.carry_after_step`). As long as that is another, more general one, the loop is built again for it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue
from fedcore.graphs.batched.known_inputs import KnownInput, KnownInputs, StepInputs
from fedcore.graphs.batched.low_rank import Coefficient, LowRank, zero_rows
from fedcore.graphs.batched.low_rank_policy import is_kept
from fedcore.graphs.batched.own_rows import JOINED, OwnRows
from fedcore.graphs.batched.schedule import PackedLayout
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import computed_if
from fedcore.graphs.dataflow.graph import Block, Value, active_block, building
from fedcore.graphs.dataflow.selection import select_by_client, select_rows

Tensors = list[Value]

MatrixId = tuple[str, int]
"""A matrix that a kernel may be a multiple of: ("shared", i) is the initial value of kernel i, which all clients share;
("own", i) is D, the sum of kernel i's earlier factors, which each client has of its own.
"""

Carry = TypeVar("Carry")
Result = TypeVar("Result")


def low_rank_carry(initial: Sequence[BatchedValue], layout: PackedLayout) -> "LowRankCarry | None":
    """The first carry to try: all kernels that are large enough, each with a left factor of its own.

    Args:
        initial: the initial loop variables; kernels are those that all clients share, of which factors with as many
            rows as the layout's rank cost less than the kernel (`is_kept`).
        layout: of the clients' packed rows.
    Returns:
        None if no kernel is kept low-rank.
    """
    if not layout.low_rank_steps:
        return None
    tensors = {i: x.tensor for i, x in enumerate(initial) if x.tensor is not None and not x.batched}
    kernels = [i for i, t in tensors.items() if t.dtype == tf.float32 and is_kept(t.shape, layout.low_rank)]
    groups = tuple((i,) for i in kernels)
    return LowRankCarry(groups, layout.low_rank_steps, layout.exceeds_low_rank) if kernels else None


@attrs.frozen
class LowRankCarry:
    """How a loop over training steps holds the kernels that it keeps low-rank.

    It holds no tensors, so that carries are compared, and one carry serves several graphs.

    Args:
        groups: the groups of kernels that share their left factors; a kernel is its position in the carry.
        low_rank_steps: number of steps after which the factors are added up.
        exceeds: whether a client takes more steps than that.
        scaled: pairs of a kernel and a matrix whose coefficient is a loop variable, since a step changes it.
        inputs: pairs of a kernel and a known input: the kernel's left factor holds that input of all earlier steps,
            and is no loop variable. None in the place of the input: the rows are known in their step only, so the
            factor is a loop variable. Groups without a pair are undecided.
    """

    groups: tuple[tuple[int, ...], ...]
    low_rank_steps: int
    exceeds: bool
    scaled: frozenset[tuple[int, MatrixId]] = frozenset()
    inputs: tuple[tuple[int, KnownInput | None], ...] = ()

    @property
    def kernels(self) -> list[int]:
        """Positions of the kernels in the carry, in order."""
        return sorted(i for group in self.groups for i in group)

    @property
    def is_one_step(self) -> bool:
        """Whether the kernels are kept in the only step of a client."""
        return self.low_rank_steps == 1 and not self.exceeds

    @property
    def _sorted_scaled(self) -> list[tuple[int, MatrixId]]:
        """The scaled coefficients in a fixed order, in which they are loop variables."""
        return sorted(self.scaled)

    def input_of(self, group: tuple[int, ...]) -> KnownInput | None:
        """The known input that the left factor of a group of kernels holds; None if it is a loop variable."""
        return next((held for i, held in self.inputs if i in group and held is not None), None)

    def has_decided_input(self, group: tuple[int, ...]) -> bool:
        """Whether a step has told if the left factor of a group is a known input."""
        return any(i in group for i, _ in self.inputs)

    def with_input(self, group: tuple[int, ...], layer_input: KnownInput | None) -> "LowRankCarry":
        """The carry in which the left factor of a group holds a known input; None: rows that steps append."""
        others = tuple((i, k) for i, k in self.inputs if i not in group)
        return attrs.evolve(self, inputs=(*others, (group[0], layer_input)))

    def open(
        self,
        initial: Sequence[BatchedValue],
        clients: int,
        own_rows: OwnRows | None = None,
        known_inputs: KnownInputs | None = None,
    ) -> "OpenCarry":
        """The carry in a graph being built, for the initial values of the loop variables.

        Kernels that start from zeros have no initial matrix, so that no step multiplies with zeros. Known inputs are of
        use only where one product of factors holds all steps of a client.

        Args:
            initial: the initial loop variables; those of the kernels are shared tensors.
            clients: K.
            own_rows, known_inputs: as in `OpenCarry`.
        """
        shapes = {i: tuple(initial[i].tensor.shape) for i in self.kernels}
        initial_matrices = {}
        for i in self.kernels:
            static_matrix = ops.static_value(initial[i].tensor)
            initial_matrices[i] = None if static_matrix is not None and not static_matrix.any() else initial[i].tensor
        known_inputs = None if self.exceeds or self.is_one_step else known_inputs
        return OpenCarry(self, shapes, initial_matrices, clients, own_rows, known_inputs)

    def without(self, *kernels: int) -> "LowRankCarry | None":
        """The carry that does not keep the given kernels low-rank; None if no kernel is left."""
        if not kernels:
            return self
        smaller_groups = (tuple(i for i in group if i not in kernels) for group in self.groups)
        groups = tuple(group for group in smaller_groups if group)
        scaled = frozenset((i, m) for i, m in self.scaled if i not in kernels and m[1] not in kernels)
        return attrs.evolve(self, groups=groups, scaled=scaled) if groups else None

    def merge_groups(self, a: int, b: int) -> "LowRankCarry":
        """The carry in which the groups of the kernels a and b are one group, with one left factor."""
        merged = tuple(sorted(i for group in self.groups if a in group or b in group for i in group))
        return attrs.evolve(self, groups=(*(g for g in self.groups if a not in g and b not in g), merged))


@attrs.frozen(eq=False)
class OpenCarry:
    """A `LowRankCarry` in a graph being built, with the tensors from which the kernels start.

    Args:
        carry: how the loop holds the kernels.
        shapes: kernel -> its shape (n, m).
        initial_matrices: kernel -> its initial value [n, m]; None if that is zero.
        clients: K.
        own_rows: for products whose bits may not depend on other clients; None: the number of rows decides no bits.
        known_inputs: inputs of layers that are known before the loop; None: no input is.
    """

    carry: LowRankCarry
    shapes: dict[int, tuple[int, int]]
    initial_matrices: dict[int, Value | None]
    clients: int
    own_rows: OwnRows | None = None
    known_inputs: KnownInputs | None = None

    def initial_variables(self) -> Tensors:
        """The loop variables before the first step.

        These are, in this order: the left factors that are appended to, the right factors of all kernels, the sums D if
        a client exceeds the low-rank steps, and the coefficients: 1 for the matrix that a kernel starts with, else 0.
        Factors start without rows, and the sums as empty tensors, so that no memory is set to zero; the static shapes
        leave these sizes open, since steps change them.
        """
        variables = [self._empty_factor(self.shapes[group[0]][0]) for group in self.appended_groups]
        variables += [self._empty_factor(self.shapes[i][1]) for i in self.carry.kernels]
        if self.carry.exceeds:
            empty_sums = [ops.zeros([0, *self.shapes[i]]) for i in self.carry.kernels]
            variables += [ops.placeholder_with_shape(t, [None, *t.shape[1:]]) for t in empty_sums]
        return variables + [
            ops.fill([self.clients], float(self.begins_with(i, m))) for i, m in self.carry._sorted_scaled
        ]

    def initial_matrix_id(self, kernel: int) -> MatrixId | None:
        """The id of the matrix that a kernel starts as; None if that is zero.

        Kernels that start as one tensor have one matrix, named after the first of them.
        """
        matrix = self.initial_matrices[kernel]
        if matrix is None:
            return None
        return "shared", next(i for i, t in self.initial_matrices.items() if t is matrix)

    def begins_with(self, kernel: int, matrix: MatrixId) -> bool:
        """Whether a matrix stands in a kernel with coefficient 1, unless steps have scaled it."""
        return matrix in (self.initial_matrix_id(kernel), ("own", kernel))

    def known_left_factor(self, group: tuple[int, ...]) -> Value:
        """The left factor [K, R, n] of a group whose factor is a known input: the rows of all steps."""
        layer_input = self.carry.input_of(group)
        assert layer_input is not None  # callers ask for groups whose factor is no loop variable
        assert self.known_inputs is not None  # otherwise no group holds an input
        return self.known_inputs.input_of_all_steps(layer_input)

    @property
    def appended_groups(self) -> list[tuple[int, ...]]:
        """The groups whose left factors are loop variables."""
        return [group for group in self.carry.groups if self.carry.input_of(group) is None]

    def _empty_factor(self, size: int) -> Value:
        """A factor [K, 0, size]; its static number of rows is unknown, since steps append rows."""
        return ops.placeholder_with_shape(ops.zeros([self.clients, 0, size]), [self.clients, None, size])

    def kernels_in_step(self, step: Value, variables: Tensors, elements: Sequence[Value] = ()) -> "CarriedKernels":
        """The kernels at the start of a step.

        After each `low_rank_steps` steps, factors are added up first. The kernels of a client's only step have no
        factors yet.

        Args:
            step: int64, the number of the step.
            variables: the loop variables.
            elements: the columns of the step's batch; see `known_inputs`.
        """
        low_rank_steps = self.carry.low_rank_steps
        if not self.carry.exceeds:
            kernels = CarriedKernels.from_variables(self, variables, None)
            if self.carry.is_one_step:
                return attrs.evolve(kernels, are_new=True)
            return self._with_inputs(kernels, step, elements)
        are_full = (step > 0) & ops.equal(step % low_rank_steps, 0)
        variables = computed_if(
            are_full, lambda *full: self._add_up_factors(step > low_rank_steps, list(full)), variables, variables
        )
        return CarriedKernels.from_variables(self, variables, step >= low_rank_steps)

    def _with_inputs(self, kernels: "CarriedKernels", step: Value, elements: Sequence[Value]) -> "CarriedKernels":
        """The kernels of a step; left factors that are known inputs are cut to the rows of the earlier steps.

        Args:
            kernels: with left factors of all steps in the place of known inputs.
            step: int64, the number of the step.
            elements: the columns of the step's batch.
        """
        if self.known_inputs is None:
            return kernels

        shared = [t for t in self.initial_matrices.values() if t is not None]
        inputs, lefts = StepInputs(self.known_inputs, step, elements, shared), list(kernels.lefts)
        for n, group in enumerate(self.carry.groups):
            layer_input = self.carry.input_of(group)
            if layer_input is not None:
                lefts[n] = inputs.earlier_inputs(layer_input)
                inputs.input_of_left[id(lefts[n])] = layer_input  # whose products with inputs are known before the loop
        return attrs.evolve(kernels, lefts=lefts, inputs=inputs)

    def _add_up_factors(self, has_sums: Value, variables: Tensors) -> Tensors:
        """The loop variables after the factors of each kernel are added to D, its sum of earlier factors.

        The factors then have no rows. D becomes the sum of all own matrices in the kernel, each with its coefficient,
        so the coefficients of own matrices start anew as well.

        Args:
            has_sums: bool, whether D holds sums already.
        """
        kernels = CarriedKernels.from_variables(self, variables, has_sums)
        if self.own_rows is not None:
            kernels = kernels.pad_factors(self.carry.low_rank_steps * self.own_rows.batch_rows)
        lefts = [t[:, :0] for t in kernels.lefts]  # without rows
        rights = {i: t[:, :0] for i, t in kernels.rights.items()}
        scales = {}
        for (kernel, matrix), coefficient in kernels.scales.items():
            if matrix[0] == "own":  # 1 for the kernel's own sum, 0 for those of other kernels; the shape is [K]
                coefficient = coefficient * 0 + float(kernel == matrix[1])
            scales[kernel, matrix] = coefficient
        return attrs.evolve(
            kernels, lefts=lefts, rights=rights, own=kernels.sum_own_matrices(), scales=scales
        ).variables()

    def final_kernels(self, steps: Value, variables: Tensors) -> dict[int, BatchedValue]:
        """Kernel -> its matrix after the last step, with its factors, so that the fold multiplies them.

        Of several clients that exceed the low-rank steps the factors are added up: how many steps they hold depends on
        the longest of these clients, and no client decides another one's bits.

        Args:
            steps: int64, the number of steps of the loop.
            variables: the loop variables after the last step.
        """
        has_sums = steps > self.carry.low_rank_steps if self.carry.exceeds else None
        if has_sums is not None and self.clients > 1:
            variables = computed_if(
                has_sums, lambda *unsummed: self._add_up_factors(has_sums, list(unsummed)), variables, variables
            )
        kernels = CarriedKernels.from_variables(self, variables, has_sums)
        if self.own_rows is not None and not self.carry.is_one_step and has_sums is None:
            # The factors hold all steps, padded to those of the longest client; products read a client's own rows.
            kernels = attrs.evolve(kernels, rows=self.own_rows.client_rows)
        return kernels.values


@attrs.frozen(eq=False)
class CarriedKernels:
    """The kernels in one step, or after all, as tensors of the loop.

    Args:
        open_carry: how the loop holds the kernels.
        lefts: left factor of each group, [K, r, n].
        rights: kernel -> its right factor, [K, r, m].
        own: kernel -> D, the sum of its earlier factors, [K, n, m], or empty; no entry if no client exceeds the
            low-rank steps.
        scales: (kernel, matrix) -> the coefficient, [K], of those that are loop variables.
        has_sums: bool, whether `own` holds sums.
        inputs: inputs of layers that are known before the loop; None where no input is.
        are_new: no step has changed the kernels, so their factors have no rows.
        rows: as in `LowRank`.
    """

    open_carry: OpenCarry
    lefts: Tensors
    rights: dict[int, Value]
    own: dict[int, Value]
    scales: dict[tuple[int, MatrixId], Value]
    has_sums: Value | None = None
    inputs: StepInputs | None = None
    are_new: bool = False
    rows: Value | None = None

    @classmethod
    def from_variables(cls, open_carry: OpenCarry, variables: Tensors, has_sums: Value | None) -> "CarriedKernels":
        """The kernels that loop variables hold, in the order of `OpenCarry.initial_variables`; inverse of `variables`.

        Args:
            open_carry: how the loop holds the kernels; left factors that are known inputs are no loop variables.
            has_sums: bool, whether the sums D hold something already; None: there are none.
        """
        remaining = list(variables)
        carry = open_carry.carry
        kernels = carry.kernels
        lefts = [
            remaining.pop(0) if group in open_carry.appended_groups else open_carry.known_left_factor(group)
            for group in carry.groups
        ]
        rights = {i: remaining.pop(0) for i in kernels}
        own = {i: remaining.pop(0) for i in kernels} if carry.exceeds else {}
        scales = dict(zip(carry._sorted_scaled, remaining, strict=True))
        return cls(open_carry, lefts, rights, own, scales, has_sums)

    def variables(self) -> Tensors:
        """The loop variables that hold the kernels, in the order of `OpenCarry.initial_variables`."""
        groups, appended_groups = self.open_carry.carry.groups, self.open_carry.appended_groups
        appended_lefts = [t for t, group in zip(self.lefts, groups, strict=True) if group in appended_groups]
        return [*appended_lefts, *self.rights.values(), *self.own.values(), *self.scales.values()]

    @property
    def values(self) -> dict[int, BatchedValue]:
        """Kernel -> its low-rank matrix, as the value that a step is evaluated on."""
        return {i: BatchedValue(None, True, form=self.low_rank(i)) for i in self.rights}

    def low_rank(self, kernel: int) -> LowRank:
        """The matrix of a kernel: its coefficients times shared and own matrices, plus its product of factors."""
        shape, clients = self.open_carry.shapes[kernel], self.open_carry.clients
        terms: list[tuple[Value, Coefficient]] = []
        for matrix_id, matrix in self._identified_matrices():
            coefficient = self._coefficient(kernel, matrix_id)
            if coefficient is not None:
                terms.append((matrix, coefficient))
        factors = () if self.are_new else ((self._left_factor(kernel), self.rights[kernel]),)
        products = JOINED if self.open_carry.own_rows is None else self.open_carry.own_rows.products
        return LowRank(shape, clients, tuple(terms), factors, self.has_sums, self.inputs, products, self.rows)

    def pad_factors(self, rows: int) -> "CarriedKernels":
        """The kernels whose factors have zeros behind their rows, up to a number of rows.

        With equally many rows for all groups, other clients do not decide the bits of a product of factors.
        """

        def pad_rows(t: Value) -> Value:
            """A factor [K, r, …] with zeros behind its rows."""
            return ops.pad(t, [[0, 0], [0, rows - ops.shape(t)[1]], [0, 0]])

        rights = {i: pad_rows(t) for i, t in self.rights.items()}
        return attrs.evolve(self, lefts=[pad_rows(t) for t in self.lefts], rights=rights)

    def sum_own_matrices(self) -> dict[int, Value]:
        """Kernel -> the sum of its product of factors and of the matrices D that its terms hold, [K, n, m]."""
        sums = {}
        for i in self.rights:
            kernel = self.low_rank(i)
            sums[i] = attrs.evolve(kernel, terms=tuple((m, c) for m, c in kernel.terms if m.shape.rank == 3)).dense()
        return sums

    def after_step(
        self, results: Mapping[int, BatchedValue], active: Value | None
    ) -> tuple[Tensors, LowRankCarry | None]:
        """(the loop variables after a step, the carry that its results need).

        If that is another carry than that of the loop, the loop is dropped, so any variables of equal types do.

        Args:
            results, active: as for `variables_after_step`.
        """
        next_carry = self.carry_after_step(results)
        if next_carry != self.open_carry.carry:
            return self.variables(), next_carry
        return self.variables_after_step(results, active), next_carry

    def carry_after_step(self, results: Mapping[int, BatchedValue]) -> LowRankCarry | None:
        """The carry with which the results of a step can be loop variables: the carry itself if it is the fixed point.

        The first property that the carry lacks decides, in this order: kernels that the step made dense, kernels that
        share left factors, left factors that are known inputs, and coefficients that the step changes. It is mended for
        all kernels at once, so that a deep model takes no more loops than a shallow one.

        Args:
            results: the step's results for the kernels.
        Returns:
            None if no kernel stays low-rank.
        """
        carry = self.open_carry.carry
        kernels = {i: value.low_rank for i, value in results.items() if value.low_rank is not None}
        dense = [i for i in results if i not in kernels or kernels[i].shape != self.open_carry.shapes[i]]
        next_carry = carry.without(*dense)
        for find_carry in (self._carry_with_groups, self._carry_with_inputs, self._carry_with_scales):
            if next_carry is not carry:
                break
            next_carry = find_carry(kernels)
        return next_carry

    def _carry_with_groups(self, kernels: Mapping[int, LowRank]) -> LowRankCarry | None:
        """The carry in whose groups the kernels can share one left factor after the step.

        If a step appends rows of another group's factor, the two groups are merged. A kernel to which other rows are
        appended than to the rest of its group is not kept.

        Args:
            kernels: the low-rank results of the step.
        Returns:
            None if no kernel stays low-rank.
        """
        next_carry: LowRankCarry | None = self.open_carry.carry
        for left, group in zip(self.lefts, self.open_carry.carry.groups, strict=True):
            next_carry = None if next_carry is None else self._merge_group(next_carry, left, group, kernels)
        return next_carry

    def _merge_group(
        self, carry: LowRankCarry, left: Value, group: tuple[int, ...], kernels: Mapping[int, LowRank]
    ) -> LowRankCarry | None:
        """`_carry_with_groups` for one group with the factor `left`; `carry` has the changes for those before it."""
        group_of = {id(t): g for t, g in zip(self.lefts, self.open_carry.carry.groups, strict=True)}
        rows: Value | None = None
        for i in group:
            for factor, _ in kernels[i].factors:
                if factor is left:
                    continue
                if id(factor) in group_of:
                    return carry.merge_groups(i, group_of[id(factor)][0])
                if rows is not None and rows is not factor:
                    return carry.without(i)
                rows = factor
        return carry

    def _carry_with_inputs(self, kernels: Mapping[int, LowRank]) -> LowRankCarry:
        """The carry whose left factors are known inputs where the rows that the step appends are the same input.

        A factor that was taken for an input, and to which other rows are appended, becomes a loop variable for good.

        Args:
            kernels: the low-rank results of the step.
        """
        carry = next_carry = self.open_carry.carry
        for left, group in zip(self.lefts, carry.groups, strict=True):
            held_input = carry.input_of(group)
            row_input = self._find_row_input(_new_rows(left, group, kernels))
            if held_input is not None and row_input != held_input:
                next_carry = next_carry.with_input(group, None)
            elif row_input != held_input and not carry.has_decided_input(group):
                next_carry = next_carry.with_input(group, row_input)
        return next_carry

    def _carry_with_scales(self, kernels: Mapping[int, LowRank]) -> LowRankCarry | None:
        """The carry whose loop variables include the coefficients that the step changes.

        A coefficient is unchanged if it is the number that it starts with: 1 or, for a matrix that is no term, 0. A
        kernel with a term that is neither a shared nor an own matrix of the carry is not kept.

        Args:
            kernels: the low-rank results of the step.
        Returns:
            None if no kernel stays low-rank.
        """
        carry, scaled = self.open_carry.carry, set()
        matrices = self._identified_matrices()
        for i, kernel in kernels.items():
            coefficients = {id(matrix): c for matrix, c in kernel.terms}
            for matrix_id, matrix in matrices:
                coefficient = coefficients.pop(id(matrix), 0.0)  # what is left at the end are other matrices
                start = float(self.open_carry.begins_with(i, matrix_id))
                is_unchanged = isinstance(coefficient, float) and coefficient == start
                if not is_unchanged and (i, matrix_id) not in carry.scaled:
                    scaled.add((i, matrix_id))
            if coefficients:
                return carry.without(i)
        return attrs.evolve(carry, scaled=carry.scaled | scaled) if scaled else carry

    def variables_after_step(self, results: Mapping[int, BatchedValue], active: Value | None) -> Tensors:
        """The loop variables after a step for whose results the carry is the fixed point.

        The results of the kernels of a group are U^T V' + X^T G, with the U of the group and one X of B new rows. U
        gets the rows X, unless it holds known inputs, and each V becomes V' with the rows G. A kernel without X^T G
        gets rows of zeros, and one without U^T V' loses its old rows to zeros.

        Args:
            results: the step's results for the kernels.
            active: bool [K]; a client whose entry is false keeps its kernels. None: all are active.
        """
        kernels = {i: value.low_rank for i, value in results.items() if value.low_rank is not None}
        lefts, rights = list[Value](), dict[int, Value]()
        for left, group in zip(self.lefts, self.open_carry.carry.groups, strict=True):
            rows = _new_rows(left, group, kernels)
            layer_input = self.open_carry.carry.input_of(group)
            lefts.append(left if rows is None or layer_input is not None else self._append_rows(left, rows, active))
            for i in group:
                right_of = {id(u): v for u, v in kernels[i].factors}
                right = self.rights[i]  # V; the step made V' of it
                old_rows = _select_active(active, right_of.get(id(left), ops.zeros_like(right)), right)
                if rows is None:
                    rights[i] = old_rows
                    continue
                new_rows = right_of[id(rows)] if id(rows) in right_of else zero_rows(rows, self.open_carry.shapes[i][1])
                if layer_input is not None and self.inputs is not None:
                    # The last batch is padded beyond the end of the data, where the known inputs end.
                    new_rows = self.inputs.cut_to_input(new_rows)
                rights[i] = self._append_rows(old_rows, new_rows, active)
        scales = {key: _select_active(active, self._scale_after(kernels, *key), c) for key, c in self.scales.items()}
        rights = {i: rights[i] for i in self.rights}  # in the order of the loop variables, not of the groups
        variables = CarriedKernels(self.open_carry, lefts, rights, self.own, scales).variables()
        for tensor, variable in zip(variables, self.variables(), strict=True):
            tensor.set_shape(variable.shape)  # numbers of rows stay open
        return variables

    def _find_row_input(self, rows: Value | None) -> KnownInput | None:
        """The known input that rows [K, B, n] of a step are; None if they are none."""
        return None if self.inputs is None or rows is None else self.inputs.find_input(rows)

    def _scale_after(self, kernels: Mapping[int, LowRank], kernel: int, matrix: MatrixId) -> Value:
        """The coefficient, [K], of a matrix in a kernel after a step; 0 if the matrix is no term of it."""
        tensor = dict(self._identified_matrices())[matrix]
        c = next((c for m, c in kernels[kernel].terms if m is tensor), 0.0)
        return ops.broadcast_to(ops.constant(c, tf.float32) if isinstance(c, float) else c, [self.open_carry.clients])

    def _append_rows(self, rows: Value, new_rows: Value, active: Value | None) -> Value:
        """The rows [K, r, …] with the new rows behind them; zeros in the place of the new rows of inactive clients."""
        if active is not None:
            (new_rows,) = select_by_client(active, [new_rows], [ops.zeros([])])
        return new_rows if self.are_new else ops.concat([rows, new_rows], 1)

    def _left_factor(self, kernel: int) -> Value:
        """The left factor of the group that a kernel is in, [K, r, n]."""
        return next(t for t, g in zip(self.lefts, self.open_carry.carry.groups, strict=True) if kernel in g)

    def _identified_matrices(self) -> list[tuple[MatrixId, Value]]:
        """Each matrix that kernels may be multiples of, with its id: the distinct shared ones, then the own ones."""
        open_carry = self.open_carry
        initial_matrices = [(("shared", i), t) for i, t in open_carry.initial_matrices.items() if t is not None]
        return [
            # Kernels that begin as one tensor have one id, that of the first of them.
            *((i, t) for i, t in initial_matrices if open_carry.initial_matrix_id(i[1]) == i),
            *((("own", i), t) for i, t in self.own.items()),
        ]

    def _coefficient(self, kernel: int, matrix: MatrixId) -> Coefficient | None:
        """The coefficient of a matrix in a kernel; None if the matrix is no term of the kernel."""
        return self.scales.get((kernel, matrix), 1.0 if self.open_carry.begins_with(kernel, matrix) else None)


def build_fixed_point(build: Callable[[Carry], tuple[Result, Carry]], carry: Carry) -> Result:
    """The result of building a loop for the carry that its step preserves.

    Building is tried for one carry after the other; the nodes of a loop whose step needs another carry are dropped.
    Each carry is more general than the one before, so the search ends.

    Args:
        build: carry -> (result, the carry that the step's results need).
        carry: the first one to try.
    """
    block = active_block()
    assert block is not None  # stages are built inside a block
    while True:
        with building(Block(block)) as draft:
            result, next_carry = build(carry)
        if next_carry == carry:
            block.adopt(draft)
            return result
        carry = next_carry


def _new_rows(left: Value, group: tuple[int, ...], kernels: Mapping[int, LowRank]) -> Value | None:
    """The rows [K, B, n] that a step appends to the left factor of a group; None if it appends none."""
    return next((u for i in group for u, _ in kernels[i].factors if u is not left), None)


def _select_active(active: Value | None, new: Value, old: Value) -> Value:
    """The new tensor [K, …] for active clients, and the old one for the others; None: all are active."""
    return new if active is None or new is old else select_rows(active, [new], [old])[0]
