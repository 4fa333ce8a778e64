"""Identity-keyed, weak LRU cache: eviction, ends of inputs, threads."""

import gc
import random
import threading
import weakref
from collections import OrderedDict

import pytest

from fedcore.graphs.tensors.identity_cache import IdentityCache, identities


class Handle:
    """Content nobody looks at; `serial` tells the test which object it is, whatever its identity."""

    def __init__(self, serial: int):
        self.serial = serial


class FailedError(Exception):
    pass


def test_an_entry_ends_with_the_first_of_its_inputs():
    cache, a, b = IdentityCache(10), Handle(0), Handle(1)
    cache.get("add", [a, b], lambda: 1)
    cache.get("add", [b], lambda: 2)
    del a
    gc.collect()
    assert (len(cache), cache.size) == (1, 1)
    assert cache.get("add", [b], lambda: 3) == 2


def test_identities_that_the_caller_has_find_the_same_entry():
    cache, a, b = IdentityCache(10), Handle(0), Handle(1)
    cache.get("add", [a, b], lambda: 1)
    assert cache.get("add", [a, b], lambda: 2, identities([a, b])) == 1
    assert cache.get("add", [b, a], lambda: 3, identities([b, a])) == 3
    del a
    gc.collect()
    assert len(cache) == 0


def test_inputs_that_end_while_the_lock_is_held_are_removed_by_the_next_call():
    cache, a, b = IdentityCache(10), Handle(0), Handle(1)
    cache.get("add", [a], lambda: 1)
    with cache._lock:
        del a
        gc.collect()
    cache.get("add", [b], lambda: 2)
    assert len(cache) == 1


def test_a_value_that_is_too_large_is_not_cached():
    cache, a = IdentityCache(4, len), Handle(0)
    assert cache.get("text", [a], lambda: "abcde") == "abcde"
    assert cache.size == 0
    cache.get("text", [a], lambda: "abc")
    cache.get("other", [a], lambda: "de")
    assert (len(cache), cache.size) == (1, 2)


def test_a_value_may_be_cached_from_its_second_computation_on():
    cache, a, b = IdentityCache(10, remembered=2), Handle(0), Handle(1)
    computed = []
    for handle in (a, a, a, b, a):
        cache.get("call", [handle], lambda handle=handle: computed.append(handle.serial))
    assert computed == [0, 0, 1]
    assert len(cache) == 1


def test_threads_that_ask_for_one_key_wait_for_nobody_and_get_one_value_from_then_on():
    cache, a, together = IdentityCache(10), Handle(0), threading.Barrier(4)
    computed = []

    def compute():
        together.wait(60)  # all are inside at once
        value = object()
        computed.append(value)
        return value

    threads = [threading.Thread(target=cache.get, args=("call", [a], compute)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(computed) == 4
    assert cache.get("call", [a], object) in computed
    assert len(cache) == 1


class Interleaving:
    """Calls, and handles that come and go, in a drawn order; a computation is interrupted by more of both.

    That is the one place where other threads can come between. The model is a dictionary by serial numbers.
    """

    def __init__(self, seed: int):
        self.draws = random.Random(seed)
        self.max_size = self.draws.randint(1, 4)
        self.cache = IdentityCache(self.max_size, lambda value: value[0])
        self.model: OrderedDict[tuple, int] = OrderedDict()
        self.alive: dict[int, weakref.ref] = {}
        self.handles = [self.new() for _ in range(3)]

    def new(self) -> Handle:
        handle = Handle(len(self.alive))
        self.alive[handle.serial] = weakref.ref(handle)
        return handle

    def step(self, depth: int) -> None:
        if self.draws.random() < 0.3:
            index = self.draws.randrange(len(self.handles))
            self.handles[index] = None  # so that the one that comes may get its identity
            self.handles[index] = self.new()
            return
        chosen = self.draws.sample(self.handles, self.draws.randint(1, 2))
        size = self.draws.randint(1, 2)
        key = (size, *(h.serial for h in chosen))
        fails = self.draws.random() < 0.1
        computed = []

        def compute():
            computed.append(key)
            for _ in range(self.draws.randint(0, 2) if depth else 0):
                self.step(depth - 1)
            if fails:
                raise FailedError
            return size, key

        known = key in self.modelled()
        if known:
            self.model.move_to_end(key)
        try:
            assert self.cache.get(size, chosen, compute) == (size, key)
            self.note(key, size)
        except FailedError:
            assert fails
        assert computed == ([] if known else [key])

    def modelled(self) -> OrderedDict:
        """The model's entries whose handles are all there."""
        ended = [k for k in self.model if any(self.alive[serial]() is None for serial in k[1:])]
        for key in ended:
            del self.model[key]
        return self.model

    def note(self, key: tuple, size: int) -> None:
        """As a dictionary with a bound would have it: a value that came while this one was computed stays."""
        model = self.modelled()
        if key not in model and size <= self.max_size:
            model[key] = size
        while sum(model.values()) > self.max_size:
            model.popitem(last=False)

    def run(self) -> None:
        for _ in range(12):
            self.step(depth=2)
            assert len(self.cache) == len(self.modelled())
            assert self.cache.size == sum(self.model.values())


def check(seeds: range) -> None:
    for seed in seeds:
        Interleaving(seed).run()


def test_interleavings_agree_with_a_dictionary():
    check(range(500))


@pytest.mark.soak
def test_twenty_thousand_interleavings_agree_with_a_dictionary():
    check(range(20_000))
