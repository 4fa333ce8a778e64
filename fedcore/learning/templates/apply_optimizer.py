"""The finalizer that takes one step of an optimizer."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import TypeMismatch
from fedcore.graphs.frontend.control_flow import convert_function
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_eval, federated_map, federated_zip, generic_zero
from fedcore.ir import Value
from fedcore.learning.models import ModelWeights
from fedcore.learning.optimizers import as_optimizer
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.templates.finalizer import FinalizerProcess
from fedcore.learning.templates.training_result import all_finite
from fedcore.templates import MeasuredProcessOutput
from fedcore.types import SERVER, FederatedType, StructType, Type, to_type


def reject_non_finite_update(state: TensorStructure, update: TensorStructure) -> tuple[tf.Tensor, dict]:
    """Whether an update holds an entry that is infinite or NaN, and the same as a measurement; used inside a graph.

    Types: `(<S,U> -> <bool,<update_non_finite=int32>>)`.

    Example:
        >>> reject, measured = fc.learning.templates.reject_non_finite_update((), [tf.constant([1.0, np.nan])])
        >>> bool(reject), int(measured['update_non_finite'])
        (True, 1)
    """
    reject = ~all_finite(update)
    return reject, {"update_non_finite": tf.cast(reject, tf.int32)}


def build_apply_optimizer_finalizer(
    optimizer_fn: OptimizerLike,
    model_weights_type: TensorStructure | Type,
    should_reject_update: Callable[[Any, Any], tuple] = reject_non_finite_update,
) -> FinalizerProcess:
    """Builds the finalizer that gives an optimizer the aggregated update as the gradient of the trainable weights.

    Types, for weights W and a state O of the optimizer:
        next  (<O@SERVER,W@SERVER,W.trainable@SERVER> -> <state=O@SERVER,result=W@SERVER,measurements=M@SERVER>)

    Args:
        optimizer_fn: an optimizer of `fc.learning.optimizers`, or a Keras one.
        model_weights_type: W, the type of a `ModelWeights`; its non-trainable weights stay.
        should_reject_update: in a graph, (O after the step, update) -> (bool, a dict of measurements or None). What is
            rejected changes neither the weights nor O.
    Raises:
        TypeMismatch: the type is not that of a `ModelWeights`, or holds placed values.
    Example:
        >>> weights = fc.learning.models.weights_type_from_model(model_fn)
        >>> step = fc.learning.templates.build_apply_optimizer_finalizer(
        ...     fc.learning.optimizers.build_sgdm(1.0), weights)
    """
    type_ = to_type(model_weights_type)
    if not isinstance(type_, StructType) or type_.names != ("trainable", "non_trainable"):
        raise TypeMismatch(
            "build_apply_optimizer_finalizer: model_weights_type is the type of a ModelWeights, "
            f"<trainable=…,non_trainable=…> without placements, not {type_}"
        )
    optimizer, trainable_type = as_optimizer(optimizer_fn), type_["trainable"]

    @tf_computation(trainable_type)
    def state_for(trainable: TensorStructure) -> TensorStructure:
        return optimizer.initialize(trainable)

    @federated_computation
    def start() -> Value:
        return state_for(generic_zero(trainable_type))

    @tf_computation(start.type_signature.result, trainable_type, trainable_type)
    def step(state: TensorStructure, trainable: TensorStructure, update: TensorStructure) -> tuple:
        """(Next O, next trainable weights, measurements)."""
        result = optimizer.next(state, trainable, update)
        reject, measured = convert_function(should_reject_update)(result[0], update)
        chosen = tf.nest.map_structure(lambda a, b: tf.where(reject, b, a), result, (state, trainable))
        return *chosen, measured or {}

    @federated_computation
    def initialize() -> Value:
        return federated_eval(start, SERVER)

    @federated_computation(
        initialize.type_signature.result, FederatedType(type_, SERVER), FederatedType(trainable_type, SERVER)
    )
    def finalize(state: Value, weights: Value, update: Value) -> MeasuredProcessOutput:
        outputs = federated_map(step, (state, weights.trainable, update))
        moved = federated_zip(ModelWeights(outputs[1], weights.non_trainable))
        return MeasuredProcessOutput(outputs[0], moved, outputs[2])

    state_type = start.type_signature.result
    get_hparams = tf_computation(lambda state: optimizer.get_hparams(state), state_type)
    set_hparams = tf_computation(
        lambda state, hparams: optimizer.set_hparams(state, hparams), state_type, get_hparams.type_signature.result
    )
    return FinalizerProcess(initialize, finalize, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams)
