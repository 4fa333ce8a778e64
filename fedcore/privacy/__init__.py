"""Privacy of clients and of their records: accounting that follows a process and its sampler, calibration, and audits.

Accounting is done by dp-accounting: `pip install fedcore[dp]`.

The examples of this package use these names:
    >>> import fedcore as fc
    >>> ids = [f'client_{i}' for i in range(1000)]
    >>> sampler = fc.simulation.build_poisson_sampling_fn(ids, rate=0.02, seed=1)
    >>> factory = fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, clients_per_round=20, clip=1.0)
    >>> process = factory.create(fc.to_type('float32'))
"""

from fedcore.privacy.audit import Audit, audit
from fedcore.privacy.calibration import calibrate
from fedcore.privacy.epsilon_callback import EpsilonCallback
from fedcore.privacy.example_level import example_epsilon
from fedcore.privacy.histogram_epsilon import histogram_epsilon
from fedcore.privacy.ledger import Ledger

__all__ = ["Audit", "EpsilonCallback", "Ledger", "audit", "calibrate", "example_epsilon", "histogram_epsilon"]
