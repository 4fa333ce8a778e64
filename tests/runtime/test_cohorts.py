"""Cohorts: lists, generators, and `fc.Cohort`."""

import numpy as np
import pytest

import fedcore as fc
from fedcore import context
from fedcore.errors import FedcoreError, TypeMismatch

FLOATS = fc.FederatedType("float32", fc.CLIENTS)


@fc.federated_computation(FLOATS)
def total(xs):
    return fc.federated_sum(xs)


@fc.federated_computation(FLOATS)
def variance(xs):
    """Two client stages: the second is about the mean of the first."""
    mean = fc.federated_broadcast(fc.federated_mean(xs))
    return fc.federated_mean(fc.federated_map(lambda x, m: (x - m) * (x - m), (xs, mean)))


@fc.federated_computation(FLOATS, FLOATS)
def two_sums(xs, ys):
    return fc.federated_sum(xs), fc.federated_sum(ys)


@fc.federated_computation(FLOATS)
def doubled(xs):
    return fc.federated_map(lambda x: x + x, xs)


def test_a_cohort_gives_what_the_list_of_its_clients_gives():
    values = [np.float32(i % 11) for i in range(100)]
    cohort = fc.Cohort(100, lambda i: values[i])
    with fc.use(seed=1):
        assert total(cohort) == total(values)
        assert variance(cohort) == variance(values)


def test_a_cohort_is_read_once_for_each_client_stage():
    read = []
    variance(fc.Cohort(20, lambda i: read.append(i) or float(i)))
    assert read == [*range(20), *range(20)]


def test_a_cohort_without_clients():
    assert total(fc.Cohort(0, float)) == 0.0


def test_a_cohort_knows_its_size_and_its_clients():
    cohort = fc.Cohort(np.int64(3), lambda i: i * 10)
    assert len(cohort) == 3
    assert list(cohort) == list(cohort) == [0, 10, 20]
    assert cohort[2] == 20
    with pytest.raises(IndexError, match="client 3 of a cohort of 3"):
        cohort[3]


@pytest.mark.parametrize("size", [-1, 2.5, True, "3", None])
def test_a_size_that_is_no_number_of_clients_is_refused(size):
    with pytest.raises(FedcoreError, match="the size of a cohort is a number of clients, 0 or more, not"):
        fc.Cohort(size, float)


def test_a_cohort_without_a_function_is_refused():
    with pytest.raises(
        FedcoreError, match=r"a cohort takes a function from an index to a client's value, not \[1\.0\]"
    ):
        fc.Cohort(1, [1.0])


def test_a_generator_that_two_stages_would_read_is_refused_before_any_work():
    drawn = []

    def cohort():
        for i in range(5):
            drawn.append(i)
            yield float(i)

    with pytest.raises(
        TypeMismatch, match=r"xs is a generator, which can be read once, but the plan reads it 2 times, in @\w+, @\w+: "
    ):
        variance(cohort())
    assert drawn == []
    assert variance(list(cohort())) == 2.0


def test_one_generator_for_two_arguments_is_refused():
    numbers = iter([1.0, 2.0])
    with pytest.raises(TypeMismatch, match="which can be read once"):
        two_sums(numbers, numbers)
    assert two_sums(iter([1.0, 2.0]), iter([3.0, 4.0])) == (3.0, 7.0)


def test_the_client_values_that_are_kept_are_counted():
    assert doubled([1.0, 2.0, 3.0]) == [2.0, 4.0, 6.0]
    assert context.last_report().kept == 3
    total([1.0, 2.0])
    assert context.last_report().kept == 0
