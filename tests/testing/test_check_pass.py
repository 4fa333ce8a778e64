import attrs
import pytest

import fedcore as fc
from fedcore.compiler import LOWERING, compile_module
from fedcore.compiler.pipeline import Pass
from fedcore.errors import Location
from fedcore.ir import Module
from fedcore.testing.covering_programs import covering_programs
from fedcore.types import FederatedType


def broken(fn, **options) -> str:
    idempotent = options.pop("idempotent", True)
    with pytest.raises(fc.testing.LawBroken) as raised:
        fc.testing.check_pass(Pass("tried", fn, idempotent), **options)
    return str(raised.value)


CALLS = """fedcore 1 traced

fn @same(%x: float32) -> float32 {
  return %x
}

fn @main(%x: float32) -> float32 {   loc("a.py":1)
  %0 = generic_plus(%x, %x) : float32   loc("a.py":2)
  %1 = call(@same, %x) : float32   loc("a.py":3)
  return %1
}
"""


@pytest.mark.parametrize("name", ["inline", "dce", "strip-locations"])
def test_a_pass_of_ours_keeps_the_laws(name):
    assert fc.testing.check_pass(name, programs=10, cases=[CALLS]).changed >= 1


def test_a_pass_is_prepared_by_a_pipeline():
    fc.testing.check_pass("partition", before=["inline,lower-intrinsics,inline,dce"], programs=10)


def with_operations(module: Module, change) -> Module:
    main = module.main
    return attrs.evolve(
        module, functions=(*module.functions[:-1], attrs.evolve(main, operations=change(main.operations)))
    )


def test_a_pass_that_leaves_an_invalid_module_is_found():
    text = broken(lambda m: with_operations(m, lambda ops: ops[1:]))
    assert text.startswith("the law is broken: tried leaves a valid module\n")
    assert "is not bound" in text
    assert "fedcore 1 traced" in text


def test_a_pass_without_a_return_is_found():
    assert broken(lambda m: None).startswith("the law is broken: tried returns a module\n  it returns None")


def _to_another_value(module: Module) -> Module:
    """Every whole number of the program becomes 7."""
    from fedcore.ir import Constant

    def change(function):
        operations = tuple(
            attrs.evolve(op, attributes={"value": Constant.of(7, op.type.dtype)}) if op.kind == "literal" else op
            for op in function.operations
        )
        return attrs.evolve(function, operations=operations)

    return attrs.evolve(module, functions=tuple(map(change, module.functions)))


def test_a_pass_that_changes_the_meaning_is_found():
    text = broken(_to_another_value)
    assert "tried keeps the meaning\n  the result" in text
    assert "inputs: [" in text


def _first_client_value(module: Module) -> Module:
    main = module.main
    first = main.parameters[0]
    return attrs.evolve(
        module,
        functions=(*module.functions[:-1], attrs.evolve(main, result=fc.ir.Ref(first.name), result_type=first.type)),
    )


def test_a_pass_that_changes_the_type_is_found():
    assert "tried keeps the type\n" in broken(_first_client_value)


def _once_more(module: Module) -> Module:
    def change(operations):
        taken = {op.name for op in operations}
        name = next(f"u{i}" for i in range(1000) if f"u{i}" not in taken)
        type_ = fc.to_type("int32")
        value = fc.ir.Constant.of(0, "int32")
        return (*operations, fc.ir.Operation(name, "literal", (), type_, {"value": value}))

    return with_operations(module, change)


def test_a_pass_that_never_comes_to_an_end_is_found():
    assert "tried run twice changes nothing more" in broken(_once_more)


def test_a_pass_that_says_it_is_not_idempotent_may_go_on():
    fc.testing.check_pass(Pass("tried", _once_more, idempotent=False), programs=5)


def _every_call_twice(module: Module) -> Module:
    def change(operations):
        out = []
        for op in operations:
            out.append(op)
            if op.kind == "federated_map":
                out.append(attrs.evolve(op, name=f"again_{op.name}"))
        return tuple(out)

    return with_operations(module, change)


def test_a_pass_that_gives_clients_more_work_is_found():
    assert "tried adds no client work\n  a client makes" in broken(_every_call_twice, idempotent=False)


def test_a_function_is_taken_for_a_pass():
    fc.testing.check_pass(fc.compiler.get_pass("dce").run, cases=[CALLS], programs=0)


def test_generated_values_have_the_types_they_are_for():
    import numpy as np

    from fedcore.testing.generated import Values

    value = Values(clients=2, seed=[0]).value(FederatedType({"a": "str", "b": ("uint8", (2,))}, fc.CLIENTS))
    assert len(value) == 2
    assert value[0]["b"].dtype == np.uint8


# What cannot be fooled.

MAXIMUM = """\
fedcore 1 traced

fn @main(%x: {float32}@CLIENTS, %y: float32@SERVER) -> float32@SERVER {
  %0 = federated_sum(%x) : float32@SERVER
  %1 = struct(%0, %y) : <float32@SERVER,float32@SERVER>
  %2 = federated_zip(%1) : <float32,float32>@SERVER
  %3 = federated_map(@larger, %2) : float32@SERVER
  return %3
}
"""
LARGER = """\
fn @larger(%a: float32, %b: float32) -> float32 {
  %0 = maximum(%a, %b) : float32
  return %0
}

"""
WITH_MAXIMUM = MAXIMUM.replace("fn @main", LARGER + "fn @main")


def rewriting(change):
    """A pass that rewrites each operation of each function."""

    def run(module: Module) -> Module:
        functions = tuple(
            attrs.evolve(f, operations=tuple(change(op) for op in f.operations)) for f in module.functions
        )
        return module if functions == module.functions else attrs.evolve(module, functions=functions)

    return run


def swapping(kind: str):
    return rewriting(lambda op: attrs.evolve(op, operands=op.operands[::-1]) if op.kind == kind else op)


def test_a_pass_that_changes_no_program_is_not_checked():
    text = broken(lambda module: module, programs=3)
    assert text.startswith("the law is broken: tried changes a program\n  it changed none of ")
    assert ": nothing was checked. Give programs that it changes as text, in cases=" in text


@pytest.mark.parametrize("kind", ["generic_minus", "generic_divide", "less"])
def test_a_pass_that_swaps_operands_is_found_without_cases(kind):
    assert "tried keeps the meaning\n" in broken(swapping(kind), programs=3, idempotent=False)


def test_a_wrong_pass_is_found_on_a_case_which_is_shown():
    to_minimum = rewriting(lambda op: attrs.evolve(op, kind="minimum") if op.kind == "maximum" else op)
    text = broken(to_minimum, cases=[WITH_MAXIMUM], programs=0)
    assert "tried keeps the meaning\n  the result is" in text
    assert "    fn @larger(%a: float32, %b: float32) -> float32 {\n      %0 = maximum(%a, %b) : float32\n" in text


def test_a_pass_is_told_which_operations_it_changed_and_which_no_program_had():
    def sort_operands(op):
        return (
            attrs.evolve(op, operands=tuple(sorted(op.operands, key=lambda o: o.name))) if op.kind == "maximum" else op
        )

    swapped = WITH_MAXIMUM.replace("maximum(%a, %b)", "maximum(%b, %a)")
    checked = fc.testing.check_pass(rewriting(sort_operands), cases=[swapped, WITH_MAXIMUM], programs=0)
    assert (checked.programs, checked.changed, checked.changed_operations) == (2, 1, ("maximum",))
    assert "generic_minus" in checked.unmet
    assert "maximum" not in checked.unmet


def test_every_registered_operation_is_in_a_program():
    from fedcore.ir.registry import registered

    modules = [program.module for program in covering_programs()]
    met = {op.kind for module in modules for f in module.functions for op in f.operations}
    planned = {name for name, op in registered().items() if op.level == "plan"}
    assert registered().keys() - met == planned
    plans = [compile_module(module, f"{LOWERING},partition") for module in modules]
    assert planned <= {op.kind for plan in plans for op in plan.main.operations}


def test_every_local_operation_is_in_a_program_at_clients():
    """A local operation is in a function that a map over clients names."""
    from fedcore.ir.registry import registered

    at_clients = set()
    for program in covering_programs():
        module = program.module
        functions = {f.name: f for f in module.functions}
        pending = [o.name for op in module.main.operations if op.kind == "federated_map" for o in op.operands[:1]]
        while pending:
            function = functions.pop(pending.pop(), None)
            for op in function.operations if function else ():
                at_clients.add(op.kind)
                pending += [o.name for o in op.operands]
    local = {name for name, op in registered().items() if op.level == "local"}
    assert local - at_clients == set()


def test_a_pass_of_ours_says_how_many_programs_it_changed():
    checked = fc.testing.check_pass("dce", programs=10)
    assert checked.programs >= 10
    assert 0 < checked.changed <= checked.programs


def _crash(module: Module) -> Module:
    raise KeyError("literal")


def test_a_pass_that_crashes_is_shown_with_the_program():
    text = broken(_crash, programs=3)
    assert text.startswith("the law is broken: tried runs\n  it raises KeyError: 'literal'\n")
    assert "  program:\n    fedcore 1 traced\n" in text


def test_a_case_that_calls_a_graph_is_refused():
    called = f"graph @double : (float32 -> float32)  sha256:{'ab' * 32}\n\n"
    text = MAXIMUM.replace("fn @main", called + "fn @main").replace("@larger, %2", "@double, %0")
    with pytest.raises(fc.errors.FedcoreError, match="a case calls the graph @double, whose bytes are not in the text"):
        fc.testing.check_pass("dce", cases=[text])


def test_blocks_of_clients_are_folded_each_from_the_start_and_merged_in_a_tree():
    from fedcore.runtime.same_meaning import change_of_result, folds_clients, runs_in_parts

    # Accumulates digits, so that the ends of blocks show.
    def folded(merge):
        return fc.federated_computation(
            lambda xs: fc.federated_aggregate(xs, 0.0, lambda n, x: n * 10.0 + x, merge, lambda n: n),
            fc.types.at_clients("float32"),
        ).module

    left, right = folded(lambda a, b: a + b), folded(lambda a, b: a + b + a)
    assert folds_clients(left)
    assert [len(values[0]) for values, _ in runs_in_parts(left, [[1.0, 2.0, 3.0]])] == [1, 3, 3, 65]
    assert change_of_result(left, right, [[1.0, 2.0, 3.0]]) is None
    assert change_of_result(left, right, [[1.0, 2.0, 3.0]], 2) == (
        "the result is np.float32(27.0), not np.float32(15.0) (clients in blocks of 2)"
    )


@pytest.mark.parametrize(
    ("location", "says"), [(None, "no line, as nothing"), (Location("b.py", 9), "b.py:9, which nothing")]
)
def test_a_pass_that_loses_or_invents_a_line_is_found(location, says):
    def change(operations):
        return (attrs.evolve(operations[0], location=location), *operations[1:])

    case = CALLS.replace("fn @same(%x: float32) -> float32 {", 'fn @same(%x: float32) -> float32 {   loc("a.py":4)')
    text = broken(lambda m: with_operations(m, change), cases=[case], programs=0)
    assert text.startswith("the law is broken: tried keeps the user's lines\n")
    assert f"  %0 = generic_plus has {says} had before, in\n" in text


def test_a_pass_that_swaps_the_lines_of_two_operations_is_found():
    def swap(operations):
        first, second, *others = operations
        lines = first.location, second.location
        return (attrs.evolve(first, location=lines[1]), attrs.evolve(second, location=lines[0]), *others)

    text = broken(lambda m: with_operations(m, swap), cases=[CALLS], programs=0)
    assert text.startswith("the law is broken: tried keeps the user's lines\n")
    assert "  %0 = generic_plus has a.py:3, and had a.py:2 before, in\n" in text
