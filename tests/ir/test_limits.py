"""What a text may ask of its reader: each is refused, or read, within seconds and a gigabyte."""

import subprocess
import sys
from pathlib import Path

import pytest

import fedcore.intrinsics
from fedcore.errors import FedcoreError, InvalidValue
from fedcore.ir import parse_module, verify

HEAD = "fedcore 1 traced\n"
BOUNDED = """
import resource, sys
import fedcore.intrinsics
from fedcore.errors import FedcoreError
from fedcore.ir import bundle, verify
from fedcore.ir.calls import check_inlined_size
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
try:
    check_inlined_size(verify(bundle.from_bytes(sys.stdin.buffer.read())))
except FedcoreError as error:
    print(str(error)[:1000])
"""


def function(type_: str, operations: str = "", result: str = "x") -> str:
    return f"fn @f(%x: {type_}) -> {type_} {{\n{operations}  return %{result}\n}}\n"


def sums(count: int, type_: str) -> str:
    lines = (f"  %{i} = generic_plus(%{i - 1 if i else 'x'}, %x) : {type_}\n" for i in range(count))
    return function(type_, "".join(lines), str(count - 1))


def doubling(depth: int) -> str:
    """Functions that call the one before twice."""
    text = "fn @f0(%x: int32) -> int32 {\n  return %x\n}\n"
    for i in range(1, depth):
        text += f"fn @f{i}(%x: int32) -> int32 {{\n  %0 = call(@f{i - 1}, %x) : int32\n"
        text += f"  %1 = call(@f{i - 1}, %0) : int32\n  return %1\n}}\n"
    return text


def nested_types(count: int) -> str:
    """Types of two of the one before, and operations on the largest: 9 KB that stand for millions of parts."""
    types = "type T0 = int32\n" + "".join(f"type T{i + 1} = <T{i},T{i}>\n" for i in range(15))
    return types + sums(count, "T15")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('fn @"' + "x" * 2**24, "unexpected `@`"),
        ('fn @"' + "\\x" * 2**23, "unexpected `@`"),
        (function("str", '  %0 = literal() : str {value=b"' + "x" * 2**24), 'unexpected `"`'),
        (function("<a=" + '"' + "x" * 20_000 + '"' + "=int32>"), "unexpected"),
        (function('<"' + "x" * 20_000 + '"=int32>'), "a quoted name has more than 10000 characters"),
        (nested_types(250), "types of more than 4000000 parts together"),
        (doubling(40), "@f18 is too large: with every function that it calls written out, it has more than 250000"),
        ("".join(f"fn @f{i}(%x: T) -> T {{\n  return %y\n}}\n" for i in range(2000)), "and more"),
    ],
    ids=["string", "escapes", "bytes", "name", "long name", "types", "calls", "problems"],
)
def test_what_would_take_too_long_is_refused(text, says):
    path = str(Path(fedcore.intrinsics.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED], input=(HEAD + text).encode(), env={"PYTHONPATH": path}, capture_output=True
    )
    said = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()[-1000:]
    assert says in said or (says == "and more" and len(said) == 1001)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (function("int32" + "*" * 99), "types nest at most 100 deep"),
        (
            "fn @f(" + ", ".join(f"%x{i}: int32" for i in range(100_001)) + ") -> int32 {\n  return %x0\n}\n",
            "100000 parts",
        ),
    ],
    ids=["deep", "many"],
)
def test_the_type_of_a_function_has_the_limits_of_types(text, says):
    with pytest.raises(InvalidValue, match=says):
        verify(parse_module(f"{HEAD}type T = <{','.join(['int32'] * 4000)}>\n{text}"))


@pytest.mark.parametrize(
    ("shape", "says"),
    [(["1"] * 255, "at most 254 dimensions, not 255"), (["4294967296", "4294967296"], r"fewer than 2\*\*63 elements")],
)
def test_a_shape_is_one_that_tensorflow_can_hold(shape, says):
    with pytest.raises(FedcoreError, match=says):
        parse_module(HEAD + function(f"int32[{','.join(shape)}]"))


def test_a_long_chain_of_operations_is_read():
    module = verify(parse_module(HEAD + sums(20_000, "int32")))
    assert len(module.main.operations) == 20_000
