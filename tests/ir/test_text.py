import math
import struct

import attrs
import numpy as np
import pytest
from generators import federated_modules
from hypothesis import given
from hypothesis import strategies as st
from strategies import names

import fedcore as fc
from fedcore.errors import Location, ParseError
from fedcore.ir import (
    Blob,
    Builder,
    Constant,
    Function,
    Graph,
    Module,
    ModuleBuilder,
    Operation,
    Parameter,
    Ref,
    parse_module,
    print_module,
    verify,
)
from fedcore.types import CLIENTS, DTYPES, FunctionType, TensorType, to_type


def literal_module(constant: Constant) -> Module:
    type_ = TensorType(constant.dtype, constant.shape)
    op = Operation("0", "literal", (), type_, {"value": constant})
    return Module("traced", (), (Function("main", (), (op,), Ref("0"), type_),))


def round_trip(module: Module) -> Module:
    return parse_module(print_module(module))


@given(federated_modules())
def test_a_generated_module_comes_back_from_its_text(module):
    assert round_trip(module) == module


@given(federated_modules(max_steps=3))
def test_the_text_of_a_parsed_module_is_the_text(module):
    text = print_module(module)
    assert print_module(parse_module(text)) == text


NUMBERS = [d for d in DTYPES.values() if d.is_numeric and not d.is_complex]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@given(data=st.data())
def test_a_literal_of_any_bits_comes_back(dtype, data):
    size = dtype.numpy.itemsize
    bits = data.draw(st.binary(min_size=3 * size, max_size=3 * size))
    module = literal_module(Constant(dtype.name, (3,), bits))
    assert round_trip(module) == module


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@given(data=st.data())
def test_a_complex_literal_of_any_bits_comes_back(dtype, data):
    size = np.dtype(dtype).itemsize
    bits = data.draw(st.binary(min_size=size, max_size=size))
    module = literal_module(Constant(dtype, (), bits))
    assert round_trip(module) == module


@given(st.lists(st.binary(max_size=6), max_size=3))
def test_a_literal_of_bytes_comes_back(strings):
    module = literal_module(Constant("str", (len(strings),), tuple(strings)))
    assert round_trip(module) == module


@pytest.mark.parametrize("value", [True, False])
def test_a_bool_literal_comes_back(value):
    module = literal_module(Constant.of(value, "bool"))
    assert round_trip(module) == module


@pytest.mark.parametrize(
    ("value", "dtype", "written"),
    [
        (np.nan, "float32", "nan"),
        (-0.0, "float32", "-0.0"),
        (np.inf, "float64", "inf"),
        (-np.inf, "bfloat16", "-inf"),
        (0.1, "float32", "0.1"),
        (0.1, "float64", "0.1"),
        (np.iinfo(np.int64).min, "int64", "-9223372036854775808"),
        (np.iinfo(np.uint64).max, "uint64", "18446744073709551615"),
        (b'a"\\\x00\xff', "str", r'b"a\x22\x5c\x00\xff"'),
        (True, "bool", "true"),
    ],
)
def test_a_literal_is_written_shortest(value, dtype, written):
    assert f"{{value={written}}}" in str(literal_module(Constant.of(value, dtype)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_comes_back(dtype):
    module = literal_module(Constant(dtype, (2**16,), np.arange(2**16, dtype=np.uint16).tobytes()))
    assert round_trip(module) == module


def test_a_nan_payload_is_written_in_hex():
    bits = struct.pack("<I", 0x7FC01234)
    assert "nan(0x7fc01234)" in str(literal_module(Constant("float32", (), bits)))


def test_literals_are_equal_by_bits():
    assert Constant.of(math.nan, "float32") == Constant.of(math.nan, "float32")
    assert Constant.of(0.0, "float32") != Constant.of(-0.0, "float32")


@given(names, names)
def test_a_name_that_needs_quotes_comes_back(binding, symbol):
    type_ = to_type("int32")
    op = Operation(binding, "literal", (), type_, {"value": Constant.of(1, "int32")})
    module = Module("traced", (), (Function(symbol, (), (op,), Ref(binding), type_),))
    assert round_trip(module) == module


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), st.integers(1, 10**6))
def test_a_location_comes_back(file, line):
    module = literal_module(Constant.of(1, "int32"))
    (op,) = module.main.operations
    located = Operation(op.name, op.kind, op.operands, op.type, op.attributes, Location(file, line))
    module = Module("traced", (), (Function("main", (), (located,), Ref("0"), op.type),))
    assert round_trip(module).main.operations[0].location == Location(file, line)


def test_locations_are_outside_equality_and_digest():
    def module(line):
        type_ = to_type("int32")
        op = Operation("0", "literal", (), type_, {"value": Constant.of(1, "int32")}, Location("a.py", line))
        return Module("traced", (), (Function("main", (), (op,), Ref("0"), type_),))

    assert module(1) == module(2)
    assert module(1).digest() == module(2).digest()
    assert str(module(1)) != str(module(2))


ATTRIBUTES = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True),
    st.recursive(
        st.booleans() | st.integers() | names | st.from_regex(r"[0-9a-f]{6}", fullmatch=True).map(Blob),
        lambda inner: st.lists(inner, max_size=3).map(tuple),
        max_leaves=4,
    ),
    max_size=3,
)


@given(ATTRIBUTES)
def test_attributes_of_a_graph_come_back(attributes):
    graph = Graph("g", FunctionType("int32", "int32"), "ab" * 32, attributes)
    main = Function("main", (Parameter("x", to_type("int32")),), (), Ref("x"), to_type("int32"))
    module = Module("traced", (graph,), (main,))
    assert round_trip(module) == module


@given(ATTRIBUTES)
def test_attributes_of_a_stage_come_back(attributes):
    type_ = to_type("int32")
    stage = Function("stage", (Parameter("x", type_),), (), Ref("x"), type_, CLIENTS, attributes)
    module = Module("planned", (), (stage,))
    assert round_trip(module) == module


def test_ten_thousand_operations_come_back_and_verify():
    module = ModuleBuilder()
    builder = Builder(module)
    x = builder.parameter("x", to_type("int32"))
    with builder:
        for _ in range(10_000):
            x = fc.generic_plus(x, x)
    builder.finish("main", x)
    built = module.build()
    assert verify(round_trip(built)) == built


HEAD = "fedcore 1 traced\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("fedcore 2 traced\n", 1, 9, "this text has version 2"),
        ("fedcore 1 baked\n", 1, 11, "`baked` is no stage of compilation"),
        (HEAD + "fn main() -> int32 {\n  return %x\n}", 2, 4, "expected a symbol such as `@main`"),
        (HEAD + "fn @main(x: int32) -> int32 {\n  return %x\n}", 2, 10, "a binding such as `%0`"),
        (HEAD + "fn @main(%x: int33) -> int32 {\n  return %x\n}", 2, 14, "int33"),
        (
            HEAD + "fn @main() -> int8 {\n  %0 = literal() : int8 {value=128}\n  return %0\n}",
            3,
            3,
            "this literal is no int8",
        ),
        (HEAD + "fn @main() -> int8 {\n  %0 = literal() : int8[?] {value=[1]}\n  return %0\n}", 3, 3, "known sizes"),
        (HEAD + "graph @g : int32  sha256:ab\n", 2, 7, "a graph has the type of a function, not int32"),
        (HEAD + "stage @s() -> int32 at MARS {\n  return %0\n}", 2, 24, "`MARS` is no placement"),
        (HEAD + "fn @main() -> int32 {\n  %0 = literal() : int32 {value=1}", 3, 35, "expected"),
    ],
)
def test_a_parse_error_says_where_and_what(text, line, column, says):
    with pytest.raises(ParseError) as raised:
        parse_module(text)
    error = raised.value
    assert says in str(error)
    assert (error.line, error.column) == (line, column)
    assert f"line {line}, column {column}: " in str(error)


def test_a_parse_error_puts_the_caret_under_the_column():
    with pytest.raises(ParseError) as raised:
        parse_module(HEAD + "fn @main(x: int32) -> int32 {\n  return %x\n}")
    assert str(raised.value).split("\n")[1:] == [
        "  fn @main(x: int32) -> int32 {",
        "           ^ expected `)` or a binding such as `%0`",
    ]


LIBRARY_LINE = Location("train.py", 34, library=Location("fedcore/aggregators/sum.py", 28))


@pytest.mark.parametrize("spaces", [" ", "  "], ids=["as printed", "by hand"])
def test_a_library_line_comes_back_behind_the_user_line(spaces):
    module = literal_module(Constant.of(1, "int32"))
    op = attrs.evolve(module.main.operations[0], location=LIBRARY_LINE)
    text = print_module(attrs.evolve(module, functions=(attrs.evolve(module.main, operations=(op,)),)))
    assert 'loc("train.py":34 in "fedcore/aggregators/sum.py":28)' in text
    assert print_module(parse_module(text.replace(" in ", f"{spaces}in{spaces}"))) == text


def test_an_operation_of_an_algorithm_has_the_user_line_and_the_library_line():
    program = fc.aggregators.SumFactory().create(to_type("float32")).next.module
    (total,) = [op for f in program.functions for op in f.operations if op.kind == "federated_sum"]
    assert total.location is not None
    assert total.location.file.endswith("test_text.py")
    assert total.location.library is not None
    assert total.location.library.file == "fedcore/aggregators/sum.py"


def test_an_operation_of_the_user_has_no_library_line():
    program = fc.federated_computation(lambda x: fc.federated_sum(x), fc.types.at_clients("int32")).module
    assert program.main.operations[-1].location is not None
    assert program.main.operations[-1].location.library is None


def test_types_keep_their_names_from_one_text_to_the_next():
    first = "fedcore 1 traced\n\nfn @main(%x: {a}, %y: {a}, %z: {b}, %w: {b}) -> {a} {{\n  return %x\n}}\n"
    a, b = ("<" + ",".join(f"{name}{i}=float32" for i in range(6)) + ">" for name in "ab")
    names: dict = {}
    before = print_module(parse_module(first.format(a=a, b=b)), type_names=names)
    after = print_module(parse_module(first.replace("%x: {a}, %y: {a}, ", "").replace("{a}", "{b}")
                                      .replace("%x", "%z").format(b=b)), type_names=names)  # fmt: skip
    assert f"type T2 = {b}" in before
    assert f"type T2 = {b}" in after


def test_an_operation_prints_as_its_line():
    program = fc.federated_computation(lambda x: fc.federated_sum(x), fc.types.at_clients("int32")).module
    assert str(program.main.operations[-1]).startswith("%0 = federated_sum(%x) : int32@SERVER   loc(")
