"""Federated learning, written in the language that users have."""

import importlib

from fedcore.learning import algorithms, metrics, models, optimizers
from fedcore.learning.models import BatchOutput, ModelWeights, from_keras_model
from fedcore.learning.models import VariableModel as Model
from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.learning.weighting import ClientWeighting

# Older names, each with its place above this layer; loaded when first used.
_OLDER = dict.fromkeys(("build_federated_averaging_process", "build_federated_evaluation"), "fedcore.compat.learning")

__all__ = [
    "BatchOutput",
    "ClientWeighting",
    "LearningAlgorithmState",
    "LearningProcess",
    "LearningProcessOutput",
    "Model",
    "ModelWeights",
    "algorithms",
    "from_keras_model",
    "metrics",
    "models",
    "optimizers",
]


def __getattr__(name):
    if name in _OLDER:
        return getattr(importlib.import_module(_OLDER[name]), name)
    raise AttributeError(f"module 'fedcore.learning' has no attribute {name!r}")


def __dir__():
    return sorted([*__all__, *_OLDER])
