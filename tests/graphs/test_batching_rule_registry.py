"""Registration of batching rules by third parties."""

import pytest
import tensorflow as tf
import warm_processes

import fedcore as fc
import fedcore.graphs.batched.batching_rules  # those of the package are there before a test forgets its own
from fedcore.errors import FedcoreError
from fedcore.graphs.batched.batched_value import batching_rule, batching_rules
from fedcore.graphs.graphdef.form.checked_operations import emit
from fedcore.ir.registry import declarations, note_declaration


@pytest.fixture(autouse=True)
def forgotten():
    """Rules that a test registers are forgotten after it."""
    before = dict(batching_rules)
    yield
    batching_rules.clear()
    batching_rules.update(before)
    note_declaration("PopulationCount")


def elementwise(evaluation, node, x):
    return x.with_tensor(*emit(node.op, [evaluation.tensor(x)], node.attributes))


def of_module(name, fn):
    fn.__module__ = name
    return fn


def test_a_second_rule_of_a_built_in_one_is_refused_where_it_is_registered():
    program = """
import sys
from fedcore.graphs.batched.batched_value import batching_rule, batching_rules
for name in [name for name in sys.modules if name.startswith("fedcore.graphs.batched.batching_rules")]:
    del sys.modules[name]  # a program may register its rule before anything imports the built-in ones
batching_rules.clear()
try:
    batching_rule("ClipByValue")(lambda evaluation, node, *values: values[0])
except ValueError as error:
    print(error)
"""
    text = "ClipByValue has a batching rule already: fedcore.graphs.batched.batching_rules.elementwise, line "
    assert warm_processes.python({"code": program}).startswith(text)


def test_a_second_rule_of_another_module_is_refused_with_the_place_of_the_first():
    batching_rule("PopulationCount")(of_module("their_rules", lambda evaluation, node, x: x))
    with pytest.raises(FedcoreError, match=r"PopulationCount has a batching rule already: their_rules, line \d+"):
        batching_rule("Bucketize", "PopulationCount")(elementwise)
    assert "Bucketize" not in batching_rules


def test_a_rule_that_is_registered_again_replaces_the_earlier_one():
    batching_rule("PopulationCount")(lambda evaluation, node, x: x)
    batching_rule("PopulationCount")(elementwise)
    assert batching_rules["PopulationCount"] is elementwise


def strategies(plan) -> list[str]:
    return [f.attributes["strategy"] for f in plan.functions if "strategy" in f.attributes]


@fc.tf_computation("int32")
def ones(x):
    return tf.cast(tf.raw_ops.PopulationCount(x=x), tf.int32)


def total_of_ones():
    return fc.federated_computation(
        lambda xs: fc.federated_sum(fc.federated_map(ones, xs)), fc.FederatedType("int32", fc.CLIENTS)
    )


@pytest.mark.parametrize("plans", [0, 2])
def test_a_program_is_compiled_again_after_a_rule_is_registered(plans, tmp_path, monkeypatch):
    """In this process, and with plans on disk, where each has its own file."""
    if plans:
        monkeypatch.setenv("FEDCORE_CACHE", str(tmp_path))
    runtime = fc.runtime.local()
    with fc.use(runtime):
        computation = total_of_ones()
        assert strategies(computation.to_module("planned")) == ["loop"]
        batching_rule("PopulationCount")(elementwise)
        assert strategies(computation.to_module("planned")) == ["vectorised"]
        assert computation([1, 3, 7, 15]) == 10
    runtime.close()
    assert len(list(tmp_path.iterdir())) == plans


def test_the_built_in_rules_make_no_plan_stale():
    before = declarations()
    batching_rule("PopulationCount")(of_module("fedcore.graphs.batched.batching_rules.more", lambda *_: None))
    assert declarations() == before
    batching_rule("Bucketize")(elementwise)
    assert declarations() == before + 1
