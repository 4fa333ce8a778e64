"""The checks and the hyperparameters that the parts of a learning process share."""

import functools
from collections.abc import Callable, Sequence

from fedcore.computation import Computation, tf_computation
from fedcore.errors import TypeMismatch
from fedcore.templates import MeasuredProcess
from fedcore.templates.iterative import label
from fedcore.types import SERVER, FederatedType, Placement, StructType, Type, contains, explain, fits, member_of


class Part(MeasuredProcess):
    """A measured process with a state at the server, whose hyperparameters may be read and changed.

    Args:
        get_hparams_fn: (S -> H), of a state that is not placed. Default: there are no hyperparameters.
        set_hparams_fn: (<S,H> -> S). Default: the state as it is.
    """

    def __init__(
        self,
        initialize_fn: Computation,
        next_fn: Computation,
        get_hparams_fn: Computation | None = None,
        set_hparams_fn: Computation | None = None,
    ) -> None:
        super().__init__(initialize_fn, next_fn)
        self.check_placed("the state of", initialize_fn, "initialize_fn", initialize_fn.type_signature.result, SERVER)
        state = member_of(initialize_fn.type_signature.result)
        check_hparams(type(self).__name__, state, get_hparams_fn, set_hparams_fn)
        if get_hparams_fn is not None:
            self.get_hparams = get_hparams_fn
        if set_hparams_fn is not None:
            self.set_hparams = set_hparams_fn

    @functools.cached_property
    def get_hparams(self) -> Callable:
        """`(S -> H)`: the hyperparameters of a state."""
        return tf_computation(lambda state: {}, member_of(self.state_type))

    @functools.cached_property
    def set_hparams(self) -> Callable:
        """`(<S,H> -> S)`: a state with other hyperparameters."""
        hparams = self.get_hparams.type_signature.result  # type: ignore[attr-defined]
        return tf_computation(lambda state, hparams: state, member_of(self.state_type), hparams)

    def parameter_types(self, next_fn: Computation, names: Sequence[str]) -> list[Type]:
        """The types of what `next` takes after the state.

        Args:
            names: what these parameters are, for the message if there are more or fewer.
        """
        parameters = next_fn.module.main.parameters[1:]
        if len(parameters) != len(names):
            raise TypeMismatch(
                f"{type(self).__name__}: {label('next_fn', next_fn)} takes a state, {' and '.join(names)}, but has "
                f"the type {next_fn.type_signature}"
            )
        return [p.type for p in parameters]

    def check_placed(self, what: str, fn: Computation, role: str, type_: Type, where: Placement) -> None:
        """Refuses a type that is not at a placement.

        Args:
            what: of which part of the computation the type is, for the message, such as "the state of".
            role: the name of the argument that gave the computation, such as next_fn.
        """
        if not is_placed_at(type_, where):
            zip_fix = "\n  fix: fc.federated_zip(...) makes a struct of placed values one placed value"
            fix = zip_fix if _holds_placed(type_) else ""
            raise TypeMismatch(f"{type(self).__name__}: {what} {label(role, fn)} is at {where}, not {type_}{fix}")

    def check_output(self, next_fn: Computation, result_at: Placement) -> Type:
        """The type of the result of `next`. Refuses a result that is not at `result_at`, or measurements elsewhere."""
        output = next_fn.type_signature.result
        assert isinstance(output, StructType)  # a MeasuredProcess returns one
        self.check_placed("the result of", next_fn, "next_fn", output["result"], result_at)
        self.check_placed("the measurements of", next_fn, "next_fn", output["measurements"], SERVER)
        return output["result"]


def is_placed_at(type_: Type, where: Placement) -> bool:
    """Whether the type is a value at the placement, or a struct of such values."""
    if isinstance(type_, FederatedType):
        return type_.placement == where
    return isinstance(type_, StructType) and _holds_placed(type_) and all(is_placed_at(t, where) for t in type_.types)


def _holds_placed(type_: Type) -> bool:
    """Whether the type is a struct with a placed value somewhere in it."""
    return isinstance(type_, StructType) and contains(type_, lambda t: isinstance(t, FederatedType))


def check_hparams(name: str, state: Type, get_hparams_fn: object, set_hparams_fn: object) -> None:
    """Refuses functions of hyperparameters that do not take the state, or do not give it back."""
    for role, fn in (("get_hparams_fn", get_hparams_fn), ("set_hparams_fn", set_hparams_fn)):
        if fn is None:
            continue
        if not isinstance(fn, Computation):
            raise TypeMismatch(f"{name}: {role} is a computation with the types of its arguments, not {fn!r}")
        parameters = fn.module.main.parameters
        count = 1 if role == "get_hparams_fn" else 2
        if len(parameters) != count or not fits(state, parameters[0].type):
            raise TypeMismatch(
                f"{name}: {label(role, fn)} takes {'the state' if count == 1 else 'the state and hyperparameters'}\n"
                f"  wants  {state}\n  has    {fn.type_signature.parameter}"
            )
    if isinstance(set_hparams_fn, Computation) and not fits(set_hparams_fn.type_signature.result, state):
        title = f"{name}: {label('set_hparams_fn', set_hparams_fn)} does not return the state"
        raise TypeMismatch(explain(title, set_hparams_fn.type_signature.result, state))
