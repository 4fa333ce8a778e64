"""The check `client-loop`."""

import re
from collections.abc import Iterator

from fedcore.compiler.lint.program import Program
from fedcore.compiler.lint.registry import Finding, lint_check
from fedcore.errors import Location
from fedcore.ir import Function
from fedcore.types import CLIENTS

_GATHER = "take tf.gather(x, k), and tf.gather(x, k + tf.range(n)) for n entries: k may be a client's own"
_WITH_OWN_OPERANDS = {"StridedSlice": _GATHER, "Slice": _GATHER}
"""By operation whose rule does not take operands that differ between clients, what to write in its place."""


@lint_check("client-loop")
def client_loop(program: Program) -> Iterator[Finding]:
    """Client stages that compute clients one by one, for an operation without a batching rule for its operands.

    Loops that the cost model prefers are left alone, and so are those of secure sums, which mask each client.

    Before:
        def largest(x):
            return tf.nn.top_k(tf.unique(x).y, 1).values[0]  # Unique has no batching rule
    After:
        def largest(x):
            return tf.reduce_max(x)
    """
    from fedcore.graphs.batched.batched_value import batching_rules
    from fedcore.graphs.batched.batching_policy import AS_FAST_ALONE

    with_secure_sums = {fold.stage.name for fold in program.folds if "secure" in fold.merge.attributes}
    for stage in program.stages.stages():
        if stage.placement != CLIENTS or stage.name in with_secure_sums:
            continue
        why = program.plan_of(stage).attributes.get("why", "")
        match = re.match(r"(\w+): (.+)", why)  # the operation, and the reason
        if match is None or match[2] == AS_FAST_ALONE:
            continue
        op = match[1]
        line = line_of_operation(program, stage, op)
        if line is not None:
            other = f"write its rule, @batching_rule({op!r}) (docs/extending.md)"
            if op in batching_rules:
                other = _WITH_OWN_OPERANDS.get(op, "give it operands that its rule takes")
            problem = f"clients run one by one, not side by side: {why}"
            yield Finding(problem, f"compute it without {op}, or {other}", line)


def line_of_operation(program: Program, stage: Function, op: str) -> Location | None:
    """The line of the first graph of a stage that holds a TensorFlow operation; None where none does."""
    from fedcore.graphs.graphdef.form.operations import operations_of

    for call in program.graph_calls_of(stage):
        if op in operations_of(call.graph.digest, program.stages.blob(call.graph.digest)):
            return call.location
    return None
