"""The collector of the process pauses while a thread builds a graph."""

import gc
import threading

from fedcore.collection_pause import CollectionPause


def test_the_collector_pauses_until_the_last_thread_leaves():
    pause, inside, leave = CollectionPause(), threading.Event(), threading.Event()

    def build():
        with pause():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=build)
    with pause(), pause():
        thread.start()
        inside.wait()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with CollectionPause()():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_runs_again_after_an_error():
    try:
        with CollectionPause()():
            raise ValueError
    except ValueError:
        assert gc.isenabled()
