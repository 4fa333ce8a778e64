"""The finalizer that applies an optimizer to the weights, with the aggregated update as the gradient."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import TypeMismatch
from fedcore.intrinsics import federated_eval, federated_map
from fedcore.learning.algorithms.client_result import all_finite
from fedcore.learning.models import ModelWeights
from fedcore.learning.models.held_variables import specs
from fedcore.learning.optimizers import as_optimizer
from fedcore.learning.templates.finalizer_process import FinalizerProcess
from fedcore.templates import MeasuredProcessOutput
from fedcore.types import SERVER, FederatedType, StructType, contains, to_type


def reject_non_finite_update(state: Any, update: Any) -> tuple[tf.Tensor, OrderedDict]:
    """Whether an update holds an infinite or undefined number, and the same as a measurement.

    Types, for updates U: `(<state,U> -> <bool,<update_non_finite=int32>>)`, inside a graph; the state is not read.

    Example:
        >>> rejected, measured = fc.learning.templates.reject_non_finite_update((), (tf.constant([1.0, np.nan]),))
        >>> bool(rejected), int(measured['update_non_finite'])
        (True, 1)
    """
    del state
    rejected = ~all_finite(update)
    return rejected, OrderedDict(update_non_finite=tf.cast(rejected, tf.int32))


def build_apply_optimizer_finalizer(
    optimizer_fn, model_weights_type, should_reject_update: Callable = reject_non_finite_update
) -> FinalizerProcess:
    """The finalizer that applies an optimizer; the aggregated update stands for the gradient.

    Types, for weights `W=<trainable=T,non_trainable=N>`, the optimizer's state S, and measurements M:
        initialize  (-> S@SERVER)
        next        (<S@SERVER,W@SERVER,T@SERVER> -> <state=S@SERVER,result=W@SERVER,measurements=M@SERVER>)

    Non-trainable weights stay as they are.

    Args:
        optimizer_fn: one of `fc.learning.optimizers`, or what `as_optimizer` takes.
        model_weights_type: W, a type of `ModelWeights` without placements.
        should_reject_update: (new state, update) -> (bool, dict of measurements or None), inside a graph. A rejected
            update leaves the weights and the state as they were. Default: `reject_non_finite_update`.
    Raises:
        TypeMismatch: W is no type of `ModelWeights`.
        FedcoreError: `optimizer_fn` is no optimizer.
    Example:
        >>> weights = fc.tf_computation(lambda: fc.learning.ModelWeights((tf.zeros(2),), ())).type_signature.result
        >>> finalizer = fc.learning.templates.build_apply_optimizer_finalizer(
        ...     fc.learning.optimizers.build_sgdm(0.5), weights)
        >>> start = fc.learning.ModelWeights((np.zeros(2, np.float32),), ())
        >>> output = finalizer.next(finalizer.initialize(), start, (np.float32([1, -2]),))
        >>> output.result.trainable[0].tolist(), output.measurements['update_non_finite']
        ([-0.5, 1.0], np.int32(0))
    """
    optimizer, weights_type = as_optimizer(optimizer_fn), to_type(model_weights_type)
    names = weights_type.names if isinstance(weights_type, StructType) else ()
    if names != ("trainable", "non_trainable") or contains(weights_type, lambda t: isinstance(t, FederatedType)):
        raise TypeMismatch(
            f"build_apply_optimizer_finalizer takes a type of ModelWeights without placements, not {weights_type}"
        )
    assert isinstance(weights_type, StructType)
    trainable = weights_type["trainable"]

    @tf_computation
    def start():
        return optimizer.initialize(specs(trainable))

    state_type = start.type_signature.result

    @tf_computation(state_type, trainable, trainable)
    def step(state, weights, update):
        after = optimizer.next(state, weights, update)
        rejected, measurements = should_reject_update(after[0], update)
        state, weights = tf.nest.map_structure(lambda old, new: tf.where(rejected, old, new), (state, weights), after)
        return state, weights, measurements or ()

    join = tf_computation(trainable, weights_type)(lambda moved, before: ModelWeights(moved, before.non_trainable))

    @federated_computation
    def initialize():
        return federated_eval(start, SERVER)

    @federated_computation(
        initialize.type_signature.result, FederatedType(weights_type, SERVER), FederatedType(trainable, SERVER)
    )
    def next_fn(state, weights, update):
        stepped = federated_map(step, (state, weights.trainable, update))
        return MeasuredProcessOutput(stepped[0], federated_map(join, (stepped[1], weights)), stepped[2])

    get_hparams = tf_computation(state_type)(lambda state: optimizer.get_hparams(state or {}))

    @tf_computation(state_type, get_hparams.type_signature.result)
    def set_hparams(state, hparams):
        return optimizer.set_hparams(state, hparams or {})

    return FinalizerProcess(initialize, next_fn, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams)
