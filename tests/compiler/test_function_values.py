"""Functions that are captured by functions, passed on, and given to operations, however deep."""

import pytest

import fedcore as fc
from fedcore.compiler import compile_module
from fedcore.computation.computation import Computation
from fedcore.ir import parse_module, verify

MANY = 10_000
RUNTIMES = [fc.runtime.local, fc.runtime.reference]
NUMBER = fc.TensorType("int32")
FUNCTION = fc.FunctionType(NUMBER, NUMBER)
CLIENTS = fc.FederatedType(NUMBER, fc.CLIENTS)

TWICE = "fn @twice(%x: int32) -> int32 {\n  %0 = generic_plus(%x, %x) : int32\n  return %0\n}\n\n"
APPLY = f"fn @apply(%g: {FUNCTION}, %x: int32) -> int32 {{\n  %0 = call(%g, %x) : int32\n  return %0\n}}\n\n"


def parsed(text: str) -> Computation:
    return Computation(verify(parse_module(f"fedcore 1 traced\n\n{text}")))


def bound(n: int, kind: str = "int32", use: str = "call") -> Computation:
    """A function that calls the one that it captures, which calls the one that it captures, and so on."""
    lines = [f"  %b{i} = bind(@apply, {f'%b{i - 1}' if i else '@twice'}) : {FUNCTION}" for i in range(n)]
    lines += [f"  %r = {use}(%b{n - 1}, %x) : {kind}", "  return %r"]
    return parsed(TWICE + APPLY + f"fn @main(%x: {kind}) -> {kind} {{\n" + "\n".join(lines) + "\n}\n")


def passed_on(n: int) -> Computation:
    """Functions that bind the function that they are given, and give it to the next."""
    lines = ["%b = bind(@apply, %g)", "%0 = call(@f{0}, %b, %x)"]
    body = f"  {lines[0]} : {FUNCTION}\n  {lines[1]} : int32\n  return %0\n"
    functions = [APPLY.replace("@apply", "@f0")]
    functions += [f"fn @f{i}(%g: {FUNCTION}, %x: int32) -> int32 {{\n{body.format(i - 1)}}}\n\n" for i in range(1, n)]
    main = f"fn @main(%x: int32) -> int32 {{\n  %r = call(@f{n - 1}, @twice, %x) : int32\n  return %r\n}}\n"
    return parsed(TWICE + APPLY + "".join(functions) + main)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    "program",
    [lambda: bound(MANY), lambda: bound(MANY, "int32@SERVER", "federated_map"), lambda: passed_on(MANY // 5)],
    ids=["called", "mapped", "passed on"],
)
def test_functions_in_functions_need_no_stack_of_pythons(program, runtime):
    with fc.use(runtime()):
        assert program()(3) == 6


@fc.federated_computation(FUNCTION, CLIENTS)
def mapped(fn, xs):
    return fc.federated_map(lambda x: fn(x), xs)


@fc.federated_computation(FUNCTION, fc.SequenceType(NUMBER))
def reduced(fn, xs):
    return fc.sequence_reduce(xs, 0, lambda total, x: total + fn(x))


@fc.federated_computation(FUNCTION, CLIENTS, CLIENTS)
def aggregated(fn, xs, _):
    return fc.federated_aggregate(xs, 0, lambda t, x: t + fn(x), lambda a, b: a + b, lambda t: fn(t))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("program", "type_", "result"),
    [
        (lambda xs: mapped(lambda x: x + 1, xs), CLIENTS, [2, 3, 4]),
        (lambda xs: reduced(lambda x: x + 1, xs), fc.SequenceType(NUMBER), 9),
        (lambda xs: aggregated(lambda x: x + 1, xs, xs), CLIENTS, 10),
    ],
    ids=["map", "reduce", "aggregate"],
)
def test_a_lambda_captures_a_function_that_is_given(program, type_, result, runtime):
    with fc.use(runtime()):
        assert fc.federated_computation(program, type_)([1, 2, 3]) == result


def test_a_lambda_captures_values_and_functions_that_capture_values():
    def applied(fn, x):
        return fc.federated_computation(lambda g, y: g(y), FUNCTION, NUMBER)(fn, x)

    def program(xs, s):
        return fc.federated_map(lambda x: applied(lambda y: applied(lambda z: z * s + x, y) + s, x), xs)

    outer = fc.federated_computation(program, CLIENTS, NUMBER)
    assert outer([1, 2], 10) == [21, 32]  # x * 10 + x + 10
    with fc.use(fc.runtime.reference()):
        assert outer([1, 2], 10) == [21, 32]


def test_main_stays_the_last_function_where_it_equals_another():
    main = "fn @main(%x: int32) -> int32 {\n  %0 = call(@apply, @twice, %x) : int32\n  return %0\n}\n"
    inlined = compile_module(parsed(TWICE + APPLY + main).module, "inline")
    assert inlined.main.name == "main"
    assert str(inlined.main.type) == "(int32 -> int32)"
    assert passed_on(2)(3) == 6
