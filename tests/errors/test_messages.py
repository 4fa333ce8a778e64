"""Messages stay readable, whatever is in them; bad arguments are ValueErrors or TypeErrors."""

import ast
import builtins
import pickle
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context, errors
from fedcore.errors import (
    MAX_LINE,
    MAX_LINES,
    ClientError,
    ExecutionError,
    FedcoreError,
    InvalidValue,
    NotFound,
    TypeMismatch,
    brief,
)
from fedcore.types import explain

WIDE = fc.StructType([(f"layer_{i}", fc.TensorType("float32", (i + 1, 784))) for i in range(300)])


# Classes.


def test_every_error_is_a_valueerror_a_typeerror_or_of_a_run():
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, FedcoreError)]
    assert len(classes) > 6
    for cls in classes:
        kinds = [k for k in (ValueError, TypeError, RuntimeError) if issubclass(cls, k)]
        assert cls is FedcoreError or len(kinds) == 1


def test_an_error_of_no_class_of_its_own_is_an_invalid_value():
    error = FedcoreError("no such thing")
    assert type(error) is InvalidValue
    assert isinstance(error, ValueError)
    assert not isinstance(error, TypeError)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (InvalidValue, "no such thing")


def test_errors_with_arguments_of_their_own_take_them_by_name():
    class Broken(FedcoreError, ValueError):
        def __init__(self, text, *, law):
            self.law = law
            super().__init__(text)

    assert (str(Broken("no", law="zero")), Broken("no", law="zero").law) == ("no", "zero")
    assert fc.errors.ParseError(problem="p", text="t", line=1, column=1).line == 1


def test_what_is_not_found_is_a_keyerror_whose_message_is_not_quoted():
    assert isinstance(NotFound("no client 'a'"), KeyError)
    assert str(NotFound("no client 'a'")) == "no client 'a'"


def test_failures_of_runs_are_no_valueerrors():
    for cls in (ExecutionError, ClientError):
        assert not issubclass(cls, ValueError | TypeError)


PROTOCOLS = {"AttributeError", "IndexError", "KeyError", "NotImplementedError", "OSError", "StopIteration"}
INTERNAL = {  # what a developer does wrong, what its caller catches to name the file, or what TensorFlow raises
    "code_digest.py", "parser.py", "ir/value_notation.py", "printer.py", "page/markup.py",
    "graphs/private_api_operations.py",
    "graphs/private_api_shapes.py", "dataflow/graph.py", "dataflow/shape_inference.py", "dataflow/op_signature.py",
    "batched/batched_value.py", "batched/batched_call.py", "graphs/tensors/values.py",
    "ir/regular_files.py", "ir/source_table.py", "cli/json_values.py",
    "cli/runs.py", "datasets/downloads.py", "datasets/hdf5_objects.py",
    "datasets/hdf5_client_data.py", "datasets/sqlite_tables.py", "datasets/sqlite_client_data.py",
    "datasets/stored_client_data.py",
}  # fmt: skip


def test_public_functions_raise_errors_of_fedcore():
    root, found = Path(fc.__file__).parent, []
    for file in root.rglob("*.py"):
        name = str(file.relative_to(root))
        if any(name.endswith(internal) for internal in INTERNAL):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                raised = node.exc.func.id
                if isinstance(getattr(builtins, raised, None), type) and raised not in PROTOCOLS:
                    found.append(f"{name}:{node.lineno} {raised}")
    assert found == []


# Values in messages.

BRIEF = {
    "an array": (np.zeros((300, 4), np.float32), "<ndarray float32[300,4]>"),
    "a small array": (np.arange(20), "<ndarray int64[20]>"),
    "a tensor": (tf.zeros([2, 3]), "<EagerTensor float32[2,3]>"),
    "a scalar": (np.float32(2), "float32(2.0)"),
    "a spec": (tf.TensorSpec([None, 3]), "<TensorSpec float32[?,3]>"),
    "an unknown rank": (tf.TensorSpec(None), "<TensorSpec of unknown rank>"),
    "a long list": (list(range(10_000)), "[0, 1, 2, 3, 4, 5, ...]"),
    "arrays in a dict": ({"x": np.zeros(3), "y": [np.ones(2)] * 9}, None),
    "a long text": ("x" * 10_000, None),
    "a protobuf": (tf.function(lambda x: x + x).get_concrete_function(tf.TensorSpec([])).graph.as_graph_def(), None),
    "a number": (3, "3"),
}


@pytest.mark.parametrize("name", BRIEF)
def test_a_value_takes_at_most_a_line(name):
    value, want = BRIEF[name]
    text = brief(value)
    assert want is None or text == want
    assert len(text) <= 160
    assert "\n" not in text


def test_a_value_whose_repr_fails_is_named_by_its_class():
    class Broken:
        def __repr__(self):
            raise RuntimeError("no")

    assert "Broken object at" in brief(Broken())


def test_a_message_shows_the_ends_of_long_lines_and_of_many():
    long = str(FedcoreError("begin " + "x" * 100_000 + " end"))
    assert len(long) <= MAX_LINE
    assert long.startswith("begin x")
    assert long.endswith("x end")
    many = str(FedcoreError("\n".join(f"line {i}" for i in range(1000)))).split("\n")
    assert len(many) == MAX_LINES + 1
    assert (many[0], many[-1]) == ("line 0", "line 999")
    assert many[MAX_LINES // 2] == "  … 940 lines more …"


def test_long_types_are_shown_around_the_first_difference():
    elements = [*WIDE.elements]
    elements[250] = ("layer_250", fc.TensorType("int32", (251, 784)))
    other = fc.StructType(elements)
    text = explain("f: the argument does not fit", other, WIDE)
    lines = text.split("\n")
    assert all(len(line) < 300 for line in lines)
    _, wants, has, carets, note = lines
    start = carets.index("^")
    assert has[start : carets.rindex("^") + 1] == "int32[251,784]"
    assert wants[start : start + 16] == "float32[251,784]"
    assert note == "  layer_250: dtype int32 is not float32"


def test_short_types_are_shown_whole():
    text = explain("f", fc.to_type({"x": "int64"}), fc.to_type({"x": "int32"}))
    assert text.split("\n") == [
        "f",
        "  signature  wants  <x=int32>",
        "  argument   has    <x=int64>",
        " " * 23 + "^^^^^",
    ]


# Calls.


@fc.tf_computation("float32")
def half(x):
    return x / 2.0


@fc.federated_computation(fc.FederatedType(WIDE, fc.SERVER))
def wide(state):
    return state


def message(call, error=FedcoreError) -> str:
    with pytest.raises(error) as raised:
        call()
    assert isinstance(raised.value, ValueError | TypeError)
    text = str(raised.value)
    assert all(len(line) <= MAX_LINE for line in text.split("\n"))
    assert len(text.split("\n")) <= MAX_LINES + 1
    for leak in ("Operand(", "Ref(name", "TensorType(dtype", "array([", "node {"):
        assert leak not in text
    return text


def test_a_traced_value_is_told_by_its_name_and_type():
    seen = []
    fc.federated_computation(lambda x: seen.append(repr(x)) or x, fc.FederatedType("float32", fc.CLIENTS))
    assert seen == ["Value(%x: {float32}@CLIENTS)"]
    fc.federated_computation(lambda x: seen.append(repr(x)) or x, WIDE)
    assert len(seen[1]) < 250


@pytest.mark.parametrize("value", [np.arange(40.0), {"a": np.zeros(99)}, "x" * 5000, list(range(5000)), WIDE])
def test_arguments_of_a_wrong_kind_are_told_briefly(value):
    message(lambda: half(value), TypeMismatch)
    message(lambda: wide(value), TypeMismatch)
    message(lambda: fc.use(value), TypeMismatch)
    message(lambda: fc.TensorType(value), TypeMismatch)
    message(lambda: fc.aggregators.clipping_factory(value, fc.aggregators.SumFactory()))
    message(lambda: fc.templates.IterativeProcess(value, value), TypeMismatch)
    message(lambda: fc.runtime.local(block_size=value))


def test_a_wrong_number_of_arguments_is_told_by_names():
    assert message(lambda: half()) == "half takes x, but is called with 0 arguments: missing a required argument: 'x'"
    assert (
        message(lambda: half(1.0, 2.0)) == "half takes x, but is called with 2 arguments: too many positional arguments"
    )
    text = message(lambda: half(1.0, y=2.0))
    assert text == "half takes x, but is called with 2 arguments: got an unexpected keyword argument 'y'"


def test_a_computation_without_types_takes_arguments_by_name_and_a_seed():
    @fc.tf_computation
    def less(a, b):
        return a - b

    assert less(b=1.0, a=3.0) == 2.0
    assert less.invoke(3.0, b=1.0, seed=5) == 2.0
    assert context.last_report().seed == 5
    assert (
        message(lambda: less(1.0)) == "less takes a, b, but is called with 1 argument: missing a required argument: 'b'"
    )
    text = message(lambda: less(1.0, c=2.0))
    assert text.startswith("less takes a, b, but is called with 2 arguments: ")


# The state of a process.


def processes():
    initialize = fc.federated_computation(lambda: fc.federated_value({"total": 0.0, "rounds": 0}, fc.SERVER))

    @fc.tf_computation(initialize.type_signature.result.member, "float32")
    def add(state, x):
        return {"total": state["total"] + x, "rounds": state["rounds"] + 1}

    @fc.federated_computation(initialize.type_signature.result, fc.FederatedType("float32", fc.CLIENTS))
    def next_round(state, xs):
        total = fc.federated_sum(xs)
        after = fc.federated_map(add, (state, total))
        return fc.learning.process.LearningProcessOutput(after, total)

    return fc.templates.IterativeProcess(initialize, next_round)


def test_a_forgotten_state_is_named():
    process = processes()
    output = process.next(process.initialize(), [1.0])
    text = message(lambda: process.next(output, [1.0]), TypeMismatch)
    assert text.endswith(
        "\n  fix: `state` takes the element `state` of the given result: write next_round(output.state, …)"
    )
    assert process.next(output.state, [2.0]).state["total"] == 3.0


def test_no_fix_is_given_where_it_is_not_certain():
    process = processes()
    assert "fix" not in message(lambda: process.next({"total": "a"}, [1.0]), TypeMismatch)
