import collections
import functools
import inspect
import re
import typing

import attrs
import numpy as np
import pytest
import tensorflow as tf
import warm_processes

import fedcore as fc
from fedcore import context
from fedcore.errors import FedcoreError, TracingError, TypeMismatch
from fedcore.seeds import fold_in

FLOATS = fc.FederatedType("float32", fc.CLIENTS)
INTS = fc.FederatedType("int32", fc.CLIENTS)
AT_SERVER = fc.FederatedType("float32", fc.SERVER)

DECORATORS = pytest.mark.parametrize(
    "decorator", [fc.federated_computation, fc.tf_computation], ids=["federated", "tf"]
)


@fc.tf_computation("float32")
def half(x):
    return x / 2.0


def line_of(fn) -> str:
    return f"test_computation.py:{inspect.getsourcelines(fn)[1]}"


def test_hello_world():
    @fc.federated_computation
    def hello_world():
        return "Hello, World!"

    assert hello_world() == b"Hello, World!"


# What the decorators refuse.


@DECORATORS
def test_a_default_is_refused_with_file_and_line(decorator):
    def scaled(x, factor=2.0):
        return x

    with pytest.raises(TracingError, match=f"`scaled` .*{line_of(scaled)}.* gives factor a default"):
        decorator("float32", "float32")(scaled)


@DECORATORS
def test_var_positional_parameters_are_refused(decorator):
    def total(*xs):
        return xs

    with pytest.raises(TracingError, match=r"`total` .* has the parameter \*xs; a computation names all"):
        decorator("float32")(total)


@DECORATORS
def test_a_keyword_only_parameter_is_refused(decorator):
    def scaled(*, x):
        return x

    with pytest.raises(TracingError, match=r"`scaled` .* has the keyword-only parameter x; make it positional"):
        decorator("float32")(scaled)


@DECORATORS
def test_a_generator_is_refused(decorator):
    def each(x):
        yield x

    with pytest.raises(TracingError, match=f"`each` .*{line_of(each)}.* yields; a computation returns a value"):
        decorator("float32")(each)


@DECORATORS
def test_a_coroutine_is_refused(decorator):
    async def later(x):
        return x

    with pytest.raises(TracingError, match=f"`later` .*{line_of(later)}.* is async; a computation returns a value"):
        decorator("float32")(later)


@DECORATORS
def test_what_is_no_function_is_refused(decorator):
    with pytest.raises(TracingError, match=r"^5 is no function, of which a computation is made"):
        decorator("float32")(5)
    with pytest.raises(TracingError, match=r"^<computation half : .*> is a computation already"):
        decorator(half, "float32")
    with pytest.raises(TracingError, match=r"^`max` does not say which parameters it has"):
        decorator("float32", "float32")(max)


@DECORATORS
def test_a_result_of_none_names_file_and_line(decorator):
    def forgotten(x):
        pass

    with pytest.raises(TracingError, match=f"`forgotten` .*{line_of(forgotten)}.* returns None"):
        decorator("float32")(forgotten)


def test_a_lambda_of_a_map_that_returns_none_is_refused():
    with pytest.raises(TracingError, match="returns None; a function of a computation returns a value"):
        fc.federated_computation(lambda xs: fc.federated_map(lambda x: None, xs), FLOATS)


@DECORATORS
def test_a_fix_is_given_only_where_it_helps(decorator):
    def called(fn, type_):
        with pytest.raises(TypeMismatch, match="the argument does not fit") as refused:
            fc.federated_computation(lambda x: fn(x), type_)
        return "fix:" in str(refused.value)

    average = fc.federated_computation(lambda xs: fc.federated_mean(xs), FLOATS)
    assert called(decorator(lambda x: x, "float32"), FLOATS)
    assert not called(decorator(lambda x: x, "int32"), FLOATS)
    assert not called(average, fc.FederatedType("float32", fc.SERVER))


@DECORATORS
def test_too_few_types_are_refused(decorator):
    def added(x, y):
        return x

    with pytest.raises(TracingError, match=r"`added` .* has 2 parameters \(x, y\), but 1 type is given"):
        decorator("float32")(added)


@DECORATORS
def test_too_many_types_are_refused(decorator):
    with pytest.raises(TracingError, match=r"has 1 parameter \(x\), but 2 types are given"):
        decorator("float32", "float32")(lambda x: x)


def test_a_tf_computation_over_placed_values_is_refused():
    with pytest.raises(TracingError, match=r"takes tensors and structs, not \{float32\}@CLIENTS"):
        fc.tf_computation(FLOATS)(lambda x: x)


def test_a_variable_made_outside_is_refused():
    variable = tf.Variable(1.0, name="outer")
    with pytest.raises(TracingError, match=r"uses outer:0, made outside of it\. Make variables .* inside the"):
        fc.tf_computation("float32")(lambda x: x * variable)


# What stands for a function.


class Scale:
    factor = 2.0

    def scaled(self, x):
        return x * self.factor

    @classmethod
    def of_the_class(cls, x):
        return x * cls.factor

    __call__ = scaled


FUNCTIONS = {
    "method": Scale().scaled,
    "class method": Scale.of_the_class,
    "object": Scale(),
    "partial by position": functools.partial(lambda factor, x: x * factor, 2.0),
    "partial by name": functools.partial(lambda x, factor: x * factor, factor=2.0),
    "partial of a method": functools.partial(Scale().scaled),
}
functions = pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)


@functions
@DECORATORS
def test_a_callable_is_traced_as_a_function(decorator, fn):
    assert decorator(fn, "float32")(3.0) == 6.0
    assert decorator("float32")(fn)(3.0) == 6.0
    assert decorator(fn)(3.0) == 6.0


@functions
def test_a_callable_is_mapped_as_a_function(fn):
    assert fc.federated_computation(lambda xs: fc.federated_map(fn, xs), FLOATS)([1.0, 2.0]) == [2.0, 4.0]


def test_a_default_of_a_lambda_is_refused_with_its_name():
    with pytest.raises(TracingError, match=r"gives factor a default; a function of .* functools\.partial"):
        fc.federated_computation(lambda xs: fc.federated_map(lambda x, factor=2.0: x * factor, xs), FLOATS)


def test_a_function_with_a_parameter_where_none_is_given_is_refused():
    with pytest.raises(TracingError, match=r"takes 1 parameter \(x\), but is given none"):
        fc.federated_computation(lambda: fc.federated_eval(lambda x: x, fc.SERVER))


def test_parameters_have_any_names():
    added = fc.federated_computation("float32", "float32", "float32")(lambda self, args, seed: self + args + seed)
    assert added(self=1.0, args=2.0, seed=3.0) == 6.0


# Functions in computations.


def test_a_polymorphic_computation_is_traced_for_the_types_of_each_call():
    @fc.tf_computation
    def doubled(x):
        return x + x

    assert doubled(np.int32(3)) == 6
    assert doubled(np.float32(1.5)) == 3.0
    assert doubled(np.int32(3)).dtype == np.int32


def test_a_polymorphic_computation_is_traced_once_for_a_type():
    traces = []

    @fc.tf_computation
    def doubled(x):
        traces.append(1)
        return x + x

    assert [doubled(np.int32(i)) for i in range(3)] == [0, 2, 4]
    assert len(traces) == 1


def test_a_polymorphic_computation_can_be_mapped():
    @fc.tf_computation
    def doubled(x):
        return x + x

    computation = fc.federated_computation(lambda xs: fc.federated_map(doubled, xs), INTS)
    assert computation([1, 2]) == [2, 4]


def test_a_tf_function_can_be_mapped():
    @tf.function
    def signed(x):
        if x > 0.0:
            return x * 10.0
        return x

    computation = fc.federated_computation(lambda xs: fc.federated_map(signed, xs), FLOATS)
    assert computation([1.0, -1.0]) == [10.0, -1.0]


def test_python_control_flow_over_tensors_runs():
    @fc.tf_computation("int32")
    def collatz(n):
        steps = 0
        while n > 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    assert collatz(27) == 111


def test_a_lambda_may_capture_a_literal():
    def added(xs):
        ten = fc.generic_zero("int32") + 10
        return fc.federated_map(lambda x: x + ten, xs)

    assert fc.federated_computation(added, INTS)([1, 2]) == [11, 12]


def test_a_lambda_may_capture_a_python_number():
    ten = 10
    assert fc.federated_computation(lambda xs: fc.federated_map(lambda x: x + ten, xs), INTS)([1, 2]) == [11, 12]


def test_a_lambda_may_capture_two_literals_in_one_expression():
    def added(xs):
        zero = fc.generic_zero("int32")
        return fc.federated_map(lambda x: (x + zero, zero - x), xs)

    assert fc.federated_computation(added, INTS)([1, 2]) == [(1, -1), (2, -2)]


def test_a_lambda_may_capture_an_unplaced_parameter():
    computation = fc.federated_computation(
        lambda xs, shift: fc.federated_map(lambda x: x + shift, xs), FLOATS, "float32"
    )
    assert computation([1.0, 2.0], 0.5) == [1.5, 2.5]


def test_a_lambda_in_a_lambda_may_capture_its_parameter():
    type_ = fc.FederatedType((fc.SequenceType("int32"), "int32"), fc.CLIENTS)

    def shifted(pairs):
        return fc.federated_map(lambda s, n: fc.sequence_sum(fc.sequence_map(lambda e: e + n, s)), pairs)

    assert fc.federated_computation(shifted, type_)([([1, 2], 10), ([], 5)]) == [23, 0]


def test_a_lambda_in_a_lambda_of_clients_that_are_added_may_capture_its_parameter():
    type_ = fc.FederatedType((fc.SequenceType("int32"), "int32"), fc.CLIENTS)

    def total(pairs):
        shifted = fc.federated_map(lambda s, n: fc.sequence_sum(fc.sequence_map(lambda e: e + n, s)), pairs)
        return fc.federated_sum(shifted)

    assert fc.federated_computation(total, type_)([([1, 2], 10), ([], 5), ([1] * 7, 1)]) == 37


def test_capturing_a_placed_value_is_refused_with_advice():
    with pytest.raises(TracingError) as raised:
        fc.federated_computation(lambda xs, w: fc.federated_map(lambda x: x * w, xs), FLOATS, AT_SERVER)
    assert "float32@SERVER" in str(raised.value)
    assert "Pass it as an argument" in str(raised.value) or "federated_broadcast" in str(raised.value)


def test_a_traced_value_has_no_truth_value_and_says_what_to_do():
    def chosen(x):
        return 1.0 if x else 0.0

    with pytest.raises(TracingError, match=r"a traced value of type float32@SERVER has no truth value.*tf\.cond"):
        fc.federated_computation(chosen, AT_SERVER)


def test_a_computation_given_another_dtype_shows_both_sides_and_the_users_line():
    def averaged(xs):
        return fc.federated_map(half, xs)

    with pytest.raises(TypeMismatch) as raised:
        fc.federated_computation(averaged, INTS)
    text = str(raised.value).split("\n")
    assert text[0].startswith("federated_map: ")
    assert re.fullmatch(r"  signature  wants  .*", text[1])
    assert re.fullmatch(r"  argument   has    .*", text[2])
    assert re.fullmatch(r" +\^+", text[3])
    assert "test_computation.py:" in text[4]


def test_calling_a_computation_on_a_placed_value_says_to_map_it():
    with pytest.raises(TypeMismatch, match=r"fix: fc\.federated_map\(half, value\) applies it at the value's"):
        fc.federated_computation(lambda xs: half(xs), FLOATS)


def test_an_argument_of_the_wrong_dtype_names_the_parameter():
    with pytest.raises(TypeMismatch, match="x does not fit"):
        half(np.int64(3))


def test_too_many_arguments_show_the_type():
    with pytest.raises(TypeMismatch, match=re.escape("half takes x, but is called with 2 arguments: too many")):
        half(1.0, 2.0)


# Values in a computation.


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda x, y: x + y, 8.0),
        (lambda x, y: x - y, 4.0),
        (lambda x, y: x * y, 12.0),
        (lambda x, y: x / y, 3.0),
        (lambda x, y: x + 1.0, 7.0),
        (lambda x, y: 1.0 + x, 7.0),
        (lambda x, y: 1.0 - x, -5.0),
        (lambda x, y: 2.0 * x, 12.0),
        (lambda x, y: 3.0 / x, 0.5),
    ],
)
def test_arithmetic_at_the_server(operation, expected):
    assert fc.federated_computation(operation, AT_SERVER, AT_SERVER)(6.0, 2.0) == expected


def test_arithmetic_at_the_clients():
    assert fc.federated_computation(lambda x, y: (x + y) * 2.0, FLOATS, FLOATS)([1.0, 2.0], [3.0, 4.0]) == [8.0, 12.0]


STRUCT = fc.FederatedType({"a": "int32", "b": "float32", "c": "int32"}, fc.SERVER)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda s: s.b, 2.0),
        (lambda s: s["c"], 3),
        (lambda s: s[0], 1),
        (lambda s: s[-1], 3),
        (lambda s: s[np.int64(-1)], 3),
        (lambda s: tuple(s), (1, 2.0, 3)),
        (lambda s: s[1:], {"b": 2.0, "c": 3}),
        (lambda s: s[::2], {"a": 1, "c": 3}),
        (lambda s: fc.federated_value(len(s), fc.SERVER), 3),
    ],
)
def test_a_struct_is_taken_apart(body, expected):
    assert fc.federated_computation(body, STRUCT)({"a": 1, "b": 2.0, "c": 3}) == expected


def test_an_unknown_element_lists_the_known():
    with pytest.raises(AttributeError, match=r"has no element 'd'; it has a, b, c"):
        fc.federated_computation(lambda s: s.d, STRUCT)


def test_an_index_past_the_end_is_an_index_error():
    with pytest.raises(IndexError, match="has 3 elements"):
        fc.federated_computation(lambda s: s[3], STRUCT)


class Point(typing.NamedTuple):
    x: float
    y: float


@attrs.frozen
class Pair:
    left: float
    right: float


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1.0, "b": 2.0},
        (1.0, 2.0),
        [1.0, 2.0],
        Point(1.0, 2.0),
        Pair(1.0, 2.0),
        collections.OrderedDict(b=1.0, a=2.0),
        {"nested": [Point(1.0, 2.0), (3.0,)]},
    ],
    ids=lambda v: type(v).__name__,
)
@DECORATORS
def test_a_container_comes_back(decorator, value):
    result = decorator(lambda: value)()
    assert type(result) is type(value)
    assert result == value


@pytest.mark.parametrize("value", [Point(1.0, 2.0), Pair(1.0, 2.0), [1.0, 2.0]], ids=lambda v: type(v).__name__)
def test_a_container_is_what_the_body_of_a_tf_computation_gets(value):
    seen = []

    def same(v):
        seen.append(type(v))
        return v

    typed = [np.float32] * 2 if isinstance(value, list) else type(value)(np.float32, np.float32)
    assert fc.tf_computation(typed)(same)(value) == value
    assert seen == [type(value)]


# Files.


def test_a_saved_computation_comes_back(tmp_path):
    fc.save(half, tmp_path / "half.fed")
    loaded = fc.load(tmp_path / "half.fed")
    assert loaded.digest == half.digest
    assert loaded.type_signature == half.type_signature
    assert loaded(3.0) == 1.5


def test_saving_twice_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        fc.save(half, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_saved_computation_runs_in_a_process_without_its_source(tmp_path):
    average = fc.federated_computation(lambda xs: fc.federated_mean(fc.federated_map(half, xs)), FLOATS)
    fc.save(average, tmp_path / "average.fed")
    script = "import sys, fedcore as fc; print(float(fc.load(sys.argv[1])([1.0, 2.0, 6.0])))"
    assert float(warm_processes.python({"code": script}, tmp_path / "average.fed", cwd=tmp_path)) == 1.5


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda path: (len, path), r"not <built-in function len>$"),
        (lambda path: (path, half), r"not \w+Path\("),
        (lambda path: (fc.tf_computation(lambda x: x), path), r"polymorphic .*; save what its `for_types` gives$"),
    ],
    ids=["a function", "the path first", "a polymorphic one"],
)
def test_only_a_computation_is_saved(given, says, tmp_path):
    with pytest.raises(TypeMismatch, match=f"^save takes a computation and a path, .*{says}"):
        fc.save(*given(tmp_path / "x.fed"))


def test_a_file_whose_module_is_not_valid_is_refused(tmp_path):
    path = tmp_path / "bad.fed"
    path.write_text("fedcore 1 traced\n\nfn @main(%x: int32) -> float32 {\n  return %x\n}\n")
    with pytest.raises(FedcoreError, match="@main: it returns int32, but declares float32"):
        fc.load(path)


# Stages and seeds.


@pytest.mark.parametrize("stage", ["traced", "lowered", "planned"])
def test_the_text_of_a_stage_names_the_stage(stage):
    average = fc.federated_computation(lambda xs: fc.federated_mean(xs), FLOATS)
    assert average.to_text(stage).startswith(f"fedcore 1 {stage}\n")


def test_an_unknown_stage_lists_the_known():
    with pytest.raises(FedcoreError, match="'baked' is no stage; there are traced, lowered and planned"):
        half.to_text("baked")


def test_a_seed_is_reported():
    half.invoke(1.0, seed=7)
    assert context.last_report().seed == 7


def test_the_seed_of_use_is_reported():
    with fc.use(seed=8):
        half(1.0)
    assert context.last_report().seed == fold_in(8, 0)


def test_every_operation_keeps_the_users_line():
    def averaged(xs):
        return fc.federated_mean(xs)

    computation = fc.federated_computation(averaged, FLOATS)
    (op,) = computation.module.main.operations
    assert op.location.line == inspect.getsourcelines(averaged)[1] + 1
    assert op.location.file.endswith("test_computation.py")
