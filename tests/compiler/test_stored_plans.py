"""Plans on disk."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest
import tensorflow as tf
import warm_processes
from elsewhere import module_of

import fedcore as fc
from fedcore import context
from fedcore.compiler import code_digest, compile_module, compiler_pass
from fedcore.compiler.pipeline import get_pass, registered_passes
from fedcore.compiler.stored_plans import StoredPlans
from fedcore.ir import Constant, Operation, registry
from fedcore.ir.operations import Intrinsic, registered


@fc.tf_computation("float32")
def half(x):
    return x / 2.0


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def total_of_halves(xs):
    return fc.federated_sum(fc.federated_map(half, xs))


@pytest.fixture
def store(tmp_path) -> StoredPlans:
    return StoredPlans(tmp_path / "plans")


def test_a_plan_comes_back_equal_with_its_graphs(store):
    plan = total_of_halves.to_module("planned")
    store.put(total_of_halves.module, plan)
    found = store.get(total_of_halves.module)
    assert found == plan
    assert dict(found.blobs) == {g.digest: plan.blobs[g.digest] for g in plan.graphs}


def test_another_pipeline_or_version_has_another_plan(store, monkeypatch):
    store.put(total_of_halves.module, total_of_halves.to_module("planned"))
    assert store.get(total_of_halves.module, "inline") is None
    monkeypatch.setattr(code_digest, "versions", lambda: ["fedcore 99"])
    assert store.get(total_of_halves.module) is None


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"fedcore 1 planned\n", b"\xff\xfe"])
def test_a_damaged_file_is_ignored_and_written_again(store, damage):
    store.put(total_of_halves.module, total_of_halves.to_module("planned"))
    (path,) = store.directory.iterdir()
    path.write_bytes(damage)
    assert store.get(total_of_halves.module) is None
    store.put(total_of_halves.module, total_of_halves.to_module("planned"))
    assert store.get(total_of_halves.module) is not None


def test_a_module_that_is_no_plan_is_ignored(store):
    store.put(total_of_halves.module, total_of_halves.module)
    assert store.get(total_of_halves.module) is None


def test_a_plan_with_operations_that_a_file_may_not_hold_is_ignored(store):
    def reads(x):
        return tf.strings.length(tf.io.read_file("secret.txt")) + x

    store.put(total_of_halves.module, fc.Computation(module_of(reads)).to_module("planned"))
    assert store.get(total_of_halves.module) is None


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    StoredPlans(tmp_path / "file").put(total_of_halves.module, total_of_halves.to_module("planned"))


def test_a_call_compiles_once_for_all_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_CACHE", str(tmp_path))
    first = context.PlanCache().get(total_of_halves.module)
    monkeypatch.setattr(context, "compile_module", lambda *_: pytest.fail("it was compiled again"))
    assert context.PlanCache().get(total_of_halves.module) == first


def test_nothing_is_stored_without_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDCORE_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)
    context.PlanCache().get(total_of_halves.module)
    assert list(tmp_path.iterdir()) == []


def test_a_stored_plan_gives_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_CACHE", str(tmp_path))
    plan = context.PlanCache().get(total_of_halves.module)
    again = StoredPlans(tmp_path).get(total_of_halves.module)
    assert again is not None
    assert attrs.evolve(again, blobs={}) == attrs.evolve(plan, blobs={})
    assert again.digest() == plan.digest()


# A plan of another program under this one's name.


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def mean_of_halves(xs):
    return fc.federated_mean(fc.federated_map(half, xs))


def test_a_plan_under_another_programs_name_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_CACHE", str(tmp_path))
    context.PlanCache().get(mean_of_halves.module)
    (of_mean,) = tmp_path.iterdir()
    context.PlanCache().get(total_of_halves.module)
    (of_total,) = set(tmp_path.iterdir()) - {of_mean}
    right = of_total.read_bytes()
    of_total.write_bytes(of_mean.read_bytes())
    plan = context.PlanCache().get(total_of_halves.module)
    assert plan == total_of_halves.to_module("planned")
    assert of_total.read_bytes() == right


# What decides a plan is part of its key.

HELPER = """
FACTOR = {factor}

class Scale:
    shift = {shift}

    def __call__(self, x):
        return x * float(FACTOR) + self.shift
"""
EXTENSION = """
import fedcore as fc
import plan_helper

@fc.intrinsic("(value: {{float32}}@CLIENTS -> float32@SERVER)")
def scaled_sum(value):
    return 0.0

@scaled_sum.lowering
def _(value):
    scale = plan_helper.Scale()
    return fc.federated_sum(fc.federated_map(lambda x: scale(x) {sign} {constant}, value))

@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def program(xs):
    return scaled_sum(xs)
"""


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """Imports the files as given, and runs the program by a plan of the cache: its result, and whether it compiled."""
    monkeypatch.setenv("FEDCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def run(factor=3, shift=0, sign="+", constant="0.0"):
        for name, text in (
            ("plan_helper", HELPER.format(factor=factor, shift=shift)),
            ("plan_extension", EXTENSION.format(sign=sign, constant=constant)),
        ):
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        program = importlib.import_module("plan_extension").program
        compiled = []
        monkeypatch.setattr(context, "compile_module", lambda *given: compiled.append(1) or compile_module(*given))
        plan = context.PlanCache().get(program.module)
        return fc.Computation(plan)([1.0, 2.0]), bool(compiled)

    yield run
    forget("scaled_sum")
    for name in ("plan_helper", "plan_extension"):
        sys.modules.pop(name, None)


def forget(name):
    registry._registry.pop(name)


def test_a_changed_lowering_and_what_it_refers_to_compile_again(edited):
    assert edited() == (9.0, True)
    assert edited() == (9.0, False)
    assert edited(factor=6) == (18.0, True)  # a constant of a module that the lowering uses
    assert edited(factor=6, shift=1) == (20.0, True)  # of a class there
    assert edited(constant="1.0") == (11.0, True)
    assert edited(sign="-", constant="1.0") == (7.0, True)
    assert edited() == (9.0, False)


def test_a_changed_pass_compiles_again(edited):
    def with_pass(text):
        scope = {"lowering": before.run, "compiler_pass": compiler_pass, "DOUBLE": 2}
        exec(f"@compiler_pass('lower-intrinsics')\ndef lower(module):\n    {text}\n    return lowering(module)", scope)
        return edited()

    before = get_pass("lower-intrinsics")
    try:
        assert edited() == (9.0, True)
        assert with_pass("pass") == (9.0, True)
        assert with_pass("pass") == (9.0, False)
        assert with_pass("DOUBLE + 1") == (9.0, True)
    finally:
        compiler_pass("lower-intrinsics")(before.run)
    assert edited() == (9.0, False)


def test_a_rule_of_a_third_party_shows_in_the_digest(monkeypatch):
    from fedcore.graphs.batched.batched_value import batching_rules

    found = {code_digest.code_digest()}
    for text in ("def f(call, node, x): return x", "def f(call, node, x): return call"):
        scope = {}
        exec(text, scope)
        monkeypatch.setitem(batching_rules, "TheirOp", scope["f"])
        found.add(code_digest.code_digest())
    assert len(found) == 3
    assert None not in found


def test_a_kernel_of_a_third_party_shows_in_the_digest(monkeypatch):
    from fedcore.graphs.stages.kernels import kernels

    found = {code_digest.code_digest()}
    for text in ("def f(op, x): return x", "def f(op, x): return -x"):
        scope = {}
        exec(text, scope)
        monkeypatch.setitem(kernels, "their_op", scope["f"])
        found.add(code_digest.code_digest())
    assert len(found) == 3
    assert None not in found


def test_a_constant_has_the_digest_of_its_content_wherever_its_memory_lies():
    def lines(array):
        walk = code_digest._Walk()
        type_ = fc.FederatedType(array.dtype, fc.CLIENTS)
        walk.add(Operation("x", "literal", (), type_, {"value": Constant.view(array)}))
        return walk.lines

    assert lines(np.arange(3.0)) == lines(np.arange(3.0))
    assert lines(np.arange(3.0)) != lines(np.arange(3.0) + 1)
    assert lines(np.arange(4.0)) != lines(np.arange(4.0).reshape(2, 2))


def test_what_an_operation_declares_shows_in_the_digest(monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    scope = {"fc": fc}
    exec("def their_op(fn, arg): return fn(arg)", scope)
    exec("def form(fn, arg): return fn(arg)", scope)
    found = [code_digest.code_digest()]
    for options in ({}, {"per_client": "fn"}):
        op = fc.intrinsic("(fn: (T -> U), arg: T@SERVER -> U@SERVER)", **options)(scope["their_op"])
        found.append(code_digest.code_digest())
    op.in_stage(scope["form"])
    found.append(code_digest.code_digest())
    assert len(set(found)) == 4
    assert None not in found


def test_each_source_file_of_fedcore_shows_in_the_digest(tmp_path, monkeypatch):
    def digest():
        code_digest._fedcore_sources.cache_clear()
        return code_digest.code_digest()

    monkeypatch.setattr(code_digest.fedcore, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(code_digest, "_STARTED", float("inf"))
    (tmp_path / "compiler").mkdir()
    found = []
    try:
        for name, text in (("__init__", ""), ("compiler/plan", "a"), ("compiler/plan", "b"), ("rules", "b")):
            (tmp_path / f"{name}.py").write_text(text)
            found.append(digest())
        assert None not in found
        assert len(set(found)) == 4
        monkeypatch.setattr(code_digest, "_STARTED", 0.0)
        assert digest() is None  # edited since it was imported
    finally:
        monkeypatch.undo()
        code_digest._fedcore_sources.cache_clear()


def test_what_a_lowering_draws_on_that_has_no_content_is_not_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_CACHE", str(tmp_path))
    unknown = object()
    assert code_digest.code_digest() is not None
    monkeypatch.setattr(registered()["federated_mean"], "lowered_by", lambda value: unknown)
    assert code_digest.code_digest() is None
    context.PlanCache().get(total_of_halves.module)
    assert list(tmp_path.iterdir()) == []


def test_the_digest_tells_code_and_what_it_refers_to_and_not_lines(monkeypatch):
    mean = registered()["federated_mean"]
    found = set()

    def digest(source, **names):
        scope = dict(names)
        exec(source, scope)
        monkeypatch.setattr(mean, "lowered_by", scope["f"])
        return code_digest.code_digest()

    one = digest("def f(x): return x * FACTOR", FACTOR=2)
    assert one == digest("# elsewhere\n\ndef f(x):\n    return x * FACTOR", FACTOR=2)
    found |= {
        one,
        digest("def f(x): return x * FACTOR", FACTOR=3),
        digest("def f(x): return x * FACTOR", FACTOR=np.float32(3)),
        digest("def f(x): return x + FACTOR", FACTOR=2),
        digest("def f(x, y=1): return x * FACTOR", FACTOR=2),
        digest("def f(x): return (lambda: x * FACTOR)()", FACTOR={"a": [2, {3, 4}]}),
        digest("def g(y): return f(y)\ndef f(x): return g(x)"),
        digest("def g(y): return f(y) + 1\ndef f(x): return g(x)"),
        digest("def make(n):\n  def f(x): return x * n\n  return f\nf = make(2)"),
        digest("def make(n):\n  def f(x): return x * n\n  return f\nf = make(3)"),
    }
    assert None not in found
    assert len(found) == 10
    in_a_set = "def plus(x): return x + {}\ndef f(x, functions={{plus}}): return functions"
    assert digest(in_a_set.format(1)) == digest(in_a_set.format(1)) != digest(in_a_set.format(2))


def test_the_digest_is_that_of_every_process():
    examples = str(Path(__file__).parents[2] / "examples")
    text = "import new_intrinsic; from fedcore.compiler.code_digest import code_digest; print(code_digest())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([examples, *filter(None, sys.path)])}
    warm = warm_processes.run({"code": text}, cwd=Path.cwd(), env=env)  # its strings hash by a random seed
    assert warm.returncode == 0, warm.stderr
    env["PYTHONHASHSEED"] = "1"
    done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert warm.stdout == done.stdout != b"None\n"


# In memory, as in a notebook: a cell is run again.


@pytest.fixture
def own_operation():
    @fc.intrinsic("(value: {float32}@CLIENTS -> float32@SERVER)")
    def times_something(value):
        return np.float32(0)

    yield times_something
    forget("times_something")


def test_a_lowering_that_is_given_again_is_used(own_operation: Intrinsic):
    own_operation.lowering(lambda value: fc.federated_sum(fc.federated_map(lambda x: x * 3.0, value)))
    program = fc.federated_computation(lambda xs: own_operation(xs), fc.FederatedType("float32", fc.CLIENTS))
    assert program([1.0]) == 3.0
    own_operation.lowering(lambda value: fc.federated_sum(fc.federated_map(lambda x: x * 6.0, value)))
    assert program([1.0]) == 6.0


def test_a_pass_that_is_registered_again_is_run(monkeypatch):
    seen = []
    total_of_halves.to_module("planned")
    before = get_pass("cse")
    assert "cse" in registered_passes()
    try:
        compiler_pass("cse")(lambda module: seen.append(module) or before.run(module))
        total_of_halves.to_module("planned")
        assert len(seen) == 1
        total_of_halves.to_module("planned")
        assert len(seen) == 1
    finally:
        compiler_pass("cse")(before.run)
