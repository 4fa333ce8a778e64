"""Settings that must stand before TensorFlow or Keras is imported, and options shared by all tests."""

import gc
import os
import random
import sys
import uuid
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["FEDCORE_TARGET"] = (
    "avx512/large-l2/fast-memory/no-gpu"  # plans, and so bits, are those of one kind of machine
)
# Ray gives its workers niceness 15: beside the tests, whose niceness is 0, they hardly run.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  Ray names it so

import pytest
from hypothesis import HealthCheck, settings

# Bytecode is kept, as in the Makefile: each process that a test starts would compile all of TensorFlow.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# No deadline: the first example of a test may trace a graph.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", settings.get_profile("default"), derandomize=False, max_examples=5000)
settings.load_profile("soak" if os.environ.get("FEDCORE_SOAK") else "default")


def pytest_addoption(parser):
    parser.addoption("--update-goldens", action="store_true", help="rewrite the golden files")


@pytest.fixture
def update_goldens(request) -> bool:
    """Whether a golden test rewrites its file instead of comparing with it."""
    return request.config.getoption("--update-goldens")


@pytest.fixture
def plans_for_this_machine(monkeypatch):
    """Plans of the kind of machine that runs the test; those of the pinned target have equal bits on its kind only."""
    monkeypatch.delenv("FEDCORE_TARGET")


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: tests wait for processes and deadlines for a fifth of their time.

    One process of tests, with those that it starts, takes up to 4 GB.
    """
    import psutil

    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(processors + 1, psutil.virtual_memory().available // 2**32))


def pytest_collection_finish():
    """Searches for cycles leave out what imports have made, which stays, and are rarer than Python's default.

    Operations share one stack. TensorFlow keeps the stack that made each, for its own messages; under pytest's
    frames that takes a tenth of the time of building a graph.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 10, 40)
    if "tensorflow" in sys.modules:
        from tensorflow.python.util import tf_stack

        stack, extract = tf_stack.extract_stack(), tf_stack.extract_stack
        tf_stack.extract_stack = lambda stacklevel=1: stack
        tf_stack.extract_stack.__wrapped__ = extract  # for tests of stacks


_drawn = random.Random()


def pytest_runtest_setup(item):
    """Every test draws the same in each run, in whatever order tests run: seeds that calls draw, and process-wide ones.

    Soak runs and the processes that tests start draw afresh.
    """
    if os.environ.get("FEDCORE_SOAK"):
        return
    random.SystemRandom = lambda: _drawn  # where a call without a seed draws one
    uuid.uuid4 = lambda: uuid.UUID(int=_drawn.getrandbits(128), version=4)  # the order of a shuffle that is kept
    seed = zlib.crc32(item.nodeid.encode())
    _drawn.seed(seed)
    random.seed(seed)  # Keras draws default seeds from it
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def pytest_runtest_teardown(item):
    """No test leaves a process-wide seed of TensorFlow to the tests behind it."""
    if "tensorflow" in sys.modules:
        import tensorflow as tf
        from tensorflow.python.eager import context

        if context.global_seed() is not None:
            tf.random.set_seed(None)
