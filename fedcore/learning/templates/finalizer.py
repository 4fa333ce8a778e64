"""The part of a learning process that changes the global weights by what the clients' work gave."""

from fedcore.computation import Computation
from fedcore.errors import TypeMismatch
from fedcore.learning.templates.part import Part
from fedcore.templates.iterative import label
from fedcore.types import SERVER, explain, fits


class FinalizerProcess(Part):
    """A measured process from global weights and an aggregated update to the next weights.

    Types, for a state S, weights W, an update U and measurements M:
        initialize  (-> S@SERVER)
        next        (<S@SERVER,W@SERVER,U@SERVER> -> <state=S@SERVER,result=W@SERVER,measurements=M@SERVER>)

    Args:
        get_hparams_fn: (S -> H). Default: there are no hyperparameters.
        set_hparams_fn: (<S,H> -> S). Default: the state as it is.
    Raises:
        TypeMismatch: the types are others; the result does not fit W.
    Example:
        >>> weights = fc.learning.models.weights_type_from_model(model_fn)
        >>> step = fc.learning.templates.build_apply_optimizer_finalizer(
        ...     fc.learning.optimizers.build_sgdm(1.0), weights)
        >>> same = fc.learning.templates.FinalizerProcess(step.initialize, step.next)
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
        weights, update = self.parameter_types(next_fn, ("the weights", "an update"))
        self.check_placed("the second argument of", next_fn, "next_fn", weights, SERVER)
        self.check_placed("the third argument of", next_fn, "next_fn", update, SERVER)
        result = self.check_output(next_fn, SERVER)
        if not fits(result, weights):
            title = f"FinalizerProcess: {label('next_fn', next_fn)} does not return the weights that it takes"
            raise TypeMismatch(explain(title, result, weights, want_label="it takes", have_label="it returns"))
