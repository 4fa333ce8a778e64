"""TensorFlow's threads, set before it starts: clients are the parallelism, so one operation takes one thread."""

import os

import tensorflow as tf

INTRA_OP = "FEDCORE_INTRA_OP_THREADS"


def claim_threads() -> None:
    """Sets the number of threads of one operation to 1, or to what the environment says, if TensorFlow lets us.

    The number decides bits (gradients of convolutions change with it), so it is set once, when fedcore first
    touches TensorFlow, and a choice that the user made before stands.
    """
    wanted = int(os.environ.get(INTRA_OP, "1"))
    if tf.config.threading.get_intra_op_parallelism_threads() != 0:
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(wanted)
    except RuntimeError:
        return  # TensorFlow has started; `intra_op_threads` tells what holds


def intra_op_threads() -> int:
    """The number of threads of one operation in this process; 0 is TensorFlow's own choice."""
    return tf.config.threading.get_intra_op_parallelism_threads()
