"""The loop variables of a local training whose kernels are kept as `LowRank`s.

In:  the carry of a `sequence_reduce`, and a step that is evaluated on `LowRank`s in the place of the kernels.
Out: the kernels after the last step, with their factors.

A kernel that starts as the shared W is

    W + U^T V                         for the first `limit` steps
    W + D + U^T V                     behind them, where D [K, n, m] is the sum of the factors of earlier steps

Each step appends the rows of its batch to U and to V. After `limit` steps the factors are added to D and start anew, so
that their rank never costs more than the kernel. Kernels whose steps append the same rows, as a kernel and its momentum
do, share U. A step may also scale the matrices (decay, momentum): their coefficients are then loop variables.

Which kernels share U, and which coefficients change, is a fixed point: a step is built for a carry, and has the carry
itself or one of a more general form as its result (`CarriedKernels.form_after`), with which the step is built again.
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

Result = TypeVar("Result")


def low_rank_carry(initial: Sequence[BatchedValue], layout: PackedLayout) -> "LowRankCarry | None":
    """The first carry to try for the clients of a call."""
    return first_carry(initial, layout.low_rank, layout.low_rank_steps, exceeds=layout.exceeds_low_rank)


def first_carry(initial: Sequence[BatchedValue], rank: int, limit: int, *, exceeds: bool) -> "LowRankCarry | None":
    """The first carry to try: all kernels that are large enough, each with a left factor of its own.

    Args:
        rank: the least break-even rank of a kernel.
        limit: steps after which factors are added up; 0 keeps no kernel.
        exceeds: whether a client takes more steps.
    """
    if not limit:
        return None
    kernels = [
        i
        for i, x in enumerate(initial)
        if x.tensor is not None and not x.batched and x.tensor.dtype == tf.float32 and is_kept(x.tensor.shape, rank)
    ]
    shared = tuple((i,) for i in kernels)
    return LowRankCarry(shared, limit, exceeds) if kernels else None


@attrs.frozen
class LowRankCarry:
    """The kernels of a carry that are kept low-rank.

    Args:
        shared: groups of kernels that share their left factors; a kernel is its position in the carry.
        scaled: (kernel, matrix) pairs whose coefficient is a loop variable. The matrix is ("shared", i), the initial
            value of kernel i, or ("own", i), the sum of its earlier factors.
        limit: steps after which the factors are added up.
        exceeds: whether a client takes more steps than that.
        inputs: (kernel, known input) pairs: the kernel's left factor holds that input of all earlier steps, and is no
            loop variable. None: its rows are known in their step only. Kernels of no pair are undecided.
    """

    shared: tuple[tuple[int, ...], ...]
    limit: int
    exceeds: bool
    scaled: frozenset[tuple[int, tuple[str, int]]] = frozenset()
    inputs: tuple[tuple[int, KnownInput | None], ...] = ()

    @property
    def kernels(self) -> list[int]:
        return sorted(i for group in self.shared for i in group)

    @property
    def is_one_step(self) -> bool:
        """Whether the kernels are kept in the only step of a client."""
        return self.limit == 1 and not self.exceeds

    @property
    def _scaled(self) -> list[tuple[int, tuple[str, int]]]:
        return sorted(self.scaled)

    def input_of(self, group: tuple[int, ...]) -> KnownInput | None:
        """The known input that the left factor of a group of kernels holds."""
        return next((known for i, known in self.inputs if i in group and known is not None), None)

    def is_decided(self, group: tuple[int, ...]) -> bool:
        return any(i in group for i, _ in self.inputs)

    def with_input(self, group: tuple[int, ...], known: KnownInput | None) -> "LowRankCarry":
        """The carry in which the left factor of a group holds a known input, or appended rows."""
        others = tuple((i, k) for i, k in self.inputs if i not in group)
        return attrs.evolve(self, inputs=(*others, (group[0], known)))

    def opened(
        self,
        initial: Sequence[BatchedValue],
        clients: int,
        own_rows: OwnRows | None = None,
        known_inputs: KnownInputs | None = None,
    ) -> "OpenCarry":
        """The carry for given initial values of all loop variables; those of the kernels are shared tensors."""
        shapes = {i: tuple(initial[i].tensor.shape) for i in self.kernels}
        bases = {}
        for i in self.kernels:
            known = ops.static_value(initial[i].tensor)
            bases[i] = None if known is not None and not known.any() else initial[i].tensor
        known_inputs = None if self.exceeds or self.is_one_step else known_inputs
        return OpenCarry(self, shapes, bases, clients, own_rows, known_inputs)

    def without(self, kernel: int) -> "LowRankCarry | None":
        """The carry that does not keep a kernel; None if none is left."""
        shared = tuple(rest for group in self.shared if (rest := tuple(i for i in group if i != kernel)))
        scaled = frozenset((i, m) for i, m in self.scaled if kernel not in (i, m[1]))
        return attrs.evolve(self, shared=shared, scaled=scaled) if shared else None

    def joining(self, a: int, b: int) -> "LowRankCarry":
        """The carry in which the groups of two kernels share their left factors."""
        joined = tuple(sorted(i for group in self.shared if a in group or b in group for i in group))
        return attrs.evolve(self, shared=(*(g for g in self.shared if a not in g and b not in g), joined))


@attrs.frozen(eq=False)
class OpenCarry:
    """A `LowRankCarry` in a graph being built.

    Args:
        bases: kernel -> its initial value; None if that is zero.
        clients: K.
        own_rows: None: the number of rows in a product decides no bits.
        known_inputs: None: no input is known before the loop.
    """

    carry: LowRankCarry
    shapes: dict[int, tuple[int, int]]
    bases: dict[int, Value | None]
    clients: int
    own_rows: OwnRows | None = None
    known_inputs: KnownInputs | None = None

    def initial(self) -> Tensors:
        """The loop variables before the first step."""
        variables = [self._empty(self.shapes[group[0]][0]) for group in self.appended]
        variables += [self._empty(self.shapes[i][1]) for i in self.carry.kernels]
        if self.carry.exceeds:
            none = [ops.zeros([0, *self.shapes[i]]) for i in self.carry.kernels]
            variables += [ops.placeholder_with_shape(t, [None, *t.shape[1:]]) for t in none]
        return variables + [ops.fill([self.clients], float(self.begins_with(i, m))) for i, m in self.carry._scaled]

    def matrix_of(self, kernel: int) -> tuple[str, int] | None:
        """The matrix that a kernel begins with; kernels that begin with one tensor have one. None if it is zero."""
        base = self.bases[kernel]
        return None if base is None else ("shared", next(i for i, t in self.bases.items() if t is base))

    def begins_with(self, kernel: int, matrix: tuple[str, int]) -> bool:
        """Whether a kernel has a matrix once, unless steps have scaled it."""
        return matrix in (self.matrix_of(kernel), ("own", kernel))

    def known_left(self, group: tuple[int, ...]) -> Value:
        """The left factor of a group after the last step, if it is a known input."""
        known = self.carry.input_of(group)
        assert known is not None
        assert self.known_inputs is not None
        return self.known_inputs.input(known)

    @property
    def appended(self) -> list[tuple[int, ...]]:
        """The groups whose left factors are loop variables."""
        return [group for group in self.carry.shared if self.carry.input_of(group) is None]

    def _empty(self, size: int) -> Value:
        """A factor without rows; the number of its rows is not static."""
        return ops.placeholder_with_shape(ops.zeros([self.clients, 0, size]), [self.clients, None, size])

    def values(self, step: Value, variables: Tensors, elements: Sequence[Value] = ()) -> "CarriedKernels":
        """The kernels in a step; factors of full rank are added up first.

        Args:
            elements: the columns of the step's elements; see `known_inputs`.
        """
        limit = self.carry.limit
        if not self.carry.exceeds:
            kernels = CarriedKernels.of(self, variables, None)
            return (
                attrs.evolve(kernels, are_new=True)
                if self.carry.is_one_step
                else self._with_inputs(kernels, step, elements)
            )
        full = (step > 0) & ops.equal(step % limit, 0)
        after = computed_if(full, lambda *given: self._added_up(step > limit, list(given)), variables, variables)
        return CarriedKernels.of(self, after, step >= limit)

    def _with_inputs(self, kernels: "CarriedKernels", step: Value, elements: Sequence[Value]) -> "CarriedKernels":
        """The kernels of a step, with the known inputs of the earlier steps in their left factors."""
        if self.known_inputs is None:
            return kernels

        shared = [t for t in self.bases.values() if t is not None]
        inputs = StepInputs(self.known_inputs, step, elements, shared)
        for n, group in enumerate(self.carry.shared):
            known = self.carry.input_of(group)
            if known is not None:
                kernels.lefts[n] = inputs.earlier(known)
                inputs.lefts[id(kernels.lefts[n])] = known
        return attrs.evolve(kernels, inputs=inputs)

    def _added_up(self, exists: Value, variables: Tensors) -> Tensors:
        """The loop variables with the factors added to the clients' own matrices."""
        before = CarriedKernels.of(self, variables, exists)
        if self.own_rows is not None:
            before = before.filled_up(self.carry.limit * self.own_rows.of_batch)
        lefts = [t[:, :0] for t in before.lefts]
        rights = {i: t[:, :0] for i, t in before.rights.items()}
        scales = {(i, m): c if m[0] == "shared" else c * 0 + float(i == m[1]) for (i, m), c in before.scales.items()}
        return attrs.evolve(before, lefts=lefts, rights=rights, own=before.own_after(), scales=scales).variables()

    def final(self, steps: Value, variables: Tensors) -> dict[int, BatchedValue]:
        """The kernels after the last step, with their factors, so that the fold multiplies them.

        In a group of clients that exceed the limit, the factors are added up: what is left of them depends on the
        group's longest client.
        """
        exists = steps > self.carry.limit if self.carry.exceeds else None
        if exists is not None and self.clients > 1:
            variables = computed_if(exists, lambda *given: self._added_up(exists, list(given)), variables, variables)
        kernels = CarriedKernels.of(self, variables, exists)
        if self.own_rows is not None and not self.carry.is_one_step and exists is None:
            kernels = attrs.evolve(kernels, rows=self.own_rows.of_clients)
        return kernels.values


@attrs.frozen(eq=False)
class CarriedKernels:
    """The loop variables of the kernels.

    Args:
        lefts: of each group.
        rights: of each kernel.
        own: kernel -> the sum of its earlier factors, [K, n, m], or empty; no entry if no client exceeds the limit.
        scales: the coefficients that are loop variables, [K].
        exists: whether `own` holds sums.
        inputs: of layers, known before the loop; None where no input is.
        are_new: no step has changed them, so their factors have no rows.
        rows: as in `LowRank`.
    """

    of_carry: OpenCarry
    lefts: Tensors
    rights: dict[int, Value]
    own: dict[int, Value]
    scales: dict[tuple[int, tuple[str, int]], Value]
    exists: Value | None = None
    inputs: StepInputs | None = None
    are_new: bool = False
    rows: Value | None = None

    @classmethod
    def of(cls, carry: OpenCarry, variables: Tensors, exists: Value | None) -> "CarriedKernels":
        rest = list(variables)
        kernels = carry.carry.kernels
        lefts = [rest.pop(0) if group in carry.appended else carry.known_left(group) for group in carry.carry.shared]
        rights = {i: rest.pop(0) for i in kernels}
        own = {i: rest.pop(0) for i in kernels} if carry.carry.exceeds else {}
        return cls(carry, lefts, rights, own, dict(zip(carry.carry._scaled, rest, strict=True)), exists)

    def variables(self) -> Tensors:
        appended = [
            t for t, g in zip(self.lefts, self.of_carry.carry.shared, strict=True) if g in self.of_carry.appended
        ]
        return [*appended, *self.rights.values(), *self.own.values(), *self.scales.values()]

    @property
    def values(self) -> dict[int, BatchedValue]:
        return {i: _value(self.low_rank(i)) for i in self.rights}

    def low_rank(self, kernel: int) -> LowRank:
        """The matrix of a kernel."""
        shape, clients = self.of_carry.shapes[kernel], self.of_carry.clients
        terms = [
            (matrix, c) for m, matrix in self._matrices() if not isinstance(c := self._coefficient(kernel, m), int)
        ]
        factors = () if self.are_new else ((self._left(kernel), self.rights[kernel]),)
        products = JOINED if self.of_carry.own_rows is None else self.of_carry.own_rows.products
        return LowRank(shape, clients, tuple(terms), factors, self.exists, self.inputs, products, self.rows)

    def filled_up(self, rows: int) -> "CarriedKernels":
        """The kernels with zeros behind the rows of their factors, up to a number of rows."""

        def filled(t: Value) -> Value:
            return ops.pad(t, [[0, 0], [0, rows - ops.shape(t)[1]], [0, 0]])

        rights = {i: filled(t) for i, t in self.rights.items()}
        return attrs.evolve(self, lefts=[filled(t) for t in self.lefts], rights=rights)

    def own_after(self) -> dict[int, Value]:
        """Kernel -> the sum of its factors and of all matrices of clients."""
        sums = {}
        for i in self.rights:
            kernel = self.low_rank(i)
            sums[i] = attrs.evolve(kernel, terms=tuple((m, c) for m, c in kernel.terms if m.shape.rank == 3)).dense()
        return sums

    def form_after(self, results: Mapping[int, BatchedValue]) -> LowRankCarry | None:
        """The form that the kernels have after a step; the carry's own if the step keeps it, None if none is low-rank.

        Args:
            results: the step's results for the kernels.
        """
        carry = self.of_carry.carry
        kernels = {i: value.low_rank for i, value in results.items() if value.low_rank is not None}
        form: LowRankCarry | None = self._form_with_inputs()
        if form is not carry:
            return form
        dense = [i for i in results if i not in kernels or kernels[i].shape != self.of_carry.shapes[i]]
        form = _without(carry, dense)
        if form is not carry:
            return form
        for left, group in zip(self.lefts, carry.shared, strict=True):
            form = self._form_of_group(left, group, kernels)
            if form is not carry:
                return form
        return self._form_with_scales(kernels)

    def _form_with_inputs(self) -> LowRankCarry:
        """The form whose left factors hold the known inputs with which the step has multiplied them."""
        form = self.of_carry.carry
        for left, known in () if self.inputs is None else self.inputs.multiplied:
            for factor, group in zip(self.lefts, self.of_carry.carry.shared, strict=True):
                if factor is left and not form.is_decided(group):
                    form = form.with_input(group, known)
        return form

    def _form_of_group(
        self, left: Value, group: tuple[int, ...], kernels: Mapping[int, LowRank]
    ) -> LowRankCarry | None:
        """The form in which the kernels of a group share the rows that the step appends."""
        carry = self.of_carry.carry
        group_of = {id(t): g for t, g in zip(self.lefts, carry.shared, strict=True)}
        rows: Value | None = None
        for i in group:
            for factor, _ in kernels[i].factors:
                if factor is left:
                    continue
                if id(factor) in group_of:
                    return carry.joining(i, group_of[id(factor)][0])
                if rows is not None and rows is not factor:
                    return carry.without(i)
                rows = factor
        known, new = carry.input_of(group), self._known_rows(rows)
        if known is not None and new != known:
            return carry.with_input(group, None)
        return carry if new == known or carry.is_decided(group) else carry.with_input(group, new)

    def _form_with_scales(self, kernels: Mapping[int, LowRank]) -> LowRankCarry | None:
        """The form whose loop variables are the coefficients that the step changes."""
        carry, scaled = self.of_carry.carry, set()
        matrices = self._matrices()
        for i, kernel in kernels.items():
            coefficients = {id(matrix): c for matrix, c in kernel.terms}
            for m, matrix in matrices:
                c = coefficients.pop(id(matrix), 0.0)
                is_same = isinstance(c, float) and c == float(self.of_carry.begins_with(i, m))
                if not is_same and (i, m) not in carry.scaled:
                    scaled.add((i, m))
            if coefficients:
                return carry.without(i)
        return attrs.evolve(carry, scaled=carry.scaled | scaled) if scaled else carry

    def after(self, results: Mapping[int, BatchedValue], active: Value | None) -> Tensors:
        """The loop variables after a step that keeps the form.

        Args:
            results: the step's results for the kernels.
            active: bool [K]; a client whose entry is false keeps its kernels. None: all are active.
        """
        kernels = {i: value.low_rank for i, value in results.items() if value.low_rank is not None}
        lefts, rights = [], {}
        for left, group in zip(self.lefts, self.of_carry.carry.shared, strict=True):
            rows = next((u for i in group for u, _ in kernels[i].factors if u is not left), None)
            known = self.of_carry.carry.input_of(group)
            lefts.append(left if rows is None or known is not None else self._appended(left, rows, active))
            for i in group:
                right_of = {id(factor): right for factor, right in kernels[i].factors}
                old = self.rights[i]
                scaled = _selected(active, right_of.get(id(left), ops.zeros_like(old)), old)
                if rows is None:
                    rights[i] = scaled
                    continue
                new = right_of[id(rows)] if id(rows) in right_of else zero_rows(rows, self.of_carry.shapes[i][1])
                if known is not None and self.inputs is not None:
                    new = self.inputs.present(known, new)
                rights[i] = self._appended(scaled, new, active)
        scales = {key: _selected(active, self._scale_after(kernels, *key), c) for key, c in self.scales.items()}
        rights = {i: rights[i] for i in self.rights}
        variables = CarriedKernels(self.of_carry, lefts, rights, self.own, scales).variables()
        for tensor, variable in zip(variables, self.variables(), strict=True):
            tensor.set_shape(variable.shape)
        return variables

    def _known_rows(self, rows: Value | None) -> KnownInput | None:
        """The known input that rows are; None if they are none."""
        return None if self.inputs is None or rows is None else self.inputs.known(rows)

    def _scale_after(self, kernels: Mapping[int, LowRank], kernel: int, matrix: tuple[str, int]) -> Value:
        """The coefficient [K] of a matrix in a kernel after a step."""
        tensor = dict(self._matrices())[matrix]
        c = next((c for m, c in kernels[kernel].terms if m is tensor), 0.0)
        return ops.broadcast_to(ops.constant(c, tf.float32) if isinstance(c, float) else c, [self.of_carry.clients])

    def _appended(self, rows: Value, new: Value, active: Value | None) -> Value:
        """The rows [K, r, …] and behind them the new rows; zeros in the place of those of inactive clients."""
        if active is not None:
            (new,) = select_by_client(active, [new], [ops.zeros([])])
        return new if self.are_new else ops.concat([rows, new], 1)

    def _left(self, kernel: int) -> Value:
        return next(t for t, g in zip(self.lefts, self.of_carry.carry.shared, strict=True) if kernel in g)

    def _matrices(self) -> list[tuple[tuple[str, int], Value]]:
        carry = self.of_carry
        bases = [(("shared", i), t) for i, t in carry.bases.items() if t is not None]
        return [
            *((m, t) for m, t in bases if carry.matrix_of(m[1]) == m),
            *((("own", i), t) for i, t in self.own.items()),
        ]

    def _coefficient(self, kernel: int, matrix: tuple[str, int]) -> Coefficient | int:
        """The coefficient of a matrix in a kernel; the integer 0 if the matrix is no term of the kernel."""
        return self.scales.get((kernel, matrix), 1.0 if self.of_carry.begins_with(kernel, matrix) else 0)


def build_in_form(
    build: Callable[[LowRankCarry | None], tuple[Result, LowRankCarry | None]], form: LowRankCarry | None
) -> Result:
    """The result of building a loop in the form that its step keeps.

    Args:
        build: form -> (result, the form that the kernels have after a step).
        form: the first one; the nodes of forms that a step does not keep are dropped.
    """
    block = active_block()
    assert block is not None
    while True:
        with building(Block(block)) as draft:
            result, form_after = build(form)
        if form_after == form:
            block.adopt(draft)
            return result
        form = form_after


def _without(carry: LowRankCarry, kernels: Sequence[int]) -> LowRankCarry | None:
    """The carry that does not keep some kernels; None if none is left."""
    form: LowRankCarry | None = carry
    for i in kernels:
        form = None if form is None else form.without(i)
    return form


def _selected(active: Value | None, new: Value, old: Value) -> Value:
    return new if active is None or new is old else select_rows(active, [new], [old])[0]


def _value(low_rank: LowRank) -> BatchedValue:
    return BatchedValue(None, True, low_rank=low_rank)
