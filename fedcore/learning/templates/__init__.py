"""`fc.learning.templates`: the processes of which a learning algorithm is composed, and their checks."""

from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.learning.templates.apply_optimizer import build_apply_optimizer_finalizer, reject_non_finite_update
from fedcore.learning.templates.client_work_process import ClientResult, ClientWorkProcess
from fedcore.learning.templates.composition import compose_learning_process
from fedcore.learning.templates.distribution_process import DistributionProcess, build_broadcast_process
from fedcore.learning.templates.finalizer_process import FinalizerProcess
from fedcore.learning.templates.model_delta_client_work import (
    build_functional_model_delta_client_work,
    build_model_delta_client_work,
)

__all__ = [
    "ClientResult",
    "ClientWorkProcess",
    "DistributionProcess",
    "FinalizerProcess",
    "LearningAlgorithmState",
    "LearningProcess",
    "LearningProcessOutput",
    "build_apply_optimizer_finalizer",
    "build_broadcast_process",
    "build_functional_model_delta_client_work",
    "build_model_delta_client_work",
    "compose_learning_process",
    "reject_non_finite_update",
]
