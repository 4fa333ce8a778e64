"""Checks the laws of an aggregator: a factory of aggregation processes."""

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

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
    is_weighted = isinstance(factory, WeightedAggregationFactory)
    if is_weighted:
        types.append(to_type("float32" if weight_type is None else weight_type))
    elif weight_type is not None:
        raise TypeMismatch(f"check_aggregator: {name} is not weighted, so it takes no weight_type")
    process = factory.create(*types)
    _check_types(name, process, types)
    _check_other_types(name, factory, types)
    local = fc.runtime.local(block_size=2, workers_per_device=1, default_num_clients=0)
    try:
        for clients, spread in COHORTS:
            _check_rounds(
                name, process, clients, _rounds(types, clients, spread), local, tolerance, spread == "special"
            )
        if meaning is None:
            values = _positive(_rounds(types, 7, "small"))[0]
            _check_anew(name, [process, factory.create(*types)], values, local, tolerance)
        else:
            for clients, spread in MEANT:
                rounds = _positive(_rounds(types, clients, spread))
                _check_meaning(name, factory.create(*types), rounds, local, meaning, tolerance)
            rounds = _positive(_rounds(types, 1, "small") * (MANY // ROUNDS))
            _check_meaning(name, process, rounds, local, meaning, tolerance, checked=(MANY // 2, 257, MANY))
            _check_not_finite(name, process, types, local, meaning, tolerance)
        _check_uneven_rounds(name, process, types, local, meaning, tolerance)
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


def _check_anew(name: str, processes: list, values: list, local: LocalRuntime, tolerance: float) -> None:
    """Checks that processes of one factory give equal results."""
    law = f"{name}: a process that is created anew gives the same result"
    states = [_run(law, p.initialize, [], local, None) for p in processes]
    pair = [_run(law, p.next, [s, *values], local, values).result for p, s in zip(processes, states, strict=True)]
    _equal(law, pair[1], pair[0], tolerance, processes[1].next, values)


def _check_not_finite(
    name: str, process: AggregationProcess, types: list[Type], local: LocalRuntime, meaning: Callable, tolerance: float
) -> None:
    """Checks the result with a client that is not finite, or huge, where `meaning` is finite."""
    law = f"{name}: the result is that of `meaning`, with a client whose value is %s"
    for label, wrong in (("nan", np.nan), ("inf", np.inf), ("-inf", -np.inf), ("huge", None)):
        values, *weights = _positive(_rounds(types, 7, "small"))[0]
        values[3] = tf.nest.map_structure(
            lambda v, w=wrong: np.full_like(v, w or large_values(v.dtype)[0])[()] if _is_float(v) else v, values[3]
        )
        received = (values, *weights) if weights else values
        want = _finite_meaning(meaning, [received])
        if want is None:
            continue
        state = _run(law % label, process.initialize, [], local, None)
        output = _run(law % label, process.next, [state, values, *weights], local, values)
        _equal_if_finite(law % label, output.result, want, tolerance, process.next, received)


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


def _check_uneven_rounds(
    name: str,
    process: AggregationProcess,
    types: list[Type],
    local: LocalRuntime,
    meaning: Callable | None,
    tolerance: float,
) -> None:
    """Checks that a round without clients, which may have no result, leaves a state that later rounds can use."""
    law = f"{name}: the result is finite after a round without clients, as before it"
    rounds = [_positive(_rounds(types, clients, "small"))[0] for clients in UNEVEN]
    state, are_finite = _run(law, process.initialize, [], local, None), []
    for number, values in enumerate(rounds, 1):
        output = _run(law, process.next, [state, *values], local, values)
        state, result = output.state, output.result
        are_finite.append(_is_finite(result))
        received = [tuple(r) if len(r) > 1 else r[0] for r in rounds[:number]]
        want = _finite_meaning(meaning, received) if meaning is not None and values[0] else None
        if want is not None:
            own_law = f"{name}: the result is that of `meaning` in rounds of {UNEVEN[:number]} clients"
            _equal_if_finite(own_law, result, want, tolerance, process.next, received)
    if are_finite[0] and not are_finite[-1]:
        raise LawBroken(law, f"it is {result!r}", program=process.next.module, inputs=rounds)


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


def _check_meaning(
    name: str,
    process: AggregationProcess,
    rounds: list[list],
    local: LocalRuntime,
    meaning: Callable,
    tolerance: float,
    checked: Sequence[int] = range(1, ROUNDS + 1),
) -> None:
    """Checks results.

    Args:
        checked: numbers of the rounds whose results are checked.
    """
    law = f"{name}: the result of round %s is that of `meaning`, with {len(rounds[0][0])} clients"
    state = _run(law % 1, process.initialize, [], local, None)
    for number, values in enumerate(rounds, 1):
        output = _run(law % number, process.next, [state, *values], local, values)
        if number in checked:
            received = [tuple(r) if len(r) > 1 else r[0] for r in rounds[:number]]
            want = _as_type(meaning(received), output.result)
            _equal(law % number, output.result, want, tolerance, process.next, received[-ROUNDS:])
        state = output.state


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


def _check_rounds(
    name: str,
    process: AggregationProcess,
    clients: int,
    rounds: list[list],
    local: LocalRuntime,
    tolerance: float,
    may_refuse: bool,
) -> None:
    """Checks rounds on both runtimes, each from its own state.

    Args:
        may_refuse: the runtimes may refuse the values, if both do.
    """
    law = f"{name}: the local runtime gives the reference's %s, with {clients} clients"
    reference = fc.runtime.reference(default_num_clients=0)
    state = _run(law % "initial state", process.initialize, [], reference, None)
    own = _run(law % "initial state", process.initialize, [], local, None)
    _equal(law % "initial state", own, state, tolerance, process.initialize, None)
    for number, values in enumerate(rounds, 1):
        label = f"result of round {number}"
        try:
            want = _run(law % label, process.next, [state, *values], reference, values)
        except LawBroken:
            if may_refuse and _refuses(process.next, [own, *values], local):
                return
            raise
        have = _run(law % label, process.next, [own, *values], local, values)
        for part in ("state", "result", "measurements"):
            pair = (getattr(have, part), getattr(want, part))
            _equal(law % f"{part} of round {number}", *pair, tolerance, process.next, values)
        state, own = want.state, have.state


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


def _equal_if_finite(law: str, have: object, want: object, *others: Any) -> None:
    """Checks equality where the dtype of the result holds the numbers of `meaning`."""
    with np.errstate(over="ignore"):
        want = _as_type(want, have)
    if _is_finite(want):
        _equal(law, have, want, *others)
