"""A function of two values may be written with one parameter, which holds both."""

import pytest

import fedcore as fc

FLOATS = fc.FederatedType("float32", fc.CLIENTS)
PAIR = ("float32", "float32")

by_graph = fc.tf_computation(PAIR)(lambda p: p[0] * 2.0 + p[1])
by_computation = fc.federated_computation(lambda p: p[0] * 2.0 + p[1], PAIR)


def by_lambda(p):
    return p[0] * 2.0 + p[1]


def by_two(a, b):
    return a * 2.0 + b


@pytest.fixture(params=["local", "reference"])
def runtime(request):
    with fc.use(getattr(fc.runtime, request.param)()):
        yield


@pytest.mark.parametrize("fn", [by_graph, by_computation, by_lambda, by_two])
def test_in_an_aggregation(runtime, fn):
    @fc.federated_computation(FLOATS)
    def folded(xs):
        return fc.federated_aggregate(xs, 0.0, fn, lambda p: p[0] + p[1], lambda total: total)

    assert folded([3.0]) == 3.0
    assert folded([3.0, 3.0, 3.0]) == fc.federated_computation(
        lambda xs: fc.federated_aggregate(xs, 0.0, by_two, lambda a, b: a + b, lambda total: total), FLOATS
    )([3.0, 3.0, 3.0])


@pytest.mark.parametrize("fn", [by_graph, by_computation, by_lambda, by_two])
def test_in_a_reduction(runtime, fn):
    @fc.federated_computation(fc.SequenceType("float32"))
    def reduced(xs):
        return fc.sequence_reduce(xs, 0.0, fn)

    assert reduced([1.0, 2.0, 3.0]) == 11.0


@pytest.mark.parametrize("fn", [by_graph, by_computation, by_lambda, by_two])
def test_in_a_map(runtime, fn):
    @fc.federated_computation(FLOATS, FLOATS)
    def mapped(xs, ys):
        return fc.federated_map(fn, (xs, ys))

    assert mapped([1.0, 2.0], [10.0, 20.0]) == [12.0, 24.0]
