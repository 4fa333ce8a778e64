"""Programs that run learning processes: training with everything around it.

`train` is the one to start with; `train_model` and `EvaluationManager` are TensorFlow Federated's.
"""

from typing import TYPE_CHECKING

from fedcore.learning.programs.callback import Callback
from fedcore.learning.programs.client_metrics import ClientMetrics, evaluate_clients
from fedcore.learning.programs.early_stopping import EarlyStopping
from fedcore.learning.programs.history import History
from fedcore.learning.programs.learning_rate_scheduler import LearningRateScheduler
from fedcore.learning.programs.model_card import model_card
from fedcore.learning.programs.model_checkpoint import ModelCheckpoint
from fedcore.learning.programs.optuna_pruning import OptunaPruning
from fedcore.learning.programs.plot import plot_histories
from fedcore.learning.programs.progress_bar import ProgressBar
from fedcore.learning.programs.stop_at import StopAt
from fedcore.learning.programs.train import train
from fedcore.tff_names import tff_names

__all__ = [
    "Callback",
    "ClientMetrics",
    "EarlyStopping",
    "EvaluationManager",
    "History",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "OptunaPruning",
    "ProgramState",
    "ProgressBar",
    "StopAt",
    "evaluate_clients",
    "extract_and_rewrap_metrics",
    "model_card",
    "plot_histories",
    "train",
    "train_model",
]

if TYPE_CHECKING:  # names of TFF, which `tff_names` finds
    from fedcore.compat.evaluation_manager import EvaluationManager as EvaluationManager
    from fedcore.compat.evaluation_manager import extract_and_rewrap_metrics as extract_and_rewrap_metrics
    from fedcore.compat.train_model import ProgramState as ProgramState
    from fedcore.compat.train_model import train_model as train_model
else:
    __getattr__ = tff_names("fedcore.learning.programs")
