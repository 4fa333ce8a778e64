"""Aggregators of values that clients rotate at random."""

import numpy as np
import pytest

import fedcore as fc
from fedcore import aggregators as agg
from fedcore.errors import FedcoreError, TypeMismatch

FACTORIES = [agg.HadamardTransformFactory, agg.DiscreteFourierTransformFactory]
# 5 elements pad to 8 and 6, a scalar to 1 and 2, none to 1 and 0.
MIXED = fc.to_type({"w": ("float32", [5]), "b": "float32", "none": ("float32", [0])})


class Seen(agg.UnweightedAggregationFactory):
    """A sum that measures the values that it is given."""

    def create(self, value_type):
        seen = agg.add_measurements(agg.SumFactory(), lambda value: {"seen": agg.federated_sample(value)})
        return seen.create(value_type)


def run(factory, type_, items):
    process = factory.create(type_)
    return process.next(process.initialize(), items)


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_rotated_sum_is_the_sum(factory):
    rng = np.random.default_rng(0)
    items = [
        {"w": rng.normal(size=5).astype(np.float32), "b": np.float32(rng.normal()), "none": np.zeros(0, np.float32)}
        for _ in range(3)
    ]
    result = run(factory(num_repeats=2), MIXED, items).result
    np.testing.assert_allclose(result["w"], sum(x["w"] for x in items), atol=1e-5)
    np.testing.assert_allclose(result["b"], sum(x["b"] for x in items), atol=1e-5)
    assert result["none"].shape == (0,)


@pytest.mark.parametrize("factory", FACTORIES)
def test_integers_come_back_exact_and_in_their_shape(factory):
    items = [np.arange(6, dtype=np.int32).reshape(2, 3) - 3, np.full((2, 3), 7, np.int32)]
    result = run(factory(), fc.to_type(("int32", [2, 3])), items).result
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, items[0] + items[1])


@pytest.mark.parametrize(("factory", "name", "size"), [(FACTORIES[0], "hd", 8), (FACTORIES[1], "dft", 6)])
def test_the_inner_aggregator_gets_rotated_vectors_of_the_same_norm(factory, name, size):
    one_hot = np.array([0, 10, 0, 0, 0], np.float32)
    process = factory(Seen()).create(fc.to_type(("float32", [5])))
    first, second = (
        process.next(process.initialize(), [one_hot, one_hot]).measurements[name]["seen"] for _ in range(2)
    )
    assert first.shape == (2, size)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 10, rtol=1e-5)
    assert np.abs(first).max() < 9  # spread over the coordinates
    np.testing.assert_array_equal(first[0], first[1])  # clients of a round share the rotation
    assert not np.allclose(first[0], second[0])  # rounds do not


def test_every_repeat_rotates():
    one_hot = np.eye(1, 64, dtype=np.float32)
    spreads = []
    for repeats in (1, 2):
        factory = agg.HadamardTransformFactory(Seen(), repeats)
        rotated = run(factory, fc.to_type(("float32", [64])), one_hot).measurements["hd"]["seen"]
        spreads.append(np.ptp(np.abs(rotated)))
    assert spreads[0] < 1e-6  # one transform of one coordinate is 1/8 everywhere
    assert spreads[1] > 0.01


def test_a_hadamard_rotation_is_batched():
    process = agg.HadamardTransformFactory().create(fc.to_type(("float32", [5])))
    assert "strategy=vectorised" in process.next.to_text("planned")


def test_a_private_sum_stays_private_inside_a_rotation():
    private = agg.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 10, 1.0)
    with pytest.raises(TypeMismatch, match="every client counts the same"):
        agg.MeanFactory(agg.HadamardTransformFactory(private))


@pytest.mark.parametrize("factory", FACTORIES)
def test_wrong_arguments_are_refused(factory):
    with pytest.raises(TypeMismatch, match=r"inner_agg_factory is a factory of fc\.aggregators without weights"):
        factory(agg.MeanFactory())
    with pytest.raises(FedcoreError, match="num_repeats is a whole number, 1 or more, not 0"):
        factory(num_repeats=0)
    for type_ in (["int32", "float32"], "bool", "complex64", ("float32", [None])):
        with pytest.raises(TypeMismatch, match="aggregates floats or integers, not both, of known shapes"):
            factory().create(fc.to_type(type_))
