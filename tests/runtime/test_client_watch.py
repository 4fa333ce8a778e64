"""`fc.debug`: values of single clients, beside calls that keep their strategies and bits."""

import io
import json
import pdb
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import ExecutionError, FedcoreError, TracingError
from fedcore.runtime.clients.client_watch import round_of

FLOATS = fc.types.at_clients("float32")


def halve(x):
    return x / 2.0


def halve_and_print(x):
    fc.debug.print(tf.sqrt(x), "root")
    return x / 2.0


def total_of(function) -> fc.Computation:
    """The sum of a function's results over the clients."""
    graph = fc.tf_computation(function, "float32")
    return fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(graph, xs)), FLOATS)


@fc.tf_computation(fc.SequenceType("float32"))
def product(batches):
    return batches.reduce(1.0, lambda so_far, x: so_far * tf.exp(x))


@fc.federated_computation(fc.types.at_clients(fc.SequenceType("float32")))
def sum_of_products(data):
    return fc.federated_sum(fc.federated_map(product, data))


@pytest.fixture(scope="module")
def printing():
    halve_and_print.__name__ = halve.__name__  # the text of a program has the names of its functions
    return total_of(halve_and_print)


def test_each_client_prints_with_its_index_and_line(printing, capsys):
    printing([1.0, 4.0])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("   ")[0] for line in lines] == ["client 0: root = 1.", "client 1: root = 2."]
    assert all("test_client_watch.py:" in line for line in lines)


def test_functions_of_one_graph_print_under_each_name(capsys):
    def other(x):
        fc.debug.print(tf.sqrt(x), "root")
        return x / 2.0

    for function in (halve_and_print, other):
        total_of(function)([4.0])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("   ")[0] for line in lines] == 2 * ["client 0: root = 2."]
    assert lines[0] != lines[1]


def test_a_program_that_prints_has_the_digest_and_so_the_plan_of_the_program_without(printing):
    quiet = total_of(halve)
    assert printing.to_module("planned").digest() == quiet.to_module("planned").digest()


def test_a_program_that_prints_is_not_the_plan_of_an_equal_program_that_does_not(printing, capsys):
    total_of(halve)([1.0])
    assert capsys.readouterr().out == ""


def test_clients_that_print_stay_vectorised(printing):
    stages = list(printing.to_module("planned").stages())
    assert [s.attributes["strategy"] for s in stages if "strategy" in s.attributes] == ["vectorised"]


def print_in_loop(x):
    three = x * 3.0

    def step(i, y):
        fc.debug.print([y, three], "y")
        return i + 1, tf.cond(y > 2.0, lambda: add_and_print(y, 1.0), lambda: y + 2.0)

    return tf.while_loop(lambda i, y: i < 2, step, [0, x])[1]


def add_and_print(y, more):
    fc.debug.print(y, "large")
    return y + more


def print_and_switch(x):
    def double():
        fc.debug.print(x, "case")
        return x * 2.0

    return tf.switch_case(tf.cast(x, tf.int32), [lambda: x, double])


def print_in_batches(batches):
    total = 0.0
    for batch in batches:
        if tf.reduce_sum(batch) > 3.0:
            fc.debug.print(total, "so far")
        total += tf.reduce_sum(batch)
    return total


def print_in_cell(x):
    class Cell(keras.layers.SimpleRNNCell):
        def call(self, sequence, states, training=False):
            output, states = super().call(sequence, states, training)
            fc.debug.print(sequence[0, 0], "input")
            return output, states

    layer = keras.layers.RNN(Cell(1, kernel_initializer="ones"))
    return tf.reduce_sum(layer(tf.reshape(x * tf.constant([1.0, 2.0]), [1, 2, 1])))


def print_below_gradients(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        power = tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, add_and_print(y, y)), [0, x])[1]
    return tape.gradient(power, x)


NUMBERS = fc.SequenceType(fc.TensorType("float32", [None]))


@pytest.mark.parametrize(
    ("function", "type_", "client", "lines"),
    [
        (print_in_loop, "float32", 1.0, ["y[0] = 1.", "y[1] = 3.", "y[0] = 3.", "y[1] = 3.", "large = 3."]),
        (print_and_switch, "float32", 1.0, ["case = 1."]),
        (print_in_batches, NUMBERS, [[1.0, 2.0], [3.0, 4.0]], ["so far = 3."]),
        (print_in_cell, "float32", 3.0, ["input = 3.", "input = 6."]),
        (print_below_gradients, "float32", 2.0, ["large = 2.", "large = 4."]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_prints_in_loops_and_branches(function, type_, client, lines, capsys, monkeypatch):
    printing = fc.tf_computation(function, type_)
    with monkeypatch.context() as quiet:
        quiet.setattr(fc.debug, "print", lambda *arguments: None)
        assert fc.tf_computation(function, type_).to_module("traced").digest() == printing.to_module("traced").digest()
    value = tf.data.Dataset.from_tensor_slices(np.float32(client)) if type_ is NUMBERS else client
    fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(printing, xs)), fc.types.at_clients(type_))(
        [value]
    )
    printed = [line.partition(": ")[2].partition("   (")[0] for line in capsys.readouterr().out.splitlines()]
    assert printed == lines


def test_a_print_in_a_loop_tells_the_iteration(capsys):
    total_of(print_below_gradients)([2.0])
    places = [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines()]
    assert places == ["client 0, iteration 0", "client 0, iteration 1"]


def test_a_print_in_a_vectorized_map_is_refused_with_line_and_way_out():
    def squares(x):
        return tf.vectorized_map(lambda y: add_and_print(y, y), tf.stack([x, x]))

    with pytest.raises(TracingError, match=r"'large' at \S*test_client_watch.py:\d+ (?s:.*)fix: tf.map_fn"):
        fc.tf_computation(squares, "float32")


@fc.tf_computation(NUMBERS)
def stop_at_second_batch(batches):
    total, scale = 0.0, tf.constant([2.0])
    for batch in batches:
        loss = tf.reduce_sum(batch) * scale[0]
        if loss > 4.0:
            fc.debug.breakpoint("bob", step=1)
        total += loss
    return total


@pytest.fixture
def type_commands(monkeypatch):
    """Types commands at the prompt of pdb, where Python's breakpoint() opens it; pytest has a prompt of its own."""
    monkeypatch.setattr(sys, "breakpointhook", lambda: pdb.Pdb().set_trace(sys._getframe(1)))
    return lambda *lines: monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def sum_of_two_clients():
    data = np.float32([[[2.0, 3.0], [4.0, 5.0]], [[1.0, 2.0], [6.0, 7.0]]])
    cohort = fc.Cohort(2, lambda i: tf.data.Dataset.from_tensor_slices(data[i]), ["ann", "bob"])
    work = fc.federated_computation(
        lambda xs: fc.federated_sum(fc.federated_map(stop_at_second_batch, xs)), fc.types.at_clients(NUMBERS)
    )
    return work(cohort)


def test_a_breakpoint_opens_pdb_at_the_line_with_the_values_of_one_client(type_commands, capsys):
    type_commands("p batch.numpy().tolist(), float(loss)", "p [float(total + b) for b in batch]", "list", "c")
    assert sum_of_two_clients() == 60.0
    told = capsys.readouterr().out
    assert told.startswith("client 1 (bob), step 1: fc.debug.breakpoint at tests/runtime/test_client_watch.py:")
    assert "stop_at_second_batch()" in told
    assert '->\t            fc.debug.breakpoint("bob", step=1)' in told
    assert "([6.0, 7.0], 26.0)" in told
    assert "[12.0, 13.0]" in told
    assert told.count("fc.debug.breakpoint at") == 1


def test_quitting_the_debugger_ends_the_call(type_commands):
    type_commands("q")
    with pytest.raises(ExecutionError, match=r"client 1 \(bob\), step 1: the debugger was quit at \S+:\d+"):
        sum_of_two_clients()


def test_a_breakpoint_shows_variables_that_tensorflow_cannot_flatten(type_commands, capsys):
    def root(x):
        names = {None: "none", "a": 1}
        y = tf.sqrt(x) * names["a"]
        fc.debug.breakpoint(None)
        return y

    type_commands("p names, float(x)", "c")
    total_of(root)([4.0])
    assert "({None: 'none', 'a': 1}, 4.0)" in capsys.readouterr().out


def test_a_breakpoint_with_a_condition_stops_where_it_holds(type_commands, capsys):
    def root(x):
        y = tf.sqrt(x)
        fc.debug.breakpoint(None, when=tf.math.is_nan(y))
        return y

    type_commands("p float(x)", "c")
    total_of(root)([4.0, -3.0, 1.0])
    told = capsys.readouterr().out
    assert told.startswith("client 1: fc.debug.breakpoint at")
    assert told.count("(Pdb)") == 2
    assert "-3.0" in told


def test_a_value_of_a_federated_computation_is_refused():
    with pytest.raises(TracingError, match="print in the function that federated_map applies"):
        fc.federated_computation(lambda xs: fc.debug.print(xs), FLOATS)


def test_a_recorded_client_has_the_values_of_its_operations():
    with fc.debug.record_clients([1]) as values:
        assert total_of(halve)([1.0, 4.0]) == 2.5
    (halved,) = [v for v in values if v.operation == "RealDiv"]
    assert (halved.place.index, halved.value, halved.norm, halved.type) == (1, 2.0, 2.0, "float32")
    assert "test_client_watch.py:" in halved.location


def test_values_in_a_loop_over_data_have_their_steps():
    data = tf.data.Dataset.from_tensor_slices(np.array([0.0, 1.0], np.float32))
    with fc.debug.record_clients([0]) as values:
        sum_of_products([data])
    steps = [(v.step, float(v.value)) for v in values if v.operation == "Exp"]
    assert steps == [(0, 1.0), (1, pytest.approx(np.e))]


def test_the_last_value_of_a_recorded_client_is_what_it_contributes():
    data = [tf.data.Dataset.from_tensor_slices(np.float32(rows)) for rows in ([0.1, 0.2], [0.3, 0.7, 0.2])]
    with fc.debug.record_clients([1]) as values:
        total = sum_of_products(data)
    (contribution,) = [v.value for v in values if v.operation == "sequence_reduce"] or [
        [v.value for v in values if v.operation == "Mul"][-1]
    ]
    assert total - np.exp(np.float32(0.3)) == pytest.approx(contribution, rel=1e-6)


@pytest.mark.parametrize("clients", [[-1], ["a"], [True]])
def test_clients_to_record_are_indices(clients):
    with pytest.raises(FedcoreError, match="clients are indices from 0"), fc.debug.record_clients(clients):
        pass


def test_the_first_operation_that_is_not_finite_is_named_with_client_step_and_line():
    data = [tf.data.Dataset.from_tensor_slices(np.float32(rows)) for rows in ([0.1, 0.2], [0.3, 100.0])]
    with pytest.raises(ExecutionError) as raised, fc.debug.check_numerics():
        sum_of_products(data)
    message = str(raised.value)
    assert message.startswith("client 1, step 1: Exp is the first operation whose result is not finite: inf")
    assert "test_client_watch.py:" in message


def test_data_that_are_not_finite_are_named_as_data():
    data = [tf.data.Dataset.from_tensor_slices(np.float32([0.1, np.nan]))]
    with (
        pytest.raises(ExecutionError, match=r"client 0, step 1: its data .* are not finite"),
        fc.debug.check_numerics(),
    ):
        sum_of_products(data)


def test_infinities_may_be_allowed():
    data = [tf.data.Dataset.from_tensor_slices(np.float32([100.0]))]
    with fc.debug.check_numerics(allow_infinities=True):
        assert sum_of_products(data) == np.inf


def test_a_recording_has_values_and_spans_of_the_clients_that_the_environment_names(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path))
    monkeypatch.setenv("FEDCORE_TRACE_CLIENTS", "1")
    total_of(halve)([1.0, 4.0])
    (file,) = tmp_path.glob("call-*.json")
    call = json.loads(file.read_text())
    assert [(v["client"], v["norm"]) for v in call["values"] if v["operation"] == "RealDiv"] == [(1, "2")]
    assert [span["clients"] for span in call["spans"] if span["kind"] == "replay"] == [[1, 1]]


@pytest.mark.parametrize("number", ["first", float("nan"), True, np.float32(2), None, len])
def test_a_round_that_is_no_integer_is_none(number):
    assert round_of([object(), types.SimpleNamespace(round=number)]) is None
    assert round_of([types.SimpleNamespace(round=number), types.SimpleNamespace(round=tf.constant(3))]) == 3
