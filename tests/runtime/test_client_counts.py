"""How many clients a call has: of arguments of different lengths, and of calls without client arguments."""

import numpy as np
import pytest

import fedcore as fc
from fedcore import context
from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch

FLOATS = fc.FederatedType("float32", fc.CLIENTS)
BOTH = "the client values of a call must have equally many clients, but {} and {}"


@pytest.fixture(scope="module", params=["local", "two workers", "reference"])
def runtime(request):
    if request.param == "reference":
        yield fc.runtime.reference()
        return
    made = fc.runtime.local(workers_per_device=1 + ("two" in request.param))
    yield made
    made.close()


@fc.federated_computation(FLOATS, FLOATS)
def apart(a, b):
    return fc.federated_sum(a), fc.federated_sum(b)


@fc.federated_computation(FLOATS, FLOATS)
def first_only(a, b):
    return fc.federated_sum(a)


@fc.federated_computation(FLOATS, FLOATS)
def one_after_the_other(a, b):
    largest = fc.federated_broadcast(fc.federated_max(a))
    return fc.federated_sum(fc.federated_map(lambda m, x: m * x, (largest, b)))


@fc.federated_computation({"a": FLOATS, "b": FLOATS})
def in_a_struct(both):
    return fc.federated_sum(both.a), fc.federated_sum(both.b)


@fc.federated_computation(FLOATS, FLOATS)
def joined(a, b):
    return fc.federated_mean(a, b)


PROGRAMS = [apart, first_only, one_after_the_other, joined]


def generated(values):
    yield from values


def refused(call, runtime) -> str:
    with fc.use(runtime), pytest.raises(TypeMismatch) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0]), ([], [1.0]), ([1.0], [])])
def test_lists_of_different_lengths_are_refused_before_any_work(program, a, b, runtime):
    message = refused(lambda: program(a, b), runtime)
    assert message == BOTH.format(f"`a` has {len(a)}", f"`b` has {len(b)}")
    assert context.last_report().total_graph_calls == 0


def test_parts_of_a_struct_are_named(runtime):
    message = refused(lambda: in_a_struct({"a": [1.0], "b": np.ones(3, np.float32)}), runtime)
    assert message == BOTH.format("`both.a` has 1", "`both.b` has 3")


def test_a_cohort_says_its_length_before_any_work(runtime):
    read = []
    cohort = fc.Cohort(3, lambda i: read.append(i) or np.float32(i))
    message = refused(lambda: apart([1.0], cohort), runtime)
    assert message == BOTH.format("`a` has 1", "`b` has 3")
    assert read == []


@pytest.mark.parametrize("program", [apart, one_after_the_other, joined], ids=lambda p: p.__name__)
@pytest.mark.parametrize("shorter", [1, 2, 40])
def test_a_generator_that_ends_too_soon_is_refused(program, shorter, runtime):
    values = [1.0] * (shorter + 1)
    for which in ((values, generated(values[1:])), (generated(values[1:]), values)):
        message = refused(lambda which=which: program(*which), runtime)
        assert f"has {shorter}" in message
        assert f"has {shorter + 1}" in message
        assert "`a`" in message
        assert "`b`" in message


@pytest.mark.parametrize("program", [apart, one_after_the_other, joined], ids=lambda p: p.__name__)
def test_a_generator_without_end_is_refused(program, runtime):
    def without_end():
        while True:
            yield 1.0

    assert refused(lambda: program([1.0, 2.0], without_end()), runtime) == BOTH.format("`a` has 2", "`b` has more")


@pytest.mark.parametrize("program", [apart, one_after_the_other, joined], ids=lambda p: p.__name__)
def test_generators_of_different_lengths_are_refused(program, runtime):
    for a, b in ((1, 2), (2, 1)):
        message = refused(lambda a=a, b=b: program(generated([1.0] * a), generated([1.0] * b)), runtime)
        assert message.startswith("the client values of a call must have equally many clients, but ")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_equal_lengths_run(program, runtime):
    with fc.use(runtime):
        want = program([1.0, 2.0, 4.0], [1.0, 0.5, 2.0])
        assert program(generated([1.0, 2.0, 4.0]), np.array([1, 0.5, 2], np.float32)) == want


# Calls without client arguments.


@fc.tf_computation
def three():
    return 3.0


@fc.federated_computation
def sum_of_evaluations():
    return fc.federated_sum(fc.federated_eval(three, fc.CLIENTS))


@fc.federated_computation
def sum_of_values():
    return fc.federated_sum(fc.federated_value(3.0, fc.CLIENTS))


@fc.federated_computation(fc.FederatedType("float32", fc.SERVER))
def sum_of_broadcasts(x):
    return fc.federated_sum(fc.federated_broadcast(x))


def largest_of_broadcasts(x):
    return fc.federated_max(
        fc.federated_map(fc.tf_computation(lambda y: y + 1.0, "float32"), fc.federated_broadcast(x))
    )


largest_of_broadcasts = fc.federated_computation(largest_of_broadcasts, fc.FederatedType("float32", fc.SERVER))


@fc.federated_computation
def evaluations():
    return fc.federated_eval(three, fc.CLIENTS)


CALLS = {
    "sum_of_evaluations": lambda: sum_of_evaluations(),
    "sum_of_values": lambda: sum_of_values(),
    "sum_of_broadcasts": lambda: sum_of_broadcasts(3.0),
    "largest_of_broadcasts": lambda: largest_of_broadcasts(3.0),
    "evaluations": lambda: evaluations(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_whose_clients_nobody_counts_is_refused(name, runtime):
    message = refused(CALLS[name], runtime)
    assert message.startswith(f"{name}: federated_")
    assert "needs the number of clients, which is unknown: no argument of the call is a client value" in message
    assert "\n  at tests/runtime/test_client_counts.py:" in message
    assert message.endswith("\n  fix: fc.use(fc.runtime.local(default_num_clients=...)) gives the number")


@pytest.mark.parametrize("make", [fc.runtime.local, fc.runtime.reference], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("clients", "want"), [(0, [0.0, 0.0, 0.0, None, []]), (2, [6.0, 6.0, 6.0, 4.0, [3.0, 3.0]])])
def test_a_default_number_of_clients_takes_part(make, clients, want):
    runtime = make(default_num_clients=np.int64(clients))
    with fc.use(runtime):
        found = [call() for call in CALLS.values()]
    least = np.finfo(np.float32).min
    assert found == [least if w is None else w for w in want]
    runtime.close()


def test_client_arguments_count_where_a_default_is_given_too():
    @fc.federated_computation(FLOATS)
    def counted(xs):
        return fc.federated_sum(fc.federated_value(1, fc.CLIENTS)), fc.federated_sum(xs)

    for runtime in (fc.runtime.local(default_num_clients=9), fc.runtime.reference(default_num_clients=9)):
        with fc.use(runtime):
            assert counted([1.0, 2.0]) == (2, 3.0)
        runtime.close()


def test_what_does_not_depend_on_the_clients_runs_without_a_number(runtime):
    at_server = fc.federated_computation(lambda: fc.federated_eval(three, fc.SERVER))
    with fc.use(runtime):
        assert at_server() == 3.0


@pytest.mark.parametrize("clients", [-1, 1.5, "2", True])
def test_what_is_no_number_of_clients_is_refused(clients):
    for make in (fc.runtime.local, fc.runtime.reference):
        with pytest.raises(FedcoreError, match=r"default_num_clients is a whole number, 0 or more, not") as raised:
            make(default_num_clients=clients)
        assert isinstance(raised.value, InvalidValue if clients == -1 else TypeMismatch)


def test_the_tutorials_function_takes_the_number_and_sizing_keeps_it():
    try:
        fc.backends.native.set_local_python_execution_context(default_num_clients=3)
        assert sum_of_evaluations() == 9.0
        fc.framework.set_sizing_environment()
        assert sum_of_evaluations() == 9.0
        fc.backends.native.set_local_python_execution_context()
        fc.framework.set_sizing_environment()
        with pytest.raises(TypeMismatch, match="which is unknown"):
            sum_of_evaluations()
    finally:
        fc.set_runtime(None)
