"""Checks a batching rule by itself: several clients at once against each client alone.

Decision 0244.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import numpy as np

from fedcore.errors import TypeMismatch, brief
from fedcore.graphs.batched.batched_value import NoBatchingRule, batching_rules
from fedcore.graphs.dataflow.pattern_checks import check_operation_name
from fedcore.testing.laws import LawBroken
from fedcore.testing.rule_cases import STRUCTURES, RuleCase, cases_of_values
from fedcore.testing.rule_gradients import build_gradient_cases
from fedcore.testing.rule_layouts import Layout, padded_layouts, unpadded_layouts
from fedcore.testing.rule_operands import Cases, cases_of_function, cases_of_operation
from fedcore.testing.rule_runs import Run, run_all
from fedcore.testing.rule_subjects import Subject


@attrs.frozen
class CheckedRule:
    """The numbers of what a rule was checked on.

    Args:
        cases: operands and attributes.
        layouts: how operands stood (per client, shared, constant, padded), all cases together.
        refused: reasons for which the rule refused further layouts; stages with them run client by client.
    """

    cases: int
    layouts: int
    refused: tuple[str, ...] = ()


def check_batching_rule(
    op: str | Callable,
    specs: Sequence | None = None,
    *,
    cases: Iterable[Sequence] = (),
    structures: Mapping[str, Callable[[np.ndarray], np.ndarray]] | None = None,
) -> CheckedRule:
    """Checks the batching rule of an operation, or those of a function, against clients alone.

    Laws: each client has the results that it has alone, with their dtypes, where operands are per client, shared by all
    clients, constant, or batches of different sizes along any axis that allows it. Padded rows are copies, zeros or
    garbage (NaN, infinite), and do not change a client's results; what the rule says about the padded rows of its
    result holds. The bits of a client's results depend neither on how many other clients there are (2, 3, 5, 8), nor on
    its place among them, nor on the size to which batches are padded. Gradients keep these laws where TensorFlow has
    them. A rule may refuse operands by raising `NoBatchingRule`, but not all of them.

    Numbers are also NaN, infinite, zeros of both signs, ties, very large and tiny, the least and the largest integers,
    negative indices, and axes are of size 0, where a client alone has results of these.

    Args:
        op: a TensorFlow operation, whose operands are found by its definition; or a function of tensors.
        specs: of a function's arguments: `tf.TensorSpec`s, or types. An axis of unknown size is a batch.
        cases: operands of one client, each case a sequence of arrays, in the order of the definition (a list where it
            takes a list), maybe with a dict of attributes at the end. For an operation they stand in the place of those
            that would be found.
        structures: for operands of an operation that are not any numbers: from the operand's name to a function that
            makes numbers valid, such as `{"input": lambda a: a @ a.T + np.eye(len(a))}` for a positive definite matrix,
            or `{"sorted_inputs": np.sort}`. Each client's own numbers go through it; they stay near 0.
    Returns:
        How many cases and layouts were checked, and what the rule refused.
    Raises:
        LawBroken: names the rule with its file and line, shows the smallest operands found and both results.
        FedcoreError: TensorFlow has no such operation.
        OperandsNotFound: names the operand for which no value was found; give `cases=`.
    Example:
        >>> fc.testing.check_batching_rule('ReverseV2').layouts > 9
        True
    """
    if isinstance(op, str):
        if specs is not None:
            raise TypeMismatch(f"specs are of a function's arguments; {op} is an operation, so give cases=")
        _require_rule(op)
        structures = structures or {}
        subjects = cases_of_operation(op, cases, structures)
        gradients = build_gradient_cases(subjects)
    else:
        if structures:
            raise TypeMismatch("structures are of an operation's operands; for a function give cases=")
        if not callable(op) or specs is None:
            problem = "a function needs specs=, of its arguments" if callable(op) else f"not {brief(op)}"
            raise TypeMismatch(f"check_batching_rule takes an operation's name, or a function and specs: {problem}")
        subjects, gradients = cases_of_function(op, specs, cases), []
    check = _Check()
    for subject, case in sorted(subjects, key=lambda each: each[1].entries):
        (check.few_layouts if case.is_variation else check.all_layouts)(subject, case)
    for subject, case in _cases_for_values(subjects):
        for changed in cases_of_values(case, subject.alone, STRUCTURES.get(subject.name, {}), keep=structures or {}):
            check.few_layouts(subject, changed)
    if not check.layouts:
        reasons = "; ".join(check.refused) or "clients share all operands"
        subject, _ = subjects[0]
        raise LawBroken(f"{subject.title} accepts operands", f"it refuses all {len(subjects)} cases: {reasons}")
    for subject, case in gradients:
        check.first_layout(subject, case)
    return CheckedRule(len(subjects), check.layouts, tuple(check.refused))


def _cases_for_values(subjects: Cases) -> Cases:
    """A case of each dtype, with some entries."""
    chosen: dict[tuple, tuple[Subject, RuleCase]] = {}
    for subject, case in sorted(subjects, key=lambda each: abs(each[1].entries - 24)):
        chosen.setdefault(tuple(o.dtype for o in case.operands), (subject, case))
    return [*chosen.values()]


def _require_rule(op: str) -> None:
    if op not in batching_rules:
        raise LawBroken(f"{op} has a batching rule", f"none is registered; write one: @batching_rule({op!r})")
    check_operation_name(op)


class _Check:
    """Runs cases in their layouts.

    Attributes:
        layouts: how many were compared.
        refused: the reasons why others were not.
    """

    def __init__(self) -> None:
        self.layouts = 0
        self.refused: dict[str, None] = {}

    def all_layouts(self, subject: Subject, case: RuleCase) -> None:
        self._compare(subject, case, [*unpadded_layouts(case), *padded_layouts(case, subject.alone)])

    def few_layouts(self, subject: Subject, case: RuleCase) -> None:
        """Clients' own operands, and the first padded axes with copies and garbage; of main cases one more each."""
        count = 1 if case.is_variation else 2
        unpadded = itertools.islice(unpadded_layouts(case), count)
        layouts = unpadded, itertools.islice(padded_layouts(case, subject.alone), 1 + count)
        self._compare(subject, case, [*itertools.chain(*layouts)])

    def first_layout(self, subject: Subject, case: RuleCase) -> None:
        layouts = (
            padded_layouts(case, subject.alone) if any(o.batch_axes for o in case.operands) else unpadded_layouts(case)
        )
        self._compare(subject, case, list(layouts)[:1])

    def _compare(self, subject: Subject, case: RuleCase, layouts: Sequence[Layout]) -> None:
        runs = [Run(subject, case, layout) for layout in layouts]
        run_all(runs)
        for run in runs:
            try:
                run.check()
            except NoBatchingRule as refusal:
                self.refused[str(refusal)] = None
            else:
                self.layouts += 1
