"""Checks the laws of an aggregator: a factory of aggregation processes."""

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.aggregators.factory import (
    AggregationFactory,
    UnweightedAggregationFactory,
    WeightedAggregationFactory,
)
from fedcore.errors import TypeMismatch, brief
from fedcore.runtime import LocalRuntime, Runtime
from fedcore.runtime.reports.result_difference import difference
from fedcore.templates import AggregationProcess
from fedcore.testing.generated import Values
from fedcore.testing.laws import REFUSALS, LawBroken, describe_raised, expected_compilations
from fedcore.testing.values import large_values
from fedcore.types import FederatedType, Type, fits, to_type

COHORTS = ((0, "small"), (1, "small"), (2, "special"), (7, "small"), (20, "small"))
"""Numbers of clients and spreads of their values. Blocks have two clients, so that partials are merged."""

ROUNDS = 3

MANY = 300
"""Clients, and rounds, that a count of 8 bits does not hold, signed or not."""

MEANT = ((1, "small"), (7, "small"), (20, "offset"), (MANY, "small"))
"""Cohorts whose results are compared with a meaning, as in `COHORTS`."""

UNEVEN = (7, 2, 0, 7)  # clients of each round

WEIGHT_SCALES = (1, 1 / 32, 97)
"""Factors of the weights, by round with a meaning: some sum up to less than 1, others need more than 8 bits."""


@expected_compilations()
def check_aggregator(
    factory: AggregationFactory,
    value_type: object,
    weight_type: object = None,
    *,
    meaning: Callable[[list], object] | None = None,
    tolerance: float = 64,
) -> None:
    """Checks the laws of an aggregator, with generated values.

    Laws: `create` gives an `AggregationProcess` for the types, weighted if the factory is, also for others that it does
    not refuse, and gives equal ones when it is called again; the names in a struct do not change a result without
    random numbers. `next` runs three times, for 0, 1, 2, 7 and 20 clients; each run takes the state of the one before.
    The local runtime gives the state, the result and the measurements of the reference runtime, which folds all clients
    in one block; the values of two clients are NaN, infinite floats and extreme integers, and may be refused by both.
    The result after a round without clients is finite, if it was before. With `meaning` the results are also those of
    numpy, of a process that is created anew, after 300 rounds, and, where numpy's are finite, in rounds of uneven
    cohorts and with a client that is huge or not finite: only this finds a mistake in the program itself, such as a
    count that overflows or a state that is lost.

    Args:
        value_type: type of a client's value.
        weight_type: type of a client's weight, for a weighted factory. Weights are generated as values are, so some are
            negative or 0. Default: float32 for a weighted factory.
        meaning: the result of the last of some rounds, in numpy, for 1, 7, 20 and 300 clients, and, where it is
            finite, for rounds of 7, 2, 0 and 7. A round is the list of the clients' values; for a weighted factory the
            pair of the values and the weights, which are above 0.
            Default: the meaning is not checked.
        tolerance: how many roundings (units of the dtype's epsilon) floats may differ by.
    Raises:
        LawBroken: names the law and the number of clients, and shows the values and the difference.
        TypeMismatch: the factory is no factory of fc.aggregators, or refuses the types.
    Example:
        >>> fc.testing.check_aggregator(fc.aggregators.MeanFactory(), 'float32', 'float32')
        >>> fc.testing.check_aggregator(
        ...     fc.aggregators.SumFactory(), 'float32', meaning=lambda rounds: np.sum(rounds[-1], 0))
    """
    if not isinstance(factory, UnweightedAggregationFactory | WeightedAggregationFactory):
        raise TypeMismatch(f"check_aggregator takes a factory of fc.aggregators, not {brief(factory)}")
    name, types = type(factory).__name__, [to_type(value_type)]
    if isinstance(factory, WeightedAggregationFactory):
        types.append(to_type("float32" if weight_type is None else weight_type))
    elif weight_type is not None:
        raise TypeMismatch(f"check_aggregator: {name} is not weighted, so it takes no weight_type")
    process = factory.create(*types)
    _check_types(name, process, types)
    _check_other_types(name, factory, types)
    local = fc.runtime.local(block_size=2, workers_per_device=1, default_num_clients=0)
    check = _Check(name, process, types, local, meaning, tolerance)
    try:
        for clients, spread in COHORTS:
            check.rounds(clients, spread)
        if meaning is None:
            check.same_result(factory.create(*types))
        else:
            for clients, spread in MEANT:
                anew = attrs.evolve(check, process=factory.create(*types))
                anew.meaning_of(_positive(_rounds(types, clients, spread)))
            many = _positive(_rounds(types, 1, "small") * (MANY // ROUNDS))
            check.meaning_of(many, checked=(MANY // 2, 257, MANY))
            check.not_finite()
        check.uneven_rounds()
    finally:
        local.close()


def _check_other_types(name: str, factory: AggregationFactory, types: list[Type]) -> None:
    """Checks that the factory gives processes for structs too, if it does not refuse them, and, if the result does not
    depend on the seed, that it does not depend on their names.
    """
    law = f"{name}: the names in a struct, <a,b> or <b,a>, do not change the result"
    reference, results = fc.runtime.reference(default_num_clients=0), []
    for names, seed in ("ab", 0), ("ab", 1), ("ba", 0):
        struct = [to_type({field: types[0] for field in names}), *types[1:]]
        try:
            process = factory.create(*struct)
        except REFUSALS:  # it takes the author's type only
            return
        except Exception as error:
            fix = "\nfix: raise fc.errors.TypeMismatch for types that it refuses"
            what = f"for {struct[0]} it raises {describe_raised(error)}{fix}"
            raise LawBroken(f"{name}: create gives a process for the types, or refuses them", what) from error
        _check_types(name, process, struct)
        values = _positive(_rounds(struct, 7, "small"))[0]
        state = _run(law, process.initialize, [], reference, None, seed)
        result = _run(law, process.next, [state, *values], reference, values, seed).result
        results.append(tuple(result.values()) if isinstance(result, dict) else result)
    if difference(results[1], results[0], 0) is None:
        _equal(law, results[2], results[0], 0, process.next, values)


@attrs.frozen
class _Check:
    """The checks of a process on the local runtime.

    Args:
        types: of a client's value and, if the factory is weighted, of its weight.
        meaning: as for `check_aggregator`.
        tolerance: as for `check_aggregator`.
    """

    name: str
    process: AggregationProcess
    types: list[Type]
    local: LocalRuntime
    meaning: Any
    tolerance: float

    def _initial_state(self, law: str, runtime: Runtime | None = None) -> Any:
        return _run(law, self.process.initialize, [], runtime or self.local, None)

    def _next(self, law: str, state: object, values: list, runtime: Runtime | None = None) -> Any:
        """The output of a round with these values, and weights, of the clients."""
        return _run(law, self.process.next, [state, *values], runtime or self.local, values)

    def _equal(self, law: str, have: object, want: object, inputs: object) -> None:
        _equal(law, have, want, self.tolerance, self.process.next, inputs)

    def _equal_if_finite(self, law: str, have: object, want: object, inputs: object) -> None:
        """Checks equality where the dtype of the result holds the numbers of `meaning`."""
        with np.errstate(over="ignore"):
            want = _as_type(want, have)
        if _is_finite(want):
            self._equal(law, have, want, inputs)

    def same_result(self, other: AggregationProcess) -> None:
        """Checks that another process of the factory gives the same result."""
        law = f"{self.name}: a process that is created anew gives the same result"
        values = _positive(_rounds(self.types, 7, "small"))[0]
        pair = [each._next(law, each._initial_state(law), values) for each in (self, attrs.evolve(self, process=other))]
        self._equal(law, pair[1].result, pair[0].result, values)

    def not_finite(self) -> None:
        """Checks the result with a client that is not finite, or huge, where `meaning` is finite."""
        for label, wrong in (("nan", np.nan), ("inf", np.inf), ("-inf", -np.inf), ("huge", None)):
            law = f"{self.name}: the result is that of `meaning`, with a client whose value is {label}"
            round_values = _positive(_rounds(self.types, 7, "small"))[0]
            values = round_values[0]
            values[3] = tf.nest.map_structure(
                lambda v, w=wrong: np.full_like(v, w or large_values(v.dtype)[0])[()] if _is_float(v) else v, values[3]
            )
            (received,) = _received([round_values])
            want = _finite_meaning(self.meaning, [received])
            if want is not None:
                output = self._next(law, self._initial_state(law), round_values)
                self._equal_if_finite(law, output.result, want, received)

    def uneven_rounds(self) -> None:
        """Checks that a round without clients, which may have no result, leaves a state that later rounds can use."""
        law = f"{self.name}: the result is finite after a round without clients, as before it"
        rounds = [_positive(_rounds(self.types, clients, "small"))[0] for clients in UNEVEN]
        state, are_finite = self._initial_state(law), []
        for number, values in enumerate(rounds, 1):
            output = self._next(law, state, values)
            state, result = output.state, output.result
            are_finite.append(_is_finite(result))
            received = _received(rounds[:number])
            want = _finite_meaning(self.meaning, received) if self.meaning is not None and values[0] else None
            if want is not None:
                own_law = f"{self.name}: the result is that of `meaning` in rounds of {UNEVEN[:number]} clients"
                self._equal_if_finite(own_law, result, want, received)
        if are_finite[0] and not are_finite[-1]:
            raise LawBroken(law, f"it is {result!r}", program=self.process.next.module, inputs=rounds)

    def meaning_of(self, rounds: list[list], checked: Sequence[int] = range(1, ROUNDS + 1)) -> None:
        """Checks that the results of the rounds with the numbers `checked` are those of `meaning`."""
        law = f"{self.name}: the result of round %s is that of `meaning`, with {len(rounds[0][0])} clients"
        state = self._initial_state(law % 1)
        for number, values in enumerate(rounds, 1):
            output = self._next(law % number, state, values)
            if number in checked:
                received = _received(rounds[:number])
                want = _as_type(self.meaning(received), output.result)
                self._equal(law % number, output.result, want, received[-ROUNDS:])
            state = output.state

    def rounds(self, clients: int, spread: str) -> None:
        """Checks rounds on both runtimes, each from its own state; special values may be refused by both."""
        law = f"{self.name}: the local runtime gives the reference's %s, with {clients} clients"
        reference = fc.runtime.reference(default_num_clients=0)
        state = self._initial_state(law % "initial state", reference)
        own = self._initial_state(law % "initial state")
        _equal(law % "initial state", own, state, self.tolerance, self.process.initialize, None)
        for number, values in enumerate(_rounds(self.types, clients, spread), 1):
            label = f"result of round {number}"
            try:
                want = self._next(law % label, state, values, reference)
            except LawBroken:
                if spread == "special" and _refuses(self.process.next, [own, *values], self.local):
                    return
                raise
            have = self._next(law % label, own, values)
            for part in ("state", "result", "measurements"):
                self._equal(law % f"{part} of round {number}", getattr(have, part), getattr(want, part), values)
            state, own = want.state, have.state


def _received(rounds: list[list]) -> list:
    """The rounds as `meaning` takes them: the values of the clients, or the pair of the values and the weights."""
    return [tuple(r) if len(r) > 1 else r[0] for r in rounds]


def _finite_meaning(meaning: Callable, rounds: list) -> Any:
    """The result of `meaning` if it is finite, and the same from float64; else None."""
    wide = tf.nest.map_structure(lambda v: np.float64(v) if np.asarray(v).dtype.kind == "f" else v, rounds)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            want = meaning(rounds)
            pairs = zip(tf.nest.flatten(want), tf.nest.flatten(meaning(wide)), strict=True)
            is_same = all(np.isfinite(a).all() and np.allclose(a, b, 1e-3, 1e-3) for a, b in pairs)
    except Exception:
        return None
    return want if is_same else None


def _is_finite(result: object) -> bool:
    return all(np.isfinite(leaf).all() for leaf in tf.nest.flatten(result) if _is_float(leaf))


def _is_float(leaf: object) -> bool:
    return np.asarray(leaf).dtype.kind in "fcV"


def _rounds(types: list[Type], clients: int, spread: str) -> list[list]:
    """The values of the clients in each round, and their weights, which are small."""
    values, weights = Values(clients, [clients], spread), Values(clients, [clients, 1])
    placed = [FederatedType(t, fc.CLIENTS) for t in types]
    return [[values.value(placed[0]), *map(weights.value, placed[1:])] for _ in range(ROUNDS)]


def _positive(rounds: list[list]) -> list[list]:
    """The rounds with weights above 0."""
    scales = itertools.cycle(WEIGHT_SCALES)
    return [
        [values, *([_scaled(w, scale) for w in part] for part in weights)]
        for (values, *weights), scale in zip(rounds, scales, strict=False)
    ]


def _scaled(weight: Any, scale: float) -> Any:
    positive = np.abs(weight) + np.ones_like(weight)
    is_held = _is_float(weight) or (scale >= 1 and positive.dtype.itemsize >= 4)
    return (positive * scale).astype(positive.dtype)[()] if is_held else positive


def _as_type(want: Any, like: Any) -> Any:
    """The numbers of `meaning` in the containers and dtypes of a result."""
    if isinstance(like, dict):
        return {key: _as_type(want[key], part) for key, part in like.items()}
    if isinstance(like, tuple | list):
        return type(like)(_as_type(w, part) for w, part in zip(want, like, strict=True))
    return np.asarray(want).astype(np.asarray(like).dtype)


def _check_types(name: str, process: AggregationProcess, types: list[Type]) -> None:
    law = f"{name}: create gives a process for the types"
    if not isinstance(process, AggregationProcess):
        raise LawBroken(law, f"it gives {brief(process)}, not an fc.templates.AggregationProcess")
    parameter_types = [p.type for p in process.next.module.main.parameters[1:]]
    expected = [FederatedType(t, fc.CLIENTS) for t in types]
    if len(parameter_types) != len(expected) or not all(map(fits, expected, parameter_types)):
        raise LawBroken(law, f"next takes {', '.join(map(str, parameter_types))}, not {', '.join(map(str, expected))}")


def _run(law: str, fn: fc.Computation, arguments: list, runtime: Runtime, values: object, seed: int = 0) -> Any:
    with fc.use(runtime, pipeline="default"):
        try:
            return fn.invoke(*arguments, seed=seed)
        except Exception as error:
            which = "reference" if isinstance(runtime, fc.runtime.ReferenceRuntime) else "local"
            what = f"the {which} runtime raises {type(error).__name__}: {error}"
            raise LawBroken(law, what, program=fn.module, inputs=values) from error


def _refuses(computation: fc.Computation, arguments: list, runtime: Runtime) -> bool:
    try:
        _run("", computation, arguments, runtime, None)
    except LawBroken:
        return True
    return False


def _equal(law: str, have: object, want: object, tolerance: float, program: fc.Computation, values: object) -> None:
    mismatch = difference(have, want, tolerance)
    if mismatch is not None:
        raise LawBroken(law, mismatch, program=program.module, inputs=values)
