import attrs
import pytest

import fedcore.intrinsics  # noqa: F401  declares the operations that the texts name
from fedcore.errors import FedcoreError, VerifyError
from fedcore.ir import Module, lookup, parse_module, verify

DIGEST = "ab" * 32


def traced(body: str, *, parameters="%x: {float32}@CLIENTS", result="float32@SERVER", before="") -> str:
    return f"fedcore 1 traced\n{before}\nfn @main({parameters}) -> {result} {{\n{body}\n}}"


def planned(body: str) -> str:
    stage = "stage @s(%a: int32) -> int32 at SERVER {\n  return %a\n}\n"
    return f"fedcore 1 planned\n{stage}fn @main(%x: int32@SERVER) -> int32@SERVER {{\n{body}\n}}"


IDENTITY = "fn @id(%a: float32) -> float32 {\n  return %a\n}"

CORRUPTIONS = {
    "an operand that is bound later": (
        traced("  %0 = federated_sum(%1) : float32@SERVER\n  return %0"),
        "@main: %0: %1 is not bound before",
    ),
    "a symbol that is not defined": (
        traced("  %0 = federated_map(@nowhere, %x) : {float32}@CLIENTS\n  return %0", result="{float32}@CLIENTS"),
        "@main: %0: @nowhere is not a symbol defined before",
    ),
    "a function that names itself": (
        traced("  %0 = call(@main, %x) : float32@SERVER\n  return %0"),
        "@main: %0: @main is not a symbol defined before",
    ),
    "a name bound twice": (
        traced("  %0 = federated_sum(%x) : float32@SERVER\n  %0 = federated_sum(%x) : float32@SERVER\n  return %0"),
        "@main: %0 is bound twice",
    ),
    "a binding with a parameter's name": (
        traced("  %x = federated_sum(%x) : float32@SERVER\n  return %x"),
        "@main: %x is bound twice",
    ),
    "a parameter given twice": (
        traced(
            "  %0 = federated_sum(%x) : float32@SERVER\n  return %0",
            parameters="%x: {float32}@CLIENTS, %x: {float32}@CLIENTS",
        ),
        "@main: parameter %x is given twice",
    ),
    "a symbol defined twice": (
        traced("  %0 = federated_sum(%x) : float32@SERVER\n  return %0", before=f"{IDENTITY}\n{IDENTITY}"),
        "@id is defined twice",
    ),
    "an operation that nobody declared": (
        traced("  %0 = federated_summ(%x) : float32@SERVER\n  return %0"),
        "@main: %0: no operation is called 'federated_summ'; did you mean federated_sum",
    ),
    "an operand of the wrong placement": (
        traced("  %0 = federated_sum(%x) : float32@SERVER\n  return %0", parameters="%x: float32@SERVER"),
        "@main: %0: federated_sum",
    ),
    "a wrong result type": (
        traced("  %0 = federated_sum(%x) : int32@SERVER\n  return %0", result="int32@SERVER"),
        "@main: %0: federated_sum gives float32@SERVER, but int32@SERVER is written",
    ),
    "too few operands": (
        traced("  %0 = federated_sum() : float32@SERVER\n  return %0"),
        "@main: %0: federated_sum: `value` is missing",
    ),
    "a function that does not take what is mapped": (
        traced(
            "  %0 = federated_map(@id, %x) : {float32}@CLIENTS\n  return %0",
            parameters="%x: {int32}@CLIENTS",
            result="{float32}@CLIENTS",
            before=IDENTITY,
        ),
        "@main: %0: federated_map",
    ),
    "an attribute that is missing": (
        traced("  %0 = item(%x) : float32\n  return %0", parameters="%x: <float32,float32>", result="float32"),
        "@main: %0: item lacks the attribute index",
    ),
    "an element that is not there": (
        traced(
            "  %0 = item(%x) : float32 {index=2}\n  return %0", parameters="%x: <float32,float32>", result="float32"
        ),
        "@main: %0: item: a value of type <float32,float32> has no element 2",
    ),
    "a literal of another type": (
        traced("  %0 = literal() : int32\n  return %0", result="int32"),
        "@main: %0: literal lacks the attribute value",
    ),
    "a result that is not bound": (
        traced("  return %1"),
        "@main: it returns %1, which is not bound",
    ),
    "a result of another type than declared": (
        traced("  return %x"),
        "@main: it returns {float32}@CLIENTS, but declares float32@SERVER",
    ),
    "a digest that is none": (
        traced(
            "  %0 = federated_sum(%x) : float32@SERVER\n  return %0", before="graph @g : (int32 -> int32)  sha256:ab"
        ),
        "graph @g: sha256:ab is no SHA-256 digest",
    ),
    "a graph over placed values": (
        traced(
            "  %0 = federated_sum(%x) : float32@SERVER\n  return %0",
            before=f"graph @g : (int32@SERVER -> int32)  sha256:{DIGEST}",
        ),
        "graph @g: (int32@SERVER -> int32) is no type of a local function",
    ),
    "a stage before there is a plan": (
        traced(
            "  %0 = federated_sum(%x) : float32@SERVER\n  return %0",
            before="stage @s(%a: int32) -> int32 at SERVER {\n  return %a\n}",
        ),
        "@s: a stage stands in a traced module",
    ),
    "an operation of a plan before there is one": (
        traced(
            "  %0 = broadcast(%x) : float32@CLIENTS\n  return %0",
            parameters="%x: float32@SERVER",
            result="float32@CLIENTS",
        ),
        "@main: %0: broadcast belongs to a plan, but the module is traced",
    ),
    "a derived operation in a lowered module": (
        traced("  %0 = federated_sum(%x) : float32@SERVER\n  return %0").replace("traced", "lowered"),
        "@main: %0: federated_sum is not lowered",
    ),
    "local work at the top level of a plan": (
        planned("  %0 = run(@s, %x) : int32@SERVER\n  %1 = generic_plus(%0, %0) : int32@SERVER\n  return %1"),
        "@main: %1: ",
    ),
    "a placed operation inside a stage": (
        "fedcore 1 planned\nstage @s(%a: float32@SERVER) -> float32@CLIENTS at SERVER {\n"
        "  %0 = federated_broadcast(%a) : float32@CLIENTS\n  return %0\n}\n"
        "fn @main(%x: int32@SERVER) -> int32@SERVER {\n  return %x\n}",
        "@s: %0: federated_broadcast stands inside a stage",
    ),
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_the_verifier_names_the_binding_with(what):
    text, says = CORRUPTIONS[what]
    with pytest.raises(VerifyError) as raised:
        verify(parse_module(text))
    assert str(raised.value).startswith("the module is not valid:\n")
    assert says in str(raised.value)


def test_all_problems_are_told_at_once():
    text = traced("  %0 = federated_sum(%nope) : float32@SERVER\n  return %1")
    with pytest.raises(VerifyError) as raised:
        verify(parse_module(text))
    assert "%nope is not bound before" in str(raised.value)
    assert "it returns %1" in str(raised.value)


def test_a_problem_tells_the_users_line():
    text = traced('  %0 = federated_sum(%x) : int32@SERVER   loc("train.py":41)\n  return %0', result="int32@SERVER")
    with pytest.raises(VerifyError, match=r"@main: %0 \(train\.py:41\): federated_sum gives"):
        verify(parse_module(text))


def test_a_module_without_functions_is_refused():
    with pytest.raises(VerifyError, match="it holds no function"):
        verify(Module("traced", (), ()))


def test_a_valid_module_is_returned_itself():
    module = parse_module(traced("  %0 = federated_sum(%x) : float32@SERVER\n  return %0"))
    assert verify(module) is module


def test_an_unknown_stage_cannot_be_made():
    with pytest.raises(ValueError, match="stage"):
        attrs.evolve(parse_module(traced("  return %x", result="{float32}@CLIENTS")), stage="baked")


def test_looking_up_an_unknown_operation_names_close_ones():
    with pytest.raises(FedcoreError, match="no operation is called 'federated_mea'; did you mean federated_mean"):
        lookup("federated_mea")
