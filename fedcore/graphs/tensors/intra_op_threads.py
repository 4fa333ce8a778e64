"""TensorFlow's intra-op threads, set to 1 before it starts: the parallelism is across clients."""

import os

import tensorflow as tf

from fedcore.errors import FedcoreError, brief
from fedcore.graphs import private_api

INTRA_OP = "FEDCORE_INTRA_OP_THREADS"
_set_by_fedcore = False  # whether the number is fedcore's, which it may change, and not the user's


def claim_threads() -> None:
    """Sets the number of intra-op threads to 1, or to FEDCORE_INTRA_OP_THREADS, unless TensorFlow has started.

    The number decides bits: gradients of convolutions depend on it. So it is set once, before fedcore's first use of
    TensorFlow. A number that the user has set before is kept.
    """
    global _set_by_fedcore
    if tf.config.threading.get_intra_op_parallelism_threads() != 0:
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(_default())
        _set_by_fedcore = True
    except RuntimeError:
        return  # TensorFlow has started; `intra_op_threads` returns the number in use


def set_intra_op_threads(thread_count: int | None) -> str | None:
    """Sets the number of intra-op threads, unless the user has set it before or TensorFlow has started.

    Args:
        thread_count: the number. None: FEDCORE_INTRA_OP_THREADS, which defaults to 1; `claim_threads` has set it.
    Returns:
        None if TensorFlow has that number now; otherwise a message that names the number that it has.
    Raises:
        FedcoreError: the number is below 1.
    """
    if thread_count is not None and thread_count < 1:
        raise FedcoreError(f"intra_op_threads is at least 1, not {thread_count}")
    number = thread_count or _default()
    if intra_op_threads() == number:
        return None
    if _set_by_fedcore and thread_count is not None:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(number)
            return None
        except RuntimeError:
            pass
    holds = intra_op_threads() or "as many as TensorFlow chooses"
    return f"intra_op_threads is {holds}, not {number}: it was set, or TensorFlow started, before this runtime was made"


def intra_op_threads() -> int:
    """The number of threads of one operation in this process; 0 is TensorFlow's own choice."""
    return tf.config.threading.get_intra_op_parallelism_threads()


def _default() -> int:
    text = os.environ.get(INTRA_OP, "1")
    try:
        return int(text)
    except ValueError:
        raise FedcoreError(f"{INTRA_OP} is a number of threads, not {brief(text)}") from None


def has_started() -> bool:
    """Whether TensorFlow has made its devices and threads; asking does not start it."""
    return private_api.has_started()
