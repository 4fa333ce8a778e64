import pytest

from fedcore.errors import Location, TypeMismatch
from fedcore.types import (
    CLIENTS,
    PENDING,
    SERVER,
    Alternative,
    Parameter,
    Signature,
    parse_signature,
    parse_type,
    substitute,
)

SUM = "({T}@CLIENTS -> T@SERVER) where T: numeric"
MEAN = "(value: {T}@CLIENTS, weight?: {W}@CLIENTS -> T@SERVER) where T: inexact, W: numeric"
MAP = "(fn: (T -> U), arg: {T}@CLIENTS -> {U}@CLIENTS) | (fn: (T -> U), arg: T@SERVER -> U@SERVER)"
REDUCE = "(zero: U, values: {T}@CLIENTS, op: (<U,T> -> U) -> U@SERVER)"
ZIP = "(S@P -> S@P) where S: struct"


def match(signature, *arguments, **error):
    types = [parse_type(argument) if isinstance(argument, str) else argument for argument in arguments]
    return parse_signature(signature).match(types, "op", **error)


def refusal(signature, *arguments, **error):
    with pytest.raises(TypeMismatch) as caught:
        match(signature, *arguments, **error)
    return str(caught.value)


@pytest.mark.parametrize(
    ("signature", "arguments", "result"),
    [
        (SUM, ["{<x=float32,y=int32[3]>}@CLIENTS"], "<x=float32,y=int32[3]>@SERVER"),
        (SUM, ["int32@CLIENTS"], "int32@SERVER"),
        (SUM, ["{<>}@CLIENTS"], "<>@SERVER"),
        (MEAN, ["{float32}@CLIENTS"], "float32@SERVER"),
        (MEAN, ["{float32}@CLIENTS", None], "float32@SERVER"),
        (MEAN, ["{float32}@CLIENTS", "{int32}@CLIENTS"], "float32@SERVER"),
        (MAP, ["(int32 -> str)", "{int32}@CLIENTS"], "{str}@CLIENTS"),
        (MAP, ["(int32[?] -> str)", "int32[3]@SERVER"], "str@SERVER"),
        (MAP, ["(list<int32> -> str)", "<int32>@SERVER"], "str@SERVER"),
        (ZIP, ["<a={int32}@CLIENTS,b=<str@CLIENTS>>"], "{<a=int32,b=<str>>}@CLIENTS"),
        (ZIP, ["<int32@SERVER>"], "<int32>@SERVER"),
        (ZIP, ["<int32>@SERVER"], "<int32>@SERVER"),
        (REDUCE, ["float32", "{int32}@CLIENTS", "(<x=float32,y=int32> -> float32)"], "float32@SERVER"),
        ("(T@P, T@P -> T@P)", ["{int32}@CLIENTS", "int32@CLIENTS"], "{int32}@CLIENTS"),
        ("(-> int32)", [], "int32"),
        ("(placement -> T)", ["placement"], "T"),
    ],
)
def test_a_match_gives_the_result(signature, arguments, result):
    assert match(signature, *arguments).result == parse_type(result)


def test_a_binding_names_variables_and_placements():
    binding = match(ZIP, "<x={int32}@CLIENTS>")
    assert binding.variables == {"S": parse_type("<x=int32>")}
    assert binding.placements == {"P": CLIENTS}


def test_a_variable_keeps_the_first_type_that_binds_it():
    assert match("(a: T, b: T -> T)", "list<int32[?]>", "<int32[3]>").result == parse_type("list<int32[?]>")


@pytest.mark.parametrize(
    ("signature", "arguments"),
    [
        ("(a: T, b: T -> T)", ["int32[3]", "int32[?]"]),
        (MAP, ["(int32[3] -> str)", "{int32[?]}@CLIENTS"]),
        (MAP, ["(int32 -> str)", "int32"]),
        (MEAN, ["{int32}@CLIENTS"]),
        (MEAN, ["{float32}@CLIENTS", "{bool}@CLIENTS"]),
        (SUM, ["int32@SERVER"]),
        (SUM, ["{int32*}@CLIENTS"]),
        (ZIP, ["<int32@SERVER,{int32}@CLIENTS>"]),
        (ZIP, ["<>"]),
        (ZIP, ["{int32}@CLIENTS"]),
        ("(T -> T) where T: placed", ["<int32@SERVER,int32>"]),
        ("(T -> T) where T: integer", ["float32"]),
        ("(T -> T) where T: numeric", ["int32@SERVER"]),
    ],
)
def test_what_does_not_fit_is_refused(signature, arguments):
    assert "does not fit" in refusal(signature, *arguments)


def test_the_error_shows_what_other_arguments_have_bound():
    text = refusal(
        MAP.replace("arg:", "values:"),
        "(<x=float32[784],y=int32> -> float32)",
        "{<x=float32[784],y=int64>}@CLIENTS",
        location=Location("train.py", 41),
        function="next_round",
    )
    assert text == (
        "op: `values` does not fit\n"
        "  signature  wants  {<x=float32[784],y=int32>}@CLIENTS\n"
        "  argument   has    {<x=float32[784],y=int64>}@CLIENTS\n"
        "                                       ^^^^^\n"
        "  at train.py:41, in next_round"
    )


def test_a_kind_that_fails_is_named_and_pointed_at():
    assert refusal(SUM, "{<a=int32,b=<bool>>}@CLIENTS", parameter_names=["values"]) == (
        "op: `values` does not fit\n"
        "  signature  wants  {T}@CLIENTS\n"
        "  argument   has    {<a=int32,b=<bool>>}@CLIENTS\n"
        "                                 ^^^^\n"
        "  T must be numeric, `b[0]` is bool"
    )


def test_all_arguments_that_do_not_fit_are_shown():
    text = refusal(MEAN, "{int32}@CLIENTS", "{str}@CLIENTS", location=Location("a.py", 1))
    assert "`value` does not fit" in text
    assert "`weight` does not fit" in text
    assert text.count("at a.py:1") == 1


def test_the_alternative_that_got_furthest_is_explained():
    text = refusal("(a: int32, b: int32 -> T) | (a: str, b: int32 -> T)", "str", "bool")
    assert text.startswith("op: `b` does not fit")


def test_missing_arguments_are_named():
    assert refusal(MEAN) == (
        "op: `value` is missing\n"
        "  signature  wants  (value: {T}@CLIENTS, weight?: {W}@CLIENTS -> T@SERVER)\n"
        "  arguments  have   (absent, absent)"
    )


def test_too_many_arguments_are_refused():
    assert refusal(SUM, "{int32}@CLIENTS", "int32").startswith("op: takes at most 1 argument, not 2")


def test_a_partial_match_binds_from_what_is_known():
    binding = parse_signature(MAP).match([PENDING, parse_type("int32@SERVER")])
    fn = binding.alternative.parameters[0].type
    assert substitute(fn, binding.variables, binding.placements) == parse_type("(int32 -> U)")


def test_a_placement_variable_takes_its_default():
    for text, where in [("{T}@CLIENTS", CLIENTS), ("T@SERVER", SERVER)]:
        assert substitute(parse_type("T@P"), {}, {"P": where}) == parse_type(text)


def test_one_variable_has_one_kind_in_all_alternatives():
    T = parse_type("T")
    with pytest.raises(ValueError, match="different kinds"):
        Signature([Alternative([Parameter(None, T)], T, {"T": "numeric"}), Alternative([Parameter(None, T)], T)])


def test_a_struct_is_asked_for_in_words():
    assert refusal(ZIP, "{int32}@CLIENTS").endswith("S must be a struct, is int32")
