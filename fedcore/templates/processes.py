"""Processes: `initialize` makes a state, `next` turns it and more into the next one."""

import attrs

from fedcore.errors import TypeMismatch
from fedcore.types import FederatedType, StructType, Type, explain, fits, member_of


@attrs.frozen
class MeasuredProcessOutput:
    """What `next` of a measured process returns: `<state=S@SERVER,result=R,measurements=M@SERVER>`."""

    state: object
    result: object
    measurements: object

    def __iter__(self):
        return iter((self.state, self.result, self.measurements))


class IterativeProcess:
    """`initialize : (-> S)` and `next : (<S,…> -> S or <S,…>)`.

    Raises:
        TypeMismatch: initialize takes arguments, or its state does not fit what `next` takes and returns.
    """

    def __init__(self, initialize_fn, next_fn):
        name = type(self).__name__
        if initialize_fn.type_signature.parameter is not None:
            raise TypeMismatch(
                f"{name}: initialize_fn takes no argument, but has the type {initialize_fn.type_signature}"
            )
        state = initialize_fn.type_signature.result
        taken = _first_parameter(next_fn)
        if taken is None or not fits(state, taken):
            raise TypeMismatch(
                explain(f"{name}: next_fn does not take the state of initialize_fn", state, taken)
                if taken is not None
                else f"{name}: next_fn takes no state"
            )
        returned = _first_result(next_fn.type_signature.result, state)
        if not fits(returned, taken):
            raise TypeMismatch(explain(f"{name}: next_fn does not return the state that it takes", returned, taken))
        self._initialize = initialize_fn
        self._next = next_fn

    @property
    def initialize(self):
        return self._initialize

    @property
    def next(self):
        return self._next

    @property
    def state_type(self) -> Type:
        return self._initialize.type_signature.result


def _first_parameter(next_fn) -> Type | None:
    parameters = next_fn.module.main.parameters
    return parameters[0].type if parameters else None


def _first_result(result: Type, state: Type) -> Type:
    """`next` returns the state alone, or first of several."""
    if fits(result, state):
        return result
    member = member_of(result)
    if not isinstance(member, StructType) or not len(member):
        return result
    first = member.types[0]
    return FederatedType(first, result.placement, result.all_equal) if isinstance(result, FederatedType) else first


class MeasuredProcess(IterativeProcess):
    """An iterative process whose `next` returns a `MeasuredProcessOutput`."""

    def __init__(self, initialize_fn, next_fn):
        super().__init__(initialize_fn, next_fn)
        result = next_fn.type_signature.result
        names = result.names if isinstance(result, StructType) else ()
        if names != ("state", "result", "measurements"):
            raise TypeMismatch(
                f"{type(self).__name__}: next_fn returns a MeasuredProcessOutput (state, result, measurements), "
                f"not {result}"
            )


class AggregationProcess(MeasuredProcess):
    """A measured process from client values to a server value.

    Types: `next : (<state=S@SERVER,value={V}@CLIENTS[,weight={W}@CLIENTS]> ->
    <state=S@SERVER,result=V@SERVER,measurements=M@SERVER>)`.
    """

    def __init__(self, initialize_fn, next_fn):
        super().__init__(initialize_fn, next_fn)
        parameters = next_fn.module.main.parameters
        if len(parameters) not in (2, 3):
            raise TypeMismatch(
                "AggregationProcess: next_fn takes a state, a value and maybe a weight, "
                f"not {len(parameters)} arguments"
            )
        for parameter in parameters[1:]:
            type_ = parameter.type
            if not isinstance(type_, FederatedType) or type_.placement.name != "CLIENTS":
                raise TypeMismatch(
                    f"AggregationProcess: next_fn takes client values, but {parameter.name} has the type {type_}"
                )
        result = next_fn.type_signature.result["result"]
        if not isinstance(result, FederatedType) or result.placement.name != "SERVER":
            raise TypeMismatch(f"AggregationProcess: the result of next_fn is at the server, not {result}")

    @property
    def is_weighted(self) -> bool:
        return len(self.next.module.main.parameters) == 3
