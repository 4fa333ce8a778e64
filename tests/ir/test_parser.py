"""The notation as people write it, and what is refused before or while it is read."""

import time

import pytest
from generators import federated_modules
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import FedcoreError, ParseError
from fedcore.ir import Module, Operation, Parameter, Ref, limits, parse_module, print_module, verify
from fedcore.ir.module import Function
from fedcore.types import StructType, to_type
from fedcore.types.types import MAX_DEPTH

HEAD = "fedcore 1 traced\n"
BODY = "fn @main(%x: int32) -> int32 {\n  return %x\n}"


def with_attributes(attributes: str) -> str:
    return HEAD + f"graph @g : (int32 -> int32)  sha256:{'ab' * 32} {{{attributes}}}\n{BODY}"


@given(federated_modules(max_steps=3), st.sampled_from(["  ", "\n", " // why\n", "\t", "\r\n"]))
def test_spaces_and_comments_between_words_change_nothing(module, space):
    text = print_module(module, locations=False)
    spaced = text.replace(" = ", f" ={space}").replace(", ", f",{space}").replace(" : ", f" :{space}")
    assert parse_module(spaced) == module


def test_a_comment_may_hold_anything():
    text = f'// a title "\n{HEAD}// %x [[[ \n{BODY} // the end'
    assert parse_module(text) == parse_module(HEAD + BODY)


@pytest.mark.parametrize(
    "quoted", [r"%\"a b\"", r"%\"\\u00e9\"", r"%\"\\\"\"", '%"//"', '%"a\tb"', '%"{"'], ids=lambda q: q
)
def test_a_quoted_name_is_read_in_a_line_and_in_words(quoted):
    quoted = quoted.replace('\\"', '"').replace("\\\\", "\\")
    line = HEAD + f"fn @main(%x: int32) -> int32 {{\n  {quoted} = generic_plus(%x, %x) : int32\n  return {quoted}\n}}"
    assert parse_module(line) == parse_module(line.replace(" = ", "  =  "))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (with_attributes("a=1, a=2"), "the attribute `a` stands twice"),
        (with_attributes("a=nan"), "an attribute is no NaN"),
        (with_attributes("a=nan(0x1)"), "an attribute is no NaN"),
        (with_attributes("a=" + "9" * 5000), "this number has more than 400 digits"),
        (with_attributes(r'a="\q"'), "an escape that JSON does not know"),
        (with_attributes(r'a="\ud800"'), "half of a surrogate pair"),
        (HEAD + BODY.replace("main", r'"\q"'), "an escape that JSON does not know"),
        (HEAD + BODY.replace("x", r'"\ud800"'), "half of a surrogate pair"),
        (HEAD + BODY.replace(") ->", ", %x: int32[99999999999999999999]) ->"), "larger than any tensor"),
        ("fedcore " + "9" * 5000 + " traced", "this text has version 99999"),
        (HEAD + BODY.replace("{", '{ loc("a":9999999999)'), "further down than any file goes"),
        (HEAD + "type t = int32\n", "starts with a capital letter"),
        (
            HEAD + "fn @main() -> int32[?] {\n  %0 = literal() : int32[?] {value=[1]}\n  return %0\n}",
            "a literal has a tensor type with known sizes, not int32[?]",
        ),
        (HEAD + "\x00", "unexpected"),
        (with_attributes("a=" + "[" * 300 + "]" * 300), "brackets nest more than 150 deep"),
        (HEAD + f"fn @main(%x: {'{' * 300}", "brackets nest more than 150 deep"),
        (HEAD + BODY.replace("int32)", f"{'int32' + '*' * MAX_DEPTH})"), "types nest at most 100 deep"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(text, says):
    with pytest.raises(ParseError, match=r"^line [0-9]+, column [0-9]+: ") as raised:
        parse_module(text)
    assert says in str(raised.value)


def test_brackets_in_strings_and_comments_do_not_nest():
    text = with_attributes(f'a="{"[" * 300}"') + "// " + "{" * 300
    assert parse_module(text).graphs[0].attributes["a"] == "[" * 300


def test_types_that_double_with_every_name_are_refused_at_once():
    names = [f"type A{i} = <A{i - 1},A{i - 1}>" for i in range(1, 100)]
    began = time.monotonic()
    with pytest.raises(ParseError, match="types have at most 100000 parts"):
        parse_module(HEAD + "type A0 = int32\n" + "\n".join(names) + "\n" + BODY)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("limit", "says"), [("MAX_TEXT_BYTES", "bytes"), ("MAX_NAMES", "names"), ("MAX_MARKS", "lines")]
)
def test_a_text_over_a_limit_is_not_parsed(monkeypatch, limit, says):
    monkeypatch.setattr(limits, limit, 2)
    with pytest.raises(FedcoreError, match=rf"the text has \d+ {says}; at most 2 are read"):
        parse_module(HEAD + BODY)


@pytest.mark.parametrize("value", ["1.5", "-0.0", "inf", "-inf", "1e+300", "12", 'b"\\x00"', "[[], [1]]"])
def test_an_attribute_comes_back_from_its_text(value):
    module = parse_module(with_attributes(f"a={value}"))
    assert parse_module(print_module(module)) == module


@pytest.mark.parametrize("value", ["a-b", "true", "nan", "fn", "return", "b", "loc", ""])
def test_a_word_that_is_an_attribute_stays_a_word(value):
    module = parse_module(with_attributes(f'a="{value}"'))
    assert parse_module(print_module(module)) == module
    assert module.graphs[0].attributes["a"] == value


def large(type_, operations: int) -> Module:
    """A chain of additions."""
    ops, last = [], Ref("x")
    for i in range(operations):
        ops.append(Operation(str(i), "generic_plus", (last, last), type_))
        last = Ref(str(i))
    return Module("traced", (), (Function("main", (Parameter("x", type_),), tuple(ops), last, type_),))


@pytest.mark.slow
@pytest.mark.parametrize(
    "type_", [to_type("int32"), StructType([(f"layer{i}", ("float32", (9, 9))) for i in range(4)])]
)
def test_forty_thousand_operations_print_and_parse_in_seconds(type_):
    module = large(type_, 40_000)
    began = time.process_time()
    text = print_module(module)
    printed = time.process_time()
    parsed = parse_module(text)
    ended = time.process_time()
    assert parsed == module
    assert verify(parsed) is parsed
    # Twice to four times what they take.
    assert printed - began < 0.8
    assert ended - printed < 4


def test_a_dump_of_several_stages_is_refused_at_the_second():
    one = "fedcore 1 traced\n\nfn @main(%x: {float32}@CLIENTS) -> {float32}@CLIENTS {\n  return %x\n}\n"
    with pytest.raises(ParseError, match=r"a second module begins here: .*--stage") as refused:
        parse_module(one + "\n// lowered\n" + one)
    assert refused.value.line == 8
