"""Client data, partitioners, client sampling and TFF's training loop, for experiments on one machine."""

import importlib

from fedcore.simulation import datasets, participation, partition
from fedcore.simulation.sampling import (
    Sampler,
    build_min_separation_sampling_fn,
    build_poisson_sampling_fn,
    build_random_permutation_sampling_fn,
    build_uniform_sampling_fn,
)
from fedcore.tff_names import tff_name

# What needs TensorFlow is loaded when it is first used: name -> module.
_LATER = {
    **dict.fromkeys(
        (
            "SequenceTypeNotAssignableError",
            "SequenceTypeNotFoundError",
            "compose_dataset_computation_with_computation",
            "compose_dataset_computation_with_iterative_process",
            "compose_dataset_computation_with_learning_process",
        ),
        "fedcore.simulation.dataset_composition",
    ),
    **dict.fromkeys(
        (
            "EVALUATION_METRICS_PREFIX",
            "EVALUATION_TIME_KEY",
            "ROUND_NUMBER_KEY",
            "ROUND_TIME_KEY",
            "TRAINING_TIME_KEY",
            "run_training_process",
        ),
        "fedcore.simulation.training_loop",
    ),
}

# TFF has it here; it needs models, which are above this layer.
_ABOVE = {"baselines": "fedcore.learning.baselines"}

__all__ = sorted(
    [
        "Sampler",
        "build_min_separation_sampling_fn",
        "build_poisson_sampling_fn",
        "build_random_permutation_sampling_fn",
        "build_uniform_sampling_fn",
        "datasets",
        "participation",
        "partition",
        *_LATER,
        *_ABOVE,
    ]
)


def __getattr__(name):
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    if name in _ABOVE:
        return importlib.import_module(_ABOVE[name])
    return tff_name("fedcore.simulation", name)


def __dir__():
    return __all__
