"""Computations that call one another, traced one by one."""

import sys

import fedcore as fc
from fedcore.computation.computation import Computation
from fedcore.ir import parse_module, verify
from fedcore.ir.module import Module

NUMBER = fc.FederatedType("int32", fc.SERVER)


def chain(n: int) -> Computation:
    """n computations, each of which calls the one before; the first adds 1."""
    last = fc.federated_computation(lambda x: fc.federated_map(lambda v: v + 1, x), NUMBER)
    for _ in range(n - 1):
        last = calls(last)
    return last


def calls(*before: Computation) -> Computation:
    """A computation that calls some others, one after the other."""

    @fc.federated_computation(NUMBER)
    def caller(x):
        for one in before:
            x = one(x)
        return x

    return caller


def python_calls(work) -> int:
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_computation_is_traced_in_the_same_time_however_many_it_depends_on():
    short, long = chain(20), chain(200)
    calls(short)
    assert python_calls(lambda: calls(long)) < 2 * python_calls(lambda: calls(short))


def test_thousands_of_computations_that_call_the_one_before_run():
    assert chain(2000)(3) == 4


def test_symbols_that_two_computations_share_stand_in_the_module_once():
    first, second = chain(1), chain(1)
    for _ in range(8):  # Fibonacci's numbers: both hold nearly all functions of the other
        first, second = second, calls(first, second)
    module = second.module
    assert len(module.functions) == 10
    assert second(0) == 55
    assert parse_module(str(module)) == verify(parse_module(str(module))) == module


def test_a_computation_has_the_same_text_whether_what_it_calls_was_verified_or_not():
    called = calls(chain(3), chain(2))
    unverified = Computation(Module("traced", called.module.graphs, called.module.functions))
    assert unverified.module.verified is None
    assert str(calls(unverified).module) == str(calls(called).module)
