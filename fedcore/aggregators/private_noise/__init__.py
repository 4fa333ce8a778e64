"""Gaussian noise of private sums: mechanisms that correlate it over rounds, and generators to draw it."""

from fedcore.aggregators.private_noise.banded import BandedNoise, BandedNoiseState
from fedcore.aggregators.private_noise.independent import IndependentNoise
from fedcore.aggregators.private_noise.operating_system_key import OperatingSystemKey
from fedcore.aggregators.private_noise.tree import TreeNoise, TreeNoiseState

NoiseMechanism = IndependentNoise | TreeNoise | BandedNoise
