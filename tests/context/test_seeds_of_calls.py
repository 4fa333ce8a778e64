"""The seeds of calls inside `fc.use(seed=)`: each call has its own, and the same sequence of calls has the same."""

import asyncio
import contextvars
import threading

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context
from fedcore.errors import InvalidValue, TypeMismatch
from fedcore.seeds import fold_in

PATIENCE_S = 30


@fc.tf_computation
def noise():
    return tf.random.normal([4])


@fc.federated_computation
def draw():
    return fc.federated_eval(noise, fc.SERVER)


def seeds_of(count, call=draw):
    seeds = []
    for _ in range(count):
        call()
        seeds.append(context.last_report().seed)
    return seeds


@pytest.fixture(params=["local", "reference"])
def runtime(request):
    return getattr(fc.runtime, request.param)()


def test_no_two_calls_of_a_context_draw_the_same_and_the_sequence_comes_again(runtime):
    def three():
        with fc.use(runtime, seed=7):
            return [draw().tobytes() for _ in range(3)]

    first = three()
    assert len(set(first)) == 3
    assert three() == first


def test_the_seed_of_invoke_is_exact_and_takes_no_number():
    with fc.use(seed=7):
        draw()
        exact = draw.invoke(seed=7)
        assert context.last_report().seed == 7
        assert seeds_of(1) == [fold_in(7, 1)]
    assert exact.tobytes() == draw.invoke(seed=7).tobytes()


def test_a_use_without_a_seed_takes_the_numbers_of_the_one_around_it():
    with fc.use(seed=7):
        outside = seeds_of(1)
        with fc.use(fc.runtime.reference()):
            inside = seeds_of(1)
        assert [*outside, *inside, *seeds_of(1)] == [fold_in(7, n) for n in range(3)]


def test_a_use_with_a_seed_counts_on_its_own():
    with fc.use(seed=7):
        draw()
        with fc.use(seed=8):
            assert seeds_of(2) == [fold_in(8, 0), fold_in(8, 1)]
        assert seeds_of(1) == [fold_in(7, 1)]


def test_a_context_that_is_entered_again_starts_at_0():
    one = fc.use(seed=7)
    with one:
        first = seeds_of(2)
    with one:
        assert seeds_of(2) == first
        with one:
            assert seeds_of(1) == first[:1]


def test_a_function_decorated_with_use_draws_the_same_in_each_call():
    @fc.use(seed=7)
    def twice():
        return seeds_of(2)

    assert twice() == twice() == [fold_in(7, 0), fold_in(7, 1)]


def test_threads_in_copies_of_a_context_share_no_number():
    threads_, calls = 4, 5
    together = threading.Barrier(threads_)
    found = []

    def work():
        together.wait(PATIENCE_S)
        found.extend(seeds_of(calls))

    draw()  # compiled before
    with fc.use(fc.runtime.reference(), seed=7):
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(work,)) for _ in range(threads_)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert sorted(found) == sorted(fold_in(7, n) for n in range(threads_ * calls))


def test_awaited_calls_are_numbered_in_the_order_in_which_they_are_made():
    async def seed_of_one():
        await fc.invoke_async(draw)
        return context.last_report().seed

    async def gathered():
        with fc.use(seed=7):
            return await asyncio.gather(*(seed_of_one() for _ in range(12)))

    assert asyncio.run(gathered()) == [fold_in(7, n) for n in range(12)]


def test_awaited_and_plain_calls_share_no_number():
    async def mixed():
        with fc.use(seed=7):
            await fc.invoke_async(draw)
            await fc.invoke_async(draw, seed=3)
            return seeds_of(1)

    assert asyncio.run(mixed()) == [fold_in(7, 1)]


def test_a_process_draws_from_its_state_and_not_from_the_context():
    from fedcore.learning.process import LearningProcess

    state_type = fc.FederatedType({"round": "int64", "seed": "int64"}, fc.SERVER)

    class State(dict):
        round = property(lambda self: self["round"])
        seed = property(lambda self: self["seed"])

    @fc.tf_computation(state_type.member)
    def following(state):
        return {"round": state["round"] + 1, "seed": state["seed"]}

    process = LearningProcess(
        fc.federated_computation(lambda: fc.federated_value({"round": np.int64(0), "seed": np.int64(4)}, fc.SERVER)),
        fc.federated_computation(
            lambda state, data: (fc.federated_map(following, state), fc.federated_sum(data)),
            state_type,
            fc.FederatedType("int32", fc.CLIENTS),
        ),
    )
    with fc.use(seed=7):
        process.next(State(round=2, seed=4), [1])
        assert context.last_report().seed == fold_in(4, 2)
        assert seeds_of(1) == [fold_in(7, 0)]


@pytest.mark.parametrize("seed", [np.int64(-3), np.uint8(9), tf.constant(5), np.array(6), -(2**63), 2**63 - 1])
def test_a_seed_is_any_integer_of_64_bits(seed):
    with fc.use(seed=seed):
        assert seeds_of(1) == [fold_in(int(seed), 0)]
    draw.invoke(seed=seed)
    assert context.last_report().seed == int(seed)


@pytest.mark.parametrize(("seed", "error"), [(2**63, InvalidValue), (1.5, TypeMismatch), ("7", TypeMismatch)])
def test_another_seed_is_refused(seed, error):
    with pytest.raises(error, match=r"seed is a whole number"):
        fc.use(seed=seed)
    with pytest.raises(error, match=r"seed is a whole number"):
        draw.invoke(seed=seed)


# What is no runtime.


def test_a_forgotten_call_is_named():
    for install in (fc.use, fc.set_runtime):
        name = f"fc.{install.__name__}"
        with pytest.raises(TypeMismatch) as raised:
            install(fc.runtime.local)
        assert str(raised.value) == f"{name} takes a runtime, but is given the function `local`: call it, local()"
        with pytest.raises(TypeMismatch, match=r"given the function `ReferenceRuntime`: call it"):
            install(fc.runtime.ReferenceRuntime)
        with pytest.raises(TypeMismatch, match=r"takes a runtime, such as fc\.runtime\.local\(\), not 'CPU:0'"):
            install("CPU:0")


def test_a_seed_in_the_place_of_the_runtime_is_named():
    with pytest.raises(TypeMismatch, match=r"not 7; write fc\.use\(seed=7\)"):
        fc.use(7)
