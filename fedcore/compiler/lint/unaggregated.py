"""The check `unaggregated`."""

from collections.abc import Iterator

from fedcore.compiler.disclosures import disclosures
from fedcore.compiler.lint.program import Program, user_name
from fedcore.compiler.lint.registry import Finding, lint_check
from fedcore.errors import Location

_SHOWN = 4
"""The most tensors that a finding names."""


@lint_check("unaggregated")
def unaggregated(program: Program) -> Iterator[Finding]:
    """Values of single clients that the server gets one by one, in an accumulator that grows with each client.

    Before:
        return fc.federated_collect(readings, 100)
    After:
        return fc.federated_mean(readings)
    """
    tensors: dict[Location | None, list[str]] = {}
    for disclosure in disclosures(program.stages):
        if disclosure.grows:
            tensors.setdefault(disclosure.location, []).append(f"{user_name(disclosure.tensor)} : {disclosure.type}")
    for location, labels in tensors.items():
        more = f" and {len(labels) - _SHOWN} more tensors" if len(labels) > _SHOWN else ""
        yield Finding(
            f"the server gets {', '.join(labels[:_SHOWN])}{more} of each client, and no sum of them",
            "aggregate by fc.federated_sum, fc.federated_mean or fc.federated_secure_sum; where the server has to see"
            " each client's value, as for a median, say so by the comment '# lint: allow unaggregated'",
            location,
        )
