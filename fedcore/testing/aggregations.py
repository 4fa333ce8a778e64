"""Checks the laws of an aggregation: its result does not depend on the division of clients into blocks."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Never

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
    the fold of all values; `merge` is associative; a tree of merges over blocks of any size is the fold of all values.

    Args:
        zero, accumulate, merge, report: as for `fc.federated_aggregate`.
        values: the clients' values: three or more different values.
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
    _Aggregation(zero, accumulate, merge, report, type_, values, tolerance).check()


class _Aggregation:
    """The four traced functions of an aggregation, as functions over nested tuples of numpy arrays."""

    def __init__(
        self,
        zero: object,
        accumulate: Callable,
        merge: Callable,
        report: Callable,
        type_: Type,
        values: list,
        tolerance: float,
    ) -> None:
        @fc.federated_computation(FederatedType(type_, fc.CLIENTS))
        def aggregate(xs: Value) -> Value:
            return fc.federated_aggregate(xs, zero, accumulate, merge, report)

        self.module = aggregate.to_module("lowered")
        self.tolerance = tolerance
        self.shown = values
        run = Interpreter(self.module, evaluator(0), eager_callable)
        (op,) = [o for o in self.module.main.operations if o.kind == "federated_aggregate"]
        self.accumulate, self.merge, self.report = (
            run.function(o.name) for o in op.operands[2:] if isinstance(o, Symbol)
        )
        self.zero = self._zero(run, op.operands[1].name)
        self.result_type = op.type
        self.values = [prepare(v, type_, f"values[{i}]", _no_sequence) for i, v in enumerate(values)]

    def _zero(self, run: Interpreter, name: str) -> Any:
        """The zero: the result of the operations that do not depend on clients."""
        main = self.module.main
        values: dict = {}
        types = main.types()
        for op in main.operations:
            if all(o.name in values for o in op.operands) and op.kind != "federated_aggregate":
                values[op.name] = run.evaluate(
                    op, [types[o.name] for o in op.operands], [values[o.name] for o in op.operands], None
                )
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
        for size in (1, 2, 3):
            blocks = [fold(values[i : i + size]) for i in range(0, len(values), size)]
            self._equal(f"a tree of blocks of {size} is the fold of all", self.tree(blocks), whole)

    def _equal(self, law: str, have: object, want: object) -> None:
        member = member_of(self.result_type)
        reports = [to_python(self.report(state), member) for state in (have, want)]
        mismatch = difference(reports[0], reports[1], self.tolerance, "the report")
        if mismatch is not None:
            raise LawBroken(law, mismatch, program=self.module, inputs=self.shown)


def _no_sequence(value: object, type_: Type, path: str) -> Never:
    raise TypeMismatch(f"{path}: check_aggregation takes tensors and structs of them, not {type_}")
