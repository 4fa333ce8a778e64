"""Seeded wrong parts, each with its check. `python tests/testing/wrong_parts.py` prints which law found which."""

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator

import attrs
import numpy as np
import tensorflow as tf
from test_check_aggregator import Mine as SumFactory
from test_check_aggregator import divided, without_merge
from test_check_batching_rule import WRONG as WRONG_RULES
from test_check_slice_executor import (
    DEVICE,
    Homes,
    Mine,
    ReplacingSeeds,
    WithoutReport,
    backwards,
    broken_blocks,
    full_slices_only,
    renumbered,
    swallowing,
    whole,
    without_kept,
    without_sizes,
    without_the_last,
)
from wrong_for_others import PARTS as PARTS_FOR_OTHERS
from wrong_learning_parts import PARTS as LEARNING_PARTS
from wrong_on_values import REWRITES, RULES

import fedcore as fc
from fedcore.aggregators.encoders import Encoder, Integers
from fedcore.compiler import DEFAULT_PIPELINE, LOWERING
from fedcore.compiler.pipeline import Pass
from fedcore.graphs.batched.batched_value import batching_rules
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.rewriting import const, op, pattern, rewrite, var
from fedcore.graphs.dataflow.stage_passes import StagePass
from fedcore.graphs.stages.kernels import kernels
from fedcore.ir import Constant, Module, Operation, Ref, registry
from fedcore.ir.registry import note_declaration
from fedcore.testing import LawBroken


@attrs.frozen
class WrongPart:
    """A part with a mistake.

    Args:
        kind: of the part, such as "pass".
        name: the mistake.
        check: raises LawBroken.
    """

    kind: str
    name: str
    check: Callable[[], object]

    def law(self) -> str:
        """The law that finds the mistake; empty if none does."""
        with restored_registries():
            try:
                self.check()
            except LawBroken as broken:
                return broken.law
        return ""


@contextlib.contextmanager
def restored_registries() -> Iterator[None]:
    """Operations, kernels and batching rules that are declared in the `with` block are forgotten after it."""
    saved = [(d, dict(d)) for d in (registry._registry, kernels, batching_rules)]
    try:
        yield
    finally:
        for registered, entries in saved:
            registered.clear()
            registered.update(entries)
        note_declaration("wrong parts")


PARTS: list[WrongPart] = []


def add(kind: str, name: str, check: Callable[[], object]) -> None:
    PARTS.append(WrongPart(kind, name, check))


# Passes.


def add_pass(name: str, run: Callable[[Module], Module], before: str = "", **declared) -> None:
    declared = {"idempotent": False, **declared}
    pass_ = Pass("wrong", run, **declared)
    add("pass", name, lambda: fc.testing.check_pass(pass_, before=before, programs=10))


def add_pass_for(name: str, run: Callable[[Module], Module], *operations: str) -> None:
    """Adds a pass that is right for its case, of operations on a parameter %x and the constants %0 and %1."""
    lines = [f"%{i} = {operation}" for i, operation in enumerate((*CONSTANTS, *operations))]
    body = "\n".join([*lines, f"return %{len(lines) - 1}"])
    case = f"fedcore 1 traced\n\nfn @main(%x: float32) -> float32 {{\n{body}\n}}\n"
    pass_ = Pass("wrong", run, idempotent=False)
    add("pass", name, lambda: fc.testing.check_pass(pass_, cases=case, programs=0))


CONSTANTS = "literal() : float32 {value=0.0}", "literal() : float32 {value=1.0}"


def on_operations(kind: str | set[str], change: Callable[[Operation], Operation]) -> Callable[[Module], Module]:
    """A pass that changes the operations of a kind, or of several."""
    kinds = {kind} if isinstance(kind, str) else kind

    def run(module: Module) -> Module:
        functions = tuple(
            attrs.evolve(f, operations=tuple(change(o) if o.kind in kinds else o for o in f.operations))
            for f in module.functions
        )
        return module if functions == module.functions else attrs.evolve(module, functions=functions)

    return run


def in_place_of_results(value_of: Callable[[Operation, dict], Ref | None]) -> Callable[[Module], Module]:
    """A pass that puts one value in the place of another; `value_of` gets an operation and the operations by name."""

    def run(module: Module) -> Module:
        return attrs.evolve(module, functions=tuple(map(change, module.functions)))

    def change(function):
        by_name = {o.name: o for o in function.operations}
        values = {o.name: v for o in function.operations if (v := value_of(o, by_name)) is not None}

        def final(operand):
            while operand.name in values:
                operand = values[operand.name]
            return operand

        operations = tuple(attrs.evolve(o, operands=tuple(map(final, o.operands))) for o in function.operations)
        return attrs.evolve(function, operations=operations, result=final(function.result))

    return run


def swap_operands(o: Operation) -> Operation:
    return attrs.evolve(o, operands=o.operands[::-1])


def with_attribute(name: str, change: Callable) -> Callable[[Operation], Operation]:
    return lambda o: attrs.evolve(o, attributes={**o.attributes, name: change(o.attributes[name])})


for swapped in ("generic_minus", "generic_divide", "less", "modulo", "append_rows"):
    add_pass(f"swaps the operands of {swapped}", on_operations(swapped, swap_operands))
add_pass(
    "swaps the values of where",
    on_operations("where", lambda o: attrs.evolve(o, operands=(o.operands[0], *o.operands[:0:-1]))),
)
for kind, other in (
    ("minimum", "maximum"),
    ("maximum", "minimum"),
    ("federated_min", "federated_max"),
    ("federated_max", "federated_min"),
    ("generic_plus", "generic_minus"),
    ("generic_multiply", "generic_plus"),
    ("equal", "less"),
):
    add_pass(f"replaces {kind} by {other}", on_operations(kind, lambda o, other=other: attrs.evolve(o, kind=other)))
add_pass(
    "drops the weights of a mean",
    on_operations("federated_mean", lambda o: attrs.evolve(o, operands=o.operands[:1])),
)
add_pass(
    "turns integer constants into 7",
    on_operations(
        "literal",
        lambda o: attrs.evolve(o, attributes={"value": Constant.of(7, o.type.dtype)}) if o.type.dtype.is_integer else o,
    ),
)
for kind, name in (
    ("federated_collect", "max_clients"),
    ("federated_secure_modular_sum", "modulus"),
    ("append_rows", "at_most"),
):
    add_pass(f"halves {name} of {kind}", on_operations(kind, with_attribute(name, lambda n: n // 2 or 2)))
add_pass("gives all seeds one salt", on_operations("federated_random_seed", with_attribute("salt", lambda _: "0")))
add_pass("gives all drawing functions one salt", on_operations("random_seed", with_attribute("salt", lambda _: "0")))
add_pass("takes the first element always", on_operations("item", with_attribute("index", lambda _: 0)))
add_pass(
    "reverses structs of equal types",
    on_operations("struct", lambda o: swap_operands(o) if len({*o.type.types}) == 1 and len(o.type) > 1 else o),
)
add_pass(
    "takes x + x for x",
    in_place_of_results(
        lambda o, by_name: None if o.kind != "generic_plus" or o.operands[0] != o.operands[1] else o.operands[0]
    ),
)
add_pass(
    "drops products that are added",
    in_place_of_results(
        lambda o, by_name: (
            o.operands[0]
            if o.kind == "generic_plus" and getattr(by_name.get(o.operands[1].name), "kind", "") == "generic_multiply"
            else None
        )
    ),
)
add_pass(
    "takes the first value of where", in_place_of_results(lambda o, _: o.operands[1] if o.kind == "where" else None)
)
add_pass("removes counts", in_place_of_results(lambda o, _: o.operands[0] if o.kind == "federated_count" else None))
add_pass("removes casts", in_place_of_results(lambda o, _: o.operands[0] if o.kind == "cast" else None))


def _merge_equal(module: Module, *, ignoring: tuple[str, ...]) -> Module:
    """Common subexpressions, with some attributes left out of the comparison."""

    def change(function):
        first, renamed = {}, {}
        for o in function.operations:
            operands = tuple(renamed.get(x.name, x) for x in o.operands)
            key = (o.kind, operands, o.type, *((k, repr(v)) for k, v in o.attributes.items() if k not in ignoring))
            renamed[o.name] = first.setdefault(key, Ref(o.name))
        operations = tuple(
            attrs.evolve(o, operands=tuple(renamed.get(x.name, x) for x in o.operands)) for o in function.operations
        )
        return attrs.evolve(function, operations=operations, result=renamed.get(function.result.name, function.result))

    return attrs.evolve(module, functions=tuple(map(change, module.functions)))


add_pass("merges seeds", functools.partial(_merge_equal, ignoring=("salt",)))
add_pass("merges different constants", functools.partial(_merge_equal, ignoring=("value",)))
add_pass("merges different elements", functools.partial(_merge_equal, ignoring=("index",)))


def _minus_of_itself_is_zero(module: Module) -> Module:
    """x - x is 0, which is wrong for infinite x."""

    def zero(o: Operation) -> Operation:
        if o.operands[0] != o.operands[1]:
            return o
        return attrs.evolve(o, kind="generic_zero", operands=())

    return on_operations("generic_minus", zero)(module)


def _product_with_zero_is_zero(module: Module) -> Module:
    """0 * x is 0, which is wrong for infinite x."""

    def change(function):
        zeros = {o.name for o in function.operations if o.kind == "generic_zero"}
        operations = tuple(
            attrs.evolve(o, kind="generic_zero", operands=())
            if o.kind == "generic_multiply" and zeros & {x.name for x in o.operands}
            else o
            for o in function.operations
        )
        return attrs.evolve(function, operations=operations)

    return attrs.evolve(module, functions=tuple(map(change, module.functions)))


def _drop_first_operation(module: Module) -> Module:
    return attrs.evolve(module, functions=(*module.functions[:-1], _without_first(module.main)))


def _without_first(function):
    return attrs.evolve(function, operations=function.operations[1:])


def _map_twice(module: Module) -> Module:
    operations = []
    for o in module.main.operations:
        operations += [o, attrs.evolve(o, name=f"again_{o.name}")] if o.kind == "federated_map" else [o]
    return attrs.evolve(
        module, functions=(*module.functions[:-1], attrs.evolve(module.main, operations=tuple(operations)))
    )


def _raise_at(kind: str) -> Callable[[Module], Module]:
    def fail(o):
        raise KeyError(kind)

    return on_operations(kind, fail)


def _first_parameter(module: Module) -> Module:
    first = module.main.parameters[0]
    main = attrs.evolve(module.main, result=Ref(first.name), result_type=first.type)
    return attrs.evolve(module, functions=(*module.functions[:-1], main))


def _one_more_constant(module: Module) -> Module:
    names = {o.name for o in module.main.operations}
    name = next(f"u{i}" for i in itertools.count() if f"u{i}" not in names)
    constant = Operation(name, "literal", (), fc.to_type("int32"), {"value": Constant.of(0, "int32")})
    main = attrs.evolve(module.main, operations=(*module.main.operations, constant))
    return attrs.evolve(module, functions=(*module.functions[:-1], main))


NUMBERS = itertools.count()


def _with_numbered_constant(module: Module) -> Module:
    name = f"numbered_{next(NUMBERS)}"
    constant = Operation(name, "literal", (), fc.to_type("int32"), {"value": Constant.of(0, "int32")})
    main = attrs.evolve(module.main, operations=(*module.main.operations, constant))
    return attrs.evolve(module, functions=(*module.functions[:-1], main))


def _swap_salts_in_a_row(module: Module) -> Module:
    """Of two maps in a row that draw, each draws what the other one drew."""

    def change(function):
        operations = {o.name: o for o in function.operations}
        for o in function.operations:
            inner = operations.get(o.operands[-1].name) if o.kind == "federated_map" else None
            if inner is not None and inner.kind == o.kind and "salt" in o.attributes and "salt" in inner.attributes:
                for one, other in ((o, inner), (inner, o)):
                    operations[one.name] = attrs.evolve(one, attributes=other.attributes)
        return attrs.evolve(function, operations=tuple(operations.values()))

    return attrs.evolve(module, functions=tuple(map(change, module.functions)))


def _by_name() -> Callable[[Module], Module]:
    """Replaces maximum(x, x) by x; keeps the results by the names and types of functions."""
    simplify = in_place_of_results(
        lambda o, _: o.operands[0] if o.kind == "maximum" and o.operands[0] == o.operands[1] else None
    )
    known: dict = {}

    def run(module: Module) -> Module:
        pairs = zip(module.functions, simplify(module).functions, strict=True)
        return attrs.evolve(module, functions=tuple(known.setdefault((f.name, f.type), g) for f, g in pairs))

    return run


def _from_above_first(module: Module) -> Module:
    """minimum(maximum(x, a), b) becomes maximum(minimum(x, b), a), which differs where a is above b."""
    kinds = {"maximum": "minimum", "minimum": "maximum"}
    other = {Ref("0"): Ref("1"), Ref("1"): Ref("0")}
    return on_operations(
        {*kinds},
        lambda o: attrs.evolve(o, kind=kinds[o.kind], operands=tuple(other.get(x, x) for x in o.operands)),
    )(module)


def _merge_equal_numbers(module: Module) -> Module:
    """Equal literals become one: 0.0 equals -0.0."""
    first: dict = {}

    def value_of(o: Operation, _: dict) -> Ref | None:
        if o.kind != "literal":
            return None
        same = first.setdefault((o.type, o.attributes["value"].to_numpy().item()), Ref(o.name))
        return None if same == Ref(o.name) else same

    return in_place_of_results(value_of)(module)


add_pass("removes the first operation", _drop_first_operation)
add_pass("maps twice", _map_twice)
add_pass("raises for selections", _raise_at("federated_secure_select"))
add_pass("returns the first parameter", _first_parameter)
add_pass("goes on for ever", _one_more_constant, idempotent=True)
add_pass("takes x - x for 0", _minus_of_itself_is_zero)
add_pass("takes 0 * x for 0", _product_with_zero_is_zero)
add_pass("makes other modules of one", _with_numbered_constant)
add_pass("swaps the seeds of maps in a row", _swap_salts_in_a_row)
add_pass_for("keeps functions by their names", _by_name(), "maximum(%x, %x) : float32")
add_pass_for("clips from above first", _from_above_first, "maximum(%x, %0) : float32", "minimum(%2, %1) : float32")
add_pass_for("takes -0.0 for 0.0", _merge_equal_numbers, "generic_divide(%x, %1) : float32")


def _with_numbered_constant(module: Module, numbers=itertools.count()) -> Module:  # noqa: B008
    constant = Operation(
        f"numbered_{next(numbers)}", "literal", (), fc.to_type("int32"), {"value": Constant.of(0, "int32")}
    )
    main = attrs.evolve(module.main, operations=(*module.main.operations, constant))
    return attrs.evolve(module, functions=(*module.functions[:-1], main))


def _swap_salts_in_a_row(module: Module) -> Module:
    """Of two maps in a row that draw, each draws what the other one drew."""

    def change(function):
        operations = {o.name: o for o in function.operations}
        for o in function.operations:
            inner = operations.get(o.operands[-1].name) if o.kind == "federated_map" else None
            if inner is not None and inner.kind == o.kind and "salt" in o.attributes and "salt" in inner.attributes:
                for one, other in ((o, inner), (inner, o)):
                    operations[one.name] = attrs.evolve(one, attributes=other.attributes)
        return attrs.evolve(function, operations=tuple(operations.values()))

    return attrs.evolve(module, functions=tuple(map(change, module.functions)))


def _by_name() -> Callable[[Module], Module]:
    """Replaces maximum(x, x) by x; keeps the results by the names and types of functions."""
    simplify = in_place_of_results(
        lambda o, _: o.operands[0] if o.kind == "maximum" and o.operands[0] == o.operands[1] else None
    )
    known: dict = {}

    def run(module: Module) -> Module:
        pairs = zip(module.functions, simplify(module).functions, strict=True)
        known.update({(f.name, f.type): g for f, g in pairs if f != g and (f.name, f.type) not in known})
        return attrs.evolve(module, functions=tuple(known.get((f.name, f.type), f) for f in module.functions))

    return run


def _from_above_first(module: Module) -> Module:
    """minimum(maximum(x, a), b) becomes maximum(minimum(x, b), a), which differs where a is above b."""
    kinds = {"maximum": "minimum", "minimum": "maximum"}
    (low, high), *_ = [[o for o in f.operations if o.kind == "literal"] for f in module.functions]
    other = {Ref(low.name): Ref(high.name), Ref(high.name): Ref(low.name)}

    def change(o: Operation) -> Operation:
        return attrs.evolve(o, kind=kinds.get(o.kind, o.kind), operands=tuple(other.get(x, x) for x in o.operands))

    return attrs.evolve(
        module, functions=tuple(attrs.evolve(f, operations=tuple(map(change, f.operations))) for f in module.functions)
    )


def _merge_equal_numbers(module: Module) -> Module:
    """Equal literals become one: 0.0 equals -0.0."""
    first: dict = {}

    def value_of(o: Operation, _: dict) -> Ref | None:
        if o.kind != "literal":
            return None
        same = first.setdefault((o.type, o.attributes["value"].to_numpy().item()), Ref(o.name))
        return None if same == Ref(o.name) else same

    return in_place_of_results(value_of)(module)


def _zero_of_fold(module: Module) -> Module:
    """The partial starts with the values of the last client."""
    stages = {o.operands[1].name for o in module.main.operations if o.kind == "fold" and "keeps" not in o.attributes}

    def change(f):
        return attrs.evolve(f, result=Ref(f.parameters[0].name)) if f.name in stages else f

    return attrs.evolve(module, functions=tuple(map(change, module.functions)))


add_pass("folds no client", _zero_of_fold, f"{LOWERING},partition")
add_pass("swaps what stages subtract", on_operations("generic_minus", swap_operands), f"{LOWERING},partition")
add_pass("swaps what lowered functions divide", on_operations("generic_divide", swap_operands), LOWERING)


def _left_of_merges(module: Module) -> Module:
    """Merging two partials gives the left one."""
    joins = {o.operands[0].name for o in module.main.operations if o.kind == "merge"}

    def change(f):
        return attrs.evolve(f, operations=(), result=Ref(f.parameters[0].name)) if f.name in joins else f

    return attrs.evolve(module, functions=tuple(map(change, module.functions)))


def _merges_in(kind: str, change: Callable[[Operation], Operation]) -> Callable[[Module], Module]:
    """A pass that changes the operations of a kind in the functions that merge partials."""

    def run(module: Module) -> Module:
        joins = {o.operands[0].name for o in module.main.operations if o.kind == "merge"}

        def changed(f):
            operations = tuple(change(o) if o.kind == kind else o for o in f.operations)
            return attrs.evolve(f, operations=operations) if f.name in joins else f

        return attrs.evolve(module, functions=tuple(map(changed, module.functions)))

    return run


add_pass("keeps the left side of merges", _left_of_merges, f"{LOWERING},partition")
add_pass(
    "adds partials as it subtracts them",
    _merges_in("generic_plus", lambda o: attrs.evolve(o, kind="generic_minus")),
    f"{LOWERING},partition",
)


add_pass(
    "adds in the open what is added in secure sums",
    on_operations(
        "federated_secure_aggregate",
        lambda o: attrs.evolve(
            o, kind="federated_aggregate", attributes={k: v for k, v in o.attributes.items() if k != "secure"}
        ),
    ),
    LOWERING,
)
add_pass(
    "leaves the masks of merges out",
    on_operations(
        "merge", lambda o: attrs.evolve(o, attributes={k: v for k, v in o.attributes.items() if k != "secure"})
    ),
    f"{LOWERING},partition",
)
add_pass(
    "says that nothing is sent",
    on_operations("merge", lambda o: attrs.evolve(o, attributes={**o.attributes, "bits": 0})),
    DEFAULT_PIPELINE,
)


# Rewrites of client stages.


def add_stage_pass(name: str, run: Callable, case: str = "", **declared) -> None:
    check = functools.partial(fc.testing.check_stage_pass, StagePass("wrong", run, **declared))
    add("stage pass", name, lambda: check(regions=0, cases=case) if case else check(regions=8))


def _binary(kind: str, dtype: str = "float32") -> str:
    return (
        f"region(%x: {dtype}[3], %y: {dtype}[3]) {{\n  %0 = {kind}(%x, %y) : {dtype}[3]\n"
        f"  %1 = Neg(%0) : {dtype}[3]\n  return %1\n}}\n"
    )


def _with_constant(kind: str, value: str, dtype: str = "float32") -> str:
    return (
        f"region(%x: {dtype}[3]) {{\n  %0 = Const() : {dtype} {{value={value}}}\n"
        f"  %1 = {kind}(%x, %0) : {dtype}[3]\n  return %1\n}}\n"
    )


@pattern(op("Sub", var("x"), var("y")))
def _swapped_difference(x, y):
    return ops.operation("Sub", y, x)


@pattern(op("AddV2", var("x"), const(0)))
def _plus_zero(x):
    return x


@pattern(op("Mul", var("x"), const(0)))
def _times_zero(x):
    return ops.operation("Sub", x, x)


@pattern(op("Neg", var("x")))
def _not_negated(x):
    return x


@pattern(op("Mul", var("x"), var("y")))
def _sum_for_product(x, y):
    return x + y


@pattern(op("Mul", var("x"), const(1)))
def _negated_twice(x):
    return ops.operation("Neg", ops.operation("Neg", x))


@pattern(op("Maximum", var("x"), var("y")))
def _never_there(x, y):
    return x


@pattern(op("SelectV2", var("c"), var("x"), var("x")))
def _one_of_two(c, x):
    return x


@pattern(op("Transpose", op("Transpose", var("x"), var("order")), var("order")))
def _not_transposed(x, order):
    return x


@pattern(op("RealDiv", var("x"), var("c")))
def _times_reciprocal(x, c):
    constant = ops.computed_by(c, "Const")
    value = 0 if constant is None else np.asarray(constant["value"])
    if np.size(value) > 1 or abs(np.frexp(value)[0]).max() != 0.5:
        return None
    return ops.operation("Mul", x, ops.constant(1 / value))


def _rewriting(*patterns) -> Callable:
    return lambda region: rewrite(region, *patterns)


add_stage_pass(
    "forgets that conditions broadcast",
    _rewriting(_one_of_two),
    "region(%c: bool[3], %x: float32[3]) {\n  %0 = SelectV2(%c, %x, %x) : float32[3]\n  return %0\n}\n",
)
add_stage_pass(
    "takes a rotation for its inverse",
    _rewriting(_not_transposed),
    "region(%x: float32[2,3]) {\n  %0 = Const() : int32[2] {value=[1, 0]}\n"
    "  %1 = Transpose(%x, %0) : float32[3,2]\n  %2 = Transpose(%1, %0) : float32[2,3]\n  return %2\n}\n",
)
add_stage_pass(
    "multiplies by denormal numbers", _rewriting(_times_reciprocal), _with_constant("RealDiv", "4.0"), grows=True
)
add_stage_pass("swaps the operands of Sub for ever", _rewriting(_swapped_difference), _binary("Sub"), idempotent=False)
add_stage_pass("drops + 0 of floats", _rewriting(_plus_zero), _with_constant("AddV2", "0.0"))
add_stage_pass("takes x * 0 for x - x", _rewriting(_times_zero), _with_constant("Mul", "0.0"))
add_stage_pass("drops Neg", _rewriting(_not_negated), _binary("Sub"))
add_stage_pass("adds in place of multiplying", _rewriting(_sum_for_product))
add_stage_pass("adds nodes", _rewriting(_negated_twice), _with_constant("Mul", "1", "int32"))
add_stage_pass("has a pattern that nothing matches", _rewriting(_not_negated, _never_there), _binary("Mul", "int32"))
for mistake, one, region in REWRITES:
    add_stage_pass(mistake, _rewriting(one), region, grows=True)
add_stage_pass("returns no region", lambda region: None, _binary("Sub"))


# Batching rules.


def _check_rule(operation: str, rule: Callable) -> None:
    batching_rules[operation] = rule
    fc.testing.check_batching_rule(operation)


for operation, rule, _, _ in WRONG_RULES:
    add(
        "batching rule",
        f"{operation}: {rule.__name__.replace('_', ' ')}",
        functools.partial(_check_rule, operation, rule),
    )


for operation, mistake, rule in RULES:
    add("batching rule", f"{operation} {mistake}", functools.partial(_check_rule, operation, rule))


# Intrinsics, lowerings and kernels.


def add_intrinsic(name: str, declare: Callable) -> None:
    add("intrinsic", name, lambda: fc.testing.check_intrinsic(declare()))


DOC = "Does it.\n\nExample:\n    >>> y = {}(x)\n"


def _declared(signature: str, meaning: Callable, **settings):
    meaning.__doc__ = DOC.format(meaning.__name__)
    return fc.intrinsic(signature, **settings)(meaning)


def _mean(lowering: Callable):
    def own_mean(value):
        return np.float32(np.mean(value)) if value else np.float32(0)

    declared = _declared("({float32}@CLIENTS -> float32@SERVER)".replace("({", "(value: {"), own_mean)
    declared.lowering(lowering)
    return declared


def _kernel(meaning: Callable, kernel: Callable, signature: str = "(value: float32[4] -> float32[4])"):
    declared = _declared(signature, meaning, level="local")
    kernels[meaning.__name__] = kernel
    return declared


def halved(value):
    return value / np.float32(2)


def smallest_first(value):
    return np.sort(value)


def _pairs(in_stage: Callable):
    def own_pair(left, right, fn):
        return [fn(a, b) for a, b in zip(left, right, strict=True)]

    own_pair.__doc__ = "Does it.\n\nExample:\n    >>> y = own_pair(a, b, lambda x, c: x - c)\n"
    signature = "(left: {T}@CLIENTS, right: {T}@CLIENTS, fn: (<T,T> -> U) -> {U}@CLIENTS)"
    declared = fc.intrinsic(signature, per_client="fn")(own_pair)
    declared.in_stage(in_stage)
    return declared


add_intrinsic("a lowering that is 0/0 without clients", lambda: _mean(lambda value: fc.federated_mean(value)))
add_intrinsic("a lowering that forgets to divide", lambda: _mean(lambda value: fc.federated_sum(value)))
add_intrinsic("a kernel that multiplies", lambda: _kernel(halved, lambda op, value: value * 2.0))
add_intrinsic("a kernel of another dtype", lambda: _kernel(halved, lambda op, value: tf.cast(value / 2, tf.float64)))
add_intrinsic("a kernel that rounds to half", lambda: _kernel(halved, lambda op, value: tf.cast(
    tf.cast(value, tf.float16) / 2, tf.float32)))  # fmt: skip
add_intrinsic("a kernel that sorts down", lambda: _kernel(smallest_first, lambda op, x: tf.sort(
    x, direction="DESCENDING")))  # fmt: skip
add_intrinsic("a kernel that adds up clients", lambda: _kernel(halved, lambda op, value: value - tf.reduce_sum(
    value, -1, keepdims=True)))  # fmt: skip
add_intrinsic("a stage that takes the right value twice", lambda: _pairs(lambda left, right, fn: fn(right, right)))
add_intrinsic("a stage that swaps the operands of a function", lambda: _pairs(lambda left, right, fn: fn(right, left)))


def _without_per_client():
    def own_map(value, fn):
        return [fn(x) for x in value]

    own_map.__doc__ = "Does it.\n\nExample:\n    >>> y = own_map(x, lambda a: a)\n"
    declared = fc.intrinsic("(value: {T}@CLIENTS, fn: (T -> U) -> {U}@CLIENTS)")(own_map)
    declared.in_stage(lambda value, fn: fn(value))
    return declared


add_intrinsic("a function of each client that is not declared so", _without_per_client)


def _case_without_rule() -> None:
    def same_numbers(left, right):
        return np.abs(left - right) <= np.float32(0.5)

    same_numbers.__doc__ = "Does it.\n\nExample:\n    >>> y = same_numbers(a, b)\n"
    declared = fc.intrinsic("(left: float32[4], right: float32[4] -> bool[4])", level="local")(same_numbers)
    kernels["same_numbers"] = lambda op, left, right: tf.raw_ops.ApproximateEqual(x=left, y=right, tolerance=0.5)

    @fc.federated_computation(("float32", [4]), ("float32", [4]))
    def at_the_server(left, right):
        return declared(left, right)

    fc.testing.check_intrinsic(declared, cases=[(at_the_server, [np.zeros(4), np.ones(4)])])


add("intrinsic", "a kernel without a batching rule, with a case", _case_without_rule)


# Executors.


def in_reversed_order(stage, work, clients):
    return stage(attrs.evolve(clients, clients=clients.clients[::-1]))


def of_the_first_client(stage, work, clients):
    first = clients.values[0]
    return stage(attrs.evolve(clients, clients=tuple(None if c is None else first for c in clients.clients)))


def doubled_partial(stage, work, clients):
    result = stage(clients)
    return (
        result
        if result.partial is None
        else attrs.evolve(result, partial=stage.merge(result.partial, stage(clients).partial))
    )


class WithoutBroadcasts(Mine):
    """Keeps what the first stage of a call was sent."""

    def __init__(self):
        super().__init__(whole)
        self.sent = {}

    def prepare(self, work, report, stop):
        broadcasts = self.sent.setdefault(work.key, work.broadcasts)
        return super().prepare(attrs.evolve(work, broadcasts=broadcasts), report, stop)


for answer in (
    *(renumbered, broken_blocks, without_the_last, without_sizes, without_kept, full_slices_only, swallowing),
    *(backwards, in_reversed_order, of_the_first_client, doubled_partial),
):
    add(
        "slice executor",
        answer.__name__.replace("_", " "),
        functools.partial(lambda a: fc.testing.check_slice_executor(Mine(a)), answer),
    )
for executor in (ReplacingSeeds(whole), WithoutReport(whole), WithoutBroadcasts()):
    add("slice executor", type(executor).__name__, functools.partial(fc.testing.check_slice_executor, executor))


def halved_in_transit(stage, work, clients):
    def halved(x):
        if isinstance(x, tuple):
            return tuple(map(halved, x))
        is_large = getattr(x, "dtype", None) == np.float32 and np.size(x) > 9
        return tf.cast(tf.cast(x, tf.float16), tf.float32) if is_large else x

    return stage(attrs.evolve(clients, clients=tuple(c if c is None else halved(c) for c in clients.clients)))


def as_codes_of_dtypes(stage, work, clients):
    """Sends arrays as bytes with `dtype.str`, which bfloat16 does not have."""

    def sent(x):
        if isinstance(x, tuple):
            return tuple(map(sent, x))
        array = x.numpy() if isinstance(x, tf.Tensor) else x
        is_array = isinstance(array, np.ndarray | np.generic) and array.dtype != object
        return np.frombuffer(array.tobytes(), array.dtype.str).reshape(array.shape) if is_array else x

    return stage(attrs.evolve(clients, clients=tuple(c if c is None else sent(c) for c in clients.clients)))


class OneStage(Mine):
    """Has the stage that was prepared last."""

    def __init__(self):
        super().__init__(lambda stage, work, clients: self.stage(clients))

    def prepare(self, work, report, stop):
        self.stage = DEVICE.prepare(work, report, stop)
        return super().prepare(work, report, stop)


class AddingRetries(Mine):
    """A slice that runs again has the sum of all its runs."""

    def prepare(self, work, report, stop):
        stage, done = DEVICE.prepare(work, report, stop), {}

        def run(clients):
            result = stage(clients)
            if result.partial is not None and clients.first in done:
                result = attrs.evolve(result, partial=stage.merge(done[clients.first], result.partial))
            done[clients.first] = result.partial
            return result

        return run


class WithoutStop(Mine):
    """Ends when it is done."""

    def prepare(self, work, report, stop):
        return super().prepare(work, report, fc.runtime.Stop())


class LeavingThreads(Mine):
    """Each stage has a thread, which waits for messages for ever."""

    def prepare(self, work, report, stop):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().prepare(work, report, stop)


add("slice executor", "sends large tensors as float16", lambda: fc.testing.check_slice_executor(
    Mine(halved_in_transit)))  # fmt: skip
add("slice executor", "sends the codes of dtypes", lambda: fc.testing.check_slice_executor(Mine(as_codes_of_dtypes)))
for executor in (OneStage(), AddingRetries(whole), WithoutStop(whole), LeavingThreads(whole)):
    add("slice executor", executor.__doc__, functools.partial(fc.testing.check_slice_executor, executor))


class NextHome(Homes):
    """Each client's data are those of the next client."""

    def hold(self, values):
        return super().hold(values[1:] + values[:1])


class Forgetful(Homes):
    """Runs with one seed whatever the call's is."""

    def run(self, work, report, stop):
        return super().run(attrs.evolve(work, seed=0), report, stop)


class OwnReport(Homes):
    def run(self, work, report, stop):
        return super().run(work, fc.runtime.Report(), stop)


class Unordered(Homes):
    """The kept values of the clients in another order."""

    def run(self, work, report, stop):
        partial, kept = super().run(work, report, stop)
        return partial, kept[::-1]


class ByName(Homes):
    """The kept values of the clients in the order of their names."""

    def run(self, work, report, stop):
        partial, kept = super().run(work, report, stop)
        return partial, [kept[i] for i in sorted(range(len(kept)), key=str)]


class Forgotten(Homes):
    """Leaves out the last client."""

    def hold(self, values):
        return super().hold(values)[:-1] if len(values) > 1 else super().hold(values)


def _check_homes(homes: type) -> None:
    executor = homes()
    try:
        fc.testing.check_clients_executor(executor, executor.hold, block_size=1)
    finally:
        executor.close()


for homes in (NextHome, Forgetful, OwnReport, Unordered, ByName, Forgotten):
    add("clients executor", (homes.__doc__ or homes.__name__), functools.partial(_check_homes, homes))
add("clients executor", "swallows errors of clients", lambda: _check_homes(lambda: Homes(swallowing)))


# Aggregators.


def add_aggregator(name: str, total: Callable, type_="float32", **settings) -> None:
    add("aggregator", name, lambda: fc.testing.check_aggregator(SumFactory(total=total, **settings), type_))


def halves(x):
    return fc.cast(fc.cast(x, "float16"), "float32")


@fc.tf_computation("float32", "float32")
def unless_larger(left, right):
    return tf.where(right > left, right, left)


@fc.tf_computation("float32", "float32")
def larger(left, right):
    return tf.maximum(left, right)


def first_best(best, other):
    """The pair with the larger score; the first of ties."""
    return tuple(fc.where(fc.less(best[0], other[0]), y, x) for x, y in zip(best, other, strict=True))


def aggregate(zero, accumulate, merge, report=lambda n: n) -> Callable:
    return lambda value: fc.federated_aggregate(value, zero, accumulate, merge, report)


def plus(a, b):
    return a + b


add_aggregator("keeps the last block", without_merge)
add_aggregator("fails without clients", divided, "int32")
add_aggregator("subtracts partials", aggregate(0.0, plus, lambda a, b: a - b))
add_aggregator("keeps the first block", aggregate(0.0, plus, lambda a, b: a))
add_aggregator("starts with 1", aggregate(1.0, plus, plus))
add_aggregator("averages averages", aggregate(0.0, lambda m, x: (m + x) / 2.0, lambda a, b: (a + b) / 2.0))
add_aggregator("counts merges", aggregate(0.0, lambda n, x: n, lambda a, b: a + b + 1.0))
add_aggregator("adds squares of partials", aggregate(0.0, plus, lambda a, b: a * a + b * b))
add(
    "aggregator",
    "is of another type",
    lambda: fc.testing.check_aggregator(
        SumFactory(create=lambda t: SumFactory().create(fc.to_type("int32"))), "float32"
    ),
)


def narrow_mean(value):
    """A mean whose count of clients has 8 bits."""
    count = fc.federated_sum(fc.federated_map(lambda _: np.int8(1), value))
    return fc.federated_map(lambda total, n: total / fc.cast(n, "float32"), (fc.federated_sum(value), count))


def of_few(value):
    """Zero for eight clients and more."""
    few = lambda total, n: fc.where(fc.less(n, np.int32(8)), total, 0.0)  # noqa: E731
    return fc.federated_map(few, (fc.federated_sum(value), fc.federated_count(value)))


class Forgetting(fc.aggregators.UnweightedAggregationFactory):
    """The sum of all rounds, whose state stays at zero."""

    def create(self, value_type):
        @fc.federated_computation
        def initialize():
            return fc.federated_value(0.0, fc.SERVER)

        def body(state, value, _):
            total = fc.federated_map(plus, (state, fc.federated_sum(value)))
            return fc.templates.MeasuredProcessOutput(state, total, fc.federated_value((), fc.SERVER))

        return fc.aggregators.aggregation_process(initialize, value_type, None, body)


for mistake, factory, meaning in (
    ("counts in int8", SumFactory(total=narrow_mean), lambda rounds: np.mean(rounds[-1])),
    ("is wrong from eight clients on", SumFactory(total=of_few), lambda rounds: np.sum(rounds[-1])),
    ("loses its state", Forgetting(), lambda rounds: np.sum(rounds)),
):
    add("aggregator", mistake, functools.partial(fc.testing.check_aggregator, factory, "float32", meaning=meaning))

for mistake, functions in {
    "a start that is not neutral": (1.0, plus, plus, lambda n: n),
    "a merge that forgets the right side": (0.0, plus, lambda a, b: a, lambda n: n),
    "a merge of the mean of means": (0.0, plus, lambda a, b: (a + b) / 2.0, lambda n: n),
    "a fold that depends on blocks": (0.0, lambda n, x: n * 2.0 + x, plus, lambda n: n),
    "a merge that loses NaN": (0.0, larger, unless_larger, lambda n: n),
    "a merge in 16 bits": (0.0, larger, lambda a, b: halves(larger(a, b)), lambda n: n),
}.items():
    add(
        "aggregation",
        mistake,
        functools.partial(lambda f: fc.testing.check_aggregation(*f, [1.0, 2.0, 4.0, 8.0]), functions),
    )
add(
    "aggregation",
    "keeps the first of ties in a block and the last of blocks",
    lambda: fc.testing.check_aggregation(
        (-1.0, 0),
        first_best,
        lambda left, right: first_best(right, left),
        lambda best: best,
        [(1.0, 1), (2.0, 2), (3.0, 3)],
    ),
)


# Encoders.


class Signs(Encoder):
    """A bit for each element, and their mean size; a part is replaced."""

    def __init__(self, encode=None, decode=None):
        self._encode = encode or self.encode_signs
        self._decode = decode or self.decode_signs

    def encode_signs(self, value, seed):
        return Integers(tf.cast(value > 0, tf.int32), 1), tf.reduce_mean(tf.abs(value))

    def decode_signs(self, code, seed, spec):
        signs, size = code
        return (2 * tf.cast(signs.values, spec.dtype) - 1) * size

    def encode(self, value, seed):
        return self._encode(value, seed)

    def decode(self, code, seed, spec):
        return self._decode(code, seed, spec)


def add_encoder(name: str, **parts) -> None:
    check = functools.partial(fc.testing.check_encoder, relative_error=0.5)
    add("encoder", name, lambda: check(Signs(**parts), ("float32", [100])))


def encoded(value, seed):
    return Signs().encode_signs(value, seed)


def decoded(code, seed, spec):
    return Signs().decode_signs(code, seed, spec)


def rotated(value, seed):
    return encoded(tf.random.experimental.stateless_shuffle(value, seed), seed)


def first_half(value, seed):
    return encoded(tf.concat([value[:50], tf.zeros_like(value[50:])], 0), seed)


add_encoder("decodes twice the value", decode=lambda code, seed, spec: 2 * decoded(code, seed, spec))
add_encoder("decodes to float64", decode=lambda code, seed, spec: tf.cast(decoded(code, seed, spec), tf.float64))
add_encoder("decodes in reversed order", decode=lambda code, seed, spec: decoded(code, seed, spec)[::-1])
add_encoder("decodes a part", decode=lambda code, seed, spec: decoded(code, seed, spec)[:99])
add_encoder("inverts signs", encode=lambda value, seed: encoded(-value, seed))
add_encoder("shuffles and does not shuffle back", encode=rotated)
add_encoder("encodes the first half", encode=first_half)
add_encoder(
    "takes the largest for the mean size", encode=lambda v, seed: (encoded(v, seed)[0], tf.reduce_max(tf.abs(v)))
)


class Largest(Encoder):
    """Codes of 8 bits, signed, but for the largest entry: it overflows, so its sign is lost."""

    def encode(self, value, seed):
        scale = tf.reduce_max(tf.abs(value))
        return Integers(tf.cast(tf.round(value / scale * 128), tf.int32) % 256, 8), scale

    def decode(self, code, seed, spec):
        codes = tf.cast(code[0].values, tf.int32)
        return tf.cast(tf.where(codes >= 128, codes - 256, codes), tf.float32) / 128 * code[1]


add("encoder", "overflows at its largest entry", lambda: fc.testing.check_encoder(
    Largest(), ("float32", [100]), relative_error=0.001))  # fmt: skip


class Coded(Encoder):
    """Sends a function of the value, and decodes it by another."""

    def __init__(self, encode, decode=lambda code: code):
        self._encode = encode
        self._decode = decode

    def encode(self, value, seed):
        return self._encode(value)

    def decode(self, code, seed, spec):
        return tf.cast(self._decode(code), spec.dtype)


for mistake, coded, dtype, relative_error in (
    ("clips at 5", Coded(lambda v: tf.clip_by_value(v, -5, 5)), "float32", 0.01),
    ("loses NaN", Coded(lambda v: tf.where(tf.math.is_nan(v), 0.0, v)), "float32", 0.01),
    ("keeps seven bits", Coded(lambda v: Integers(v % 128, 7), lambda code: code.values), "int32", 0.0),
    ("always rounds up", Coded(lambda v: tf.cast(tf.math.ceil(v * 2), tf.int32), lambda c: tf.cast(c, tf.float32) / 2),
     "float32", 0.1),
    ("sends float64 as float32", Coded(lambda v: tf.cast(v, tf.float32)), "float64", 0.0),
):  # fmt: skip
    add("encoder", mistake, functools.partial(
        fc.testing.check_encoder, coded, (dtype, [100]), relative_error=relative_error))  # fmt: skip


for kind, mistake, check in (*LEARNING_PARTS, *PARTS_FOR_OTHERS):
    add(kind, mistake, check)


if __name__ == "__main__":
    print("| part | mistake | law that found it |\n|---|---|---|")
    for part in PARTS:
        print(f"| {part.kind} | {part.name} | {part.law() or '**none**'} |", flush=True)
