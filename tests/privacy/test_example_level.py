"""Epsilon of records by dp-accounting, and of the runs of a site."""

import dp_accounting
import dp_accounting.rdp
import pytest

import fedcore as fc
from fedcore.errors import InvalidValue


def epsilon(event, delta):
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    return dp_accounting.rdp.RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(delta)


@pytest.mark.parametrize(("noise", "passes", "rate"), [(1.1, 20, 1.0), (1.0, 1000, 0.01), (0.7, 300, 0.1)])
def test_the_epsilon_is_that_of_dp_accounting(noise, passes, rate):
    step = dp_accounting.GaussianDpEvent(noise)
    step = step if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, step)
    expected = epsilon(dp_accounting.SelfComposedDpEvent(step, passes), 1e-5)
    found = fc.privacy.example_epsilon(noise, passes=passes, delta=1e-5, sampling_rate=rate)
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_other_accountant_is_tighter():
    rdp, pld = (
        fc.privacy.example_epsilon(1.0, passes=100, delta=1e-5, sampling_rate=0.05, accountant=name)
        for name in ("rdp", "pld")
    )
    assert 0 < pld < rdp


def test_training_without_noise_has_no_bound():
    assert fc.privacy.example_epsilon(0.0, passes=1, delta=1e-5) == float("inf")


def test_a_rate_above_one_is_refused():
    with pytest.raises(InvalidValue, match="sampling_rate is at most 1, not 2"):
        fc.privacy.example_epsilon(1.0, passes=1, delta=1e-5, sampling_rate=2.0)
