"""Which weights of a model its training changes; the others are frozen.

Decision 0207.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import attrs
import tensorflow as tf

from fedcore.computation import tf_computation
from fedcore.errors import TypeMismatch
from fedcore.graphs.graphdef.analysis.unchanged_results import unchanged_results
from fedcore.graphs.graphdef.form.captured_graph import captured_graph
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.ir import Value
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.types import explain, fits

if TYPE_CHECKING:
    from fedcore.learning.models.pure_model import PureModel


_VARIANCE = "moving_variance"
"""The name of a BatchNormalization's average of variances, of which it takes the root."""


@attrs.frozen
class WeightRoles:
    """Which weights W of a model its training changes.

    Gradients move the trainable weights. Of the others a training step assigns some, such as the averages of a
    BatchNormalization; the rest is frozen. Clients change, and send, the changing weights U: W without the frozen ones.

    Args:
        assigned: places in `W.non_trainable` of the weights that a training step assigns.
        names: of the assigned weights, as messages show them.
        frozen: places in `W.non_trainable` of the others.
        non_negative: places in `U.non_trainable` of weights that are never below zero, such as variances.
    """

    assigned: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    non_negative: frozenset[int] = frozenset()
    frozen: tuple[int, ...] = ()

    @overload
    def changing(self, weights: ModelWeights) -> ModelWeights: ...
    @overload
    def changing(self, weights: Value) -> ModelWeights | Value: ...
    def changing(self, weights: ModelWeights | Value) -> ModelWeights | Value:
        """U of W."""
        if not self.frozen:
            return weights
        return ModelWeights(weights.trainable, tuple(weights.non_trainable[i] for i in self.assigned))

    def replace(self, weights: ModelWeights, changing: ModelWeights) -> ModelWeights:
        """W with other values of its changing weights; the frozen ones are those of `weights`."""
        by_place = dict(zip(self.assigned, changing.non_trainable, strict=True))
        others = tuple(by_place.get(i, frozen) for i, frozen in enumerate(weights.non_trainable))
        return ModelWeights(changing.trainable, others)

    def join(self, changing: ModelWeights, frozen: Sequence) -> ModelWeights:
        """W of U and the frozen weights."""
        pairs = (*zip(self.assigned, changing.non_trainable, strict=True), *zip(self.frozen, frozen, strict=True))
        by_place = dict(pairs)
        return ModelWeights(changing.trainable, tuple(by_place[i] for i in range(len(by_place))))

    def difference(self, new: ModelWeights, old: ModelWeights) -> ModelWeights:
        """The change of U between two values of it, leaf by leaf."""
        groups = ((new.trainable, old.trainable), (new.non_trainable, old.non_trainable))
        return ModelWeights(*(tuple(a - b for a, b in zip(*group, strict=True)) for group in groups))

    def assigned_after(self, changing: ModelWeights, change: ModelWeights) -> tuple[tf.Tensor, ...]:
        """The assigned weights after a change of U; noise and codes take no variance below zero."""
        moved = (w + u for w, u in zip(changing.non_trainable, change.non_trainable, strict=True))
        return tuple(tf.maximum(w, 0) if i in self.non_negative else w for i, w in enumerate(moved))


def trace_roles(model: "PureModel", names: Sequence[str] = ()) -> WeightRoles:
    """The roles of a model's weights, by the trace of one training step.

    A non-trainable weight is frozen if the step returns it as it is. Where the trace does not tell, it is assigned.
    Those named as Keras names the variances of its layers are never negative.

    Args:
        names: of the variables of `W.non_trainable`. Default: the weights are called by their places.
    Raises:
        TypeMismatch: the step returns other non-trainable weights than the model has.
    """
    weights: Any = model.weights_type
    if not weights["non_trainable"].types:
        return WeightRoles()
    metrics = tf_computation(lambda: model.initial_metrics()).type_signature.result

    @tf_computation(weights, metrics, model.batch_type)
    def step(weights: ModelWeights, metrics: dict, batch: TensorStructure) -> tuple:
        return model.forward(weights, metrics, batch, training=True)[1].non_trainable

    returned, held = step.type_signature.result, weights["non_trainable"]
    if not fits(returned, held):
        title = "a training step returns other non-trainable weights than the model has"
        raise TypeMismatch(explain(title, returned, held, want_label="the model", have_label="the step"))
    (graph,) = step.module.graphs
    # For each result the number of the argument that it is, if any: the trainable weights come before the others.
    arguments = unchanged_results(captured_graph(graph, step.module.blob(graph.digest)))
    first = len(weights["trainable"].types)
    assigned = tuple(i for i, argument in enumerate(arguments) if argument != first + i)
    assigned_names = tuple(names[i] if names else f"non_trainable[{i}]" for i in assigned)
    variances = (place for place, name in enumerate(assigned_names) if name.rpartition("/")[2] == _VARIANCE)
    frozen = tuple(i for i in range(len(arguments)) if i not in assigned)
    return WeightRoles(assigned, assigned_names, frozenset(variances), frozen)
