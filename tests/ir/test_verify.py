import attrs
import pytest

import fedcore.intrinsics  # noqa: F401  declares the operations that the texts name
from fedcore.errors import FedcoreError, VerifyError
from fedcore.ir import Constant, Function, Graph, Module, Operation, Ref, lookup, parse_module, verify
from fedcore.types import FunctionType, TensorType

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
    "an argument for a function of none": (
        traced(
            "  %0 = call(@none, %x) : float32\n  return %0",
            parameters="%x: float32",
            result="float32",
            before="fn @none() -> float32 {\n  %0 = literal() : float32 {value=0.0}\n  return %0\n}",
        ),
        "@main: %0: call: the function takes no argument, but is given float32",
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


FOLDING = """fedcore 1 planned

stage @zero(%w: float32) -> float32 at CLIENTS {
  %0 = literal() : float32 {value=0.0}
  return %0
}

stage @work(%partial: float32, %w: float32, %x: float32) -> float32 at CLIENTS {strategy=loop, block=2} {
  %0 = generic_multiply(%w, %x) : float32
  %1 = generic_plus(%partial, %0) : float32
  return %1
}

stage @each(%w: float32, %x: float32) -> float32 at CLIENTS {
  %0 = generic_multiply(%w, %x) : float32
  return %0
}

stage @join(%left: float32, %right: float32) -> float32 at CLIENTS {
  %0 = generic_plus(%left, %right) : float32
  return %0
}

stage @half(%total: float32) -> float32 at SERVER {
  %0 = literal() : float32 {value=0.5}
  %1 = generic_multiply(%0, %total) : float32
  return %1
}

fn @main(%s: float32@SERVER, %xs: {float32}@CLIENTS) -> float32@SERVER {
  %0 = broadcast(%s) : float32@CLIENTS {bits=32}
  %1 = fold(@zero, @work, %0, %xs) : {float32}@CLIENTS
  %2 = merge(@join, %1) : float32@SERVER {bits=32}
  %3 = collect(@each, %0, %xs) : {float32}@CLIENTS
  %4 = run(@half, %2) : float32@SERVER
  return %4
}
"""

# What is written instead of a piece of FOLDING, and what the verifier says.
CHANGES = {
    "an unknown strategy": (
        "strategy=loop",
        "strategy=quick",
        "@work: the attribute strategy is one of loop, vectorised, ",
    ),
    "a strategy that is no word": ("strategy=loop", "strategy=[1, 2]", "@work: the attribute strategy is one of"),
    "a negative block": ("block=2", "block=-2", "the attribute block is a number of clients, 1 to 65536, not -2"),
    "an empty block": ("block=2", "block=0", "@work: the attribute block is"),
    "half a block": ("block=2", "block=0.5", "@work: the attribute block is"),
    "a block that is true": ("block=2", "block=true", "@work: the attribute block is"),
    "a width of one": ("block=2", "width=1", "@work: the attribute width is a number of clients, 2 to 65536"),
    "a reason of two lines": ("block=2", r'why="a\nb"', "@work: the attribute why is a line of at most 200 characters"),
    "a reason without an end": ("block=2", f'why="{"a" * 201}"', "@work: the attribute why is a line of at most 200"),
    "a reason that is a number": ("block=2", "why=1", "@work: the attribute why is a line of at most 200 characters"),
    "xla that is a number": ("block=2", "xla=1", "@work: the attribute xla is true or false, not 1"),
    "an unknown attribute of a stage": ("block=2", "blocks=2", "@work: a stage has no attribute blocks"),
    "bits that are text": ("{bits=32}\n  %1", '{bits="32 bits"}\n  %1', "@main: %0: the attribute bits is a number"),
    "negative bits": ("{bits=32}\n  %1", "{bits=-1}\n  %1", "@main: %0: the attribute bits is a number of bits"),
    "an unknown attribute of a crossing": (
        "{bits=32}\n  %1",
        "{bytes=4}\n  %1",
        "%0: broadcast has no attribute bytes",
    ),
    "a fold that keeps what is not kept": (
        "%0, %xs) : {float32}@CLIENTS\n  %2",
        "%0, %xs) : {float32}@CLIENTS {keeps=true}\n  %2",
        "@main: %1: fold: a stage that keeps client values returns <partial,kept>",
    ),
    "keeps that is a word": (
        "%0, %xs) : {float32}@CLIENTS\n  %2",
        "%0, %xs) : {float32}@CLIENTS {keeps=yes}\n  %2",
        "@main: %1: the attribute keeps is true or false, not yes",
    ),
    "a fold without a stage": (
        "fold(@zero, @work, %0, %xs)",
        "fold(@zero)",
        "%1: fold takes 2 operands or more, not 1",
    ),
    "a fold without anything": ("fold(@zero, @work, %0, %xs)", "fold()", "@main: %1: fold takes 2 operands or more"),
    "a stage that takes more than it is given": ("@work, %0, %xs)", "@work, %xs)", "@main: %1: fold"),
    "a stage that takes less than it is given": ("@work, %0, %xs)", "@work, %0, %xs, %xs)", "@main: %1: fold"),
    "broadcasts after client values": ("@work, %0, %xs)", "@work, %xs, %0)", "what is broadcast comes before"),
    "a server value that is folded": ("@work, %0, %xs)", "@work, %s, %xs)", "@main: %1: a value at CLIENTS is wanted"),
    "a zero of another type than the partial": (
        "stage @zero(%w: float32) -> float32 at CLIENTS {\n  %0 = literal() : float32 {value=0.0}",
        "stage @zero(%w: float32) -> int32 at CLIENTS {\n  %0 = literal() : int32 {value=0}",
        "@main: %1: fold: the argument does not fit",
    ),
    "a stage that returns no partial": (
        "%w: float32, %x: float32) -> float32 at CLIENTS {strategy=loop, block=2} {",
        "%w: float32, %x: float32) -> <float32> at CLIENTS {\n  %2 = struct(%w) : <float32>\n  return %2\n}\n"
        "stage @unused(%partial: float32, %w: float32, %x: float32) -> float32 at CLIENTS {",
        "@main: %1: fold: what the stage returns is not the partial that it takes",
    ),
    "a join of another type": (
        "stage @join(%left: float32, %right: float32) -> float32 at CLIENTS {\n"
        "  %0 = generic_plus(%left, %right) : float32",
        "stage @join(%left: float32, %right: float32) -> <float32> at CLIENTS {\n  %0 = struct(%left) : <float32>",
        "@main: %2: merge: what the stage returns is not the partial that it takes",
    ),
    "a join that takes one partial": (
        ", %right: float32) -> float32 at CLIENTS {\n",
        ") -> float32 at CLIENTS {\n",
        "@main: %2",
    ),
    "a merge of what no fold gave": ("merge(@join, %1)", "merge(@join, %xs)", "%2: merge joins the partials of a fold"),
    "a merge of a parameter that is not there": ("merge(@join, %1)", "merge(@join, %9)", "%2: %9 is not bound before"),
    "a merge of three": ("merge(@join, %1)", "merge(@join, %1, %1)", "@main: %2: merge takes 2 operands, not 3"),
    "a merge by a value": ("merge(@join, %1)", "merge(%1, %1)", "@main: %2: merge runs a stage, but %1 is not a stage"),
    "a client stage that runs at the server": (
        "run(@half",
        "run(@join",
        "%4: run runs a stage at SERVER, but @join is",
    ),
    "a server stage that runs at the clients": ("@each, %0", "@half, %0", "%3: collect runs a stage at CLIENTS"),
    "a run of nothing": ("run(@half, %2)", "run()", "@main: %4: run takes 1 operands or more"),
    "a run of client values": ("run(@half, %2)", "run(@half, %3)", "@main: %4: a value at SERVER is wanted"),
    "a run of more than the stage takes": ("run(@half, %2)", "run(@half, %2, %2)", "@main: %4: run"),
    "a broadcast of a client value": ("broadcast(%s)", "broadcast(%xs)", "@main: %0: a value at SERVER is wanted"),
    "a broadcast of nothing": ("broadcast(%s)", "broadcast()", "@main: %0: broadcast takes 1 operand, not 0"),
    "a broadcast of a stage": ("broadcast(%s)", "broadcast(@half)", "@main: %0: "),
    "a stage used before it is defined": (
        "generic_plus(%left",
        "call(@half, %left",
        "@join: %0: @half is not a symbol",
    ),
    "a stage over placed values": ("(%total: float32)", "(%total: float32@SERVER)", "@half: a stage computes at one"),
    "a stage that calls a plan's operation": (
        "generic_multiply(%0, %total)",
        "run(%0)",
        "@half: %1: run stands inside",
    ),
    "a plan that takes a function": (
        "%xs: {float32}@CLIENTS)",
        "%xs: {float32}@CLIENTS, %f: (-> int32))",
        "%f is a func",
    ),
    "a plan that ends in a stage": (
        "fn @main",
        "stage @s() -> int32 at SERVER {\n  return %0\n}\nfn @main",
        "%0, which",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_verifier_names_what_is_wrong_in_a_plan_with(what):
    old, new, says = CHANGES[what]
    assert FOLDING.count(old) == 1
    with pytest.raises(VerifyError) as raised:
        verify(parse_module(FOLDING.replace(old, new)))
    assert says in str(raised.value)


def test_the_plan_that_is_changed_is_valid():
    verify(parse_module(FOLDING))


def local(body: str, result: str = "float32", parameters: str = "%x: float32") -> str:
    return traced(body, parameters=parameters, result=result)


GRAPH = f"graph @g : (float32 -> float32)  sha256:{DIGEST}"

# The line of one operation on %x: float32 and @id: (float32 -> float32), and what the verifier says.
LINES = {
    "an unknown attribute": ("generic_plus(%x, %x) : float32 {by=2}", "%0: generic_plus has no attribute by"),
    "an index that is text": ('item(%x) : float32 {index="0"}', "the attribute index is the position of an element"),
    "a negative index": ("item(%x) : float32 {index=-1}", "the attribute index is the position of an element, not -1"),
    "an item of no struct": ("item(%x) : float32 {index=0}", "item: a value of type float32 has no element 0"),
    "an item of nothing": ("item() : float32 {index=0}", "%0: item takes 1 operand, not 0"),
    "an item of two": ("item(%x, %x) : float32 {index=0}", "%0: item takes 1 operand, not 2"),
    "a literal that is a word": ("literal() : int32 {value=sha256:ab}", "the bytes of sha256:ab are not there"),
    "a literal with an operand": ("literal(%x) : float32 {value=1.0}", "%0: literal takes 0 operands, not 1"),
    "a literal with an attribute more": ("literal() : float32 {value=1.0, unit=m}", "literal has no attribute unit"),
    "a call of a value": ("call(%x, %x) : float32", "call: a value of type float32 is not a function"),
    "a call of nothing": ("call() : float32", "%0: call takes 1 operands or more, not 0"),
    "a call without its argument": ("call(@id) : float32", "%0: call"),
    "a call with two arguments for one": ("call(@id, %x, %x) : float32", "%0: call"),
    "a call that gives something else": ("call(@id, %x) : int32", "call gives float32, but int32 is written"),
    "a bind of a value": (
        "bind(%x, %x) : (-> float32)",
        "bind: a function with parameters is wanted, not float32",
    ),
    "a bind of more than is taken": (
        "bind(@id, %x, %x) : (-> float32)",
        "%0: bind: (float32 -> float32) does not take",
    ),
    "a function that is added": ("generic_plus(@id, @id) : (float32 -> float32)", "%0: generic_plus"),
    "a function that is placed": ("federated_value(@id) : float32@SERVER {placement=SERVER}", "%0: "),
    "a placement that is none": (
        "federated_value(%x) : float32@SERVER {placement=MARS}",
        "placement is a placement, not MARS",
    ),
    "a placement that is missing": ("federated_value(%x) : float32@SERVER", "lacks the attribute placement"),
    "a placement that is a number": ("federated_value(%x) : float32@SERVER {placement=1}", "placement is a placement"),
    "zeros of unknown shape": ("generic_zero() : float32[?]", "generic_zero gives numbers of known shapes"),
    "zeros that are text": ("generic_zero() : str", "generic_zero gives numbers of known shapes"),
    "zeros that are placed": ("generic_zero() : int32@SERVER", "generic_zero gives numbers of known shapes"),
    "zeros of an operand": ("generic_zero(%x) : float32", "%0: generic_zero takes 0 operands, not 1"),
    "a type variable": ("call(@id, %x) : T", "T has a type variable, which stands in signatures only"),
    "a placement variable": ("federated_value(%x) : float32@P {placement=SERVER}", "has a type variable"),
    "placed in placed": ("federated_value(%x) : {float32@SERVER}@CLIENTS {placement=CLIENTS}", "is itself placed"),
    "the type of a placement": ("call(@id, %x) : placement", "placement is the type of no value"),
    "a struct with too many parts": ("struct(%x) : <float32,float32>", "struct gives <float32>, but <float32,float32>"),
    "a value where a function is wanted": ("federated_map(%x, %x) : float32", "%0: federated_map"),
    "a sum of what is not placed": ("federated_sum(%x) : float32@SERVER", "%0: federated_sum"),
    "a symbol used as a binding": ("generic_plus(%id, %x) : float32", "%0: %id is not bound before"),
    "a binding used as a symbol": ("call(@x, %x) : float32", "%0: @x is not a symbol defined before"),
    "a binding used by itself": ("generic_plus(%0, %x) : float32", "%0: %0 is not bound before"),
}


@pytest.mark.parametrize("what", LINES)
def test_the_verifier_names_the_binding_of_a_line_with(what):
    line, says = LINES[what]
    text = traced(f"  %0 = {line}\n  return %x", parameters="%x: float32", result="float32", before=IDENTITY)
    with pytest.raises(VerifyError) as raised:
        verify(parse_module(text))
    assert "@main: %0" in str(raised.value)
    assert says in str(raised.value)


@pytest.mark.parametrize(("takes", "written"), [("float32[?]", "float32[3]"), ("float32[3]", "float32[?]")])
def test_a_result_with_other_sizes_than_it_has_is_refused(takes, written):
    body = f"  %0 = generic_plus(%x, %x) : {written}\n  return %0"
    with pytest.raises(VerifyError) as raised:
        verify(parse_module(traced(body, parameters=f"%x: {takes}", result=written)))
    assert f"%0: generic_plus gives {takes}, but {written} is written" in str(raised.value)


def secure_plan(type_: str, message: str, merge: str) -> str:
    return f"""fedcore 1 planned
stage @clients(%partial: {type_}, %x: {type_}) -> {type_} at CLIENTS {{
  %0 = message(%x) : {type_} {{secure={message}}}
  %1 = generic_plus(%partial, %0) : {type_}
  return %1
}}
stage @zero() -> {type_} at CLIENTS {{
  %0 = generic_zero() : {type_}
  return %0
}}
stage @join(%left: {type_}, %right: {type_}) -> {type_} at CLIENTS {{
  %0 = generic_plus(%left, %right) : {type_}
  return %0
}}
fn @main(%x: {{{type_}}}@CLIENTS) -> {type_}@SERVER {{
  %0 = fold(@zero, @clients, %x) : {{{type_}}}@CLIENTS
  %1 = merge(@join, %0) : {type_}@SERVER {{secure={merge}}}
  return %1
}}"""


@pytest.mark.parametrize("range_", ["any", "0..127", "mod 127"])
def test_a_merge_may_be_secure_or_open(range_):
    verify(parse_module(secure_plan("int8", f'"{range_}"', f'["{range_}"]')))
    verify(parse_module(secure_plan("int8", f'"{range_}"', '[""]')))


@pytest.mark.parametrize(
    ("type_", "message", "merge", "says"),
    [
        ("int32", '""', '["any"]', "%0: a range of a secure sum is 0..9, mod 7 or any, not ''"),
        ("int32", '"any"', '["mod 0"]', "%1: a range of a secure sum is 0..9, mod 7 or any, not 'mod 0'"),
        ("int32", '"any"', '["0..1e3"]', "%1: a range of a secure sum is 0..9, mod 7 or any, not '0..1e3'"),
        ("int32", '"any"', "[7]", "%1: a range of a secure sum is 0..9, mod 7 or any, not '7'"),
        ("int32", '"any"', '["any", "any"]', "%1: merge: `secure` has an entry for each of the 1 leaves of int32"),
        ("int8", '"0..128"', '["any"]', "%0: message: int8 does not hold the range 0..128"),
        ("int8", '"any"', '["0..128"]', "%1: merge: int8 does not hold the range 0..128"),
        ("int8", '"any"', '["mod 128"]', "%1: merge: int8 does not hold the range mod 128"),
        ("float32", '"any"', '[""]', "%0: message: secure sums add integers of known shapes, not float32"),
        ("int32[?]", '"any"', '[""]', "%0: message: secure sums add integers of known shapes, not int32[?]"),
    ],
)
def test_the_verifier_names_a_range_that_is_none_of_its_leaf(type_, message, merge, says):
    with pytest.raises(VerifyError) as raised:
        verify(parse_module(secure_plan(type_, message, merge)))
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (f"graph @g : (float32 -> float32*)  sha256:{DIGEST}", "graph @g: (float32 -> float32*) is no type of a local"),
        (f"graph @g : ((-> int32) -> int32)  sha256:{DIGEST}", "graph @g: ((-> int32) -> int32) is no type of a local"),
        (f"graph @g : (T -> T)  sha256:{DIGEST}", "graph @g: (T -> T) is no type of a local function"),
        (f"{GRAPH} {{effects=1}}", "graph @g: the attribute effects is true or false, not 1"),
        (f"{GRAPH} {{colour=red}}", "graph @g: a graph has no attribute colour"),
        (f"{GRAPH}\n{GRAPH}", "@g is defined twice"),
        (f"{GRAPH}\n{IDENTITY.replace('@id', '@g')}", "@g is defined twice"),
        (IDENTITY.replace("-> float32", "-> float32 {strategy=loop}"), "@id: a function has no attribute strategy"),
        (IDENTITY.replace("return %a", "return @nowhere"), "@id: it returns @nowhere, which is not bound"),
        (IDENTITY.replace("return %a", "return @id"), "@id: it returns @id, which is not bound"),
        (IDENTITY.replace("%a: float32", "%a: T"), "@id: %a: T has a type variable"),
        (
            IDENTITY.replace("%a: float32", "%a: {float32@SERVER}@CLIENTS"),
            "@id: %a: in {float32@SERVER}@CLIENTS a member",
        ),
    ],
)
def test_the_verifier_names_the_symbol_that_is_wrong(before, says):
    with pytest.raises(VerifyError) as raised:
        verify(parse_module(local("  return %x").replace("traced\n", f"traced\n{before}\n", 1)))
    assert says in str(raised.value)


def test_a_plan_whose_last_function_is_a_stage_is_refused():
    text = "fedcore 1 planned\nstage @s(%x: int32) -> int32 at SERVER {\n  return %x\n}"
    with pytest.raises(VerifyError, match="@s: the last function is the main function, but this is a stage"):
        verify(parse_module(text))


@pytest.mark.parametrize(
    ("constant", "says"),
    [
        (Constant("float32", (2,), b"1234"), r"not those of a float32 of shape \[2\]"),
        (Constant("float33", (), b"1234"), "not those of a float33"),
        (Constant("str", (1,), b"1234"), "not those of a str"),
        (Constant("int32", (1,), (b"1234",)), "not those of a int32"),
    ],
)
def test_a_literal_without_its_bytes_is_refused(constant, says):
    op = Operation("0", "literal", (), TensorType("float32", (2,)), {"value": constant})
    module = Module("traced", (), (Function("main", (), (op,), Ref("0"), op.type),))
    with pytest.raises(VerifyError, match=f"@main: %0: the literal's bytes are {says}"):
        verify(module)


def test_an_attribute_that_no_text_holds_is_refused():
    graph = Graph("g", FunctionType("int32", "int32"), DIGEST, {"effects": object()})
    module = Module("traced", (graph,), parse_module(local("  return %x")).functions)
    with pytest.raises(VerifyError, match="graph @g: the attribute effects is true or false, not <object"):
        verify(module)


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
