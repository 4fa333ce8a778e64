"""Aggregators of a model's changes: bounded, secure, private and measured means."""

import math

import numpy as np
import pytest

import fedcore as fc
from fedcore.compiler.disclosures import disclosures
from fedcore.errors import TypeMismatch

UPDATE, WEIGHT = fc.to_type([("float32", [3]), ("float32", [1])]), fc.to_type("float32")
UPDATES = [[[-1.0, -3.0, -5.0], [2.0]], [[-1.0, -3.0, 1.0], [0.0]]]
NORMS = [math.sqrt(39), math.sqrt(11)]
no_noise = fc.aggregators.PrivateQuantileEstimationProcess.no_noise


def run(factory, items=UPDATES, weights=None, type_=UPDATE):
    process = factory.create(type_) if weights is None else factory.create(type_, WEIGHT)
    return process.next(process.initialize(), items, *([] if weights is None else [weights]))


def flat(result):
    return np.concatenate([np.ravel(x) for x in result])


def test_a_robust_mean_is_the_composition_that_the_tutorials_write():
    zeroing = no_noise(10.0, 0.98, math.log(10.0), 2.0, 1.0)
    clipping = no_noise(1.0, 0.8, 0.2)
    by_hand = fc.aggregators.zeroing_factory(
        zeroing, fc.aggregators.clipping_factory(clipping, fc.aggregators.MeanFactory())
    )
    items, weights = [*UPDATES, [[1000.0, 0.0, 0.0], [0.0]]], [1.0, 2.0, 1.0]
    ours, theirs = (run(f, items, weights) for f in (fc.learning.robust_aggregator(), by_hand))
    np.testing.assert_array_equal(flat(ours.result), flat(theirs.result))
    assert ours.measurements == theirs.measurements
    assert ours.state == theirs.state
    assert ours.measurements["zeroed_count"] == 1
    assert ours.measurements["zeroing"]["clipped_count"] == 2


@pytest.mark.parametrize(
    ("make", "weighted"),
    [
        (fc.learning.robust_aggregator, False),
        (fc.learning.secure_aggregator, False),
        (fc.learning.secure_aggregator, True),
    ],
)
def test_a_mean_without_bounds_is_the_mean(make, weighted):
    factory = make(zeroing=False, clipping=False, weighted=weighted)
    weights = [1.0, 3.0] if weighted else None
    want = np.average([flat(u) for u in UPDATES], axis=0, weights=weights)
    np.testing.assert_allclose(flat(run(factory, weights=weights).result), want, atol=1e-5)


@pytest.fixture(scope="module")
def secure():
    return fc.learning.secure_aggregator().create(UPDATE, WEIGHT)


def test_a_secure_mean_is_the_robust_mean_up_to_its_quantization(secure):
    plain = run(fc.learning.robust_aggregator(), weights=[1.0, 2.0])
    output = secure.next(secure.initialize(), UPDATES, [1.0, 2.0])
    np.testing.assert_allclose(flat(output.result), flat(plain.result), atol=1e-5)
    for name in ("zeroing_norm", "zeroed_count"):
        assert output.measurements[name] == plain.measurements[name]
    assert output.state["zeroing_norm"] == plain.state["zeroing_norm"]
    mean = output.measurements["zeroing"]["clipping"]
    assert mean["mean_value"]["secure_upper_threshold"] == 100
    assert mean["mean_weight"]["secure_upper_threshold"] == 2**20 - 1


def test_a_secure_mean_discloses_no_client(secure):
    assert disclosures(secure.next.to_module("traced")) == []
    robust = fc.learning.robust_aggregator().create(UPDATE, WEIGHT)
    assert disclosures(robust.next.to_module("traced")) != []


def test_debug_measurements_are_of_the_clients_norms_and_of_the_mean():
    output = run(fc.learning.add_debug_measurements(fc.aggregators.UnweightedMeanFactory()))
    found = {k: v for k, v in output.measurements.items() if k not in ("mean_value", "mean_count")}
    assert found.pop("average_client_norm") == pytest.approx(np.mean(NORMS))
    assert found.pop("std_dev_client_norm") == pytest.approx(np.std(NORMS, ddof=1), rel=1e-5)
    assert found.pop("server_update_norm") == pytest.approx(math.sqrt(15))
    assert found == {"server_update_max": 1, "server_update_min": -3}
    np.testing.assert_array_equal(flat(output.result), [-1, -3, -2, 1])


def test_debug_measurements_are_weighted_as_the_mean_is():
    output = run(fc.learning.add_debug_measurements(fc.aggregators.MeanFactory()), weights=[1.0, 3.0])
    mean = np.average(NORMS, weights=[1, 3])
    biased = np.average((np.array(NORMS) - mean) ** 2, weights=[1, 3])
    assert output.measurements["average_client_norm"] == pytest.approx(mean)
    assert output.measurements["std_dev_client_norm"] == pytest.approx(math.sqrt(biased * 16 / (16 - 10)), rel=1e-5)


def test_the_deviation_of_one_client_is_zero_and_no_clients_give_nan():
    factory = fc.learning.add_debug_measurements(fc.aggregators.SumFactory())
    assert run(factory, UPDATES[:1]).measurements["std_dev_client_norm"] == 0
    assert np.isnan(run(factory, []).measurements["average_client_norm"])


def test_debug_measurements_of_several_dtypes_are_float32():
    type_ = fc.to_type(["float64", "int32"])
    with pytest.raises(TypeMismatch, match=r"of one dtype, not .*; add_debug_measurements_with_mixed_dtype takes"):
        fc.learning.add_debug_measurements(fc.aggregators.SumFactory()).create(type_)
    factory = fc.learning.add_debug_measurements_with_mixed_dtype(fc.aggregators.SumFactory())
    output = run(factory, [[3.0, 4], [0.0, 0]], type_=type_)
    assert output.result == [3.0, 4]
    assert {k: (v.dtype.name, round(float(v), 4)) for k, v in output.measurements.items()} == {
        "average_client_norm": ("float32", 2.5),
        "std_dev_client_norm": ("float32", 3.5355),
        "server_update_max": ("float32", 4.0),
        "server_update_norm": ("float32", 5.0),
        "server_update_min": ("float32", 3.0),
    }


def test_what_is_measured_is_what_the_mean_is_given():
    factory = fc.learning.robust_aggregator(debug_measurements_fn=fc.learning.add_debug_measurements)
    mean = run(factory, weights=[1.0, 1.0]).measurements["zeroing"]["clipping"]
    assert mean["average_client_norm"] == pytest.approx(1)  # clipped to 1


@pytest.mark.parametrize("make", [fc.learning.robust_aggregator, fc.learning.compression_aggregator])
def test_debug_measurements_keep_the_weights(make):
    with pytest.raises(TypeMismatch, match="debug_measurements_fn returns a factory with weights, as it is given, not"):
        make(debug_measurements_fn=lambda mean: fc.aggregators.SumFactory())
    with pytest.raises(TypeMismatch, match="returns a factory without weights"):
        make(weighted=False, debug_measurements_fn=lambda mean: fc.aggregators.MeanFactory())


def test_a_private_mean_zeroes_on_demand():
    factory = fc.learning.dp_aggregator(0.0, 2, zeroing=True)
    output = run(factory, [*UPDATES, [[np.inf, 0.0, 0.0], [0.0]]])
    assert output.measurements["zeroed_count"] == 1
    assert list(output.measurements["zeroing"]) == ["clip", "noise_stddev", "unclipped_fraction"]
    assert "zeroed_count" not in run(fc.learning.dp_aggregator(0.0, 2)).measurements


@pytest.mark.parametrize(
    "factory",
    [
        fc.learning.dp_aggregator(1.0, 100),
        fc.learning.dp_aggregator(1.0, 100, zeroing=True),
        fc.learning.ddp_secure_aggregator(1.0, 100, clip=1.0),
        fc.learning.add_debug_measurements(fc.aggregators.SumFactory()),
        fc.learning.add_debug_measurements_with_mixed_dtype(fc.aggregators.SumFactory()),
    ],
)
def test_updates_of_a_model_without_weights_are_refused_by_name(factory):
    none = fc.to_type(fc.learning.models.ModelWeights((), ()))
    with pytest.raises(TypeMismatch, match=r"^(\w*Factory|add_debug_\w+) (adds|measures) .*trainable=<>"):
        factory.create(none)


@pytest.mark.parametrize("make", [fc.learning.robust_aggregator, fc.learning.secure_aggregator])
def test_a_mean_of_updates_without_tensors_is_one(make):
    assert run(make(weighted=False), [(), ()], type_=fc.to_type(())).result == ()
