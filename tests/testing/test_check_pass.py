import attrs
import pytest

import fedcore as fc
from fedcore.compiler.pipeline import Pass
from fedcore.ir import Module
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
    assert "tried adds no client work\n  a client makes" in broken(_every_call_twice, idempotent=False, programs=100)


def test_a_function_is_taken_for_a_pass():
    fc.testing.check_pass(fc.compiler.get_pass("dce").run, programs=10)


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


def _to_minimum(module: Module) -> Module:
    """Wrong, but only where a program has a maximum, which no generated one has."""
    if not any(op.kind == "maximum" for f in module.functions for op in f.operations):
        return module

    def change(function):
        operations = tuple(
            attrs.evolve(op, kind="minimum") if op.kind == "maximum" else op for op in function.operations
        )
        return attrs.evolve(function, operations=operations)

    return attrs.evolve(module, functions=tuple(map(change, module.functions)))


def test_a_pass_that_changes_no_program_is_not_checked():
    text = broken(lambda module: module, programs=3)
    assert text.startswith("the law is broken: tried changes a program\n  it changed none of 3: nothing was checked.")
    assert "cases=" in text


def test_a_wrong_pass_that_no_generated_program_meets_is_refused():
    assert "tried changes a program\n" in broken(_to_minimum, programs=10)


def test_a_wrong_pass_is_found_on_a_case_which_is_shown():
    text = broken(_to_minimum, cases=[WITH_MAXIMUM], programs=0)
    assert "tried keeps the meaning\n  the result is" in text
    assert "    fn @larger(%a: float32, %b: float32) -> float32 {\n      %0 = maximum(%a, %b) : float32\n" in text


def test_a_right_pass_for_a_case_is_told_how_many_programs_it_changed():
    def twice_to_product(module: Module) -> Module:
        def change(function):
            operations = tuple(
                attrs.evolve(op, operands=op.operands[::-1])
                if op.kind == "maximum" and op.operands[0].name > op.operands[1].name
                else op
                for op in function.operations
            )
            return attrs.evolve(function, operations=operations)

        changed = attrs.evolve(module, functions=tuple(map(change, module.functions)))
        return module if changed == module else changed

    swapped = WITH_MAXIMUM.replace("maximum(%a, %b)", "maximum(%b, %a)")
    checked = fc.testing.check_pass(twice_to_product, cases=[swapped, WITH_MAXIMUM], programs=5)
    assert (checked.programs, checked.changed) == (7, 1)


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
