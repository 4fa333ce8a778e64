"""Further measurements of an aggregation: functions of the clients' values, and of the result."""

import inspect
from collections.abc import Callable, Mapping

from fedcore.aggregators.factory import (
    CreateInner,
    FactoryT,
    WeightedAggregationFactory,
    aggregation_process,
    wrapping_factory,
)
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.intrinsics import federated_zip
from fedcore.ir.locations import describe
from fedcore.ir.values import Value
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import StructType, Type, member_of


def add_measurements(
    inner_agg_factory: FactoryT,
    client_measurement_fn: Callable | None = None,
    server_measurement_fn: Callable | None = None,
) -> FactoryT:
    """Adds measurements to those of another aggregator.

    Types: those of the inner process, whose measurements are a struct with names; it gains the new names. Measurements
    of an inner process that has none (<>) are the new ones alone.

    Args:
        inner_agg_factory: the aggregator to measure. The factory that is returned is weighted if this one is.
        client_measurement_fn: traced; takes the client value (and the weight, where there is one) and returns a dict
            from names to server values, or a server value with names. Default: measures nothing.
        server_measurement_fn: traced; takes the result at the server, and returns what `client_measurement_fn` does.
            Default: measures nothing.
    Raises:
        InvalidValue: a function takes other arguments.
        TypeMismatch: neither function is given, one returns no dict, or a name is taken.
    Example:
        >>> factory = fc.aggregators.add_measurements(
        ...     fc.aggregators.SumFactory(), lambda value: {'largest': fc.federated_max(value)})
        >>> process = factory.create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [1.0, 2.0]).measurements['largest']
        np.float32(2.0)
    """
    if client_measurement_fn is None and server_measurement_fn is None:
        raise TypeMismatch("add_measurements: give client_measurement_fn, server_measurement_fn or both")
    is_weighted = isinstance(inner_agg_factory, WeightedAggregationFactory)
    _check_takes("client_measurement_fn", client_measurement_fn, ("value", "weight") if is_weighted else ("value",))
    _check_takes("server_measurement_fn", server_measurement_fn, ("result",))

    def build(value_type: Type, weight_type: Type | None, create_inner: CreateInner) -> AggregationProcess:
        process = create_inner(value_type)

        def body(state: Value, value: Value, weights: tuple[Value, ...]) -> MeasuredProcessOutput:
            aggregated = process.next(state, value, *weights)
            names = aggregated.measurements.type.member.names
            if None in names:
                raise TypeMismatch(
                    "add_measurements: the measurements of the inner aggregator have no names: "
                    f"{aggregated.measurements.type}"
                )
            measurements = {name: aggregated.measurements[name] for name in names}
            for fn, arguments in (
                (client_measurement_fn, (value, *weights)),
                (server_measurement_fn, (aggregated.result,)),
            ):
                if fn is not None:
                    _add_measurements_of(fn(*arguments), measurements)
            return MeasuredProcessOutput(aggregated.state, aggregated.result, federated_zip(measurements))

        return aggregation_process(process.initialize, value_type, weight_type, body)

    return wrapping_factory(inner_agg_factory, build)


def _check_takes(argument: str, fn: Callable | None, parameters: tuple[str, ...]) -> None:
    """Checks that a function takes these arguments by position."""
    if fn is None:
        return
    try:
        inspect.signature(fn).bind(*parameters)
    except TypeError:
        takes = " and ".join(f"a {name}" for name in parameters)
        raise InvalidValue(f"add_measurements: {argument} takes {takes}, but is {describe(fn)}") from None


def _add_measurements_of(more: object, measurements: dict) -> None:
    """Adds `more`, which a measurement function returned, to the measurements by name, in place.

    Raises:
        TypeMismatch: it is no dict from names and no value with names, or a name is taken.
    """
    if isinstance(more, Value) and isinstance(struct := member_of(more.type), StructType) and None not in struct.names:
        more = dict(zip(struct.names, more, strict=True))
    if not isinstance(more, Mapping):
        raise TypeMismatch(f"add_measurements: a measurement function returns a dict from names, not {brief(more)}")
    duplicates = [name for name in more if name in measurements]
    if duplicates:
        raise TypeMismatch(f"add_measurements: there is already a measurement named {', '.join(duplicates)}")
    measurements.update(more)
