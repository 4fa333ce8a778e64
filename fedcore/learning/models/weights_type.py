"""The type of a model's weights."""

from collections.abc import Callable

from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.pure_model import PureModel
from fedcore.learning.models.traced import trace_model
from fedcore.learning.models.variable_model import VariableModel
from fedcore.types import TensorType, Type, to_type


def weights_type_from_model(model: Callable | PureModel | VariableModel) -> Type:
    """The type of the weights of a model or of a `model_fn`, such as for the state of an algorithm of one's own.

    Types: `<trainable=<…>,non_trainable=<…>>`, a `ModelWeights` of tuples.

    Raises:
        TracingError: `model` makes no model of `fc.learning`.
    Example:
        >>> weights = fc.learning.models.weights_type_from_model(model_fn)
        >>> weights.compact_representation(), weights.python_container.__name__
        ('<trainable=<float32[2,1],float32[1]>,non_trainable=<>>', 'ModelWeights')
    """
    if isinstance(model, PureModel) or not isinstance(model, VariableModel):
        return trace_model(model).weights_type
    groups = (model.trainable_variables, model.non_trainable_variables)
    return to_type(ModelWeights(*(tuple(TensorType(v.dtype, v.shape) for v in group) for group in groups)))
