"""A site that sends past its own clipping and zeroing moves the model no further than its bound allows."""

import functools

import attrs
import numpy as np
import pytest
import tensorflow as tf
from direct_exchange import ELEMENT, open_sites
from federations import POLICY
from learning_programs import build_fed_avg, build_model
from test_sites import equal, train

import fedcore as fc
from fedcore.runtime.network.messages import Message

SITES = 5
CLIP = 1.0


class Lying:
    """A site that alters the arrays of its results."""

    def __init__(self, site, lie):
        self.site = site
        self.lie = lie

    def answer(self, payload):
        reply = Message.from_bytes(self.site.answer(payload))
        arrays = {n: self.lie(n, a) if n[0] == "p" else a for n, a in reply.arrays.items()}
        return attrs.evolve(reply, arrays=arrays).to_bytes()


def scaled(factor):
    """All numbers that the site sends, times a factor, in their dtypes."""
    return lambda name, array: np.clip(array * factor, -(2.0**31) + 1, 2.0**31 - 1).astype(array.dtype)


def scaled_vectors(factor):
    return lambda name, array: array * array.dtype.type(factor) if array.ndim else array


def build_unweighted(aggregator):
    return fc.learning.algorithms.build_unweighted_fed_avg(
        build_model, client_optimizer_fn=fc.learning.optimizers.build_sgdm(0.1), model_aggregator=aggregator
    )


@functools.cache
def clipped():
    return build_fed_avg(model_aggregator=fc.aggregators.clipping_factory(CLIP, fc.aggregators.MeanFactory()))


@functools.cache
def clipped_unweighted():
    return build_unweighted(fc.aggregators.clipping_factory(CLIP, fc.aggregators.UnweightedMeanFactory()))


@functools.cache
def zeroed():
    return build_fed_avg(model_aggregator=fc.aggregators.zeroing_factory(CLIP, fc.aggregators.MeanFactory()))


@functools.cache
def robust():
    return build_fed_avg(model_aggregator=fc.learning.robust_aggregator())


@functools.cache
def private():
    return build_unweighted(fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.0, SITES, CLIP))


@functools.cache
def private_adaptive():
    return build_unweighted(fc.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(0.0, SITES, CLIP))


PROCESSES = [clipped, clipped_unweighted, zeroed, robust, private, private_adaptive]
LIES = {"all": scaled(1e6), "negative": scaled(-1e6), "vectors": scaled_vectors(1e6)}


def largest_change(process, cohort, exchange, rounds=3) -> float:
    """The largest Euclidean norm by which a round moves the model."""
    with fc.use(fc.runtime.network(exchange), seed=5):
        state, norms = process.initialize(), []
        for _ in range(rounds):
            before = process.get_model_weights(state).trainable
            state = process.next(state, cohort).state
            after = process.get_model_weights(state).trainable
            norms.append(np.sqrt(sum(float(np.sum((a - b) ** 2)) for a, b in zip(after, before, strict=True))))
    return max(norms)


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    return open_sites(tmp_path_factory.mktemp("five"), SITES, POLICY)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("build", PROCESSES)
def test_a_lying_site_moves_the_model_within_its_bound(five, build, lie):
    exchange, _ = five
    data, site = fc.deployment.sites(exchange, ELEMENT), exchange.answering["site-01"]
    exchange.answering["site-01"] = Lying(site, lie)
    try:
        moved = largest_change(build(), data.cohort(data.client_ids), exchange)
    finally:
        exchange.answering["site-01"] = site

    assert moved < 3 * CLIP


@pytest.mark.parametrize("build", PROCESSES)
def test_honest_sites_give_the_bits_of_the_local_runtime(five, build):
    exchange, datasets = five
    process, data = build(), fc.deployment.sites(exchange, ELEMENT)

    over_network = train(process, data.cohort(data.client_ids), fc.runtime.network(exchange))

    assert equal(over_network, train(process, datasets, fc.runtime.local()))


def test_a_bound_that_is_checked_again_costs_no_bits_of_the_message():
    bounded = fc.aggregators.clipping_factory(CLIP, fc.aggregators.SumFactory()).create(fc.to_type("float32[10]"))
    with fc.use(fc.runtime.local()):
        bounded.next(bounded.initialize(), [tf.ones([10])] * 2)

        assert fc.context.last_report().aggregate_bits == 2 * (10 * 32 + 32)
