"""Models: written by the user or made of Keras ones, and as the pure functions that algorithms are written on."""

from typing import TYPE_CHECKING

from fedcore.learning.models.adapters import load_adapters, merge_adapters, save_adapters, save_base, with_base
from fedcore.learning.models.files import load, load_functional_model, save, save_functional_model
from fedcore.learning.models.functional_model import FunctionalModel
from fedcore.learning.models.gradients import gradients_of
from fedcore.learning.models.keras_model import from_keras_model, functional_model_from_keras
from fedcore.learning.models.model_from_functional import model_from_functional
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.pure_model import BatchOutput, PureModel
from fedcore.learning.models.reconstruction_model import ReconstructionBatchOutput, ReconstructionModel
from fedcore.learning.models.traced import initial_weights_of, trace_model
from fedcore.learning.models.variable_model import VariableModel
from fedcore.learning.models.weights_type import weights_type_from_model
from fedcore.tff_names import tff_names

__all__ = [
    "BatchOutput",
    "FunctionalModel",
    "ModelWeights",
    "PureModel",
    "ReconstructionBatchOutput",
    "ReconstructionModel",
    "VariableModel",
    "from_keras_model",
    "functional_model_from_keras",
    "gradients_of",
    "initial_weights_of",
    "load",
    "load_adapters",
    "load_functional_model",
    "merge_adapters",
    "model_from_functional",
    "save",
    "save_adapters",
    "save_base",
    "save_functional_model",
    "trace_model",
    "weights_type_from_model",
    "with_base",
]

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.learning.models")
