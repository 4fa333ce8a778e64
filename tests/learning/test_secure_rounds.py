"""Rounds of federated averaging in which the server gets sums only."""

import numpy as np
import pytest

import fedcore as fc

from .conftest import random_clients


@pytest.mark.soak
def test_masked_rounds_equal_plain_rounds_to_the_bit(model_fn):
    process = fc.learning.algorithms.build_unweighted_fed_avg(
        model_fn,
        fc.learning.optimizers.build_sgdm(learning_rate=0.1),
        model_aggregator=fc.aggregators.UnweightedMeanFactory(fc.aggregators.SecureSumFactory(8.0)),
        metrics_aggregator=fc.learning.metrics.secure_sum_then_finalize,
    )
    clients, results = random_clients([5, 8, 3]), []
    for settings in ({"vectorize": False}, {"secure_aggregation": "masked"}):
        runtime = fc.runtime.local(block_size=1, **settings)
        with fc.use(runtime, seed=1):
            state, metrics = process.next(process.initialize(), clients)
            results.append(([w.tobytes() for w in state.global_model_weights.trainable], metrics))
        runtime.close()
    assert results[0] == results[1]
    assert fc.context.last_report().secure_sums[0].contributed == 3


def test_a_round_without_examples_leaves_a_model_of_symmetric_bounds_as_it_was(model_fn):
    process = fc.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        fc.learning.optimizers.build_sgdm(learning_rate=0.1),
        model_aggregator=fc.aggregators.MeanFactory(
            fc.aggregators.SecureSumFactory(1e6), fc.aggregators.SecureSumFactory(1e6)
        ),
    )
    state = process.initialize()
    after, _ = process.next(state, random_clients([0, 0]))
    for old, new in zip(state.global_model_weights.trainable, after.global_model_weights.trainable, strict=True):
        np.testing.assert_array_equal(new, old)
