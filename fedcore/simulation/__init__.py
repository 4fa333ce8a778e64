"""Client data, partitioners, client sampling and TFF's training loop, for experiments on one machine."""

from fedcore.simulation import datasets, partition
from fedcore.simulation.dataset_composition import (
    SequenceTypeNotAssignableError,
    SequenceTypeNotFoundError,
    compose_dataset_computation_with_computation,
    compose_dataset_computation_with_iterative_process,
    compose_dataset_computation_with_learning_process,
)
from fedcore.simulation.sampling import build_uniform_sampling_fn
from fedcore.simulation.training_loop import (
    EVALUATION_METRICS_PREFIX,
    EVALUATION_TIME_KEY,
    ROUND_NUMBER_KEY,
    ROUND_TIME_KEY,
    TRAINING_TIME_KEY,
    run_training_process,
)
