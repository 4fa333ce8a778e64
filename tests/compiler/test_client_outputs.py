"""What leaves a client, in every form of a plan: each has a program that discloses a value, and one that does not."""

import pytest

import fedcore.intrinsics  # noqa: F401  declares the operations that the texts name
from fedcore.compiler.client_data import KEPT, NotFollowed
from fedcore.compiler.client_outputs import ClientOutputs
from fedcore.compiler.disclosures import disclosures
from fedcore.ir import parse_module, verify

STAGES = """fedcore 1 planned

stage @zero() -> int32 at CLIENTS {
  %0 = generic_zero() : int32
  return %0
}

stage @zero_of(%shared: int32) -> int32 at CLIENTS {
  %0 = generic_zero() : int32
  return %0
}

stage @add(%partial: int32, %x: int32) -> int32 at CLIENTS {
  %0 = generic_plus(%partial, %x) : int32
  return %0
}

stage @add_shared(%partial: int32, %shared: int32, %x: int32) -> int32 at CLIENTS {
  %0 = generic_plus(%partial, %shared) : int32
  return %0
}

stage @add_product(%partial: int32, %shared: int32, %x: int32) -> int32 at CLIENTS {
  %0 = generic_multiply(%shared, %x) : int32
  %1 = generic_plus(%partial, %0) : int32
  return %1
}

stage @keep(%partial: int32, %x: int32) -> <int32,<int32,int32>> at CLIENTS {
  %0 = generic_plus(%partial, %x) : int32
  %1 = literal() : int32 {value=1}
  %2 = struct(%x, %1) : <int32,int32>
  %3 = struct(%0, %2) : <int32,<int32,int32>>
  return %3
}

stage @pair(%x: int32) -> <int32,int32> at CLIENTS {
  %0 = literal() : int32 {value=1}
  %1 = struct(%x, %0) : <int32,int32>
  return %1
}

stage @join(%left: int32, %right: int32) -> int32 at CLIENTS {
  %0 = generic_plus(%left, %right) : int32
  return %0
}

stage @server(%merged: int32) -> int32 at SERVER {
  return %merged
}

"""


def plan(*lines: str, result: str = "int32@SERVER", parameters: str = "%x: {int32}@CLIENTS"):
    body = "\n".join(f"  {line}" for line in lines)
    return verify(parse_module(f"{STAGES}fn @main({parameters}) -> {result} {{\n{body}\n}}\n"))


def disclosed(module) -> list[str]:
    return [d.tensor for d in disclosures(module)]


FOLD = "%0 = fold(@zero, @add, %x) : {int32}@CLIENTS"
MASKED = '{secure=["any"], bits=32}'
KEEP = "%0 = fold(@zero, @keep, %x) : <{int32}@CLIENTS,{<int32,int32>}@CLIENTS> {keeps=true}"
FIRST = "%1 = item(%0) : {int32}@CLIENTS {index=0}"
KEPT_PAIR = "%2 = item(%0) : {<int32,int32>}@CLIENTS {index=1}"


def element(name: str, index: int, of: str) -> str:
    return f"{name} = item({of}) : {{int32}}@CLIENTS {{index={index}}}"


def total_of(operand: str, first: int) -> tuple[str, str, str]:
    """An open sum of a client value."""
    fold, merged = f"%{first}", f"%{first + 1}"
    return (
        f"{fold} = fold(@zero, @add, {operand}) : {{int32}}@CLIENTS",
        f"{merged} = merge(@join, {fold}) : int32@SERVER {{bits=32}}",
        f"return {merged}",
    )


COLLECT = "%0 = collect(@pair, %x) : {<int32,int32>}@CLIENTS"

MASKED_ONLY = {
    "merge": (FOLD, f"%1 = merge(@join, %0) : int32@SERVER {MASKED}", "return %1"),
    "merge of an item": (KEEP, FIRST, f"%2 = merge(@join, %1) : int32@SERVER {MASKED}", "return %2"),
    "run and broadcast": (
        FOLD,
        f"%1 = merge(@join, %0) : int32@SERVER {MASKED}",
        "%2 = run(@server, %1) : int32@SERVER",
        "%3 = broadcast(%2) : int32@CLIENTS {bits=32}",
        "%4 = fold(@zero_of, @add_shared, %3, %x) : {int32}@CLIENTS",
        "%5 = merge(@join, %4) : int32@SERVER {bits=32}",
        "return %5",
    ),
    "constant element of a kept value": (
        KEEP,
        FIRST,
        KEPT_PAIR,
        f"%3 = merge(@join, %1) : int32@SERVER {MASKED}",
        element("%4", 1, "%2"),
        *total_of("%4", 5),
    ),
    "constant element of a collected value": (COLLECT, element("%1", 1, "%0"), *total_of("%1", 2)),
    "element of a struct of client values": (
        COLLECT,
        element("%1", 1, "%0"),
        "%2 = struct(%x, %1) : <{int32}@CLIENTS,{int32}@CLIENTS>",
        element("%3", 1, "%2"),
        *total_of("%3", 4),
    ),
}

DISCLOSING = {
    "merge": (FOLD, "%1 = merge(@join, %0) : int32@SERVER {bits=32}", "return %1"),
    "merge that claims to have no bits": (FOLD, "%1 = merge(@join, %0) : int32@SERVER {bits=0}", "return %1"),
    "merge of an item": (KEEP, FIRST, "%2 = merge(@join, %1) : int32@SERVER {bits=32}", "return %2"),
    "fold without merge": (
        FOLD,
        "%1 = fold(@zero, @add, %x) : {int32}@CLIENTS",
        f"%2 = merge(@join, %0) : int32@SERVER {MASKED}",
        "return %2",
    ),
    "run and broadcast": (
        FOLD,
        f"%1 = merge(@join, %0) : int32@SERVER {MASKED}",
        "%2 = run(@server, %1) : int32@SERVER",
        "%3 = broadcast(%2) : int32@CLIENTS {bits=32}",
        "%4 = fold(@zero_of, @add_product, %3, %x) : {int32}@CLIENTS",
        "%5 = merge(@join, %4) : int32@SERVER {bits=32}",
        "return %5",
    ),
    "element of a kept value": (
        KEEP,
        FIRST,
        KEPT_PAIR,
        f"%3 = merge(@join, %1) : int32@SERVER {MASKED}",
        element("%4", 0, "%2"),
        *total_of("%4", 5),
    ),
    "element of a collected value": (COLLECT, element("%1", 0, "%0"), *total_of("%1", 2)),
    "element of a struct of client values": (
        COLLECT,
        element("%1", 1, "%0"),
        "%2 = struct(%x, %1) : <{int32}@CLIENTS,{int32}@CLIENTS>",
        element("%3", 0, "%2"),
        *total_of("%3", 4),
    ),
}


@pytest.mark.parametrize("form", MASKED_ONLY)
def test_a_plan_of_masked_sums_discloses_nothing(form):
    assert disclosed(plan(*MASKED_ONLY[form])) == []


@pytest.mark.parametrize("form", DISCLOSING)
def test_a_value_that_leaves_outside_of_masked_sums_is_named(form):
    assert len(disclosed(plan(*DISCLOSING[form]))) == 1


@pytest.mark.parametrize("form", DISCLOSING)
@pytest.mark.parametrize("masked", [False, True])
def test_each_fold_has_the_bits_of_what_leaves(form, masked):
    outputs = ClientOutputs(plan(*DISCLOSING[form]))

    assert [sum(o.bits for o in outputs.of(fold, masked=masked)) for fold in outputs.folds] == [32] * len(outputs.folds)


def test_what_stays_at_the_client_is_no_output():
    outputs = ClientOutputs(plan(COLLECT, "return %0", result="{<int32,int32>}@CLIENTS"))

    assert outputs.folds == []
    assert outputs.of("0", masked=False) == ()
    assert outputs.data.returned.keys() == {"0"}


NOT_FOLLOWED = {
    "two merges of a fold": (
        FOLD,
        f"%1 = merge(@join, %0) : int32@SERVER {MASKED}",
        "%2 = merge(@join, %0) : int32@SERVER {bits=32}",
        "return %2",
    ),
    "a partial as a client's value": (FOLD, *total_of("%0", 1)),
    "the partial of a fold that keeps values": (KEEP, FIRST, *total_of("%1", 2)),
}


def test_a_partial_is_no_result_of_clients():
    with pytest.raises(NotFollowed):
        ClientOutputs(plan(FOLD, "return %0", result="{int32}@CLIENTS"))


@pytest.mark.parametrize("form", NOT_FOLLOWED)
def test_a_way_that_is_not_followed_is_refused(form):
    with pytest.raises(NotFollowed):
        ClientOutputs(plan(*NOT_FOLLOWED[form]))


@pytest.mark.parametrize("form", ["element of a kept value", "element of a struct of client values"])
def test_the_source_of_a_client_value_is_found_through_structs(form):
    flows = ClientOutputs(plan(*DISCLOSING[form])).data.stages
    (source,) = list(flows.values())[-1].sources

    expected = (KEPT, "0", (0,)) if "kept" in form else ("argument", "x", ())
    assert (source.kind, source.name, source.path) == expected
