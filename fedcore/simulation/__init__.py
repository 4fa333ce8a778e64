"""Client data, partitioners and client sampling, for experiments on one machine."""

from fedcore.simulation import datasets, participation, partition
from fedcore.simulation.sampling import (
    Sampler,
    build_min_separation_sampling_fn,
    build_poisson_sampling_fn,
    build_random_permutation_sampling_fn,
    build_uniform_sampling_fn,
)
