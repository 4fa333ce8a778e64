"""The clients' part of a learning process."""

from typing import Any, NamedTuple

from fedcore.computation import Computation
from fedcore.errors import TypeMismatch
from fedcore.learning.templates.part import Part
from fedcore.templates.iterative import label
from fedcore.types import CLIENTS, SequenceType, StructType, Type, member_of


class ClientResult(NamedTuple):
    """The result of a client's work.

    Types, for updates U: `<update=U,update_weight=float32>`.

    Args:
        update: what is aggregated, as a change of the weights or a gradient.
        update_weight: how much it counts in a weighted aggregation.
    Example:
        >>> fc.learning.templates.ClientResult(update=(tf.zeros(2),), update_weight=tf.constant(1.0)).update_weight
        <tf.Tensor: shape=(), dtype=float32, numpy=1.0>
    """

    update: Any
    update_weight: Any


class ClientWorkProcess(Part):
    """The clients' part of a learning process: work on the global weights and the client's data.

    Types, for a state S, weights W, data D (a sequence, or a struct of them), updates U and measurements M:
        initialize  (-> S@SERVER)
        next        (<S@SERVER,{W}@CLIENTS,{D}@CLIENTS> ->
                     <state=S@SERVER,result={<update=U,update_weight=float32>}@CLIENTS,measurements=M@SERVER>)

    Args:
        get_hparams_fn: (S -> H). Default: there are no hyperparameters.
        set_hparams_fn: (<S,H> -> S). Default: the state as it is.
    Raises:
        TypeMismatch: the types are others; the result of `next` is no `ClientResult`.
    Example:
        >>> work = fc.learning.templates.build_model_delta_client_work(
        ...     model_fn, fc.learning.optimizers.build_sgdm(0.1), fc.learning.ClientWeighting.NUM_EXAMPLES)
        >>> same = fc.learning.templates.ClientWorkProcess(work.initialize, work.next)
    """

    def __init__(
        self,
        initialize_fn: Computation,
        next_fn: Computation,
        *,
        get_hparams_fn: Computation | None = None,
        set_hparams_fn: Computation | None = None,
    ) -> None:
        super().__init__(initialize_fn, next_fn, get_hparams_fn, set_hparams_fn)
        weights, data = self.parameter_types(next_fn, ("the weights", "the clients' data"))
        self.check_placed("the second argument of", next_fn, "next_fn", weights, CLIENTS)
        self.check_placed("the third argument of", next_fn, "next_fn", data, CLIENTS)
        if not _is_data(member_of(data)):
            raise TypeMismatch(
                f"ClientWorkProcess: the third argument of {label('next_fn', next_fn)} is a client's data, a sequence "
                f"or a struct of sequences, not {data}"
            )
        result = member_of(self.check_output(next_fn, CLIENTS))
        names = result.names if isinstance(result, StructType) else ()
        if names != ("update", "update_weight"):
            raise TypeMismatch(
                f"ClientWorkProcess: the result of {label('next_fn', next_fn)} is a ClientResult at the clients\n"
                f"  wants  {{<update=…,update_weight=…>}}@CLIENTS\n"
                f"  has    {self.check_output(next_fn, CLIENTS)}"
            )

    @property
    def data_type(self) -> Type:
        """`{D}@CLIENTS`."""
        return self.next.module.main.parameters[2].type


def _is_data(type_: Type) -> bool:
    """Whether the type is a sequence, or a struct of sequences at any depth."""
    if isinstance(type_, StructType):
        return all(map(_is_data, type_.types))
    return isinstance(type_, SequenceType)
