"""Translates TensorFlow's error messages for the user."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from fedcore.errors import ExecutionError, FedcoreError
from fedcore.graphs.graphdef.form.operand_checks import size_message
from fedcore.graphs.stages.imported_names import source_of_name
from fedcore.ir import Module

# Parts of a message that name TensorFlow's nodes: the header of a graph's error, `[[{{node a/b}}]]`, `{{function f}}`,
# `[Op:MatMul] name: …`, and `, node name: …`.
_NAMES_OF_TENSORFLOW = re.compile(
    r"\A(?s:Graph execution error:.*?<stack traces unavailable>\n)"
    r"|\s*\[\[(\{\{[^}]*\}\})*\]\]|\n\t \[\[[^]\n]*\]\]|\{\{[^}]*\}\} ?|\s*\[Op:[^\]]*\](?: name: \S*)?"
    r"|, node name: \S*"
)

_LABEL = re.compile(r"Received a label value of (-?\d+) which is outside the valid range of \[0, (\d+)\).*", re.DOTALL)


def reason(error: Exception, module: Module | None = None) -> str:
    """The message of an error, with the user's line of the operation that failed in the place of TensorFlow's names.

    Args:
        module: the program, whose graphs have the user's lines; needed for lines of server stages.
    """
    if not isinstance(error, tf.errors.OpError):
        return str(error) if isinstance(error, FedcoreError) else f"{type(error).__name__}: {error}"
    source = source_of_name(error.message, module)
    at = "" if source is None or source.location is None else f"\n  at {source.location}, in {source.name}"
    text = size_message(error.message) or _LABEL.sub(_about_label, _NAMES_OF_TENSORFLOW.sub("", error.message))
    return text + at


def _about_label(match: re.Match) -> str:
    """The message for a label that a sparse cross-entropy refuses, from a match of `_LABEL`.

    TensorFlow's list of labels is left out, since it has those of padded rows too.
    """
    label, units = map(int, match.groups())
    return (
        f"a label is {label}, but the predictions have {units} classes, for the labels 0 to {units - 1}; give the "
        "last layer a unit for each label, and number the labels from 0"
    )


@contextlib.contextmanager
def failures_of(module: Module, stage: str) -> Iterator[None]:
    """Translates TensorFlow's errors of a server stage or of a merge.

    ResourceExhaustedError and CancelledError pass through.

    Raises:
        ExecutionError: with TensorFlow's message, the stage, and the user's line of the stage's last operation.
    """
    try:
        yield
    except (tf.errors.ResourceExhaustedError, tf.errors.CancelledError):
        raise
    except tf.errors.OpError as error:
        where = f"in the stage @{stage}{end_of_stage(module, stage)}"
        raise ExecutionError(f"{module.main.name} failed: {reason(error, module)}\n  {where}") from None


def where_clients_run(module: Module, stage: str) -> str:
    """The place of a failure at a client in words: the stage, the computation, and the user's line."""
    return f"in the stage @{stage} of {module.main.name}{end_of_stage(module, stage)}"


def end_of_stage(module: Module, stage: str) -> str:
    """`, which ends at FILE:LINE`, with the user's line of the stage's last operation; empty if no line is known."""
    location = next((op.location for op in reversed(module.function(stage).operations) if op.location), None)
    return f", which ends at {location}" if location else ""
