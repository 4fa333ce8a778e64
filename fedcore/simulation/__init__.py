"""Client data, partitioners and client sampling, for experiments on one machine."""

from fedcore.simulation import datasets, partition
from fedcore.simulation.sampling import build_uniform_sampling_fn
