"""A check of the linter."""

import fedcore as fc
from fedcore.compiler.lint import Finding, lint, lint_check


@lint_check("extremum")
def extremum(program):
    """Maxima over clients, which are values of single clients.

    Before:
        fc.federated_max(ages)
    After:
        fc.federated_mean(ages)
    """
    for op in program.module.main.operations:
        if op.kind == "federated_max":
            yield Finding("the maximum is the value of one client", "a mean, or a quantile with noise", op.location)


@fc.federated_computation(fc.types.at_clients("float32"))
def oldest(ages):
    return fc.federated_max(ages)


@fc.federated_computation(fc.types.at_clients("float32"))
def average(ages):
    return fc.federated_mean(ages)


(finding,) = lint(oldest.to_module("traced"))
assert (finding.check, finding.problem) == ("extremum", "the maximum is the value of one client")
assert lint(average.to_module("traced")) == []
