"""What each intrinsic refuses, in the words that a user sees."""

import importlib.metadata
import re

import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import FedcoreError, TracingError, TypeMismatch
from fedcore.ir import registry

CLIENTS, SERVER = fc.CLIENTS, fc.SERVER


def at_clients(type_):
    return fc.FederatedType(type_, CLIENTS)


def unknown(dtype):
    return fc.TensorType(dtype, (None,))


REFUSED = [
    (
        lambda x: fc.federated_max(x),
        at_clients("complex64"),
        r"federated_max: `value` does not fit\n(.*\n)*.*T must be real, is complex64",
    ),
    (lambda x: fc.federated_min(x), at_clients("bool"), "T must be real, is bool"),
    (
        lambda x: fc.federated_mean(x, fc.federated_zip((x, x))),
        at_clients("float32"),
        "`weight` is one real number a client, not <float32,float32>",
    ),
    (
        lambda x: fc.federated_mean(x, x),
        at_clients(("float32", (2,))),
        r"`weight` is one real number a client, not float32\[2\]",
    ),
    (
        lambda x: fc.federated_collect(x, 0),
        at_clients("int32"),
        "federated_collect: `max_clients` is a whole number of at least 1, not 0",
    ),
    (
        lambda x: fc.federated_collect(x, True),
        at_clients("int32"),
        "`max_clients` is a whole number of at least 1, not True",
    ),
    (
        lambda x: fc.federated_collect(x, 3),
        at_clients(unknown("int32")),
        r"values of int32\[\?\] differ in shape, so they make no rows; pad them first",
    ),
    (lambda x: fc.federated_collect(x, 3), at_clients("str"), "T must be numeric, is str"),
    (
        lambda x: fc.federated_value(x, SERVER),
        at_clients("float32"),
        r"federated_value: `value` does not fit\n  signature  wants  T\n  argument   has    \{float32\}@CLIENTS\n"
        r" +\^+\n  T stands inside a placement, so it holds nothing placed and no function\n  at ",
    ),
    (lambda x: fc.federated_value((x, 1), CLIENTS), at_clients("float32"), "holds nothing placed"),
    (lambda x: fc.federated_value(x, SERVER), fc.FunctionType("float32", "float32"), "and no function"),
    (
        lambda x: fc.federated_map(lambda y: fc.federated_value(y, SERVER), x),
        at_clients("float32"),
        r"`fn` does not fit\n  signature  wants  \(float32 -> U\)\n(.*\n)*  U stands inside a placement",
    ),
    (
        lambda x: fc.federated_eval(lambda: fc.federated_value(1, CLIENTS), SERVER),
        at_clients("float32"),
        r"`fn` does not fit\n(.*\n)*  U stands inside a placement",
    ),
    (lambda x: fc.federated_map(None, x), at_clients("float32"), r"^federated_map\(fn, arg\): `fn` is None$"),
    (lambda x: x + None, "float32", r"^generic_plus\(left, right\): `right` is None$"),
    (lambda x: fc.federated_secure_sum(x, 3), at_clients("float32"), "T must be integer, is float32"),
    (
        lambda x: fc.federated_secure_sum(x, 300),
        at_clients("uint8"),
        r"`max_input` does not fit\n  signature  wants  uint8\n  argument   has    int32",
    ),
    (
        lambda x: fc.federated_secure_sum(x, {"a": 1}),
        at_clients("int32"),
        r"`max_input` does not fit\n  signature  wants  int32\n",
    ),
    (
        lambda x: fc.federated_secure_sum_bitwidth(x, 0),
        at_clients("int32"),
        "`bitwidth` is a whole number of 1 to 64, not 0",
    ),
    (
        lambda x: fc.federated_secure_sum_bitwidth(x, 2.0),
        at_clients("int32"),
        r"`bitwidth` is a whole number of 1 to 64, not 2\.0",
    ),
    (
        lambda x: fc.federated_secure_modular_sum(x, -1),
        at_clients("int32"),
        "`modulus` is a whole number of at least 1, not -1",
    ),
    (
        lambda x: fc.federated_secure_modular_sum(x, 256),
        at_clients("uint8"),
        "`modulus` is 256, which uint8 does not hold",
    ),
    (lambda x: fc.cast(x, "int32"), "str", "cast: str is not cast to int32: text is no number"),
    (lambda x: fc.cast(x, "str"), "int32", "cast: int32 is not cast to str: text is no number"),
    (lambda x: fc.cast(x, "number"), "int32", "'number' is not a dtype; dtypes are bool, int8"),
    (lambda x: fc.where(x, 1.0, 2.0), "float32", r"where: `condition` does not fit\n  signature  wants  bool\n"),
    (lambda x: fc.where(fc.less(x, 1.0), 1.0, 2), at_clients(("float32", (2,))), r"where: `condition` does not fit"),
    (lambda x: fc.where(True, x, 2.5), "int32", r"where: `otherwise` does not fit\n  signature  wants  int32\n"),
    (lambda x: fc.less(x, "a"), "int32", r"less: (.*\n)*.*W must be real"),
    (lambda x: fc.less(x, 0.5), "int32", r"less: `right` does not fit\n"),
    (lambda x: fc.equal(x, "a"), "int32", r"equal: `right` does not fit\n"),
    (lambda x: fc.modulo(x, 2), "float32", "T must be integer, is float32"),
    (lambda x: fc.minimum(x, fc.cast(x, "float64")), "float32", r"minimum: `right` does not fit\n"),
    (lambda x: fc.generic_multiply(x, 1j), "float32", r"generic_multiply: `right` does not fit\n"),
    (
        lambda x: fc.sequence_from_rows(x),
        "int32",
        "sequence_from_rows: it is int32, which has no first axis to count rows by",
    ),
    (
        lambda x: fc.sequence_from_rows(x),
        fc.to_type({"a": ("int32", (2,)), "b": ("int32", (3,))}),
        "have not equally many rows",
    ),
    (
        lambda x: fc.sequence_reduce(x, 0, fc.tf_computation("float32", "int32")(lambda a, b: a)),
        fc.SequenceType("int32"),
        r"sequence_reduce: `zero` does not fit what `op` takes first\n",
    ),
    (lambda x: fc.sequence_sum(x), "int32", r"sequence_sum: `value` does not fit\n  signature  wants  T\*"),
    (
        lambda x: fc.federated_select(x, 3, 4, lambda v, k: v),
        at_clients(unknown("int32")),
        r"federated_select: `max_key` does not fit\n  signature  wants  int32@SERVER",
    ),
    (
        lambda x: fc.federated_value(x, None),
        "int32",
        r"`placement` is a placement \(fc\.SERVER or fc\.CLIENTS\), not None",
    ),
]


@pytest.mark.parametrize(("body", "type_", "says"), REFUSED)
def test_a_wrong_argument_is_refused(body, type_, says):
    with pytest.raises(TypeMismatch, match=says):
        fc.federated_computation(body, type_)


def test_an_optional_weight_may_be_none():
    mean = fc.federated_computation(lambda x: fc.federated_mean(x, None), at_clients("float32"))
    assert mean([1.0, 3.0]) == 2.0


def test_a_function_is_called_with_a_parameter_that_it_has_not():
    half = fc.tf_computation("float32")(lambda x: x / 2.0)

    def body(fn, x):
        return fn(x=x, factor=1.0)

    with pytest.raises(TracingError, match="has no parameter 'x'"):
        fc.federated_computation(body, half.type_signature, "float32")


def test_var_keyword_parameters_are_refused():
    with pytest.raises(TracingError, match=r"has the parameter \*\*xs; a computation names all"):
        fc.federated_computation("float32")(lambda **xs: xs)


def test_an_unknown_operation_lists_the_close_ones():
    with pytest.raises(FedcoreError, match="no operation is called 'federated_summ'; did you mean federated_sum"):
        registry.lookup("federated_summ")


class EntryPoint:
    """An entry point of a third party, without a package."""

    def __init__(self, load):
        self.name, self.value, self.load = "theirs", "theirs.intrinsics", load


@pytest.fixture
def entry_points(monkeypatch):
    """Installs entry points for a test; what they declare is forgotten after it."""

    def install(*found):
        monkeypatch.setattr(
            importlib.metadata, "entry_points", lambda group: found if group == "fedcore.intrinsics" else ()
        )
        monkeypatch.setattr(registry, "_entry_points", registry._EntryPoints())

    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    return install


def test_an_unknown_operation_is_looked_for_in_entry_points(entry_points):
    loads = []

    def load():
        loads.append(1)

        @fc.intrinsic("(value: {T}@CLIENTS -> {T}@CLIENTS)")
        def their_own(value):
            return value

    entry_points(EntryPoint(load))
    assert registry.lookup("their_own").name == "their_own"
    with pytest.raises(FedcoreError, match="no operation is called 'another'"):
        registry.lookup("another")
    assert loads == [1]


def test_a_known_operation_loads_no_entry_point(entry_points):
    def load():
        raise AssertionError

    entry_points(EntryPoint(load))
    assert registry.lookup("federated_sum").name == "federated_sum"


def test_an_entry_point_that_does_not_load_is_named(entry_points):
    def load():
        raise ImportError("no module named theirs")

    entry_points(EntryPoint(load))
    for _ in range(2):  # also at the second lookup
        with pytest.raises(
            FedcoreError, match=r"the entry point theirs = theirs\.intrinsics of fedcore\.intrinsics does not"
        ):
            registry.lookup("their_own")


def test_a_declaration_that_is_run_again_takes_the_place_of_the_old_one(monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))

    def cell():
        @fc.intrinsic("(value: {T}@CLIENTS -> {T}@CLIENTS)")
        def from_a_cell(value):
            return value

        return from_a_cell

    first, second = cell(), cell()
    assert registry.lookup("from_a_cell") is second
    assert first is not second


def test_a_sequence_that_would_leave_its_stage_says_what_to_do():
    images = fc.SequenceType(fc.TensorType("int32", [None, None]))
    computation = fc.federated_computation(lambda xs: fc.sequence_map(lambda e: e + 1, xs), at_clients(images))
    says = r"a value of type int32\[\?,\?\]\* is needed outside of the stage that makes it: .*; pad them"
    with pytest.raises(FedcoreError, match=says):
        computation([[np.zeros([2, 2], np.int32)]])


def test_what_a_rule_refuses_has_the_users_line_in_front_of_the_fix():
    with pytest.raises(TypeMismatch) as error:
        fc.federated_computation(lambda x: x + fc.cast(x, "float32"), fc.to_type("int32"))
    at = r"\n  at .*test_refused_calls\.py:\d+"
    assert re.search(rf"\^\^\^{at}\n  fix: fc\.cast changes the dtype$", str(error.value))
    with pytest.raises(TypeMismatch) as error:
        fc.federated_computation(lambda x: fc.where(fc.less(x, 1), x, np.zeros(3, np.int32)), fc.to_type("int32"))
    assert re.search(rf"{at}$", str(error.value))
