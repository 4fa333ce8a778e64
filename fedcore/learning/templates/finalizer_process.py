"""Finalizer processes: they make the next weights of the aggregated update."""

from typing import Any

from fedcore.computation import Computation
from fedcore.errors import TypeMismatch
from fedcore.learning.templates.placed_process import TunedProcess
from fedcore.types import SERVER, explain, fits


class FinalizerProcess(TunedProcess):
    """A measured process from weights and an aggregated update to the next weights.

    Types, for a state S, weights W, updates U, measurements M and hyperparameters H:
        initialize   (-> S@SERVER)
        next         (<S@SERVER,W@SERVER,U@SERVER> -> <state=S@SERVER,result=W@SERVER,measurements=M@SERVER>)
        get_hparams  (S -> H)
        set_hparams  (<S,H> -> S)

    Args:
        get_hparams_fn, set_hparams_fn: computations of these types. Default: there are no hyperparameters.
    Raises:
        TypeMismatch: the computations have other types; the message names the part.
    Example:
        >>> weights = fc.tf_computation(lambda: fc.learning.ModelWeights((tf.zeros(2),), ())).type_signature.result
        >>> finalizer = fc.learning.templates.build_apply_optimizer_finalizer(
        ...     fc.learning.optimizers.build_sgdm(1.0), weights)
        >>> same = fc.learning.templates.FinalizerProcess(finalizer.initialize, finalizer.next)
    """

    def __init__(
        self,
        initialize_fn: Computation,
        next_fn: Computation,
        *,
        get_hparams_fn: Computation | None = None,
        set_hparams_fn: Computation | None = None,
    ):
        takes = {"weights": SERVER, "an update": SERVER}
        super().__init__(initialize_fn, next_fn, takes, SERVER, get_hparams_fn, set_hparams_fn)
        weights = next_fn.module.main.parameters[1].type
        output: Any = next_fn.type_signature.result
        result = output["result"]
        if not fits(result, weights):
            title = "FinalizerProcess: next_fn does not return the weights that it takes"
            raise TypeMismatch(explain(title, result, weights, want_label="it takes", have_label="it returns"))
