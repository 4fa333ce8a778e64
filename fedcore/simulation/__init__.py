"""Client data, partitioners, samplers, virtual clocks and TFF's training loop, for experiments on one machine."""

from typing import TYPE_CHECKING

from fedcore.lazy_imports import LazyImports
from fedcore.simulation import datasets as datasets
from fedcore.simulation import participation as participation
from fedcore.simulation import partition as partition
from fedcore.simulation.devices import Devices as Devices
from fedcore.simulation.devices import build_devices as build_devices
from fedcore.simulation.sampling import Sampler as Sampler
from fedcore.simulation.sampling import build_min_separation_sampling_fn as build_min_separation_sampling_fn
from fedcore.simulation.sampling import build_poisson_sampling_fn as build_poisson_sampling_fn
from fedcore.simulation.sampling import build_random_permutation_sampling_fn as build_random_permutation_sampling_fn
from fedcore.simulation.sampling import build_uniform_sampling_fn as build_uniform_sampling_fn
from fedcore.simulation.virtual_clock import BufferedClock as BufferedClock
from fedcore.simulation.virtual_clock import ClockRound as ClockRound
from fedcore.simulation.virtual_clock import SynchronousClock as SynchronousClock
from fedcore.simulation.virtual_clock import VirtualClock as VirtualClock
from fedcore.tff_names import tff_name

if TYPE_CHECKING:
    # TFF has them here; they need models, which are above this layer.
    from fedcore.learning import baselines as baselines
    from fedcore.learning.baselines import models as models

    # These need TensorFlow.
    from fedcore.simulation.dataset_composition import SequenceTypeNotAssignableError as SequenceTypeNotAssignableError
    from fedcore.simulation.dataset_composition import SequenceTypeNotFoundError as SequenceTypeNotFoundError
    from fedcore.simulation.dataset_composition import (
        compose_dataset_computation_with_computation as compose_dataset_computation_with_computation,
    )
    from fedcore.simulation.dataset_composition import (
        compose_dataset_computation_with_iterative_process as compose_dataset_computation_with_iterative_process,
    )
    from fedcore.simulation.dataset_composition import (
        compose_dataset_computation_with_learning_process as compose_dataset_computation_with_learning_process,
    )
    from fedcore.simulation.training_loop import EVALUATION_METRICS_PREFIX as EVALUATION_METRICS_PREFIX
    from fedcore.simulation.training_loop import EVALUATION_TIME_KEY as EVALUATION_TIME_KEY
    from fedcore.simulation.training_loop import ROUND_NUMBER_KEY as ROUND_NUMBER_KEY
    from fedcore.simulation.training_loop import ROUND_TIME_KEY as ROUND_TIME_KEY
    from fedcore.simulation.training_loop import TRAINING_TIME_KEY as TRAINING_TIME_KEY
    from fedcore.simulation.training_loop import run_training_process as run_training_process

_LAZY = LazyImports(__name__)

__all__ = sorted(
    [
        "BufferedClock",
        "ClockRound",
        "Devices",
        "Sampler",
        "SynchronousClock",
        "VirtualClock",
        "build_devices",
        "build_min_separation_sampling_fn",
        "build_poisson_sampling_fn",
        "build_random_permutation_sampling_fn",
        "build_uniform_sampling_fn",
        "datasets",
        "participation",
        "partition",
        *_LAZY.names,
    ]
)

if TYPE_CHECKING:  # names of TFF, which `tff_name` finds
    from fedcore.simulation.datasets import ClientData as ClientData
    from fedcore.simulation.datasets import FilePerUserClientData as FilePerUserClientData
    from fedcore.simulation.datasets import HDF5ClientData as HDF5ClientData
    from fedcore.simulation.datasets import SqlClientData as SqlClientData
    from fedcore.simulation.datasets import TestClientData as TestClientData
    from fedcore.simulation.datasets import TransformingClientData as TransformingClientData

    FromTensorSlicesClientData = TestClientData
else:

    def __getattr__(name: str) -> object:
        return _LAZY.load(name) if name in _LAZY.names else tff_name("fedcore.simulation", name)


def __dir__() -> list[str]:
    return __all__
