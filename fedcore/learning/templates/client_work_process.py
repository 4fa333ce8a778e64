"""Client work processes: what clients do with the weights and their data in a round."""

from typing import Any, NamedTuple

from fedcore.computation import Computation
from fedcore.errors import TypeMismatch
from fedcore.learning.templates.placed_process import TunedProcess
from fedcore.types import CLIENTS, SequenceType, StructType, TensorType, Type, member_of


class ClientResult(NamedTuple):
    """A client's update of the weights, and how much it counts.

    Types: `<update=U,update_weight=W>`.

    Args:
        update: nested tensors; an optimizer at the server takes their mean as a gradient, so they are the weights
            before the work minus those after it.
        update_weight: how much the update counts.
    Example:
        >>> fc.learning.templates.ClientResult(update=(1.0,), update_weight=3.0).update_weight
        3.0
    """

    update: Any
    update_weight: Any


class ClientWorkProcess(TunedProcess):
    """A measured process of the clients' work.

    Types, for a state S, a message A, data D, an update U with a weight W, measurements M and hyperparameters H:
        initialize   (-> S@SERVER)
        next         (<S@SERVER,{A}@CLIENTS,{D*}@CLIENTS> ->
                     <state=S@SERVER,result={<update=U,update_weight=W>}@CLIENTS,measurements=M@SERVER>)
        get_hparams  (S -> H)
        set_hparams  (<S,H> -> S)

    D* is a sequence, a tensor, or a struct of these.

    Args:
        get_hparams_fn, set_hparams_fn: computations of these types. Default: there are no hyperparameters.
    Raises:
        TypeMismatch: the computations have other types; the message names the part.
    Example:
        >>> work = fc.learning.templates.build_model_delta_client_work(
        ...     model_fn, fc.learning.optimizers.build_sgdm(0.5), fc.learning.ClientWeighting.NUM_EXAMPLES)
        >>> work.get_hparams(work.initialize())
        {'learning_rate': np.float32(0.5)}
    """

    def __init__(
        self,
        initialize_fn: Computation,
        next_fn: Computation,
        *,
        get_hparams_fn: Computation | None = None,
        set_hparams_fn: Computation | None = None,
    ):
        takes = {"a message": CLIENTS, "data": CLIENTS}
        super().__init__(initialize_fn, next_fn, takes, CLIENTS, get_hparams_fn, set_hparams_fn)
        data = member_of(next_fn.module.main.parameters[2].type)
        if not _is_data(data):
            raise TypeMismatch(f"ClientWorkProcess: the data of next_fn are sequences or tensors, not {data}")
        output: Any = next_fn.type_signature.result
        result = member_of(output["result"])
        if not isinstance(result, StructType) or result.names != ClientResult._fields:
            raise TypeMismatch(f"ClientWorkProcess: the result of next_fn is a ClientResult, not {result}")


def _is_data(type_: Type) -> bool:
    if isinstance(type_, StructType):
        return all(map(_is_data, type_.types))
    return isinstance(type_, SequenceType | TensorType)
