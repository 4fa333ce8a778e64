"""Plans on disk."""

import attrs
import pytest
import tensorflow as tf
from elsewhere import module_of

import fedcore as fc
from fedcore import context
from fedcore.compiler import stored_plans
from fedcore.compiler.stored_plans import StoredPlans


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
    store.put(total_of_halves.digest, plan)
    found = store.get(total_of_halves.digest)
    assert found == plan
    assert dict(found.blobs) == {g.digest: plan.blobs[g.digest] for g in plan.graphs}


def test_another_pipeline_or_version_has_another_plan(store, monkeypatch):
    store.put(total_of_halves.digest, total_of_halves.to_module("planned"))
    assert store.get(total_of_halves.digest, "inline") is None
    monkeypatch.setattr(stored_plans, "_versions", lambda: ["fedcore 99"])
    assert store.get(total_of_halves.digest) is None


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"fedcore 1 planned\n", b"\xff\xfe"])
def test_a_damaged_file_is_ignored_and_written_again(store, damage):
    store.put(total_of_halves.digest, total_of_halves.to_module("planned"))
    (path,) = store.directory.iterdir()
    path.write_bytes(damage)
    assert store.get(total_of_halves.digest) is None
    store.put(total_of_halves.digest, total_of_halves.to_module("planned"))
    assert store.get(total_of_halves.digest) is not None


def test_a_module_that_is_no_plan_is_ignored(store):
    store.put(total_of_halves.digest, total_of_halves.module)
    assert store.get(total_of_halves.digest) is None


def test_a_plan_with_operations_that_a_file_may_not_hold_is_ignored(store):
    def reads(x):
        return tf.strings.length(tf.io.read_file("secret.txt")) + x

    store.put(total_of_halves.digest, fc.Computation(module_of(reads)).to_module("planned"))
    assert store.get(total_of_halves.digest) is None


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    StoredPlans(tmp_path / "file").put("0" * 64, total_of_halves.to_module("planned"))


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
    again = StoredPlans(tmp_path).get(total_of_halves.module.source_digest())
    assert again is not None
    assert attrs.evolve(again, blobs={}) == attrs.evolve(plan, blobs={})
    assert again.digest() == plan.digest()
