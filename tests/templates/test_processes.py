import collections
import re

import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import TypeMismatch
from fedcore.templates import (
    AggregationProcess,
    EstimationProcess,
    IterativeProcess,
    MeasuredProcess,
    MeasuredProcessOutput,
    chain_measured_processes,
    concatenate_measured_processes,
)

COUNT = fc.FederatedType("int32", fc.SERVER)
FLOAT = fc.FederatedType("float32", fc.SERVER)
FLOATS = fc.FederatedType("float32", fc.CLIENTS)


@fc.federated_computation
def zero():
    return fc.federated_value(0, fc.SERVER)


@fc.federated_computation(COUNT)
def counted(state):
    return state + 1


@fc.federated_computation(COUNT, FLOATS)
def summed(state, value):
    total = fc.federated_sum(value)
    return MeasuredProcessOutput(state + 1, total, fc.federated_zip({"rounds": state}))


@fc.federated_computation(COUNT, FLOATS)
def doubled(state, value):
    return MeasuredProcessOutput(state + 10, value * 2.0, state)


@fc.federated_computation(COUNT, FLOATS, FLOATS)
def averaged(state, value, weight):
    return MeasuredProcessOutput(state, fc.federated_mean(value, weight), state)


def refused(make, *args) -> str:
    with pytest.raises(TypeMismatch) as raised:
        make(*args)
    return str(raised.value)


# Iterative processes.


def test_an_iterative_process_counts():
    process = IterativeProcess(zero, counted)
    assert process.next(process.next(process.initialize())) == 2
    assert process.state_type == COUNT


def test_a_next_that_returns_more_than_the_state_is_taken():
    next_fn = fc.federated_computation(lambda s: (s + 1, s), COUNT)
    assert IterativeProcess(zero, next_fn).next(3) == (4, 3)


def test_an_initialize_that_takes_something_is_refused():
    text = refused(IterativeProcess, counted, counted)
    assert text == (
        "IterativeProcess: initialize_fn (`counted`) takes no argument, but has the type (int32@SERVER -> int32@SERVER)"
    )


def test_a_next_that_takes_nothing_is_refused():
    assert refused(IterativeProcess, zero, zero) == (
        "IterativeProcess: next_fn (`zero`) takes no state, but has the type (-> int32@SERVER)"
    )


def test_a_next_that_takes_another_state_shows_both():
    other = fc.federated_computation(lambda state: state, FLOAT)
    text = refused(IterativeProcess, zero, other)
    assert text.startswith("IterativeProcess: next_fn (`<lambda>`) does not take the state of initialize_fn\n")
    assert re.search(r"next_fn +wants  float32@SERVER\n +initialize_fn +has +int32@SERVER\n +\^+$", text)


def test_a_next_that_returns_another_state_shows_both():
    next_fn = fc.federated_computation(lambda state: fc.cast(state, "float32"), COUNT)
    text = refused(IterativeProcess, zero, next_fn)
    assert "next_fn (`<lambda>`) does not return the state that it takes\n" in text
    assert re.search(r"it takes +wants  int32@SERVER\n +it returns +has +float32@SERVER\n", text)


def test_a_next_that_returns_another_state_first_shows_the_state():
    next_fn = fc.federated_computation(lambda state: (fc.cast(state, "float32"), state), COUNT)
    assert re.search(r"it returns +has +float32@SERVER\n", refused(IterativeProcess, zero, next_fn))


def test_a_python_function_is_refused():
    assert re.match(
        r"IterativeProcess: initialize_fn is a computation \(see fc\.federated_computation\), not <function",
        refused(IterativeProcess, lambda: 0, counted),
    )


def test_a_polymorphic_computation_is_refused():
    loose = fc.federated_computation(lambda state: state)
    assert refused(IterativeProcess, zero, loose) == (
        "IterativeProcess: next_fn (`<lambda>`) has no type before it is called; declare its parameters' types"
    )


# Measured processes.


def test_a_measured_process_gives_a_named_output():
    process = MeasuredProcess(zero, summed)
    output = process.next(process.initialize(), [1.0, 2.5])
    assert isinstance(output, MeasuredProcessOutput)
    assert (output.state, output.result, output.measurements) == (1, 3.5, {"rounds": 0})
    assert list(output) == [1, 3.5, {"rounds": 0}]


def test_a_measured_process_whose_next_returns_something_else_shows_both():
    assert refused(MeasuredProcess, zero, counted) == (
        "MeasuredProcess: next_fn (`counted`) returns a MeasuredProcessOutput\n"
        "  wants  <state=…,result=…,measurements=…>\n"
        "  has    int32@SERVER"
    )


# Aggregation processes.


def test_an_aggregation_process_may_have_weights():
    assert not AggregationProcess(zero, summed).is_weighted
    weighted = AggregationProcess(zero, averaged)
    assert weighted.is_weighted
    assert weighted.next(0, [1.0, 5.0], [3.0, 1.0]).result == 2.0


def test_an_aggregation_of_a_server_value_is_refused():
    next_fn = fc.federated_computation(lambda s, value: MeasuredProcessOutput(s, value, s), COUNT, FLOAT)
    assert refused(AggregationProcess, zero, next_fn) == (
        "AggregationProcess: next_fn (`<lambda>`) takes client values, but value has the type float32@SERVER"
    )


def test_an_aggregation_that_leaves_its_result_at_the_clients_is_refused():
    assert refused(AggregationProcess, zero, doubled) == (
        "AggregationProcess: the result of next_fn (`doubled`) is at the server, not {float32}@CLIENTS"
    )


@pytest.mark.parametrize(("measurements", "shown"), [((), "<>"), ({"n": 1}, "<n=int32>")])
def test_measurements_without_a_placement_are_placed(measurements, shown):
    next_fn = fc.federated_computation(
        lambda s, value: MeasuredProcessOutput(s, fc.federated_sum(value), measurements), COUNT, FLOATS
    )
    fix = "()" if not measurements else "..."
    assert refused(AggregationProcess, zero, next_fn) == (
        f"AggregationProcess: the measurements of next_fn (`<lambda>`) is at the server, not {shown}\n"
        f"  fix: fc.federated_value({fix}, fc.SERVER)"
    )


def test_a_state_of_several_placed_values_is_zipped():
    two = fc.federated_computation(lambda: fc.federated_value((0, 0), fc.SERVER))
    state = two.type_signature.result
    taken = fc.federated_computation(lambda s, x: MeasuredProcessOutput((s[0], s[1]), x, x), state, FLOAT)
    fix = "\n  fix: fc.federated_zip(...) makes the struct one placed value"
    assert refused(MeasuredProcess, two, taken).endswith(fix)
    unzipped = fc.federated_computation(lambda: (fc.federated_value(0, fc.SERVER), fc.federated_value(0, fc.SERVER)))
    assert refused(MeasuredProcess, unzipped, taken).endswith(fix)
    assert fix not in refused(MeasuredProcess, zero, taken)


def test_an_aggregation_of_a_state_alone_is_refused():
    next_fn = fc.federated_computation(lambda s: MeasuredProcessOutput(s, s, s), COUNT)
    assert "takes a state, a value and maybe a weight, not 1: int32@SERVER" in refused(
        AggregationProcess, zero, next_fn
    )


# Estimation processes.


@fc.federated_computation(COUNT)
def halved(state):
    return fc.cast(state, "float32") / 2.0


def test_an_estimation_process_reports():
    process = EstimationProcess(zero, counted, halved)
    assert process.report(process.next(process.initialize())) == 0.5
    assert process.report_type == FLOAT


def test_a_mapped_estimation_process_reports_what_the_function_gives():
    process = EstimationProcess(zero, counted, halved).map(lambda x: x * 10.0)
    assert process.report(3) == 15.0


def test_a_report_of_another_state_shows_both():
    report = fc.federated_computation(lambda state: state, FLOAT)
    text = refused(EstimationProcess, zero, counted, report)
    assert text.startswith("EstimationProcess: report_fn (`<lambda>`) does not take the state of initialize_fn\n")
    assert re.search(r"report_fn +wants  float32@SERVER\n +initialize_fn +has +int32@SERVER", text)


def test_a_report_that_takes_more_than_the_state_is_refused():
    report = fc.federated_computation(lambda state, more: state, COUNT, COUNT)
    assert "report_fn (`<lambda>`) takes the state alone, but has the type" in refused(
        EstimationProcess, zero, counted, report
    )


# Processes of processes.


def test_a_chain_hands_results_on():
    chain = chain_measured_processes(
        collections.OrderedDict(double=MeasuredProcess(zero, doubled), add=MeasuredProcess(zero, summed))
    )
    state = chain.initialize()
    assert state == {"double": 0, "add": 0}
    output = chain.next(state, [1.0, 2.0])
    assert output.state == {"double": 10, "add": 1}
    assert output.result == 6.0
    assert output.measurements == {"double": 0, "add": {"rounds": 0}}


def test_a_chain_takes_what_its_first_process_takes():
    spread = fc.federated_computation(
        lambda s, value, weight: MeasuredProcessOutput(s, value * weight, s), COUNT, FLOATS, FLOATS
    )
    chain = chain_measured_processes({"a": MeasuredProcess(zero, spread), "b": MeasuredProcess(zero, summed)})
    assert [p.name for p in chain.next.module.main.parameters] == ["state", "value", "weight"]
    assert chain.next(chain.initialize(), [1.0, 2.0], [10.0, 100.0]).result == 210.0


def test_a_chain_whose_types_do_not_meet_shows_both():
    text = refused(
        chain_measured_processes, {"add": MeasuredProcess(zero, summed), "double": MeasuredProcess(zero, doubled)}
    )
    assert text.startswith("chain_measured_processes: `double` does not take what `add` gives\n")
    assert re.search(r"double +wants  \{float32\}@CLIENTS\n +add +has +float32@SERVER", text)


def test_a_chain_of_a_process_with_two_values_is_refused():
    text = refused(
        chain_measured_processes, {"a": MeasuredProcess(zero, doubled), "b": MeasuredProcess(zero, averaged)}
    )
    assert "next (`averaged`) of `b` takes a state and one value, but has the type" in text


def test_a_chain_of_a_process_without_a_value_is_refused():
    alone = fc.federated_computation(lambda s: MeasuredProcessOutput(s, s, s), COUNT)
    assert refused(chain_measured_processes, {"a": MeasuredProcess(zero, alone)}) == (
        "chain_measured_processes: next of `a` takes a state only, and no value"
    )


@pytest.mark.parametrize("compose", [chain_measured_processes, concatenate_measured_processes])
def test_nothing_is_no_process(compose):
    assert refused(compose, {}) == f"{compose.__name__}: a dict of at least one process by name is wanted, not {{}}"


@pytest.mark.parametrize("compose", [chain_measured_processes, concatenate_measured_processes])
def test_what_is_no_measured_process_is_refused(compose):
    assert re.match(
        rf"{compose.__name__}: `a` is a MeasuredProcess, not <IterativeProcess initialize : \(-> ",
        refused(compose, {"a": IterativeProcess(zero, counted)}),
    )


def test_a_concatenation_runs_side_by_side():
    both = concatenate_measured_processes({"a": MeasuredProcess(zero, summed), "b": MeasuredProcess(zero, summed)})
    output = both.next(both.initialize(), {"a": [1.0, 2.0], "b": [np.float32(5), np.float32(6)]})
    assert output.result == {"a": 3.0, "b": 11.0}
    assert output.state == {"a": 1, "b": 1}


def test_a_concatenation_of_results_at_two_placements_is_a_struct():
    both = concatenate_measured_processes({"a": MeasuredProcess(zero, summed), "b": MeasuredProcess(zero, doubled)})
    output = both.next(both.initialize(), {"a": [1.0], "b": [5.0]})
    assert output.result == {"a": 1.0, "b": [10.0]}


def test_a_concatenation_of_a_process_with_two_values_is_refused():
    assert "next (`averaged`) of `a` takes a state and one value" in refused(
        concatenate_measured_processes, {"a": MeasuredProcess(zero, averaged)}
    )
