"""What the language takes: functions as parameters, nested computations, sugar on either side, containers."""

import collections
import dataclasses
import types
import typing

import attrs
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, InvalidValue, TracingError, TypeMismatch

FLOATS = fc.FederatedType("float32", fc.CLIENTS)
INTS = fc.FederatedType("int32", fc.CLIENTS)
VECTORS = fc.FederatedType(("float32", (2,)), fc.CLIENTS)
AT_SERVER = fc.FederatedType("float32", fc.SERVER)


@fc.tf_computation("float32")
def half(x):
    return x / 2.0


# Functions as parameters.

MAPPING = fc.FunctionType("float32", "float32")


@fc.federated_computation(MAPPING, FLOATS)
def mapped(fn, xs):
    return fc.federated_map(fn, xs)


@fc.federated_computation(MAPPING, "float32")
def twice(fn, x):
    return fn(fn(x))


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (half, [1.0, 2.0]),
        (lambda x: x * 3.0, [6.0, 12.0]),
        (tf.function(lambda x: x - 1.0), [1.0, 3.0]),
        (fc.tf_computation(lambda x: x + x), [4.0, 8.0]),
    ],
    ids=["computation", "lambda", "tf_function", "polymorphic"],
)
def test_a_function_is_given_while_tracing(fn, expected):
    computation = fc.federated_computation(lambda xs: mapped(fn, xs), FLOATS)
    assert computation([2.0, 4.0]) == expected
    with fc.use(fc.runtime.reference()):
        assert computation([2.0, 4.0]) == expected


def test_a_function_parameter_is_called():
    assert fc.federated_computation(lambda x: twice(half, x), "float32")(8.0) == 2.0


def test_a_computation_over_functions_is_specialised_where_it_is_given_one():
    outer = fc.federated_computation(lambda xs: mapped(half, xs), FLOATS)
    assert all("->" not in str(p.type) for f in outer.to_module("lowered").functions for p in f.parameters)


def test_a_function_parameter_travels_through_a_lambda():
    outer = fc.federated_computation(lambda xs: fc.federated_map(lambda x: twice(lambda y: y + 1.0, x), xs), FLOATS)
    assert outer([1.0]) == [3.0]


def test_a_function_given_from_python_is_refused():
    with pytest.raises(
        TypeMismatch, match=r"mapped: `fn` is a function \(float32 -> float32\), which cannot be given from"
    ):
        mapped(half, [1.0])


def test_a_function_of_the_wrong_type_shows_both():
    whole = fc.tf_computation("int32")(lambda x: x)
    with pytest.raises(TypeMismatch, match=r"mapped: the argument does not fit\n.*\(float32 -> float32\)"):
        fc.federated_computation(lambda xs: mapped(whole, xs), FLOATS)


# Computations in computations.


def test_a_computation_is_called_in_another_with_constants():
    shifted = fc.federated_computation(FLOATS, "float32")(lambda xs, by: fc.federated_map(lambda x: x + by, xs))
    assert fc.federated_computation(lambda xs: shifted(xs, 1), FLOATS)([1.0]) == [2.0]


def test_a_computation_in_a_computation_in_a_computation():
    inner = fc.federated_computation(lambda xs: fc.federated_map(half, xs), FLOATS)
    middle = fc.federated_computation(lambda xs: fc.federated_sum(inner(xs)), FLOATS)
    outer = fc.federated_computation(lambda xs: middle(inner(xs)) + 1.0, FLOATS)
    assert outer([4.0, 8.0]) == 4.0


def test_a_tf_computation_calls_a_tf_computation():
    quarter = fc.tf_computation("float32")(lambda x: half(half(x)))
    assert quarter(8.0) == 2.0


def test_a_tf_computation_calls_a_polymorphic_one_over_structs():
    swapped = fc.tf_computation(lambda pair: {"a": pair["b"], "b": pair["a"]})
    outer = fc.tf_computation("float32")(lambda x: swapped({"a": x, "b": 1}))
    assert outer(5.0) == {"a": 1, "b": 5.0}


def test_a_tf_computation_calls_another_on_the_wrong_dtype():
    with pytest.raises(
        TypeMismatch, match=r"half: x does not fit\n  signature  wants  float32\n  argument   has    int32"
    ):
        fc.tf_computation("int32")(lambda x: half(x))


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        (None, "None; a computation takes and returns values"),
        (tf.ragged.constant([[1.0]]), "what is no tensor: a Ragged"),
    ],
    ids=["None", "ragged"],
)
def test_a_tf_computation_calls_another_on_no_tensor(argument, problem):
    with pytest.raises(TracingError, match=f"^half: x is given {problem}"):
        fc.tf_computation()(lambda: half(argument))


def test_what_a_called_tf_computation_draws_comes_from_the_seed_of_the_call():
    noisy = fc.tf_computation("float32")(lambda x: x + tf.random.normal([]))
    outer = fc.tf_computation("float32")(lambda x: noisy(x) - noisy(x))
    first, again, other = (outer.invoke(1.0, seed=s) for s in (3, 3, 4))
    assert first == again != other
    assert first != 0.0


def test_a_parameter_may_be_called_seed():
    shifted = fc.tf_computation("int32", "int32")(lambda x, seed: x + seed)
    assert shifted(1, seed=5) == 6


def test_a_computation_defined_inside_another_is_traced_apart():
    def outer(xs):
        inner = fc.federated_computation(lambda ys: fc.federated_sum(ys), FLOATS)
        return inner(xs)

    assert fc.federated_computation(outer, FLOATS)([1.0, 2.0]) == 3.0


def test_a_value_of_another_computation_is_refused():
    kept = []
    fc.federated_computation(lambda x: kept.append(x) or x, "float32")
    with pytest.raises(TracingError, match=r"a value of type float32 belongs to another computation; pass it as an"):
        fc.federated_computation(lambda y: y + kept[0], "float32")


def test_a_computation_without_parameters_is_evaluated_at_a_placement():
    seven = fc.tf_computation(lambda: 7)
    assert fc.federated_computation(lambda: fc.federated_eval(seven, fc.SERVER))() == 7


def test_a_polymorphic_federated_computation_is_traced_for_the_types_of_a_call():
    doubled = fc.federated_computation(lambda x: x + x)
    assert doubled(np.int32(4)) == 8
    assert doubled(1.5) == 3.0


def test_a_polymorphic_computation_whose_argument_has_no_type_says_so():
    @fc.tf_computation
    def doubled(x):
        return x

    with pytest.raises(TypeMismatch, match=r"doubled cannot tell the type of its argument: .*; declare it"):
        doubled(object())


def test_a_polymorphic_computation_of_two_parameters_given_one_is_refused():
    added = fc.tf_computation(lambda x, y: x + y)
    with pytest.raises(TracingError, match=r"takes 2 parameters, but is given float32"):
        fc.federated_computation(lambda xs: fc.federated_map(added, xs), FLOATS)


# Arithmetic with constants on either side.

BOTH_SIDES = [
    (lambda x: x + 1, lambda x: x + 1),
    (lambda x: 1 + x, lambda x: 1 + x),
    (lambda x: x - 1, lambda x: x - 1),
    (lambda x: 1 - x, lambda x: 1 - x),
    (lambda x: x * 2, lambda x: x * 2),
    (lambda x: 2 * x, lambda x: 2 * x),
    (lambda x: x / 2, lambda x: x / 2),
    (lambda x: 2 / x, lambda x: 2 / x),
]
both_sides = pytest.mark.parametrize(("body", "meaning"), BOTH_SIDES)


@both_sides
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_constant_takes_the_dtype_of_an_unplaced_value(body, meaning, dtype):
    result = fc.federated_computation(body, dtype)(np.dtype(dtype).type(4))
    assert result == meaning(4)
    assert result.dtype == dtype


@both_sides
def test_a_constant_meets_every_element_of_a_client_vector(body, meaning):
    result = fc.federated_computation(body, VECTORS)([np.float32([4, 8])])
    np.testing.assert_array_equal(result[0], meaning(np.float32([4, 8])))


@both_sides
def test_a_constant_meets_a_server_value(body, meaning):
    assert fc.federated_computation(body, AT_SERVER)(4.0) == meaning(4.0)


@both_sides
def test_a_constant_meets_every_leaf_of_a_struct(body, meaning):
    result = fc.federated_computation(body, fc.to_type({"a": "float32", "b": ("float64", (2,))}))(
        {"a": 4.0, "b": np.array([4.0, 8.0])}
    )
    assert result["a"] == meaning(4.0)
    np.testing.assert_array_equal(result["b"], meaning(np.array([4.0, 8.0])))


def test_an_array_is_a_constant():
    result = fc.federated_computation(lambda xs: xs + np.float32([1, 2]), VECTORS)([np.float32([10, 20])])
    np.testing.assert_array_equal(result[0], [11, 22])


@pytest.mark.parametrize("value", [1.5, [1.5, 2.0]])
def test_a_tensor_of_bfloat16_is_a_constant(value):
    placed = fc.federated_computation(lambda: fc.federated_value(tf.constant(value, tf.bfloat16), fc.SERVER))
    assert placed.type_signature.result.member.dtype == "bfloat16"
    np.testing.assert_array_equal(np.asarray(placed(), np.float32), value)
    clients = fc.types.at_clients(placed.type_signature.result.member)
    total = fc.federated_computation(fc.federated_sum, clients)([tf.constant(value, tf.bfloat16)] * 2)
    np.testing.assert_array_equal(np.asarray(total, np.float32), 2 * np.float32(value))


@pytest.mark.parametrize("left", [np.float32([1, 2]), tf.constant([1.0, 2.0])], ids=["numpy", "TensorFlow"])
def test_an_array_is_a_constant_on_the_left(left):
    result = fc.federated_computation(lambda x: (left + x, left - x), ("float32", (2,)))(np.float32([10, 20]))
    np.testing.assert_array_equal(result, [[11, 22], [-9, -18]])


def test_a_large_integer_is_a_constant_of_int64():
    assert fc.federated_computation(lambda x: x + 2**40, "int64")(np.int64(1)) == 2**40 + 1
    assert fc.federated_computation(lambda: 2**40)().dtype == np.int64


def test_an_integer_that_no_dtype_holds_is_refused():
    with pytest.raises(TracingError, match=r"is no value of a computation: no integer dtype holds it"):
        fc.federated_computation(lambda: 2**70)


def test_a_fraction_times_an_integer_is_refused_rather_than_cut():
    with pytest.raises(TypeMismatch, match=r"generic_multiply: `right` does not fit\n  signature  wants  int32\n"):
        fc.federated_computation(lambda x: x * 0.5, "int32")


def test_another_dtype_is_refused_with_a_fix():
    with pytest.raises(TypeMismatch, match=r"generic_plus: `right` does not fit\n(.*\n)*  fix: fc\.cast changes"):
        fc.federated_computation(lambda x, y: x + y, "float32", "float64")


def test_another_shape_is_refused():
    with pytest.raises(TypeMismatch, match=r"wants  float32\[2\]\n.*has    float32\[3\]"):
        fc.federated_computation(lambda x, y: x + y, fc.TensorType("float32", (2,)), fc.TensorType("float32", (3,)))


def test_operands_at_two_placements_are_refused_with_advice():
    with pytest.raises(TypeMismatch, match=r"\+: `y` is at the server, `x` at the cl(.|\n)*fix: fc\.federated_bro"):
        fc.federated_computation(lambda x, y: x + y, FLOATS, AT_SERVER)


def test_an_unplaced_value_meets_a_placed_one():
    assert fc.federated_computation(lambda xs, y: xs * y, FLOATS, "float32")([1.0, 2.0], 3.0) == [3.0, 6.0]


def test_arithmetic_of_what_is_no_number_is_refused():
    with pytest.raises(TypeMismatch, match="T must be numeric"):
        fc.federated_computation(lambda x: x + x, "str")


# What a value is not.


def test_a_tensor_has_no_elements():
    with pytest.raises(TracingError, match="a value of type float32 has no elements"):
        fc.federated_computation(lambda x: x[0], "float32")


def test_a_tensor_is_no_function():
    with pytest.raises(TracingError, match="a value of type float32 is not a function"):
        fc.federated_computation(lambda x: x(1.0), "float32")


def test_a_function_is_no_value():
    with pytest.raises(TracingError, match=r"a function .* stands where a value of the computation is wanted"):
        fc.federated_computation(lambda x: (x, len), "float32")


def test_an_object_is_no_value():
    with pytest.raises(TracingError, match="is no value of a computation"):
        fc.federated_computation(lambda x: (x, object()), "float32")


def test_a_function_where_a_value_is_wanted_is_refused():
    with pytest.raises(TypeMismatch, match=r"federated_sum: a function .* stands where \{T\}@CLIENTS is wanted"):
        fc.federated_computation(lambda: fc.federated_sum(lambda x: x))


def test_arithmetic_after_its_computation_is_refused():
    kept = []
    fc.federated_computation(lambda x: kept.append(x) or x, "float32")
    with pytest.raises(TracingError, match="stands outside a computation"):
        kept[0] + 1.0


@pytest.mark.parametrize("use", [lambda x: 1 if x else 0, lambda x: x and 1, lambda x: not x])
def test_a_truth_value_is_refused_with_advice(use):
    with pytest.raises(TracingError, match=r"has no truth value: its bits are not known while .*tf\.cond"):
        fc.federated_computation(use, "bool")


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda x: x == 1.0, r"Python's == compares a traced value of type float32 while .* fc\.equal\(a, b\) does"),
        (lambda x: x != 1.0, r"Python's != .* fc\.equal"),
        (lambda x: x < 1.0, r"Python's < .* fc\.less\(a, b\)"),
        (lambda x: x > 1.0, r"Python's > .* fc\.less\(b, a\)"),
        (lambda x: x <= 1.0, r"Python's <= .* put the comparison inside a tf_computation"),
        (lambda x: x >= 1.0, r"Python's >= .* put the comparison inside a tf_computation"),
    ],
)
def test_a_comparison_is_refused_with_advice(use, says):
    with pytest.raises(TracingError, match=says):
        fc.federated_computation(use, "float32")


@pytest.mark.parametrize(
    "use",
    [
        tf.square,
        lambda x: tf.stack([x, x]),
        tf.function(lambda x: x),
        lambda x: tf.ones([]) @ x,
        lambda x: tf.nest.map_structure(tf.add, x, x),
        lambda x: fc.federated_map(lambda y: tf.reduce_sum(y), fc.federated_value(x, fc.SERVER)),
        tf.constant,
        np.sum,
        lambda x: np.mean((x, x)),
    ],
    ids=[
        "square",
        "stack",
        "tf.function",
        "matmul",
        "nest",
        "in a lambda",
        "constant",
        "numpy's",
        "numpy's on a tuple",
    ],
)
def test_a_function_of_tensorflow_on_a_traced_value_is_refused_with_advice(use):
    says = r"^a function of TensorFlow or numpy is given a traced value .* a tf_computation"
    with pytest.raises(TracingError, match=says):
        fc.federated_computation(lambda x: use(x), "float32")


def test_a_variable_of_a_traced_value_is_refused_with_advice():
    with pytest.raises(TracingError, match=r"float32 is not a function; nor is it a tensor, .* a tf_computation"):
        fc.federated_computation(lambda x: tf.Variable(x), "float32")


# Containers.


class Point(typing.NamedTuple):
    x: float
    y: float


@attrs.frozen
class Pair:
    left: float
    right: float


@dataclasses.dataclass
class Span:
    left: float
    right: float


@attrs.frozen
class Private:
    """Its constructor takes `a` and `c`, not `_a` and `b`, and no `d`."""

    _a: float
    b: float = attrs.field(alias="c", kw_only=True)
    d: float = attrs.field(init=False, default=3.0)


CONTAINERS = [
    {"b": 1.0, "a": 2.0},
    [1.0, 2.0],
    (1.0, 2.0),
    Point(1.0, 2.0),
    Pair(1.0, 2.0),
    Span(1.0, 2.0),
    collections.OrderedDict(b=1.0, a=2.0),
]


@pytest.mark.parametrize("value", CONTAINERS, ids=lambda v: type(v).__name__)
def test_a_container_goes_through_a_server_and_back(value):
    typed = fc.FederatedType(fc.to_type(_typed(value)), fc.SERVER)
    result = fc.federated_computation(lambda s: fc.federated_map(lambda v: v, s), typed)(value)
    assert type(result) is type(value)
    assert result == value


@pytest.mark.parametrize("value", CONTAINERS, ids=lambda v: type(v).__name__)
def test_a_container_is_rebuilt_by_a_lambda(value):
    result = fc.federated_computation(lambda: fc.federated_value(value, fc.SERVER))()
    assert type(result) is type(value)
    assert result == value


@pytest.mark.parametrize("value", CONTAINERS, ids=lambda v: type(v).__name__)
def test_a_container_is_rebuilt_by_a_graph_and_gives_the_types_of_a_polymorphic_one(value):
    result = fc.tf_computation(lambda v: tf.nest.map_structure(lambda x: x, v))(value)
    assert type(result) is type(value)
    assert result == value


@pytest.mark.parametrize(
    "value",
    [Private(1.0, c=2.0), collections.defaultdict(list, a=1.0), collections.Counter(a=1)],
    ids=lambda v: type(v).__name__,
)
def test_a_container_whose_constructor_takes_other_arguments_is_rebuilt(value):
    for result in (
        fc.federated_computation(lambda: value)(),
        fc.tf_computation(lambda: value)(),
        fc.federated_computation(lambda v: v)(value),
    ):
        assert type(result) is type(value)
        assert result == value


def test_a_mapping_that_is_no_dict_becomes_one():
    value = types.MappingProxyType({"a": 1.0})
    assert fc.federated_computation(lambda: value)() == fc.tf_computation(lambda: value)() == {"a": 1.0}


@pytest.mark.parametrize("trace", [fc.federated_computation, fc.tf_computation])
def test_a_key_that_is_no_text_is_refused(trace):
    with pytest.raises(TypeMismatch, match="elements of a struct are named by str; the key 1 is not one"):
        trace(lambda: {1: 1.0})


def test_a_class_that_refuses_the_elements_says_so():
    @attrs.frozen
    class Checked:
        a: float = attrs.field(validator=attrs.validators.instance_of(fc.ir.Value))

    checked = fc.federated_computation(lambda x: Checked(x), "float32")
    with pytest.raises(InvalidValue, match=r"^Checked cannot be made of its elements: .*must be"):
        checked(1.0)


def test_a_class_that_was_defined_again_with_other_fields_leaves_a_dict():
    def defined(*names):
        return typing.NamedTuple("State", [(name, float) for name in names])

    first = defined("a", "b")
    older = fc.federated_computation(lambda: first(1.0, 2.0))
    second = defined("a")
    assert fc.federated_computation(lambda: second(1.0))() == second(1.0)
    assert older() == {"a": 1.0, "b": 2.0}


def test_a_named_tuple_is_read_by_its_names():
    reversed_point = collections.namedtuple("reversed_point", ["y", "x"])
    first = fc.tf_computation(fc.to_type(Point(np.float32, np.float32)))(lambda p: p.x)
    assert first(reversed_point(y=2.0, x=1.0)) == 1.0
    other = collections.namedtuple("other", ["x", "z"])
    with pytest.raises(TypeMismatch, match=r"the fields at p are \['x', 'z'\], but the type is"):
        first(other(1.0, 2.0))


def test_only_an_empty_container_is_an_empty_struct():
    one = fc.federated_computation(fc.to_type(()), "float32")(lambda nothing, x: x)
    assert one((), 1.0) == one({}, 1.0) == 1.0
    for value in (5, None, "", object()):
        with pytest.raises(TypeMismatch, match=r"at nothing is no struct of type <>"):
            one(value, 1.0)


def _typed(value):
    if isinstance(value, dict):
        return type(value)((k, np.float32) for k in value)
    if isinstance(value, list):
        return [np.float32, np.float32]
    if type(value) is tuple:
        return (np.float32, np.float32)
    return type(value)(np.float32, np.float32)


def test_a_struct_of_client_values_is_sliced_and_iterated():
    type_ = fc.FederatedType(("float32", "float32", "int32"), fc.CLIENTS)

    def body(s):
        first, *_ = s
        return fc.federated_zip((s[1:], first, s[-1]))

    assert fc.federated_computation(body, type_)([(1.0, 2.0, 3)]) == [((2.0, 3), 1.0, 3)]


@pytest.mark.parametrize("value", [object(), {"x": object()}, [object(), 1]])
def test_an_argument_that_stands_for_no_type_says_so(value):
    same = fc.tf_computation(lambda x: x)
    with pytest.raises(TypeMismatch, match=r"cannot tell the type of its argument: .*object object at .* stands for"):
        same(value)


def test_text_that_is_none_is_refused():
    same = fc.tf_computation("str")(lambda x: x)
    with pytest.raises(TypeMismatch, match=r"x is .*object object at .*, but the type is str"):
        same(np.array(object()))


def test_a_module_says_which_names_it_has_not():
    one = fc.tf_computation(lambda: 1.0)
    (graph,) = one.module.graphs
    main = one.module.main
    with pytest.raises(FedcoreError, match=r"^@nothing is no function of the module$"):
        one.module.function("nothing")
    with pytest.raises(FedcoreError, match=r"^@nothing is no graph of the module$"):
        one.module.graph("nothing")
    with pytest.raises(FedcoreError, match=f"^@{graph.name} is no function of the module, but a graph$"):
        one.module.function(graph.name)
    with pytest.raises(FedcoreError, match=f"^@{main.name} is no graph of the module, but a function$"):
        one.module.graph(main.name)


def test_a_sequence_of_sequences_is_no_argument():
    one = fc.federated_computation(lambda xs: 1.0, fc.SequenceType(fc.SequenceType("float32")))
    says = r"xs: the elements of a sequence are tensors and structs of them, not float32\*"
    with pytest.raises(TypeMismatch, match=says):
        one([[1.0]])


# Values that nest.


def nested(x, depth: int = 5000):
    for _ in range(depth):
        x = (x,)
    return x


@pytest.mark.parametrize(
    "trace",
    [
        lambda: fc.federated_computation(lambda x: nested(x), "int32"),
        lambda: fc.federated_computation(lambda: fc.federated_value(nested(1), fc.SERVER)),
        lambda: fc.tf_computation("int32")(lambda x: nested(x)),
        lambda: fc.tf_computation(lambda x: x)(nested(1)),
    ],
    ids=["a result", "a constant", "a result of a graph", "an argument without a type"],
)
def test_values_that_nest_deeper_than_types_are_refused(trace):
    with pytest.raises(InvalidValue, match="types nest at most 100 deep"):
        trace()
