"""Settings that must stand before TensorFlow or Keras is imported, and options shared by all tests."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import pytest
from hypothesis import HealthCheck, settings

# No deadline: the first example of a test may trace a graph.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", settings.get_profile("default"), derandomize=False, max_examples=5000)
settings.load_profile("soak" if os.environ.get("FEDCORE_SOAK") else "default")


def pytest_addoption(parser):
    parser.addoption("--update-goldens", action="store_true", help="rewrite the golden files")


@pytest.fixture
def update_goldens(request) -> bool:
    """Whether a golden test rewrites its file instead of comparing with it."""
    return request.config.getoption("--update-goldens")
