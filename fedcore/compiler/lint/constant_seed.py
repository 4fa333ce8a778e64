"""The check `constant-seed`."""

from collections.abc import Iterator

from fedcore.compiler.lint.program import Program
from fedcore.compiler.lint.registry import Finding, lint_check
from fedcore.types import CLIENTS


@lint_check("constant-seed")
def constant_seed(program: Program) -> Iterator[Finding]:
    """Random numbers from a seed that is a constant of the program.

    All clients draw equal numbers, and every round draws them again: noise does not average out, samples do not vary.
    A computation without parameters draws once, as initial weights, and is left alone.

    Before:
        def add_noise(x):
            return x + tf.random.stateless_normal([], seed=[1, 2])
    After:
        def add_noise(x):
            return x + tf.random.normal([])  # seeded by the call, the client and the operation
    """
    from fedcore.graphs.graphdef.analysis.constant_draws import constant_draws
    from fedcore.graphs.graphdef.form.captured_graph import captured_graph

    if not program.module.main.parameters:
        return
    for call in program.graph_calls:
        for op in constant_draws(captured_graph(call.graph, program.stages.blob(call.graph.digest))):
            who = "every call draws the same numbers"
            if call.placement == CLIENTS:
                who = "all clients draw the same numbers, in every round"
            yield Finding(
                f"{op} in @{call.graph.name} has a seed that is a constant: {who}",
                "draw by tf.random.normal or tf.random.uniform, which get a seed of the call and of the client, or hand"
                " in a seed of fc.federated_random_seed; a fixed table is a constant made outside of the function",
                call.location,
            )
