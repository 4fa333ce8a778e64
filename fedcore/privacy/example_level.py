"""Accounting for the records of a client: epsilon of training by `fc.learning.optimizers.build_dp_sgd`."""

from collections.abc import Iterable

from fedcore.errors import InvalidValue
from fedcore.privacy.events import Accounted, epsilon_of, gaussian, poisson_sampled
from fedcore.privacy.ledger import valid_delta
from fedcore.scalars import real_number, whole_number


def account_examples(parts: Iterable[tuple[float, float, int]]) -> Accounted:
    """The privacy event of noisy gradients, for a record that takes part at most once in each pass over the data.

    The batches of a pass have different records, so that a pass is as private as one step that samples all records.
    The two worlds differ by a record that is there or adds zeros in its place; how many records there are is public.

    Args:
        parts: of gradients with equal noise, each (noise multiplier, sampling rate, number of passes).
    """
    events = tuple((gaussian(z) if rate == 1 else poisson_sampled(z, rate), passes) for z, rate, passes in parts)
    return Accounted(events, "REPLACE_SPECIAL", "Poisson sampling of each batch")


def example_epsilon(
    noise_multiplier: float,
    passes: int,
    delta: float,
    *,
    sampling_rate: float = 1.0,
    accountant: str = "rdp",
) -> float:
    """Epsilon of the records of a client whose training has the gradients of `fc.learning.optimizers.build_dp_sgd`.

    It holds if a record takes part at most once in each pass over a client's data: make batches before you repeat the
    data. Then neither the order of the records nor shuffling matters. If one batch holds all data of the client, each
    step is a pass. The passes of all rounds add up.

    Args:
        noise_multiplier, sampling_rate: of `build_dp_sgd`.
        passes: over the client's data in all rounds: rounds times the repetitions of a round.
        delta: below 1 over the number of the client's records.
        accountant: 'rdp' or 'pld', as for `Ledger.epsilon`.
    Raises:
        InvalidValue: a number is outside its range.
        FedcoreError: dp-accounting is not installed.
    Source: dp-accounting's accountants of a Gaussian event, or a Poisson-sampled one: Mironov et al. 2019, "Rényi
        differential privacy of the sampled Gaussian mechanism", arXiv:1908.10530. That disjoint batches count as one:
        McSherry 2009, "Privacy integrated queries", theorem 4.
    Example:
        >>> round(fc.privacy.example_epsilon(1.0, passes=1000, delta=1e-5, sampling_rate=0.01), 2)
        2.1
    """
    z = float(real_number("noise_multiplier", noise_multiplier, at_least=0))
    rate = float(real_number("sampling_rate", sampling_rate, above=0))
    if rate > 1:
        raise InvalidValue(f"sampling_rate is at most 1, not {rate:g}")
    count = whole_number("passes", passes, at_least=0)
    return epsilon_of(account_examples([(z, rate, count)]), valid_delta(delta, 1), accountant)
