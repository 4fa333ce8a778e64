"""Models: written by the user or made of Keras ones, and as the pure functions that algorithms are written on."""

from fedcore.learning.models.files import load, save
from fedcore.learning.models.functional_model import FunctionalModel
from fedcore.learning.models.held_variables import model_from_functional
from fedcore.learning.models.keras_model import from_keras_model, functional_model_from_keras
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.pure_model import BatchOutput, PureModel
from fedcore.learning.models.traced import trace_model
from fedcore.learning.models.variable_model import VariableModel

__all__ = [
    "BatchOutput",
    "FunctionalModel",
    "ModelWeights",
    "PureModel",
    "VariableModel",
    "from_keras_model",
    "functional_model_from_keras",
    "load",
    "model_from_functional",
    "save",
    "trace_model",
]
