"""The check `unaggregated`."""

from collections.abc import Iterator

from fedcore.compiler.disclosures import disclosures
from fedcore.compiler.lint.program import Program
from fedcore.compiler.lint.registry import Finding, lint_check


@lint_check("unaggregated")
def unaggregated(program: Program) -> Iterator[Finding]:
    """Values of single clients that the server gets one by one, in an accumulator that grows with each client.

    Before:
        return fc.federated_collect(readings, 100)
    After:
        return fc.federated_mean(readings)
    """
    for disclosure in disclosures(program.stages):
        if disclosure.grows:
            yield Finding(
                f"the server gets {disclosure.tensor} : {disclosure.type} of each client, and no sum of them",
                "join the values at the clients' side, by fc.federated_sum, fc.federated_mean or"
                " fc.federated_secure_sum; where the server has to see each of them, as for a median, say so by the"
                " comment '# lint: allow unaggregated'",
                disclosure.location,
            )
