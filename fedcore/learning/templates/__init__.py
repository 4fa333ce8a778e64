"""The parts that a learning process is composed of; the algorithms of `fc.learning` are composed of them too."""

from typing import TYPE_CHECKING

from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.learning.templates.apply_optimizer import build_apply_optimizer_finalizer, reject_non_finite_update
from fedcore.learning.templates.client_work import ClientResult, ClientWorkProcess
from fedcore.learning.templates.distribution import DistributionProcess, build_broadcast_process
from fedcore.learning.templates.finalizer import FinalizerProcess
from fedcore.tff_names import tff_names

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

if TYPE_CHECKING:  # names of TFF, which `tff_names` finds
    from fedcore.compat.templates import (
        build_functional_model_delta_client_work as build_functional_model_delta_client_work,
    )
    from fedcore.compat.templates import build_model_delta_client_work as build_model_delta_client_work
    from fedcore.compat.templates import compose_learning_process as compose_learning_process
else:
    __getattr__ = tff_names("fedcore.learning.templates")
