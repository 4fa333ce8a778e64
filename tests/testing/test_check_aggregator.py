import pytest

import fedcore as fc
from fedcore.aggregators import UnweightedAggregationFactory, WeightedAggregationFactory, aggregation_process
from fedcore.errors import TypeMismatch
from fedcore.templates import MeasuredProcessOutput


@pytest.mark.parametrize(
    ("factory", "types"),
    [
        (fc.aggregators.SumFactory(), ["int32"]),
        (fc.aggregators.MeanFactory(), [("float32", [2]), "int32"]),
        (fc.aggregators.clipping_factory(1.0, fc.aggregators.MeanFactory()), [{"a": "float32", "b": "float64"}]),
        (fc.aggregators.UnweightedReservoirSamplingFactory(2), ["float32"]),
    ],
)
def test_an_aggregator_of_ours_keeps_the_laws(factory, types):
    fc.testing.check_aggregator(factory, *types)


class Mine(UnweightedAggregationFactory):
    """A sum of which a part is replaced."""

    def __init__(self, start=0, total=fc.federated_sum, create=None):
        self.start = start
        self.total = total
        self.made = create

    def create(self, value_type):
        if self.made is not None:
            return self.made(value_type)

        @fc.federated_computation
        def initialize():
            return fc.federated_value(self.start, fc.SERVER)

        def body(state, value, _):
            return MeasuredProcessOutput(state, self.total(value), fc.federated_value((), fc.SERVER))

        return aggregation_process(initialize, value_type, None, body)


def plus(a, b):
    return a + b


def without_merge(value):
    """The sum of the last block."""
    return fc.federated_aggregate(value, 0.0, plus, lambda a, b: b, lambda n: n)


def divided(value):
    """Fails where there are no clients."""
    quotient = fc.tf_computation(lambda total, n: total / (10 // n), "int32", "int32")
    return fc.federated_map(quotient, (fc.federated_sum(value), fc.federated_count(value)))


def broken(factory, *types) -> str:
    with pytest.raises(fc.testing.LawBroken) as raised:
        fc.testing.check_aggregator(factory, *types)
    return str(raised.value)


def test_an_aggregator_without_faults_passes():
    fc.testing.check_aggregator(Mine(), "float32")


def test_a_merge_that_forgets_a_side_is_found():
    text = broken(Mine(total=without_merge), "float32")
    assert "Mine: the local runtime gives the reference's result of round 1, with 7 clients\n  the result is" in text
    assert "inputs: [[" in text
    assert "fedcore 1 traced" in text


def test_an_aggregator_that_fails_without_clients_is_found():
    text = broken(Mine(total=divided), "int32")
    assert "with 0 clients\n  the reference runtime raises " in text


def test_an_aggregator_for_other_types_is_found():
    text = broken(Mine(create=lambda value_type: Mine().create(fc.to_type("int32"))), "float32")
    assert "Mine: create gives a process for the types\n  next takes {int32}@CLIENTS, not {float32}@CLIENTS" in text


def raising(value_type):
    return Mine().create(value_type) if isinstance(value_type, fc.TensorType) else 1 // 0


def refused(value_type):
    if not isinstance(value_type, fc.TensorType):
        raise TypeMismatch("tensors only")
    return Mine().create(value_type)


def test_an_error_for_other_types_is_no_refusal_unless_it_refuses_them():
    text = broken(Mine(create=raising), "float32")
    assert "Mine: create gives a process for the types, or refuses them\n  for <a=float32,b=float32> it raises " in text
    place = f"tests/testing/test_check_aggregator.py:{raising.__code__.co_firstlineno + 1}"
    assert f"ZeroDivisionError: integer division or modulo by zero\n    at {place}: " in text
    assert "fix: raise fc.errors.TypeMismatch for types that it refuses" in text
    fc.testing.check_aggregator(Mine(create=refused), "float32")


def test_a_factory_that_creates_no_aggregation_process_is_found():
    def iterative(value_type):
        process = Mine().create(value_type)
        return fc.templates.MeasuredProcess(process.initialize, process.next)

    assert "not an fc.templates.AggregationProcess" in broken(Mine(create=iterative), "float32")


def test_a_weighted_factory_whose_process_takes_no_weight_is_found():
    class Weighted(WeightedAggregationFactory):
        def create(self, value_type, weight_type):
            return Mine().create(value_type)

    assert "next takes {float32}@CLIENTS, not {float32}@CLIENTS, {float32}@CLIENTS" in broken(Weighted(), "float32")


def test_what_is_no_factory_and_weights_without_use_are_refused():
    with pytest.raises(TypeMismatch, match=r"check_aggregator takes a factory of fc\.aggregators, not 3"):
        fc.testing.check_aggregator(3, "float32")
    with pytest.raises(TypeMismatch, match="Mine is not weighted, so it takes no weight_type"):
        fc.testing.check_aggregator(Mine(), "float32", "float32")
