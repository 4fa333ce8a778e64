"""How the operands of a batching rule may stand: per client, shared, constant, or padded along an axis."""

import enum
import functools
import itertools
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from fedcore.graphs.batched.batched_value import Padding
from fedcore.testing.rule_cases import CLIENTS, Alone, RuleCase, result_shapes

MOST_PADDED = 12
"""Combinations of padded axes that are checked for one case."""


class Form(enum.Enum):
    """Where the values of an operand are from."""

    OWN = "per client"
    SHARED = "shared"
    CONSTANT = "constant"


@attrs.frozen
class Place:
    """How one operand stands.

    Args:
        axis: of one client's value, along which it is padded; None if it is not.
    """

    form: Form
    axis: int | None = None

    def __str__(self) -> str:
        return self.form.value if self.axis is None else f"{self.form.value}, padded along axis {self.axis}"


@attrs.frozen
class Layout:
    """How the operands of a case stand.

    Args:
        rows: the padded size of the batch; None without a batch.
        entries_per_row: along the padded axes.
        padding: the content of padded rows: copies of own rows, zeros, or (UNKNOWN) garbage.
    """

    places: tuple[Place, ...]
    rows: int | None = None
    entries_per_row: int = 1
    padding: Padding = Padding.UNKNOWN

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Rows of the batches of `CLIENTS` clients; the first has one row, the second has all."""
        if self.rows is None:
            return [0] * CLIENTS
        return [1, *(max(0, self.rows - k) for k in (0, 1, self.rows, 2, 0, 3, 1))]


def unpadded_layouts(case: RuleCase) -> Iterator[Layout]:
    """Per client where values differ; then each operand shared, alone per client, and constant."""
    own = [Place(Form.CONSTANT if o.is_static else Form.OWN) for o in case.operands]
    data = [i for i, o in enumerate(case.operands) if not o.is_static]
    choices = [own] if data else []

    def change(places: dict[int, Form]) -> list[Place]:
        return [Place(places[i]) if i in places else p for i, p in enumerate(own)]

    if len(data) > 1:
        choices += [change({i: Form.SHARED}) for i in data]
        choices += [change({j: Form.SHARED for j in data if j != i}) for i in data]
        choices += [change({i: Form.CONSTANT}) for i in data]
    for i, operand in enumerate(case.operands):
        if operand.is_static:
            choices.append(change({i: Form.SHARED}))
            if operand.differs:
                choices.append(change({i: Form.OWN}))
                choices.append(change({i: Form.OWN, **dict.fromkeys(data, Form.SHARED)}))
    visited = set()
    for places in map(tuple, choices):
        if places not in visited and any(p.form is Form.OWN for p in places):
            visited.add(places)
            yield Layout(places)


def padded_layouts(case: RuleCase, alone: Alone) -> Iterator[Layout]:
    """Layouts with a padded batch, of one or two entries per row, for which a client alone has a result."""
    combinations = itertools.islice(_padded_axes(case, alone), MOST_PADDED)
    for axes, size in combinations:
        own = tuple(
            Place(Form.CONSTANT if o.is_static else Form.OWN, a) for o, a in zip(case.operands, axes, strict=True)
        )
        variants = [own]
        others = [i for i, p in enumerate(own) if p.axis is None and p.form is Form.OWN]
        if others:
            variants.append(tuple(attrs.evolve(p, form=Form.SHARED) if i in others else p for i, p in enumerate(own)))
        padded = [i for i, p in enumerate(own) if p.axis is not None]
        for places in variants:
            for padding in (Padding.COPIES, Padding.UNKNOWN, *[Padding.ZEROS] * (places is own)):
                yield Layout(places, size, 1, padding)
        if len(padded) + len(others) > 1:
            for i in padded:
                places = tuple(attrs.evolve(p, form=Form.SHARED) if i == j else p for j, p in enumerate(own))
                yield Layout(places, size, 1, Padding.UNKNOWN)
        if size % 2 == 0:
            for padding in (Padding.COPIES, Padding.UNKNOWN):
                yield Layout(own, size // 2, 2, padding)


def _padded_axes(case: RuleCase, alone: Alone) -> Iterator[tuple[tuple[int | None, ...], int]]:
    """(the padded axis of each operand, or None; the size of these axes), first those with most axes padded."""
    sizes = dict.fromkeys(s for o in case.operands if not o.is_static for s in o.shape if s > 1)
    combinations: list[tuple[tuple[int | None, ...], int]] = []
    for size in sizes:
        choices: list[list[int | None]] = []
        for operand in case.operands:
            own = [a for a, s in enumerate(operand.shape) if s == size]
            allowed = [a for a in own if operand.batch_axes is None or a in operand.batch_axes]
            choices.append([None] if operand.is_static else [*allowed, None])
        combinations += [(c, size) for c in itertools.product(*choices) if set(c) != {None}]
    combinations.sort(key=lambda each: sum(a is None for a in each[0]))
    for axes, size in combinations:
        if all(result_shapes(alone, _first_rows(case, axes, n)) is not None for n in (1, size - 1)):
            yield axes, size


def _first_rows(case: RuleCase, axes: Sequence[int | None], count: int) -> list[np.ndarray]:
    return [
        o.array[0] if a is None else np.take(o.array[0], range(count), a)
        for o, a in zip(case.operands, axes, strict=True)
    ]
