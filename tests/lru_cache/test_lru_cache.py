"""Bounded caches: eviction order, and threads that ask for one key or for several."""

import threading

import pytest

from fedcore.lru_cache import LruCache, LruEntries

TIMEOUT_S = 60


class FailedError(Exception):
    pass


def test_the_least_recently_used_entry_is_evicted_first():
    cache = LruCache(2)
    for key in "aba":
        cache.get(key, lambda: None)
    cache.get("c", lambda: None)
    assert cache.keys() == {"a", "c"}


def test_a_value_that_is_none_is_computed_once():
    cache, computed = LruCache(2), []
    for _ in range(2):
        cache.get("a", lambda: computed.append("a"))
    assert computed == ["a"]


def test_sizes_are_bounded_in_total():
    entries = LruEntries(4)
    entries.put("a", "AA", 2)
    entries.put("b", "BB", 2)
    assert entries.find("a", None) == "AA"
    entries.put("c", "C", 1)
    assert (entries.keys(), entries.size) == ({"a", "c"}, 3)


def test_a_replaced_entry_counts_once():
    entries = LruEntries(4)
    for _ in range(2):
        entries.put("a", "AAA", 3)
    assert (len(entries), entries.size) == (1, 3)


def test_an_entry_that_is_too_large_evicts_nothing():
    entries = LruEntries(4)
    entries.put("a", "A", 1)
    entries.put("b", "BBBBB", 5)
    assert (entries.keys(), entries.size) == ({"a"}, 1)


def started(*targets) -> list[threading.Thread]:
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    return threads


def joined(threads) -> None:
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def test_threads_that_ask_for_one_key_share_one_computation():
    cache, together, found = LruCache(2), threading.Barrier(4), []
    computed = []

    def compute():
        computed.append(1)
        return object()

    def ask():
        together.wait(TIMEOUT_S)
        found.append(cache.get("a", compute))

    joined(started(*[ask] * 4))
    assert len(computed) == 1
    assert len(set(map(id, found))) == 1


def test_a_thread_waits_for_no_other_key():
    cache, inside, finished = LruCache(2), threading.Event(), threading.Event()

    def slow():
        inside.set()
        assert finished.wait(TIMEOUT_S)
        return "slow"

    threads = started(lambda: cache.get("a", slow))
    assert inside.wait(TIMEOUT_S)
    assert cache.get("b", lambda: "quick") == "quick"
    assert cache.get("b", lambda: pytest.fail("it was computed again")) == "quick"
    finished.set()
    joined(threads)
    assert cache.keys() == {"a", "b"}


def test_a_thread_that_waited_for_a_computation_that_raises_computes_the_value():
    cache, inside, waits, raised = LruCache(2), threading.Event(), threading.Event(), []

    def fails():
        inside.set()
        assert waits.wait(TIMEOUT_S)
        raise FailedError

    def first():
        try:
            cache.get("a", fails)
        except FailedError as error:
            raised.append(error)

    def second():
        waits.set()
        assert cache.get("a", lambda: "value") == "value"

    threads = started(first)
    assert inside.wait(TIMEOUT_S)
    joined([*threads, *started(second)])
    assert len(raised) == 1
    assert cache.values() == ["value"]


def test_a_computation_that_raises_leaves_nothing_behind():
    cache = LruCache(2)

    def fails():
        raise FailedError

    with pytest.raises(FailedError):
        cache.get("a", fails)
    assert not cache.keys()
    assert not cache._computing


def test_a_computation_may_ask_for_its_own_key():
    """A signal handler that interrupts a computation may ask for the same key."""
    cache = LruCache(2)
    assert cache.get("a", lambda: cache.get("a", lambda: "inner")) == "inner"
    assert not cache._computing
