"""`dump --stage batched`, and `opt` on what it prints."""

import pytest

from fedcore.graphs.batched.batching_rewrites import BATCHING_REWRITES
from fedcore.graphs.dataflow.stage_passes import DEFAULT_STAGE_PIPELINE, GRAPH_PASSES
from fedcore.graphs.dataflow.text_parser import parse_regions

PROGRAM = """\
import fedcore as fc


@fc.federated_computation(fc.FederatedType("float32[3]", fc.CLIENTS), fc.FederatedType("float32[3]", fc.SERVER))
def away(readings, centre):
    both = (readings, fc.federated_broadcast(centre))
    return fc.federated_mean(fc.federated_map(lambda x, c: fc.generic_multiply(x, c), both))


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def squares(readings):
    return fc.federated_map(lambda x: fc.generic_multiply(x, x), readings)


@fc.federated_computation(fc.FederatedType("str", fc.CLIENTS))
def pairs(names):
    return fc.federated_map(lambda name: (name, name), names)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("regions")
    (path / "vectors.py").write_text(PROGRAM)
    return path


def test_a_client_stage_is_printed_below_its_schedule(folder, fedcore_in):
    out = fedcore_in(folder, "dump", "vectors:away", "--stage", "batched", "--clients", "3").out
    lines = out.splitlines()
    assert lines[0] == "// stage @clients, assumed: 3 clients, each with 3 batches of 20 rows"
    assert lines[1] == "// 3 clients in 1 group of 32 lanes"
    assert lines[3].startswith(
        "region @away_clients(%shared: float32[3], %seeds: int64[?], %lanes: int64[?], %readings"
    )
    (parsed,) = parse_regions(out)
    assert parsed.arguments == ("shared", "seeds", "lanes", "readings")


def test_what_passes_change_is_printed(folder, fedcore_in):
    ran = fedcore_in(folder, "dump", "vectors:away", "--stage", "batched", "--print-after-change")
    headings = [line for line in ran.err.splitlines() if line.startswith("// @")]
    assert headings == ["// @away_clients as built", "// @away_clients after cse", "// @away_clients after dce"]


def test_a_pass_is_switched_off_by_name(folder, fedcore_in):
    line = "lowering,partition,dead-leaf-elimination,fuse,plan{without=cse}"
    ran = fedcore_in(folder, "dump", "vectors:away", "--stage", "batched", "-p", line, "--print-after-change")
    assert "after cse" not in ran.err
    assert "after dce" in ran.err
    plan = fedcore_in(folder, "dump", "vectors:away", "--stage", "planned", "-p", line).out
    assert ", without=[cse]}" in plan


def test_a_pass_that_there_is_not_is_told(folder, fedcore_in):
    ran = fedcore_in(folder, "dump", "vectors:away", "-p", "lowering,partition,fuse,plan{without=csee}")
    assert ran.code != 0
    assert f"no pass of client stages is called 'csee'; there are {', '.join(DEFAULT_STAGE_PIPELINE)}" in ran.err


def test_passes_run_on_a_text(folder, fedcore_in):
    (folder / "small.region").write_text("""region @small(%x: float32) {
  %0 = Neg(%x) : float32
  %1 = Neg(%x) : float32
  %2 = AddV2(%0, %1) : float32
  return %2
}
""")
    ran = fedcore_in(folder, "opt", "small.region", "-p", "cse,dce", "--print-after-change")
    want = """region @small(%x: float32) {
  %0 = Neg(%x) : float32
  %1 = AddV2(%0, %0) : float32
  return %1
}
"""
    assert ran.out == want
    assert ran.err == f"// after cse\n{want}"


def test_a_wrong_text_is_told_with_its_line(folder, fedcore_in):
    (folder / "wrong.region").write_text("region(%x: float32) {\n  return %y\n}\n")
    ran = fedcore_in(folder, "opt", "wrong.region", "-p", "cse")
    assert ran.code != 0
    assert "wrong.region:2:10: `%y` is not computed before this line" in ran.err


def test_stage_passes_are_listed_under_their_heading(folder, fedcore_in):
    modules, _, others = fedcore_in(folder, "opt", "--list").out.partition("\nstage passes, ")
    stages, _, others = others.partition("\n\nstage passes that run on the bodies of graphs, ")
    graphs, _, others = others.partition("\n\nrewrites of batching, ")
    rewrites, _, rules = others.partition("\n\nbatching rules, ")
    assert "lower-intrinsics" in modules
    for names, text in (
        (DEFAULT_STAGE_PIPELINE, stages),
        (GRAPH_PASSES, graphs),
        (BATCHING_REWRITES, rewrites),
    ):
        assert [line.split()[0] for line in text.splitlines()[1:]] == [*names]
    assert {"AddV2", "Conv2D", "Xlogy"} <= set(rules.split())


def test_batching_rules_of_extensions_are_listed_with_their_lines(folder, fedcore_in):
    (folder / "my_rules.py").write_text(
        "from fedcore.graphs.batched.batched_value import batching_rule\n\n"
        '@batching_rule("PopulationCount")\ndef population_count(evaluation, node, x):\n    return x\n'
    )
    listed = fedcore_in(folder, "opt", "--list", "--load", "my_rules").out
    assert "PopulationCount (my_rules, line 3)" in " ".join(listed.split())


CONVOLUTIONS = """\
import tensorflow as tf

import fedcore as fc

STATE = fc.to_type((("float32", (3, 3, 1, 4)), ("float32", (144, 512))))
BATCH = fc.to_type((("float32", (None, 6, 6, 1)), ("float32", (None, 512))))


@fc.tf_computation(STATE, BATCH)
def step(state, batch):
    (filters, w), (x, y) = state, batch
    with tf.GradientTape() as tape:
        tape.watch(filters)
        hidden = tf.reshape(tf.nn.relu(tf.nn.conv2d(x, filters, 1, "SAME")), [-1, 144])
        error = tf.matmul(hidden, w) - y
        loss = tf.reduce_mean(error**2)
    change = tf.matmul(hidden, error, transpose_a=True)
    return filters - 0.1 * tape.gradient(loss, filters), w - 0.001 * change


@fc.federated_computation(fc.FederatedType(STATE, fc.SERVER), fc.FederatedType(fc.SequenceType(BATCH), fc.CLIENTS))
def total(state, batches):
    shared = fc.federated_broadcast(state)
    return fc.federated_sum(fc.federated_map(lambda s, b: fc.sequence_reduce(b, s, step), (shared, batches)))
"""


@pytest.mark.parametrize("batches", [3, 9])
def test_clients_that_keep_kernels_low_rank_one_by_one_have_a_region(folder, fedcore_in, batches):
    (folder / "convolutions.py").write_text(CONVOLUTIONS)
    sizes = ["--batches", str(batches), "--rows", "16"]
    out = fedcore_in(folder, "dump", "convolutions:total", "--stage", "batched", *sizes).out
    lines = out.splitlines()
    assert lines[0].startswith("// stage @clients, assumed: 8 clients")
    assert lines[1:3] == ["// clients one by one", "// kernels are low-rank for 7 steps at a time"]
    assert (lines[3] == "// the factors of a block are one product") == (batches == 3)
    (parsed,) = parse_regions(out)
    names = "shared_0", "shared_1", "seeds", "lanes", "batches_rows_0", "batches_rows_1"
    assert parsed.arguments == (*names, "batches_index", "batches_sizes", "batches_ends")


def test_a_loop_has_no_region(folder, fedcore_in):
    out = fedcore_in(folder, "dump", "vectors:pairs", "--stage", "batched").out
    assert "has no region: its clients run one after another, since stack: %names holds str" in out


def test_a_stage_without_a_partial_has_a_region(folder, fedcore_in):
    out = fedcore_in(folder, "dump", "vectors:squares", "--stage", "batched").out
    assert out.splitlines()[0].startswith("// stage @clients, assumed: 8 clients")
    assert "= Mul(" in out


def test_options_of_another_stage_are_refused(folder, fedcore_in):
    ran = fedcore_in(folder, "dump", "vectors:away", "--clients", "3")
    assert "--clients, --batches, --rows and --print-after-change belong to --stage batched" in ran.err
