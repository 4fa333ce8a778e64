"""Checks the laws of an aggregation: its result does not depend on the division of clients into blocks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Never

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.computation.computation import type_of
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.graphs.capture.graph_import import eager_callable
from fedcore.graphs.tensors.values import to_python
from fedcore.ir import Symbol, Value
from fedcore.ir.interpret import Interpreter
from fedcore.runtime.arguments import prepare
from fedcore.runtime.reference import evaluator
from fedcore.runtime.reports.result_difference import difference
from fedcore.testing.laws import LawBroken
from fedcore.types import FederatedType, Type, member_of, to_type


def check_aggregation(
    zero: object,
    accumulate: Callable,
    merge: Callable,
    report: Callable,
    values: Iterable,
    *,
    value_type: object = None,
    tolerance: float = 64,
) -> None:
    """Checks that merging the partials of two groups of clients equals accumulating all their values.

    Laws, for partials compared through `report`: `zero` is neutral on either side of `merge`; the merge of two folds is
    the fold of all values; `merge` is associative; a tree of merges over blocks of any size is the fold of all values,
    also where values tie, whose tensors are those of different clients, where one is of zeros, where one number is the
    same in all structs, and where floats are a little nearer to 0; where a value is NaN, whether the report is finite
    does not depend on the blocks. Where a function raises for such values, they are left out.

    Args:
        zero, accumulate, merge, report: as for `fc.federated_aggregate`.
        values: the clients' values: three or more different values, of all kinds that clients have. A fault that only
            others show is not found, such as a maximum that begins with 0 and gets no negative values.
        value_type: type of the values. Default: the type of the first value.
        tolerance: how many roundings (units of the dtype's epsilon) floats may differ by.
    Raises:
        LawBroken: names the law, the values, and both results.
    Example:
        >>> fc.testing.check_aggregation(0, lambda n, _: n + 1, lambda m, n: m + n, lambda n: n, [1, 2, 3])
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise TypeMismatch(f"check_aggregation: values is a list of the clients' values, not {brief(values)}")
    values = list(values)
    if len(values) < 3:
        raise InvalidValue(
            f"check_aggregation wants at least three values, not {len(values)}: two splits lie between them"
        )
    type_ = type_of(values[0]) if value_type is None else to_type(value_type)
    _Aggregation((zero, accumulate, merge, report), type_, values, tolerance).check()


class _Aggregation:
    """The four traced functions of an aggregation, as functions over nested tuples of numpy arrays.

    Args:
        operands: zero, accumulate, merge and report, as for `fc.federated_aggregate`.
    """

    def __init__(self, operands: tuple[Any, ...], type_: Type, values: list, tolerance: float) -> None:
        @fc.federated_computation(FederatedType(type_, fc.CLIENTS))
        def aggregate(xs: Value) -> Value:
            return fc.federated_aggregate(xs, *operands)

        self.module = aggregate.to_module("lowered")
        self.tolerance = tolerance
        self.shown = values
        run = Interpreter(self.module, evaluator(0), eager_callable)
        (op,) = [o for o in self.module.main.operations if o.kind == "federated_aggregate"]
        self.accumulate, self.merge, self.report = (
            run.function(o.name) for o in op.operands[2:] if isinstance(o, Symbol)
        )
        self.zero = self._zero(run, op.operands[1].name)
        self.result_type, self.value_type = op.type, type_
        self.values = [prepare(v, type_, f"values[{i}]", _no_sequence) for i, v in enumerate(values)]

    def _zero(self, run: Interpreter, name: str) -> Any:
        """The zero: the result of the operations that do not depend on clients."""
        main = self.module.main
        values: dict = {}
        types = main.types()
        for op in main.operations:
            names = [o.name for o in op.operands]
            if values.keys() >= {*names} and op.kind != "federated_aggregate":
                values[op.name] = run.evaluate(op, [types[n] for n in names], [values[n] for n in names], None)
        return values[name]

    def fold(self, values: list) -> Any:
        total = self.zero
        for x in values:
            total = self.accumulate(total, x)
        return total

    def tree(self, partials: list) -> Any:
        while len(partials) > 1:
            pairs = [partials[i : i + 2] for i in range(0, len(partials), 2)]
            partials = [self.merge(*p) if len(p) == 2 else p[0] for p in pairs]
        return partials[0]

    def check(self) -> None:
        values, fold, merge = self.values, self.fold, self.merge
        whole = fold(values)
        self._equal("merge(partial, zero) is the partial", merge(whole, self.zero), whole)
        self._equal("merge(zero, partial) is the partial", merge(self.zero, whole), whole)
        for k in range(1, len(values)):
            law = f"merging the folds of the first {k} and the other {len(values) - k} is the fold of all"
            self._equal(law, merge(fold(values[:k]), fold(values[k:])), whole)
        a, b, c = fold(values[:1]), fold(values[1:2]), fold(values[2:])
        self._equal("merge is associative", merge(merge(a, b), c), merge(a, merge(b, c)))
        self._trees(values)
        for where, others in _variants(values):
            try:
                with np.errstate(all="ignore"):
                    fold(others)
            except Exception:
                continue  # clients have no such values
            self._trees(others, where)

    @np.errstate(all="ignore")
    def _trees(self, values: list, where: str = "") -> None:
        whole = self.fold(values)
        shown = None if not where else [to_python(value, self.value_type) for value in values]
        for size in (1, 2, 3):
            blocks = [self.fold(values[i : i + size]) for i in range(0, len(values), size)]
            law = f"a tree of blocks of {size} is the fold of all{where}"
            self._equal(law, self.tree(blocks), whole, shown, only_finite=where == _NAN)

    def _equal(
        self, law: str, have: object, want: object, shown: list | None = None, *, only_finite: bool = False
    ) -> None:
        reports = [self.report(state) for state in (have, want)]
        if only_finite:
            texts = [to_python(report, member_of(self.result_type)) for report in reports]
            mismatch = difference(_finite(reports[0]), _finite(reports[1]))
            mismatch = mismatch and f"the report is {texts[0]!r}, not {texts[1]!r}"
        else:
            have, want = (to_python(report, member_of(self.result_type)) for report in reports)
            mismatch = difference(have, want, self.tolerance, "the report")
        if mismatch is not None:
            raise LawBroken(law, mismatch, program=self.module, inputs=shown or self.shown)


_NAN = ", as to whether it is finite, where a value is NaN"


def _variants(values: list) -> Iterator[tuple[str, list]]:
    """Other values that clients may have as well, and what is special about them."""
    flat = [tf.nest.flatten(value) for value in values]

    def packed(rows: Iterable[list]) -> list:
        return [tf.nest.pack_sequence_as(value, row) for value, row in zip(values, rows, strict=True)]

    yield ", where values tie", list(_with_ties(values))
    for k, last in enumerate(flat[-1] if len(flat[-1]) > 1 else ()):
        yield ", where a number is the same in all", packed([*row[:k], last, *row[k + 1 :]] for row in flat)
    if any(_is_inexact(leaf) for leaf in flat[0]):
        smaller = [[_of(leaf, lambda a: a - a * a.dtype.type(2**-12)) for leaf in row] for row in flat]
        yield ", where floats are a little nearer to 0", packed(smaller)
        for place in {0, len(flat) // 2, len(flat) - 1}:
            nan = [_of(leaf, lambda a: np.full_like(a, np.nan)) for leaf in flat[place]]
            yield _NAN, packed([*flat[:place], nan, *flat[place + 1 :]])


def _is_inexact(leaf: object) -> bool:
    dtype = np.asarray(leaf).dtype
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def _of(leaf: object, change: Callable[[np.ndarray], object]) -> object:
    return np.asarray(change(np.asarray(leaf))) if _is_inexact(leaf) else leaf


def _finite(report: object) -> object:
    """For each number of a report whether it is finite."""
    return [np.isfinite(leaf) if _is_inexact(leaf) else True for leaf in tf.nest.flatten(report)]


def _with_ties(values: list) -> Iterator[Any]:
    """Yields values with ties, whose tensors come from different clients, and one of zeros."""
    columns = [tf.nest.flatten(value) for value in values]
    for i in range(2 * len(columns)):
        leaves = [columns[(i // 2 + k * i) % len(columns)][k] for k in range(len(columns[0]))]
        yield tf.nest.pack_sequence_as(values[0], leaves)
    yield tf.nest.map_structure(lambda t: t if np.asarray(t).dtype == object else np.zeros_like(t), values[0])


def _no_sequence(value: object, type_: Type, path: str) -> Never:
    raise TypeMismatch(f"{path}: check_aggregation takes tensors and structs of them, not {type_}")
