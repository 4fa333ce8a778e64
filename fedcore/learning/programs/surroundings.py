"""Surroundings that decide the bits of a round beside its state: the plan, versions of packages, threads."""

import importlib.metadata
from collections.abc import Mapping

import tensorflow as tf

from fedcore import context
from fedcore.learning.process import LearningProcess

_PACKAGES = ("fedcore", "tensorflow", "keras", "numpy")


def surroundings_of(process: LearningProcess) -> dict[str, str]:
    """By name: the digest of a round's plan, the versions of packages, the threads that share one operation."""
    context.current_runtime()  # the first runtime sets the threads
    return {
        "plan": process.next.to_module("planned").digest(),
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
        "intra-op threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
    }


def differences(earlier: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """For each surrounding that changed, in which further rounds may have other bits, a line for the user."""
    return [
        f"{name}: {_brief(earlier.get(name, 'unknown'))} before, {_brief(now.get(name, 'unknown'))} now"
        for name in {**earlier, **now}
        if earlier.get(name) != now.get(name)
    ]


def _brief(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:12]}…"
