"""Federated algorithms, one file each.

docs/catalogue.md lists them by their papers, with what each needs, beside aggregators, privacy and analytics.
"""

from typing import TYPE_CHECKING

from fedcore.learning.algorithms.ditto import build_ditto
from fedcore.learning.algorithms.fed_avg import build_unweighted_fed_avg, build_weighted_fed_avg
from fedcore.learning.algorithms.fed_avg_with_client_states import build_fed_avg_with_client_states
from fedcore.learning.algorithms.fed_avg_with_error_feedback import build_fed_avg_with_error_feedback
from fedcore.learning.algorithms.fed_avg_with_optimizer_states import build_fed_avg_with_optimizer_states
from fedcore.learning.algorithms.fed_avg_with_schedule import build_weighted_fed_avg_with_optimizer_schedule
from fedcore.learning.algorithms.fed_buff import build_fed_buff
from fedcore.learning.algorithms.fed_df import build_fed_df
from fedcore.learning.algorithms.fed_dyn import build_fed_dyn
from fedcore.learning.algorithms.fed_eval import build_fed_eval
from fedcore.learning.algorithms.fed_gan import GanModel, build_fed_gan
from fedcore.learning.algorithms.fed_multi_model_eval import (
    build_fed_multi_model_eval,
    build_fed_multi_model_eval_from_processes,
)
from fedcore.learning.algorithms.fed_nova import build_fed_nova
from fedcore.learning.algorithms.fed_prox import build_unweighted_fed_prox, build_weighted_fed_prox
from fedcore.learning.algorithms.fed_recon import build_fed_recon, build_fed_recon_eval
from fedcore.learning.algorithms.fed_sgd import build_fed_sgd
from fedcore.learning.algorithms.ifca import build_ifca, build_ifca_eval, build_ifca_with_gradients
from fedcore.learning.algorithms.kmeans import build_fed_kmeans
from fedcore.learning.algorithms.mime_lite import (
    build_mime_lite_with_optimizer_schedule,
    build_unweighted_mime_lite,
    build_weighted_mime_lite,
)
from fedcore.learning.algorithms.personalization import build_personalization_eval_computation
from fedcore.learning.algorithms.q_fed_avg import build_q_fed_avg
from fedcore.learning.algorithms.scaffold import build_scaffold
from fedcore.tff_names import tff_names

__all__ = [
    "GanModel",
    "build_ditto",
    "build_fed_avg_with_client_states",
    "build_fed_avg_with_error_feedback",
    "build_fed_avg_with_optimizer_states",
    "build_fed_buff",
    "build_fed_df",
    "build_fed_dyn",
    "build_fed_eval",
    "build_fed_gan",
    "build_fed_kmeans",
    "build_fed_multi_model_eval",
    "build_fed_multi_model_eval_from_processes",
    "build_fed_nova",
    "build_fed_recon",
    "build_fed_recon_eval",
    "build_fed_sgd",
    "build_ifca",
    "build_ifca_eval",
    "build_ifca_with_gradients",
    "build_mime_lite_with_optimizer_schedule",
    "build_personalization_eval_computation",
    "build_q_fed_avg",
    "build_scaffold",
    "build_unweighted_fed_avg",
    "build_unweighted_fed_prox",
    "build_unweighted_mime_lite",
    "build_weighted_fed_avg",
    "build_weighted_fed_avg_with_optimizer_schedule",
    "build_weighted_fed_prox",
    "build_weighted_mime_lite",
]

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.learning.algorithms")
