"""Measured processes whose parameters and results stand at given placements, with hyperparameters in their state."""

from collections.abc import Callable, Mapping
from typing import Any

from fedcore.computation import Computation, tf_computation
from fedcore.errors import TypeMismatch
from fedcore.templates import MeasuredProcess
from fedcore.templates.iterative import called, check_computation
from fedcore.types import SERVER, FederatedType, Placement, StructType, Type, contains, explain, fits, member_of


class PlacedProcess(MeasuredProcess):
    """A measured process that checks where its values stand.

    Args:
        takes: name and placement of each parameter of `next` after the state.
        gives: placement of the result.
    Raises:
        TypeMismatch: as for a measured process, or a value stands elsewhere.
    """

    def __init__(
        self, initialize_fn: Computation, next_fn: Computation, takes: Mapping[str, Placement], gives: Placement
    ):
        super().__init__(initialize_fn, next_fn)
        name, who = type(self).__name__, called("next_fn", next_fn)
        _check_placed(f"{name}: the state of {called('initialize_fn', initialize_fn)}", self.state_type, SERVER)
        parameters = next_fn.module.main.parameters
        if len(parameters) != 1 + len(takes):
            wanted = ", ".join(["a state", *(f"{value} at {place}" for value, place in takes.items())])
            raise TypeMismatch(
                f"{name}: {who} takes {wanted}; it has {len(parameters)} parameters: {next_fn.type_signature.parameter}"
            )
        for parameter, (_, place) in zip(parameters[1:], takes.items(), strict=True):
            _check_placed(f"{name}: {parameter.name} of {who}", parameter.type, place)
        result: Any = next_fn.type_signature.result
        _check_placed(f"{name}: the result of {who}", result["result"], gives)
        _check_placed(f"{name}: the measurements of {who}", result["measurements"], SERVER)


class TunedProcess(PlacedProcess):
    """A placed process whose state holds hyperparameters, read and written by two computations.

    Args:
        get_hparams_fn: (S -> H). Default: there are none, H is <>.
        set_hparams_fn: (<S,H> -> S). Default: gives the state as it is.
    Raises:
        TypeMismatch: as for a placed process, or these computations have other types.
    """

    def __init__(
        self,
        initialize_fn: Computation,
        next_fn: Computation,
        takes: Mapping[str, Placement],
        gives: Placement,
        get_hparams_fn: Computation | None,
        set_hparams_fn: Computation | None,
    ):
        super().__init__(initialize_fn, next_fn, takes, gives)
        name, state = type(self).__name__, member_of(self.state_type)
        self._get_hparams = get_hparams_fn or tf_computation(state)(lambda state: ())
        _check_getter(name, self._get_hparams, state)
        hparams = self._get_hparams.type_signature.result
        self._set_hparams = set_hparams_fn or tf_computation(state, hparams)(lambda state, hparams: state)
        _check_setter(name, self._set_hparams, state, hparams)

    @property
    def get_hparams(self) -> Callable:
        """(S -> H): the hyperparameters of a state."""
        return self._get_hparams

    @property
    def set_hparams(self) -> Callable:
        """(<S,H> -> S): the state with these hyperparameters."""
        return self._set_hparams


def check_process(who: str, value, wanted: type) -> None:
    """Refuses a part of an algorithm of another kind."""
    if not isinstance(value, wanted):
        raise TypeMismatch(f"{who} is a {wanted.__name__}, not {type(value).__name__}")


def _check_placed(who: str, type_: Type, place: Placement) -> None:
    if isinstance(type_, FederatedType) and type_.placement == place:
        return
    placed_parts = isinstance(type_, StructType) and contains(type_, lambda t: isinstance(t, FederatedType))
    fix = "\n  fix: fc.federated_zip(...) makes the struct one placed value" if placed_parts else ""
    raise TypeMismatch(f"{who} stands at {place}, but has the type {type_}{fix}")


def _check_getter(name: str, getter: Computation, state: Type) -> None:
    check_computation(name, "get_hparams_fn", getter)
    parameters = getter.module.main.parameters
    if len(parameters) != 1:
        raise TypeMismatch(f"{name}: get_hparams_fn takes a state, but has the type {getter.type_signature}")
    _check_fits(f"{name}: get_hparams_fn does not take the state", state, parameters[0].type)


def _check_setter(name: str, setter: Computation, state: Type, hparams: Type) -> None:
    check_computation(name, "set_hparams_fn", setter)
    parameters = setter.module.main.parameters
    if len(parameters) != 2:
        raise TypeMismatch(
            f"{name}: set_hparams_fn takes a state and hyperparameters, but has the type {setter.type_signature}"
        )
    _check_fits(f"{name}: set_hparams_fn does not take the state", state, parameters[0].type)
    _check_fits(f"{name}: set_hparams_fn does not take the hyperparameters", hparams, parameters[1].type)
    _check_fits(f"{name}: set_hparams_fn does not return the state", setter.type_signature.result, state)


def _check_fits(title: str, have: Type, want: Type) -> None:
    if not fits(have, want):
        raise TypeMismatch(explain(title, have, want, have_label="given", want_label="wanted"))
