"""Accounting for the rounds of a hierarchical histogram."""

import math
from typing import Any

import attrs
import numpy as np

from fedcore.analytics.hierarchical_histogram import create_hierarchical_histogram_aggregation_factory
from fedcore.privacy.events import Round, account, epsilon_of
from fedcore.privacy.ledger import valid_delta
from fedcore.privacy.mechanism import at_path, mechanism_of_state, private_state_path
from fedcore.scalars import whole_number
from fedcore.simulation.participation import every_round
from fedcore.types import TensorType


def histogram_epsilon(delta: float, *, rounds: int = 1, accountant: str = "rdp", **options: Any) -> float:
    """Epsilon of the clients of `fc.analytics.hierarchical_histogram.build_hierarchical_histogram_computation`.

    A client may take part in every round. Queries of a decoder, and `enforce_consistency`, cost nothing more.

    Args:
        delta: below 1 over the number of clients.
        rounds: how often the computation is run on the clients.
        accountant: 'rdp' or 'pld', as for `Ledger.epsilon`.
        options: those of the computation without its bounds: `num_bins` and what else was given.
    Returns:
        Epsilon at this delta; `math.inf` without noise. With 'distributed-discrete-gaussian' it holds for rounds of
        `clients_per_round` clients: fewer clients add less noise.
    Raises:
        InvalidValue: a number is outside its range, or options do not fit each other.
        FedcoreError: dp-accounting is not installed.
    Source: the Gaussian mechanism for what a client's clipped records change in the tree, or Kairouz, Liu, Steinke
        2021, arXiv:2102.06387, Proposition 14; composed by dp-accounting.
    Example:
        >>> options = {'num_bins': 8, 'dp_mechanism': 'central-gaussian', 'noise_multiplier': 4.0}
        >>> build = fc.analytics.hierarchical_histogram.build_hierarchical_histogram_computation
        >>> count = build(0.0, 8.0, **options)
        >>> round(fc.privacy.histogram_epsilon(1e-5, **options), 2)
        0.98
    """
    count, delta = whole_number("rounds", rounds, at_least=0), valid_delta(delta, 1)
    factory = create_hierarchical_histogram_aggregation_factory(**options)
    if options.get("dp_mechanism", "no-noise") == "no-noise":
        return math.inf if count else 0.0
    process = factory.create(TensorType("int32", [options["num_bins"]]))
    private = at_path(process.initialize(), private_state_path(process))
    if hasattr(private, "clients"):  # of a distributed sum: 0 in the first state, those of the round after one
        private = attrs.evolve(private, clients=np.int64(options["clients_per_round"]))
    mechanism = mechanism_of_state(private)
    return epsilon_of(account([Round(mechanism, 1)] * count, every_round(1)), delta, accountant)
