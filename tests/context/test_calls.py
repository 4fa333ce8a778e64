"""Runtimes in use, by thread and by task; calls that are awaited. Events and barriers, no sleeps."""

import asyncio
import contextvars
import random
import threading
import zlib

import pytest

import fedcore as fc
from fedcore import context
from fedcore.errors import TracingError, TypeMismatch
from fedcore.ir import registry
from fedcore.seeds import fold_in

FLOATS = fc.FederatedType("float32", fc.CLIENTS)
PATIENCE_S = 30


@fc.federated_computation(FLOATS)
def total(xs):
    return fc.federated_sum(xs)


class Named:
    """A runtime that gives its name, after what it is told to do first."""

    compiles = False

    def __init__(self, name, first=lambda: None):
        self.name = name
        self.first = first

    def run(self, module, arguments, report):
        self.first()
        return self.name

    def close(self):
        pass


@pytest.fixture(autouse=True)
def nothing_installed():
    yield
    fc.set_runtime(None)


# One runtime inside another.


def test_the_innermost_use_wins_and_ends():
    fc.set_runtime(Named("installed"))
    with fc.use(Named("outer")):
        with fc.use(Named("inner")):
            assert total([1.0]) == "inner"
        assert total([1.0]) == "outer"
    assert total([1.0]) == "installed"


def test_a_use_ends_where_its_body_raises():
    fc.set_runtime(Named("installed"))
    with pytest.raises(ZeroDivisionError), fc.use(Named("inner")):
        _ = 1 / 0
    assert total([1.0]) == "installed"


def test_a_seed_alone_keeps_the_runtime():
    with fc.use(Named("outer")), fc.use(seed=5):
        assert total([1.0]) == "outer"
        assert context.last_report().seed == fold_in(5, 0)


def test_set_runtime_to_none_goes_back_to_a_local_one():
    fc.set_runtime(Named("installed"))
    fc.set_runtime(None)
    assert total([1.0, 2.0]) == 3.0


# Threads.


def test_another_thread_does_not_see_a_use():
    fc.set_runtime(Named("installed"))
    seen = []
    with fc.use(Named("outer")):
        thread = threading.Thread(target=lambda: seen.append(total([1.0])))
        thread.start()
        thread.join(PATIENCE_S)
    assert seen == ["installed"]


def test_threads_call_at_once_and_get_their_own_results():
    together = threading.Barrier(4)
    found: dict[int, float] = {}

    def call(i):
        together.wait(PATIENCE_S)
        found[i] = float(total([float(i), 1.0]))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == {i: i + 1.0 for i in range(4)}


def test_each_thread_has_its_own_report():
    with fc.use(seed=1):
        total([1.0])
    seen = []

    def call():
        with fc.use(seed=2):
            total([1.0])
        seen.append(context.last_report().seed)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(PATIENCE_S)
    assert (context.last_report().seed, seen) == (fold_in(1, 0), [fold_in(2, 0)])


# Tasks.


def test_an_awaited_call_gives_what_a_call_gives():
    assert asyncio.run(fc.invoke_async(total, [1.0, 2.5])) == 3.5


def test_a_call_inside_a_running_loop_works():
    async def cell():
        return total([1.0, 2.0]), await fc.invoke_async(total, [3.0])

    assert asyncio.run(cell()) == (3.0, 3.0)


def test_awaited_calls_run_at_once():
    together = threading.Barrier(3)

    async def all_of_them():
        with fc.use(Named("done", lambda: together.wait(PATIENCE_S))):
            return await asyncio.gather(*(fc.invoke_async(total, [1.0]) for _ in range(3)))

    assert asyncio.run(all_of_them()) == ["done"] * 3


def test_each_task_has_its_own_runtime():
    async def one(name):
        with fc.use(Named(name)):
            return await fc.invoke_async(total, [1.0])

    async def both():
        return await asyncio.gather(one("a"), one("b"))

    assert asyncio.run(both()) == ["a", "b"]


def test_the_loop_goes_on_while_a_call_runs():
    begun, go_on = threading.Event(), threading.Event()

    def wait():
        begun.set()
        assert go_on.wait(PATIENCE_S)

    async def cell():
        with fc.use(Named("done", wait)):
            task = asyncio.create_task(fc.invoke_async(total, [1.0]))
            await asyncio.to_thread(begun.wait, PATIENCE_S)
            assert not task.done()
            go_on.set()
            return await task

    assert asyncio.run(cell()) == "done"


def test_cancelling_ends_the_wait_at_once():
    begun, go_on = threading.Event(), threading.Event()

    def wait():
        begun.set()
        assert go_on.wait(PATIENCE_S)

    async def cell():
        with fc.use(Named("done", wait)):
            task = asyncio.create_task(fc.invoke_async(total, [1.0]))
            await asyncio.to_thread(begun.wait, PATIENCE_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not go_on.is_set()
            go_on.set()

    asyncio.run(cell())


def test_an_awaited_call_takes_a_seed_and_leaves_its_report():
    async def cell():
        await fc.invoke_async(total, [1.0], seed=11)
        return context.last_report().seed

    assert asyncio.run(cell()) == 11


def test_an_error_of_an_awaited_call_is_raised_where_it_is_awaited():
    with pytest.raises(TypeMismatch, match=r"xs\[0\]"):
        asyncio.run(fc.invoke_async(total, ["a"]))


def test_a_call_keeps_the_context_of_its_task():
    variable = contextvars.ContextVar("variable")
    seen = []

    async def cell():
        variable.set("own")
        with fc.use(Named("done", lambda: seen.append(variable.get()))):
            await fc.invoke_async(total, [1.0])

    asyncio.run(cell())
    assert seen == ["own"]


def test_awaiting_inside_a_computation_is_refused():
    def body(xs):
        coroutine = fc.invoke_async(total, xs)
        coroutine.send(None)

    with pytest.raises(TracingError, match="invoke_async is used inside a computation; call total there"):
        fc.federated_computation(body, FLOATS)


def test_tensorflow_computation_is_tf_computation():
    assert fc.tensorflow.computation is fc.tf_computation


def test_an_intrinsic_that_is_declared_again_is_compiled_again():
    def declare(times):
        @fc.intrinsic("(value: {T}@CLIENTS -> T@SERVER) where T: numeric")
        def summed_times(values):
            return sum(values) * times

        summed_times.lowering(lambda value: fc.federated_sum(fc.federated_map(lambda x: x * times, value)))

        @fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
        def computed(xs):
            return summed_times(xs)

        return computed

    try:
        assert [declare(times)([1, 2]) for times in (1, 2, 3)] == [3, 6, 9]
    finally:
        registry._registry.pop("summed_times")


def test_the_tests_draw_the_same_seeds_in_every_run(request):
    total([1.0])
    assert fc.context.last_report().seed == random.Random(zlib.crc32(request.node.nodeid.encode())).getrandbits(63)
