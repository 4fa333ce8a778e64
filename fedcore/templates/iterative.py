"""Iterative processes: `initialize` makes a state, `next` turns it and more into the next one."""

import copy
from collections.abc import Mapping
from typing import Any

from fedcore.computation import Computation, PolymorphicComputation
from fedcore.errors import TypeMismatch, brief
from fedcore.types import FederatedType, StructType, Type, contains, explain, fits, member_of


class IterativeProcess:
    """`initialize : (-> S)` and `next : (<S,…> -> S or <S,…>)`.

    Args:
        next_is_multi_arg: whether `next` takes more than the state. Default: it may.
    Raises:
        TypeMismatch: initialize takes arguments, its state does not fit what `next` takes and returns, or `next` takes
            more or fewer arguments than `next_is_multi_arg` says.
    Example:
        >>> process = fc.templates.IterativeProcess(initialize, next_round)
        >>> state = process.next(process.initialize())
    """

    def __init__(self, initialize_fn: Computation, next_fn: Computation, next_is_multi_arg: bool | None = None) -> None:
        name = type(self).__name__
        check_computation(name, "initialize_fn", initialize_fn)
        check_computation(name, "next_fn", next_fn)
        if initialize_fn.type_signature.parameter is not None:
            raise TypeMismatch(
                f"{name}: {label('initialize_fn', initialize_fn)} takes no argument, but has the type "
                f"{initialize_fn.type_signature}"
            )
        state = initialize_fn.type_signature.result
        state_type = check_takes_state(name, "next_fn", next_fn, state)
        if next_is_multi_arg is not None and next_is_multi_arg != (len(next_fn.module.main.parameters) > 1):
            more = "more than the state" if next_is_multi_arg else "the state alone"
            raise TypeMismatch(
                f"{name}: {label('next_fn', next_fn)} takes {more} (next_is_multi_arg={next_is_multi_arg}), but has "
                f"the type {next_fn.type_signature}"
            )
        returned = _returned_state(next_fn.type_signature.result, state_type)
        if not fits(returned, state_type):
            title = f"{name}: {label('next_fn', next_fn)} does not return the state that it takes"
            fix = _zip_fix(returned, state_type)
            raise TypeMismatch(
                explain(title, returned, state_type, want_label="it takes", have_label="it returns", fix=fix)
            )
        self._initialize = initialize_fn
        self._next = next_fn

    @property
    def initialize(self) -> Computation:
        return self._initialize

    @property
    def next(self) -> Computation:
        return self._next

    @property
    def state_type(self) -> Type:
        return self._initialize.type_signature.result

    def with_next(self, next_fn: Computation) -> "IterativeProcess":
        """This process with another `next`: of its class, and with all else that it has.

        Raises:
            TypeMismatch: `next_fn` does not take the state, or does not return it.
        """
        process = copy.copy(self)
        IterativeProcess.__init__(process, self._initialize, next_fn)
        process._next = type(self._next)(next_fn.module, next_fn.__name__) if type(next_fn) is Computation else next_fn
        return process

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} initialize : {self._initialize.type_signature}, next : "
            f"{self._next.type_signature}>"
        )


def state_and_metrics(output: Any) -> tuple[Any, Any]:
    """The state and the metrics in what `next` gives: by their names, or its first two items."""
    if isinstance(output, Mapping) and "state" in output and "metrics" in output:
        return output["state"], output["metrics"]
    state, metrics, *_ = output
    return state, metrics


def label(role: str, fn: Any) -> str:
    """A function's role with the name that its author gave it."""
    return f"{role} (`{fn.__name__}`)"


def check_computation(name: str, role: str, fn: object) -> None:
    """Raises unless `fn` is a computation with a type; `name` and `role` are those of the process and of `fn`."""
    if isinstance(fn, Computation):
        return
    if isinstance(fn, PolymorphicComputation):
        raise TypeMismatch(f"{name}: {label(role, fn)} has no type before it is called; declare its parameters' types")
    raise TypeMismatch(f"{name}: {role} is a computation (see fc.federated_computation), not {brief(fn)}")


def check_takes_state(name: str, role: str, fn: Computation, state: Type) -> Type:
    """Checks that the first parameter of `fn` takes a state; returns the parameter's type, which may be more general.

    Args:
        name: of the process's class, for messages.
        role: the name of the argument that gave `fn`, such as `next_fn`.
        state: the type of the result of initialize_fn.
    """
    parameters = fn.module.main.parameters
    if not parameters:
        raise TypeMismatch(f"{name}: {label(role, fn)} takes no state, but has the type {fn.type_signature}")
    state_type = parameters[0].type
    if not fits(state, state_type):
        title = f"{name}: {label(role, fn)} does not take the state of initialize_fn"
        fix = _zip_fix(state, state_type)
        raise TypeMismatch(explain(title, state, state_type, want_label=role, have_label="initialize_fn", fix=fix))
    return state_type


def _zip_fix(have: Type, want: Type) -> str | None:
    """The fix for a struct of placed values in place of a placed struct; None for other mismatches."""
    if not isinstance(have, StructType) or not isinstance(want, FederatedType):
        return None
    is_placed = contains(have, lambda t: isinstance(t, FederatedType))
    return "fc.federated_zip(...) makes the struct one placed value" if is_placed else None


def _returned_state(result: Type, state_type: Type) -> Type:
    """The type of the state that `next` returns: its result, or the first element of that."""
    if fits(result, state_type):
        return result
    member = member_of(result)
    if not isinstance(member, StructType) or not len(member):
        return result
    first = member.types[0]
    return FederatedType(first, result.placement, result.all_equal) if isinstance(result, FederatedType) else first
