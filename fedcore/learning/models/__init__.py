"""Models as pure functions of their weights."""

from fedcore.learning.models.functional_model import BatchOutput, FunctionalModel
from fedcore.learning.models.keras_model import from_keras_model, functional_model_from_keras
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.traced import trace_model

__all__ = [
    "BatchOutput",
    "FunctionalModel",
    "ModelWeights",
    "from_keras_model",
    "functional_model_from_keras",
    "trace_model",
]
