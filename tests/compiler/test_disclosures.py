"""Which client values reach the server outside of secure sums."""

from pathlib import Path

import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.compiler.disclosures import disclosures

READINGS = fc.FederatedType("float32", fc.CLIENTS)
COUNTS = fc.FederatedType("int32", fc.CLIENTS)
TOTALS = fc.FederatedType("int32", fc.SERVER)


def of(body, *parameters) -> list[tuple[str, str]]:
    """Names and types of the disclosures of a computation; a plan discloses as many."""
    computation = fc.federated_computation(*parameters)(body)
    stages = [disclosures(computation.to_module(stage)) for stage in ("traced", "lowered", "planned")]
    tensors = [[(d.tensor, str(d.type)) for d in one] for one in stages]
    assert tensors[0] == tensors[1]
    assert [type_ for _, type_ in tensors[2]] == [type_ for _, type_ in tensors[0]]
    return tensors[0]


def test_secure_sums_disclose_nothing():
    def body(x):
        return fc.federated_secure_sum(x, 9), fc.federated_secure_modular_sum(x, 7), fc.federated_count(x)

    assert of(body, COUNTS) == []


@pytest.mark.parametrize("add", [fc.federated_sum, fc.federated_max])
def test_other_aggregations_disclose_their_values(add):
    assert of(lambda x: add(x), COUNTS) == [("x", "int32")]


def test_collected_values_are_disclosed():
    assert of(lambda x: fc.federated_collect(x, 5), COUNTS) == [("x", "int32[1]")]


def test_the_line_of_the_aggregation_is_given():
    @fc.federated_computation(COUNTS)
    def total(x):
        doubled = fc.federated_map(lambda v: v + v, x)
        return fc.federated_sum(doubled)

    (one,) = disclosures(total.to_module("traced"))
    assert str(one.location).endswith(f"test_disclosures.py:{LINE_OF_SUM}")


LINE_OF_SUM = next(i for i, line in enumerate(Path(__file__).read_text().split("\n"), 1) if "sum(doubled)" in line)


def test_constants_and_broadcasts_are_no_client_data():
    def body(x, w):
        sent = fc.federated_broadcast(w)
        ones = fc.federated_map(lambda _: 1, x)
        return fc.federated_sum(ones), fc.federated_sum(fc.federated_map(lambda v, s: s + 1, (x, sent)))

    assert of(body, COUNTS, TOTALS) == []


def test_only_the_leaves_that_depend_on_client_data_are_named():
    @fc.tf_computation("float32")
    def work(x):
        return {"square": x * x, "one": tf.constant(1.0), "rank": tf.cast(tf.rank(x), tf.float32)}

    assert of(lambda x: fc.federated_sum(fc.federated_map(work, x)), READINGS) == [("work.square", "float32")]


def test_an_accumulation_that_reads_no_value_discloses_none():
    def body(x):
        return fc.federated_aggregate(x, 0, lambda n, _: n + 1, lambda m, n: m + n, lambda n: n)

    assert of(body, COUNTS) == []


def test_a_leaf_that_depends_on_another_leaf_of_the_partial_is_named():
    def body(x):
        return fc.federated_aggregate(
            x, (0, 0), lambda a, v: (a[0] + v, a[0] + a[1]), lambda a, b: (a[0] + b[0], a[1] + b[1]), lambda a: a[1]
        )

    assert of(body, COUNTS) == [("x", "int32")]


def test_a_value_that_is_kept_for_a_later_stage_is_followed():
    def body(x):
        total = fc.federated_secure_sum(x, 9)
        away = fc.federated_map(lambda v, t: v - t, (x, fc.federated_broadcast(total)))
        return fc.federated_sum(away)

    assert [type_ for _, type_ in of(body, COUNTS)] == ["int32"]


def test_a_secure_sum_that_is_sent_back_and_added_again_is_no_client_data():
    def body(x):
        total = fc.federated_broadcast(fc.federated_secure_sum(x, 9))
        return fc.federated_sum(fc.federated_map(lambda v, t: t, (x, total)))

    assert of(body, COUNTS) == []


def test_a_result_at_the_clients_stays_there():
    assert of(lambda x: fc.federated_map(lambda v: v + 1, x), COUNTS) == []


def test_a_branch_on_client_data_depends_on_it():
    @fc.tf_computation("float32")
    def sign(x):
        return tf.cond(x > 0, lambda: 1.0, lambda: -1.0)

    assert of(lambda x: fc.federated_sum(fc.federated_map(sign, x)), READINGS) == [("sign", "float32")]


def fed_avg(**settings):
    secure = fc.aggregators.SecureSumFactory(8.0)
    specs = (tf.TensorSpec((None, 1)), tf.TensorSpec((None, 1)))

    def model_fn():
        import keras

        net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        return fc.learning.from_keras_model(net, keras.losses.MeanSquaredError(), input_spec=specs)

    return fc.learning.algorithms.build_unweighted_fed_avg(
        model_fn,
        fc.learning.optimizers.build_sgdm(learning_rate=0.1),
        model_aggregator=fc.aggregators.UnweightedMeanFactory(secure),
        **settings,
    )


def test_federated_averaging_with_secure_sums_passes_and_fails_by_its_metrics():
    metrics_aggregator = fc.learning.metrics.secure_sum_then_finalize
    assert disclosures(fed_avg(metrics_aggregator=metrics_aggregator).next.to_module("traced")) == []
    tensors = {d.tensor for d in disclosures(fed_avg().next.to_module("traced"))}
    assert {"metrics.loss[0]", "metrics.num_examples[0]"} <= tensors
    assert all(tensor.startswith("metrics.") for tensor in tensors)
