"""What failed, in the user's words."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from fedcore.errors import ExecutionError, FedcoreError
from fedcore.ir import Module

_NAMES_OF_TENSORFLOW = re.compile(
    r"\A(?s:Graph execution error:.*?<stack traces unavailable>\n)"
    r"|\s*\[\[(\{\{[^}]*\}\})*\]\]|\n\t \[\[[^]\n]*\]\]|\{\{[^}]*\}\} ?|\s*\[Op:[^\]]*\]"
)


def reason(error: Exception) -> str:
    """What failed, for the user."""
    if isinstance(error, tf.errors.OpError):
        return _NAMES_OF_TENSORFLOW.sub("", error.message)
    return str(error) if isinstance(error, FedcoreError) else f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def failures_of(module: Module, stage: str) -> Iterator[None]:
    """Around a stage that runs for no client: at the server, or in merging partials.

    Running out of memory, and what is cancelled, is raised as it is.

    Raises:
        ExecutionError: TensorFlow's words, the stage, and the line with which it ends.
    """
    try:
        yield
    except (tf.errors.ResourceExhaustedError, tf.errors.CancelledError):
        raise
    except tf.errors.OpError as error:
        location = next((op.location for op in reversed(module.function(stage).operations) if op.location), None)
        ends = f", which ends at {location}" if location else ""
        raise ExecutionError(f"{module.main.name} failed: {reason(error)}\n  in the stage @{stage}{ends}") from None
