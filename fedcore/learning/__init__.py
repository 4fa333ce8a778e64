"""Federated learning, written in the language that users have."""

from fedcore.learning import algorithms, metrics, models, optimizers
from fedcore.learning.models import ModelWeights, from_keras_model
from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.learning.weighting import ClientWeighting

__all__ = [
    "ClientWeighting",
    "LearningAlgorithmState",
    "LearningProcess",
    "LearningProcessOutput",
    "ModelWeights",
    "algorithms",
    "from_keras_model",
    "metrics",
    "models",
    "optimizers",
]
