"""Processes made by `os.fork`: the threads of TensorFlow and of the runtime exist in the parent only."""

import os

from fedcore.errors import FedcoreError
from fedcore.graphs.tensors.intra_op_threads import has_started

_is_forked = False


def _note_fork() -> None:
    """Notes in a new child whether it lacks threads of TensorFlow, as may a parent that was forked itself."""
    global _is_forked
    _is_forked = _is_forked or has_started()


os.register_at_fork(after_in_child=_note_fork)


def check_not_forked() -> None:
    """Raises FedcoreError in a process that was forked after TensorFlow had started: a call would hang."""
    if _is_forked:
        raise FedcoreError(
            "this process was forked from one in which TensorFlow had started, whose threads it lacks: a call would "
            "hang. Start processes by multiprocessing.get_context('spawn'), or fork before the first call"
        )
