"""Programs of 4,000 operations: everything is linear in them, and nothing nests on Python's stack.

All but two tests count and do not time: operations of a plan, nodes of a graph, calls of Python functions at two sizes.
What is not linear would need hours, gigabytes or a deeper stack than Python has at the larger sizes.
"""

import sys
import time

import pytest
from tensorflow.core.framework import graph_pb2

import fedcore as fc
from fedcore.compiler import DEFAULT_PIPELINE, compile_module, get_pass
from fedcore.computation.computation import Computation
from fedcore.errors import FedcoreError
from fedcore.graphs.batched import batching_policy
from fedcore.graphs.batched.batched_call import why_not_batchable
from fedcore.graphs.batched.batched_value import batching_rules
from fedcore.graphs.batched.stage_parts import split_stage
from fedcore.graphs.graphdef.validation.allow_list import check_graphs
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.ir import Function, Module, Operation, Parameter, Ref, bundle, parse_module, verify
from fedcore.ir.limits import MAX_INLINED
from fedcore.lru_cache import LruCache
from fedcore.types import TensorType

MANY = 4_000


def chain(n: int, step: str, kind: str = "float32") -> Computation:
    """n operations one after the other, each of the one before."""
    lines = [f"  %0 = {step.format('x')} : {kind}"]
    lines += [f"  %{i} = {step.format(i - 1)} : {kind}" for i in range(1, n)]
    body = "\n".join(lines)
    text = f"fedcore 1 traced\n\nfn @main(%x: {kind}) -> {kind} {{\n{body}\n  return %{n - 1}\n}}\n"
    return Computation(verify(parse_module(text)))


def functions(n: int, body: str) -> Computation:
    """n functions, each of which calls the one before."""
    first = "fn @f0(%x: int32) -> int32 {\n  %0 = generic_plus(%x, %x) : int32\n  return %0\n}"
    rest = [f"fn @f{i}(%x: int32) -> int32 {{\n{body.format(i - 1)}}}" for i in range(1, n)]
    return Computation(verify(parse_module("\n\n".join(["fedcore 1 traced", first, *rest]) + "\n")))


ONCE = "  %0 = call(@f{0}, %x) : int32\n  return %0\n"
SAME_TWICE = (
    "  %0 = call(@f{0}, %x) : int32\n  %1 = call(@f{0}, %x) : int32\n"
    "  %2 = generic_minus(%0, %1) : int32\n  return %2\n"
)
NESTED_TWICE = "  %0 = call(@f{0}, %x) : int32\n  %1 = call(@f{0}, %0) : int32\n  return %1\n"

DOUBLED = "generic_plus(%{0}, %{0})"


def nodes_of(module) -> int:
    return sum(len(graph_pb2.GraphDef.FromString(module.blobs[g.digest]).node) for g in module.graphs)


def test_a_local_chain_of_sums_with_itself_runs():
    program = chain(MANY, DOUBLED, "int32")
    assert nodes_of(program.to_module("planned")) <= MANY + 10
    assert program(3) == 0  # 3 * 2^10000, wrapped
    assert str(program.module).count("generic_plus") == MANY


def test_the_reference_runtime_runs_a_long_chain():
    with fc.use(fc.runtime.reference()):
        assert chain(MANY, DOUBLED, "int32")(3) == 0


def placed(n: int, place: str) -> Computation:
    """x + x over and over on a placed value; clients' are added up."""
    kind = "int32@SERVER" if place == "SERVER" else "{int32}@CLIENTS"
    lines, last = [], "x"
    pair = f"<{kind},{kind}>"
    zipped = "<int32,int32>@SERVER" if place == "SERVER" else "{<int32,int32>}@CLIENTS"
    for i in range(n):
        lines.append(f"  %s{i} = struct(%{last}, %{last}) : {pair}")
        lines.append(f"  %z{i} = federated_zip(%s{i}) : {zipped}")
        lines.append(f"  %m{i} = federated_map(@twice, %z{i}) : {kind}")
        last = f"m{i}"
    result = "int32@SERVER"
    if place == "CLIENTS":
        lines.append(f"  %sum = federated_sum(%{last}) : int32@SERVER")
        last = "sum"
    body = "\n".join(lines)
    twice = "fn @twice(%a: int32, %b: int32) -> int32 {\n  %0 = generic_plus(%a, %b) : int32\n  return %0\n}"
    main = f"fn @main(%x: {kind}) -> {result} {{\n{body}\n  return %{last}\n}}"
    return Computation(verify(parse_module(f"fedcore 1 traced\n\n{twice}\n\n{main}\n")))


@pytest.mark.parametrize(("place", "argument"), [("SERVER", 3), ("CLIENTS", [3, 5])])
def test_a_value_added_to_itself_over_and_over_runs_at_each_placement(place, argument):
    program = placed(MANY // 4, place)  # three operations a step
    assert nodes_of(program.to_module("planned")) <= 2 * MANY
    assert program(argument) == 0


def test_a_sum_that_tensorflow_would_double_at_each_step_is_exact():
    assert placed(40, "SERVER")(1) == 0
    assert placed(30, "SERVER")(1) == 2**30
    assert placed(30, "CLIENTS")([1]) == 2**30


@pytest.mark.parametrize("runtime", [fc.runtime.local, fc.runtime.reference])
def test_functions_that_call_the_one_before_share_equal_calls(runtime):
    with fc.use(runtime()):
        assert functions(500, SAME_TWICE)(3) == 0
        assert functions(2000, ONCE)(3) == 6


def test_equal_calls_are_written_out_once():
    planned = compile_module(functions(50, SAME_TWICE).module, "inline")
    assert len(planned.main.operations) == 50


@pytest.mark.parametrize("runtime", [fc.runtime.local, fc.runtime.reference])
def test_a_program_that_is_too_large_without_calls_is_refused_by_size(runtime):
    with fc.use(runtime()), pytest.raises(FedcoreError) as error:
        functions(200, NESTED_TWICE)(3)
    assert str(error.value) == (
        f"@f18 is too large: with every function that it calls written out, it has more than {MAX_INLINED} "
        "operations. It calls @f17, which has 131072 of them, 2 times"
    )


def of_main(signature: str, lines: list[str], result: str, function: str = "") -> Computation:
    body = "\n".join(f"  {line}" for line in lines)
    text = f"fedcore 1 traced\n\n{function}fn @main{signature} {{\n{body}\n  return %{result}\n}}\n"
    return Computation(verify(parse_module(text)))


def struct_of(names: list[str], kind: str) -> tuple[str, str]:
    """The type of a struct of values of one kind, and the operation that makes it."""
    type_ = f"<{','.join([kind] * len(names))}>"
    return type_, f"%all = struct({', '.join('%' + n for n in names)}) : {type_}"


TWICE = "fn @twice(%a: int32) -> int32 {\n  %0 = generic_plus(%a, %a) : int32\n  return %0\n}\n\n"
SUM = "fn @sum(%a: int32, %b: int32) -> int32 {\n  %0 = generic_plus(%a, %b) : int32\n  return %0\n}\n\n"


def many_sums(n: int) -> Computation:
    """n sums of different client values, returned in one struct."""
    lines = []
    for i in range(n):
        lines.append(f"%m{i} = federated_map(@twice, %{f'm{i - 1}' if i else 'x'}) : {{int32}}@CLIENTS")
        lines.append(f"%s{i} = federated_sum(%m{i}) : int32@SERVER")
    type_, packed = struct_of([f"s{i}" for i in range(n)], "int32@SERVER")
    return of_main(f"(%x: {{int32}}@CLIENTS) -> {type_}", [*lines, packed], "all", TWICE)


def equal_sums(n: int) -> Computation:
    """One client value, summed n times."""
    type_, packed = struct_of([f"s{i}" for i in range(n)], "int32@SERVER")
    lines = [f"%s{i} = federated_sum(%x) : int32@SERVER" for i in range(n)]
    return of_main(f"(%x: {{int32}}@CLIENTS) -> {type_}", [*lines, packed], "all")


def wide_struct(n: int) -> Computation:
    """A struct of n elements, taken apart and put together again."""
    type_, packed = struct_of([f"s{i}" for i in range(n)], "int32")
    lines = [f"%s{i} = generic_plus(%x, %x) : int32" for i in range(n)]
    lines += [packed, *(f"%i{i} = item(%all) : int32 {{index={i}}}" for i in range(n))]
    lines.append(struct_of([f"i{i}" for i in range(n)], "int32")[1].replace("%all", "%again"))
    return of_main(f"(%x: int32) -> {type_}", lines, "again")


def parameters(n: int) -> Computation:
    """n client values, each summed."""
    type_, packed = struct_of([f"s{i}" for i in range(n)], "int32@SERVER")
    taken = ", ".join(f"%p{i}: {{int32}}@CLIENTS" for i in range(n))
    lines = [f"%s{i} = federated_sum(%p{i}) : int32@SERVER" for i in range(n)]
    return of_main(f"({taken}) -> {type_}", [*lines, packed], "all")


def rounds(n: int) -> Computation:
    """n times a broadcast, a client stage and a sum."""
    lines, last = [], "s"
    for i in range(n):
        lines += [
            f"%b{i} = federated_broadcast(%{last}) : int32@CLIENTS",
            f"%z{i} = struct(%x, %b{i}) : <{{int32}}@CLIENTS,int32@CLIENTS>",
            f"%y{i} = federated_zip(%z{i}) : {{<int32,int32>}}@CLIENTS",
            f"%m{i} = federated_map(@sum, %y{i}) : {{int32}}@CLIENTS",
            f"%t{i} = federated_sum(%m{i}) : int32@SERVER",
        ]
        last = f"t{i}"
    return of_main("(%x: {int32}@CLIENTS, %s: int32@SERVER) -> int32@SERVER", lines, last, SUM)


def added_up(n: int, kind: str) -> str:
    """A function that adds up the elements of a struct, one by one."""
    lines = ["  %s0 = item(%x) : int32 {index=0}"]
    for i in range(1, n):
        lines.append(f"  %i{i} = item(%x) : int32 {{index={i}}}")
        lines.append(f"  %s{i} = generic_plus(%s{i - 1}, %i{i}) : int32")
    body = "\n".join(lines)
    return f"fn @add_up(%x: {kind}) -> int32 {{\n{body}\n  return %s{n - 1}\n}}\n\n"


def struct_of_clients(n: int) -> Computation:
    """The elements of a client's wide struct, added up, and the sum over the clients."""
    kind = f"<{','.join(['int32'] * n)}>"
    lines = ["%0 = federated_map(@add_up, %x) : {int32}@CLIENTS", "%1 = federated_sum(%0) : int32@SERVER"]
    return of_main(f"(%x: {{{kind}}}@CLIENTS) -> int32@SERVER", lines, "1", added_up(n, kind))


def sums_of_elements(n: int) -> Computation:
    """Each element of a client's wide struct, summed over the clients."""
    lines = []
    for i in range(n):
        lines.append(f"%i{i} = item(%x) : {{int32}}@CLIENTS {{index={i}}}")
        lines.append(f"%s{i} = federated_sum(%i{i}) : int32@SERVER")
    type_, packed = struct_of([f"s{i}" for i in range(n)], "int32@SERVER")
    kind = f"<{','.join(['int32'] * n)}>"
    return of_main(f"(%x: {{{kind}}}@CLIENTS) -> {type_}", [*lines, packed], "all")


def wide_result(n: int) -> Computation:
    """A wide struct that each client computes of one number, summed over the clients."""
    lines = [f"  %s{i} = generic_plus(%{f's{i - 1}' if i else 'x'}, %x) : int32" for i in range(n)]
    kind, packed = struct_of([f"s{i}" for i in range(n)], "int32")
    body = "\n".join([*lines, f"  {packed}"])
    function = f"fn @wide(%x: int32) -> {kind} {{\n{body}\n  return %all\n}}\n\n"
    mapped = [f"%0 = federated_map(@wide, %x) : {{{kind}}}@CLIENTS", f"%1 = federated_sum(%0) : {kind}@SERVER"]
    return of_main(f"(%x: {{int32}}@CLIENTS) -> {kind}@SERVER", mapped, "1", function)


def prefix_sums(n: int) -> Computation:
    """n server parameters; result i is the sum of the first i."""
    taken = ", ".join(f"%p{i}: int32@SERVER" for i in range(n))
    lines, last = [], "p0"
    for i in range(1, n):
        lines.append(f"%s{i} = struct(%{last}, %p{i}) : <int32@SERVER,int32@SERVER>")
        lines.append(f"%z{i} = federated_zip(%s{i}) : <int32,int32>@SERVER")
        lines.append(f"%m{i} = federated_map(@sum, %z{i}) : int32@SERVER")
        last = f"m{i}"
    type_, packed = struct_of([f"m{i}" for i in range(1, n)], "int32@SERVER")
    return of_main(f"({taken}) -> {type_}", [*lines, packed], "all", SUM)


@pytest.mark.parametrize(("runtime", "n"), [(fc.runtime.local, MANY // 50), (fc.runtime.reference, MANY // 2)])
def test_a_client_struct_of_many_elements_runs(runtime, n):
    with fc.use(runtime()):
        assert struct_of_clients(n)([tuple(range(n))] * 2) == 2 * sum(range(n))


@pytest.mark.parametrize("program", [struct_of_clients, wide_result])
def test_wide_structs_are_partitioned(program):
    plan = compile_module(program(MANY // 5).module, ",".join(TRACED))
    assert [f.name for f in plan.functions][-1] == "main"


PROGRAMS = {
    "many sums": many_sums,
    "equal sums": equal_sums,
    "wide struct": wide_struct,
    "parameters": parameters,
    "rounds": rounds,
    "struct of clients": struct_of_clients,
    "wide result": wide_result,
    "prefix sums": prefix_sums,
    "server": lambda n: placed(n, "SERVER"),
    "clients": lambda n: placed(n, "CLIENTS"),
    "chain": lambda n: chain(n, "generic_plus(%{0}, %x)"),
    "functions": lambda n: functions(n, SAME_TWICE),
}
TRACED = (
    "inline",
    "lower-intrinsics",
    "canonicalize",
    "fold-constants",
    "cse",
    "dce",
    "partition",
    "dead-leaf-elimination",
)


def python_calls(work) -> int:
    """How many Python functions are called, which no other job on the machine changes."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_pass_works_in_proportion_to_the_operations(program):
    """Calls of Python functions, after a first run that imports and fills caches: four times as many, give or take."""
    counts = {}
    for n in (10, 50, 200):
        module = PROGRAMS[program](n).module
        for name in TRACED:
            one = get_pass(name)
            found = []
            counts[name, n] = python_calls(lambda one=one, module=module, found=found: found.append(one.run(module)))
            (module,) = found
    grown = {name: counts[name, 200] / counts[name, 50] for name in TRACED if counts[name, 200] > 1000}
    assert {name: ratio for name, ratio in grown.items() if ratio > 4.5} == {}


def test_the_default_pipeline_is_what_is_counted():
    passes = {name.partition("{")[0] for name in DEFAULT_PIPELINE.split(",")}
    assert passes - set(TRACED) == set(GRAPH_PASSES)


GRAPH_PASSES = ("fuse", "hoist-relu-gradients", "plan")


@pytest.mark.parametrize("program", [struct_of_clients, sums_of_elements, wide_result, prefix_sums, rounds])
def test_the_passes_that_trace_graphs_work_in_proportion_to_the_operations(program):
    counts = {}
    for n in (5, 10, 40):
        module = compile_module(program(n).module, ",".join(TRACED))
        for name in GRAPH_PASSES:
            before, found = module, []
            counts[name, n] = python_calls(lambda name=name, m=before, out=found: out.append(compile_module(m, name)))
            (module,) = found
    grown = {name: counts[name, 40] / counts[name, 10] for name in GRAPH_PASSES}
    assert {name: ratio for name, ratio in grown.items() if ratio > 5} == {}


@pytest.fixture
def tested(monkeypatch):
    """The digests of the graphs that are tested for batching rules; none was tested before."""
    found = []

    def why_not(graph, *arguments):
        found.append(graph.digest)
        return why_not_batchable(graph, *arguments)

    monkeypatch.setattr(batching_policy, "_reasons", LruCache(100))
    monkeypatch.setattr(batching_policy, "why_not_batchable", why_not)
    return found


def test_the_equal_graphs_of_many_stages_are_tested_for_batching_rules_once(tested):
    plan = compile_module(rounds(10).module)
    assert sum(op.kind == "fold" for op in plan.main.operations) == 10
    assert len(tested) == 2  # one graph: for the clients' sums, and for their merge


def test_the_graphs_of_a_second_program_are_tested_again_only_after_a_rule_of_theirs_changed(tested, monkeypatch):
    compile_module(rounds(2).module)
    compile_module(rounds(3).module)
    assert len(tested) == 2
    monkeypatch.setitem(batching_rules, "Bucketize", None)
    compile_module(rounds(3).module)
    assert len(tested) == 2
    rule = batching_rules["AddV2"]
    monkeypatch.setitem(batching_rules, "AddV2", lambda *operands: rule(*operands))
    compile_module(rounds(3).module)
    assert len(tested) == 4


def cpu_s(work) -> float:
    """The least CPU time of three runs."""
    found = []
    for _ in range(3):
        before = time.process_time()
        work()
        found.append(time.process_time() - before)
    return min(found)


def test_a_graph_is_checked_in_time_linear_in_its_nodes():
    """CPU time, since sets are built in C: 8 times the nodes take 8 times as long, not 64; the bound is 24."""
    small, large = (chain(n, "generic_plus(%{0}, %x)").to_module("planned") for n in (250, 2000))
    assert nodes_of(large) > 2000
    assert cpu_s(lambda: check_graphs(large, trusted=False)) < 24 * cpu_s(lambda: check_graphs(small, trusted=False))


def fold_of_numbers(n: int) -> ClientStage:
    """A stage that adds n numbers of a client to the partial."""
    kind = TensorType("int32")
    parameters_ = [Parameter("partial", kind), *(Parameter(f"p{i}", kind) for i in range(n))]
    names = ["partial", *map(str, range(n))]
    operations = [Operation(str(i), "generic_plus", (Ref(names[i]), Ref(f"p{i}")), kind) for i in range(n)]
    function = Function("clients", tuple(parameters_), tuple(operations), Ref(names[-1]), kind)
    return ClientStage(Module("planned", (), (function,)), "zero", "clients", "join", 0)


def test_the_contributions_of_clients_are_found_in_time_linear_in_them():
    """CPU time, as above: a search in a list calls no Python function."""
    small, large = (fold_of_numbers(n) for n in (500, 4000))
    assert len(split_stage(large)[2]) == 4000
    assert cpu_s(lambda: split_stage(large)) < 24 * cpu_s(lambda: split_stage(small))


WORK_ON_TEXT = {
    "print": str,
    "verify": verify,
    "save": bundle.to_bytes,
    "load": lambda module: bundle.from_bytes(bundle.to_bytes(module)),
}


@pytest.mark.parametrize("work", WORK_ON_TEXT)
@pytest.mark.parametrize("program", PROGRAMS)
def test_text_is_written_read_and_verified_in_proportion_to_the_operations(program, work):
    counts = {}
    for n in (10, 50, 200):
        module = PROGRAMS[program](n).module
        counts[n] = python_calls(lambda module=module: WORK_ON_TEXT[work](module))
    assert counts[200] < 4.5 * counts[50]
