import pytest
from hypothesis import given
from strategies import types

from fedcore.errors import ParseError
from fedcore.types import (
    CLIENTS,
    SERVER,
    AbstractType,
    FederatedType,
    FunctionType,
    PlacementType,
    PlacementVariable,
    SequenceType,
    StructType,
    StructWithPythonType,
    TensorType,
    notation_with_spans,
    parse_signature,
    parse_type,
)

INT = TensorType("int32")
T = AbstractType("T")


@given(types)
def test_what_str_writes_parses_to_the_same_type(type_):
    assert parse_type(str(type_)) == type_


@given(types)
def test_spans_cover_what_each_child_prints(type_):
    text, spans = notation_with_spans(type_)
    assert text == str(type_)
    for key, child in type_.children():
        start, end = spans[(key,)]
        assert text[start:end] == str(child)


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("float32", TensorType("float32")),
        ("float32[10]", TensorType("float32", [10])),
        ("int32[?,784]", TensorType("int32", [None, 784])),
        ("float32[...]", TensorType("float32", None)),
        ("str", TensorType("str")),
        ("<x=float32[784],y=int32>", StructType({"x": TensorType("float32", [784]), "y": INT})),
        ("<>", StructType([])),
        ("<int32=int32,placement=int32>", StructType({"int32": INT, "placement": INT})),
        ('<"a b"=int32>', StructType({"a b": INT})),
        ("list<int32,int32>", StructWithPythonType([INT, INT], "list")),
        ("my.module.Point<x=int32>", StructWithPythonType({"x": INT}, "my.module.Point")),
        ('"f.<locals>.P"<x=int32>', StructWithPythonType({"x": INT}, "f.<locals>.P")),
        ("int32*", SequenceType(INT)),
        ("int32**", SequenceType(SequenceType(INT))),
        ("(int32 -> T)", FunctionType(INT, T)),
        ("(-> T)", FunctionType(None, T)),
        ("(int32 -> int32)*", SequenceType(FunctionType(INT, INT))),
        ("{int32}@CLIENTS", FederatedType(INT, CLIENTS)),
        ("int32@CLIENTS", FederatedType(INT, CLIENTS, all_equal=True)),
        ("int32@SERVER", FederatedType(INT, SERVER)),
        ("int32@SERVER*", SequenceType(FederatedType(INT, SERVER))),
        ("int32*@SERVER", FederatedType(SequenceType(INT), SERVER)),
        ("T@P", FederatedType(T, PlacementVariable("P"))),
        ("placement", PlacementType()),
    ],
)
def test_the_notation_of_each_type(text, type_):
    assert str(type_) == text
    assert parse_type(text) == type_


def test_space_is_free():
    assert parse_type(" ( ->\n < x = int32 [ ? ] > ) ") == parse_type("(-> <x=int32[?]>)")


@pytest.mark.parametrize(
    "text",
    [
        "({T}@CLIENTS -> T@SERVER) where T: numeric",
        "(value: {T}@CLIENTS, weight?: {W}@CLIENTS -> T@SERVER) where T: inexact, W: numeric",
        "(fn: (T -> U), arg: {T}@CLIENTS -> {U}@CLIENTS) | (fn: (T -> U), arg: T@SERVER -> U@SERVER)",
        "(S@P -> S@P) where S: struct",
        "({T}@CLIENTS, U@SERVER -> <T,U>@SERVER)",
        "(-> T)",
    ],
)
def test_signatures_print_as_they_are_written(text):
    signature = parse_signature(text)
    assert str(signature) == text
    assert parse_signature(str(signature)) == signature


def test_a_parse_error_points_at_the_character():
    with pytest.raises(ParseError) as caught:
        parse_type("{int32)@CLIENTS")
    assert str(caught.value) == (
        "line 1, column 7: unexpected `)`\n"
        "  {int32)@CLIENTS\n"
        "        ^ expected `*`, `@` or `}`"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("", 1, 1, "the text stops too soon"),
        ("<int32", 1, 7, "the text stops too soon"),
        ("<x=int32,\n y=int33>", 2, 4, "`int33` is no type"),
        ("int32@CLIENT", 1, 7, "`CLIENT` is no placement"),
        ("int32 $", 1, 7, "unexpected `$`"),
        ("foo[2]", 1, 1, "`foo` is no dtype"),
        ("<x=int32,x=str>", 1, 1, "two elements are named 'x'"),
        ('<"\\q"=int32>', 1, 2, "this quoted name has an escape that JSON does not know"),
        ("int32[99999999999999999999]", 1, 7, "this size is larger than any tensor"),
    ],
)
def test_what_is_no_type_is_refused_where_it_goes_wrong(text, line, column, problem):
    with pytest.raises(ParseError) as caught:
        parse_type(text)
    assert (caught.value.line, caught.value.column, caught.value.problem) == (line, column, problem)


@pytest.mark.parametrize("text", ["int32" + "*" * 300, "<" * 5000 + ">" * 5000, "(-> " * 300 + "str" + ")" * 300])
def test_deep_nesting_is_refused(text):
    with pytest.raises(ParseError, match="types nest at most 100 deep"):
        parse_type(text)


def test_types_of_the_greatest_depth_print_parse_and_hash():
    type_ = TensorType("int32")
    for _ in range(99):
        type_ = StructType([type_])
    assert hash(parse_type(str(type_))) == hash(type_)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(T -> U) where X: numeric", "`X` is no variable of this signature"),
        ("(T -> U) where T: big", "`big` is no kind"),
        ("(T -> U) where T: any, T: any", "`T` has a kind already"),
        ("(a: T, a: U -> U)", "two parameters have one name"),
        ("(a?: T, b: U -> U)", "optional parameters stand last"),
        ("(T -> U) where T: any | (U -> T)", "unexpected `|`"),
    ],
)
def test_what_is_no_signature_is_refused(text, problem):
    with pytest.raises(ParseError) as caught:
        parse_signature(text)
    assert caught.value.problem == problem


def test_a_quoted_name_with_half_of_a_surrogate_pair_is_refused():
    with pytest.raises(ParseError, match="this quoted name holds half of a surrogate pair"):
        parse_type('<"\\ud800"=int32>')
