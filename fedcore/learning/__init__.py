"""Federated learning, written in the language that users have.

The examples of this package use these names:
    >>> import fedcore as fc, keras, numpy as np, tensorflow as tf
    >>> def client(num_examples):
    ...     x = np.arange(2 * num_examples, dtype=np.float32).reshape(num_examples, 2) / 10
    ...     return fc.data.ClientDataset.from_columns((x, x.sum(1, keepdims=True))).batch(2)
    >>> client_a, client_b = client(3), client(2)
    >>> spec = client_a.element_spec
    >>> def keras_model():
    ...     return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer='zeros')])
    >>> def model_fn():
    ...     return fc.learning.from_keras_model(keras_model(), keras.losses.MeanSquaredError(), spec)
    >>> process = fc.learning.algorithms.build_fed_sgd(model_fn)
    >>> state = process.initialize()
    >>> clients = {'a': client_a, 'b': client_b}
    >>> data = fc.simulation.datasets.ClientData.from_clients_and_tf_fn(clients, clients.get)
"""

from typing import TYPE_CHECKING

from fedcore.learning import algorithms, framework, metrics, models, optimizers, programs, templates
from fedcore.learning.asynchronous_process import AsynchronousProcess, ClientStart
from fedcore.learning.client_state_process import ClientStateOutput, ClientStateProcess
from fedcore.learning.debug_measurements import add_debug_measurements, add_debug_measurements_with_mixed_dtype
from fedcore.learning.model_aggregators import (
    compression_aggregator,
    ddp_secure_aggregator,
    dp_aggregator,
    robust_aggregator,
    secure_aggregator,
)
from fedcore.learning.models import BatchOutput, ModelWeights, from_keras_model
from fedcore.learning.models import VariableModel as Model
from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.learning.trainable_weights_aggregator import trainable_weights_aggregator
from fedcore.learning.weighting import ClientWeighting
from fedcore.tff_names import tff_names

__all__ = [
    "AsynchronousProcess",
    "BatchOutput",
    "ClientStart",
    "ClientStateOutput",
    "ClientStateProcess",
    "ClientWeighting",
    "LearningAlgorithmState",
    "LearningProcess",
    "LearningProcessOutput",
    "Model",
    "ModelWeights",
    "add_debug_measurements",
    "add_debug_measurements_with_mixed_dtype",
    "algorithms",
    "compression_aggregator",
    "ddp_secure_aggregator",
    "dp_aggregator",
    "framework",
    "from_keras_model",
    "metrics",
    "models",
    "optimizers",
    "programs",
    "robust_aggregator",
    "secure_aggregator",
    "templates",
    "trainable_weights_aggregator",
]

if TYPE_CHECKING:  # names of TFF, which `tff_names` finds
    from fedcore import learning as _learning
    from fedcore.compat.dropped_arguments import LoopImplementation as LoopImplementation
    from fedcore.compat.learning import build_federated_averaging_process as build_federated_averaging_process
    from fedcore.compat.learning import build_federated_evaluation as build_federated_evaluation

    model_update_aggregator = _learning
else:
    __getattr__ = tff_names("fedcore.learning")
