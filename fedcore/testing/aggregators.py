"""Checks the laws of an aggregator: a factory of aggregation processes."""

from typing import Any

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
from fedcore.testing.laws import LawBroken
from fedcore.types import FederatedType, Type, fits, to_type

CLIENTS = (0, 1, 2, 7)
"""Numbers of clients. Blocks have two clients, so that partials are merged."""


def check_aggregator(
    factory: AggregationFactory, value_type: object, weight_type: object = None, *, tolerance: float = 64
) -> None:
    """Checks the laws of an aggregator, with generated values.

    Laws: `create` gives an `AggregationProcess` for the types, weighted if the factory is. `next` runs twice, for 0, 1,
    2 and 7 clients; the second run takes the state of the first. The local runtime gives the state, the result and the
    measurements of the reference runtime, which folds all clients in one block.

    Args:
        value_type: type of a client's value.
        weight_type: type of a client's weight, for a weighted factory. Weights are generated as values are, so some are
            negative or 0. Default: float32 for a weighted factory.
        tolerance: how many roundings (units of the dtype's epsilon) floats may differ by.
    Raises:
        LawBroken: names the law and the number of clients, and shows the values and the difference.
        TypeMismatch: the factory is no factory of fc.aggregators, or refuses the types.
    Example:
        >>> fc.testing.check_aggregator(fc.aggregators.MeanFactory(), 'float32', 'float32')
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
    local = fc.runtime.local(block_size=2, workers_per_device=1, default_num_clients=0)
    try:
        for clients in CLIENTS:
            values = Values(clients, [clients])
            rounds = [[values.value(FederatedType(t, fc.CLIENTS)) for t in types] for _ in range(2)]
            _check_rounds(name, process, clients, rounds, local, tolerance)
    finally:
        local.close()


def _check_types(name: str, process: AggregationProcess, types: list[Type]) -> None:
    law = f"{name}: create gives a process for the types"
    if not isinstance(process, AggregationProcess):
        raise LawBroken(law, f"it gives {brief(process)}, not an fc.templates.AggregationProcess")
    parameter_types = [p.type for p in process.next.module.main.parameters[1:]]
    expected = [FederatedType(t, fc.CLIENTS) for t in types]
    if len(parameter_types) != len(expected) or not all(map(fits, expected, parameter_types)):
        raise LawBroken(law, f"next takes {', '.join(map(str, parameter_types))}, not {', '.join(map(str, expected))}")


def _check_rounds(
    name: str, process: AggregationProcess, clients: int, rounds: list[list], local: LocalRuntime, tolerance: float
) -> None:
    """Checks two rounds, each from the state of the reference runtime."""
    law = f"{name}: the local runtime gives the reference's %s, with {clients} clients"
    reference = fc.runtime.reference(default_num_clients=0)
    state = _run(law % "initial state", process.initialize, [], reference, None)
    own = _run(law % "initial state", process.initialize, [], local, None)
    _equal(law % "initial state", own, state, tolerance, process.initialize, None)
    for number, values in enumerate(rounds, 1):
        label = f"result of round {number}"
        want = _run(law % label, process.next, [state, *values], reference, values)
        have = _run(law % label, process.next, [own, *values], local, values)
        for part in ("state", "result", "measurements"):
            pair = (getattr(have, part), getattr(want, part))
            _equal(law % f"{part} of round {number}", *pair, tolerance, process.next, values)
        state, own = want.state, have.state


def _run(law: str, computation: fc.Computation, arguments: list, runtime: Runtime, values: object) -> Any:
    with fc.use(runtime, pipeline="default"):
        try:
            return computation.invoke(*arguments, seed=0)
        except Exception as error:
            which = "reference" if isinstance(runtime, fc.runtime.ReferenceRuntime) else "local"
            what = f"the {which} runtime raises {type(error).__name__}: {error}"
            raise LawBroken(law, what, program=computation.module, inputs=values) from error


def _equal(law: str, have: object, want: object, tolerance: float, program: fc.Computation, values: object) -> None:
    mismatch = difference(have, want, tolerance)
    if mismatch is not None:
        raise LawBroken(law, mismatch, program=program.module, inputs=values)
