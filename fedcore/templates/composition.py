"""Measured processes made of measured processes: one after the other, or side by side."""

import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from fedcore.computation import Computation, federated_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.intrinsics import federated_zip
from fedcore.ir import Value
from fedcore.templates.iterative import label
from fedcore.templates.measured import MeasuredProcess, MeasuredProcessOutput
from fedcore.types import FederatedType, StructType, Type, explain, fits


def chain_measured_processes(measured_processes: Mapping[str, MeasuredProcess]) -> MeasuredProcess:
    """One process that hands the result of each to the next.

    Types, for processes a and b: `next : (<state=<a=A,b=B>@SERVER,value=V> ->
    <state=<a=A,b=B>@SERVER,result=R of b,measurements=<a=MA,b=MB>@SERVER>)`. The first process may take more
    arguments than a value; then so does the chain.

    Args:
        measured_processes: in the order in which they run; the names are those of the states and measurements.
    Raises:
        TypeMismatch: there is none, or the result of one does not fit what the next takes.
    Example:
        >>> process = fc.templates.chain_measured_processes({'clip': clip, 'sum': add_up})
    """
    _check(measured_processes, "chain_measured_processes")
    names = list(measured_processes)
    for producer, consumer in itertools.pairwise(names):
        result = _result_type(measured_processes[producer])
        parameter = _value_type(measured_processes[consumer], consumer, "chain_measured_processes")
        if not fits(result, parameter):
            title = f"chain_measured_processes: `{consumer}` does not take what `{producer}` gives"
            raise TypeMismatch(explain(title, result, parameter, want_label=consumer, have_label=producer))
    value_parameters = measured_processes[names[0]].next.module.main.parameters[1:]
    if not value_parameters:
        raise TypeMismatch(f"chain_measured_processes: next of `{names[0]}` takes a state only, and no value")

    def chain(state: Value, *values: Value) -> MeasuredProcessOutput:
        outputs = {}
        for name, process in measured_processes.items():
            outputs[name] = process.next(state[name], *values)
            values = (outputs[name].result,)
        return _output(outputs, values[0])

    next_fn = with_parameters(chain, [p.name for p in value_parameters])
    return MeasuredProcess(
        _initialize(measured_processes),
        federated_computation(next_fn, _state_type(measured_processes), *(p.type for p in value_parameters)),
    )


def concatenate_measured_processes(measured_processes: Mapping[str, MeasuredProcess]) -> MeasuredProcess:
    """One process that runs several side by side, each on its own value.

    Types, for processes a and b: `next : (<state=<a=A,b=B>@SERVER,value=<a=VA,b=VB>> ->
    <state=<a=A,b=B>@SERVER,result=<a=RA,b=RB>,measurements=<a=MA,b=MB>@SERVER>)`; results that are all at one
    placement are zipped.

    Raises:
        TypeMismatch: there is none, or one does not take a state and one value.
    Example:
        >>> process = fc.templates.concatenate_measured_processes({'loss': mean, 'count': add_up})
    """
    _check(measured_processes, "concatenate_measured_processes")
    types = [(n, _value_type(p, n, "concatenate_measured_processes")) for n, p in measured_processes.items()]

    @federated_computation(_state_type(measured_processes), StructType(types))
    def next_fn(state: Value, value: Value) -> MeasuredProcessOutput:
        outputs = {name: process.next(state[name], value[name]) for name, process in measured_processes.items()}
        return _output(outputs, _zip_placed({n: o.result for n, o in outputs.items()}))

    return MeasuredProcess(_initialize(measured_processes), next_fn)


def _check(processes: object, name: str) -> None:
    """Raises unless the processes are a dict of at least one; `name` is that of the caller, for the message."""
    if not isinstance(processes, Mapping) or not processes:
        raise TypeMismatch(f"{name}: a dict of at least one process by name is wanted, not {brief(processes)}")
    for key, process in processes.items():
        if not isinstance(process, MeasuredProcess):
            raise TypeMismatch(f"{name}: `{key}` is a MeasuredProcess, not {brief(process)}")


def _result_type(process: MeasuredProcess) -> Type:
    """The type of the element `result` of what `next` returns."""
    result = process.next.type_signature.result
    assert isinstance(result, StructType)  # a MeasuredProcess returns one
    return result["result"]


def _value_type(process: MeasuredProcess, key: str, name: str) -> Type:
    """The type of the value that `next` takes beside the state.

    Args:
        key, name: names of the process and of the caller, for the message.
    Raises:
        TypeMismatch: it takes none, or several.
    """
    parameters = process.next.module.main.parameters
    if len(parameters) != 2:
        raise TypeMismatch(
            f"{name}: {label('next', process.next)} of `{key}` takes a state and one value, but has the type "
            f"{process.next.type_signature}"
        )
    return parameters[1].type


def _state_type(processes: Mapping[str, MeasuredProcess]) -> Type:
    return _initialize(processes).type_signature.result


def _initialize(processes: Mapping[str, MeasuredProcess]) -> Computation:
    """The computation of the states of all processes, as a struct by name."""

    @federated_computation
    def initialize() -> Any:
        return _zip_placed({name: process.initialize() for name, process in processes.items()})

    return initialize


def _output(outputs: dict[str, Any], result: Value) -> MeasuredProcessOutput:
    """The output of a process of processes, from the outputs of these by name."""
    states = _zip_placed({n: o.state for n, o in outputs.items()})
    return MeasuredProcessOutput(states, result, _zip_placed({n: o.measurements for n, o in outputs.items()}))


def _zip_placed(values: dict) -> Any:
    """One placed struct where all are at one placement, else a struct."""
    placements = {v.type.placement if isinstance(v.type, FederatedType) else None for v in values.values()}
    return federated_zip(values) if len(placements) == 1 and None not in placements else values


def with_parameters(fn: Callable, names: list[str]) -> Callable:
    """`fn(state, *values)` as a function of a state and named values."""

    def next_fn(*arguments: Value) -> MeasuredProcessOutput:
        return fn(*arguments)

    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("state", *names)]
    vars(next_fn)["__signature__"] = inspect.Signature(parameters)
    return next_fn
