"""Functions that lowerings make: they say which operation of the user's program they come from."""

import fedcore as fc
from fedcore.context import lower


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def mean_and_largest(xs):
    mean = fc.federated_mean(xs)
    return mean, fc.federated_max(xs)


def test_functions_of_a_lowering_have_the_name_and_line_of_their_operation():
    mean, largest = (op.location.line for op in mean_and_largest.module.main.operations[:2])
    assert mean + 1 == largest
    lines = {f.name: f.location.line for f in lower(mean_and_largest.module).functions[:-1]}
    assert lines == {
        "federated_mean": mean,
        "federated_mean_1": mean,
        "federated_sum": mean,
        "federated_sum_1": mean,
        "federated_max": largest,
        "federated_max_accumulate": largest,
        "federated_max_merge": largest,
    }
