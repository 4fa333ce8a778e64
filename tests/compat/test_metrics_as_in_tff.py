"""Metrics and analytics: types and refusals of TFF's last version, compared as its `is_equivalent_to` does."""

from collections import OrderedDict

import keras
import pytest
import tensorflow as tf

import fedcore as fc

SERVER, CLIENTS = fc.SERVER, fc.CLIENTS
learning = fc.learning
Output = fc.templates.MeasuredProcessOutput


def at(placement, type_):
    return fc.FederatedType(type_, placement)


METRICS = learning.metrics
FINALIZERS = OrderedDict(count=lambda x: x, loss=lambda x: tf.math.divide_no_nan(x[0], x[1]))
REPORT = fc.to_type(OrderedDict(count="int32", loss=["float32", "float32"]))
FINALIZED = fc.to_type(OrderedDict(count="int32", loss="float32"))
BUILDERS = {
    "sum_then_finalize": METRICS.sum_then_finalize,
    "secure_sum_then_finalize": METRICS.secure_sum_then_finalize,
    "finalize_then_sample": METRICS.finalize_then_sample,
}


def finalize_all(report):
    return OrderedDict((name, fn(report[name])) for name, fn in FINALIZERS.items())


def result_of(aggregate, report=REPORT):
    """The type of the metrics that an aggregator makes of clients' reports."""
    return fc.federated_computation(lambda reports: aggregate(reports), at(CLIENTS, report)).type_signature.result


@pytest.mark.parametrize("finalizers", [FINALIZERS, finalize_all], ids=["by name", "of all"])
def test_metrics_of_builders_have_tffs_types(finalizers):
    assert result_of(METRICS.sum_then_finalize(finalizers)).is_equivalent_to(at(SERVER, FINALIZED))
    rows = fc.to_type(OrderedDict(count=("int32", [None]), loss=("float32", [None])))
    assert result_of(METRICS.finalize_then_sample(finalizers)).is_equivalent_to(at(SERVER, rows))
    secure = result_of(METRICS.secure_sum_then_finalize(finalizers)).member
    assert all(secure[name].is_equivalent_to(FINALIZED[name]) for name in FINALIZED.names)
    assert set(secure.names) == {*FINALIZED.names, "secure_sum_measurements"}


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(
    "finalizers",
    [1.0, [FINALIZERS["loss"]], OrderedDict({1: lambda x: x})],
    ids=["a number", "a list", "a name that is none"],
)
def test_builders_of_metrics_refuse_finalizers_that_tff_refuses(name, finalizers):
    with pytest.raises(TypeError):
        BUILDERS[name](finalizers)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(
    ("report", "kind"),
    [("float32", TypeError), (["int32", ["float32", "float32"]], TypeError), (OrderedDict(count="int32"), ValueError)],
    ids=["a tensor", "a list", "other names"],
)
def test_builders_of_metrics_refuse_reports_that_tff_refuses(name, report, kind):
    with pytest.raises(kind):
        result_of(BUILDERS[name](FINALIZERS), fc.to_type(report))


@pytest.mark.parametrize(("size", "kind"), [("5", TypeError), (2.0, TypeError), (0, ValueError), (-1, ValueError)])
@pytest.mark.parametrize(
    "build", [lambda n: METRICS.finalize_then_sample(FINALIZERS, sample_size=n), METRICS.FinalizeThenSampleFactory]
)
def test_samples_of_metrics_refuse_sizes_that_tff_refuses(build, size, kind):
    with pytest.raises(kind):
        build(size)


@pytest.mark.parametrize(
    ("ranges", "kind"),
    [
        (OrderedDict(count=(1, 2, 3)), ValueError),
        (OrderedDict(count=("a", "b")), TypeError),
        ([(0, 1)], TypeError),
        (OrderedDict(count=(2, 1)), ValueError),
    ],
    ids=["three bounds", "text", "a list", "out of order"],
)
def test_secure_sums_of_metrics_refuse_ranges_that_tff_refuses(ranges, kind):
    with pytest.raises(kind):
        result_of(METRICS.secure_sum_then_finalize(FINALIZERS, metric_value_ranges=ranges))


def test_functions_of_metrics_have_tffs_states():
    initialize_state, update, finalize = METRICS.create_functional_metric_fns(
        OrderedDict(error=keras.metrics.MeanSquaredError, hits=keras.metrics.AUC)
    )
    state = initialize_state()
    assert list(state) == ["error", "hits"]
    output = learning.models.BatchOutput(predictions=tf.constant([0.5, 1.0]))
    after = update(state, tf.constant([0.0, 1.0]), output)
    assert tf.nest.map_structure(lambda v: v.dtype, after) == tf.nest.map_structure(lambda v: v.dtype, state)
    assert float(finalize(after)["error"]) == 0.125


@pytest.mark.parametrize(
    "constructor",
    [None, 1, lambda: 1, lambda: [keras.metrics.Mean()], OrderedDict({1: keras.metrics.AUC})],
    ids=["nothing", "a number", "of a number", "of a list", "a name that is none"],
)
def test_functions_of_metrics_are_made_of_what_tff_takes(constructor):
    with pytest.raises(TypeError):
        METRICS.create_functional_metric_fns(constructor)


@pytest.mark.parametrize(
    "metric",
    [None, 1, keras.losses.MeanSquaredError(), [keras.metrics.Mean()]],
    ids=["nothing", "a number", "a loss", "metrics"],
)
def test_finalizers_are_made_of_what_tff_takes(metric):
    with pytest.raises(TypeError):
        METRICS.create_keras_metric_finalizer(metric)


# Analytics, and data sets that clients make of their ids.

SKETCH, TEXTS = fc.to_type(("int64", [32])), fc.SequenceType("str")
analytics = fc.analytics


def test_computations_of_distinct_counts_have_tffs_types():
    counting = analytics.count_distinct
    expected = {
        counting.build_client_hyperloglog_computation(): fc.FunctionType(fc.SequenceType("int64"), SKETCH),
        counting.build_federated_secure_max_computation(): fc.FunctionType(at(CLIENTS, SKETCH), at(SERVER, SKETCH)),
        counting.create_federated_hyperloglog_computation(): fc.FunctionType(
            at(CLIENTS, TEXTS), at(SERVER, fc.to_type("int64"))
        ),
    }
    assert [str(made.type_signature) for made in expected] == [str(want) for want in expected.values()]


@pytest.mark.parametrize("inner", [fc.aggregators.SumFactory(), None], ids=["of sums", "as it is"])
def test_sketches_of_strings_have_tffs_types(inner):
    parts = {} if inner is None else {"sketch_agg_factory": inner, "value_tensor_agg_factory": inner}
    factory = analytics.IbltFactory(capacity=10, string_max_bytes=8, repetitions=3, **parts)
    value = fc.SequenceType(fc.to_type(OrderedDict(key="str", value=("int64", [2]))))
    state = at(SERVER, fc.to_type(((), ())))
    result = OrderedDict(output_strings=("str", [None]), string_values=("int64", [None, 2]), num_not_decoded="int64")
    measured = OrderedDict(num_not_decoded="int64", sketch=(), value_tensor=())
    output = Output(state, at(SERVER, fc.to_type(result)), at(SERVER, fc.to_type(measured)))
    made = factory.create(value)
    assert made.initialize.type_signature.is_equivalent_to(fc.FunctionType(None, state))
    assert made.next.type_signature.is_equivalent_to(
        fc.FunctionType(OrderedDict(state=state, value=at(CLIENTS, value)), output)
    )


@pytest.mark.parametrize("value", ["str", ("int64", [None])], ids=str)
def test_sketches_of_other_values_are_refused(value):
    factory, other = analytics.IbltFactory(capacity=10, string_max_bytes=8, repetitions=3), fc.to_type(value)
    with pytest.raises(fc.errors.TypeMismatch, match="IbltFactory aggregates <key=str,value="):
        factory.create(fc.SequenceType(other))


@pytest.mark.parametrize(
    ("mechanism", "dtype"), [("no-noise", "int32"), ("central-gaussian", "float32")], ids=["no noise", "noise"]
)
def test_histograms_have_tffs_types(mechanism, dtype):
    made = analytics.build_hierarchical_histogram_process(0.0, 1.0, 4, dp_mechanism=mechanism)
    tree = OrderedDict(flat_values=(dtype, [7]), nested_row_splits=[("int64", [4])])
    state = at(SERVER, fc.to_type(OrderedDict(aggregated_hierarchical_histogram=tree, round_timestamp="int64")))
    assert made.initialize.type_signature.is_equivalent_to(fc.FunctionType(None, state))
    assert made.next.type_signature.parameter[1].is_equivalent_to(at(CLIENTS, fc.SequenceType("float32")))
    assert made.next.type_signature.result[0].is_equivalent_to(state)
