"""Files of `fedcore dump --format` for programs that show graphs, read back by their readers."""

import json

import pytest
import tensorflow as tf
from click.testing import CliRunner
from tensorflow.core.framework import graph_pb2

from fedcore.cli import main

PROGRAM = """\
import tensorflow as tf

import fedcore as fc


def halvings(x):
    with tf.name_scope("halve"):
        _, count = tf.while_loop(lambda x, n: x > 1.0, lambda x, n: (x / 2.0, n + 1.0), (x, 0.0))
    return count


steps = fc.tf_computation(halvings, "float32")


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def mean_of(readings):
    return fc.federated_mean(fc.federated_map(steps, readings))


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def total(readings):
    return fc.federated_sum(readings)
"""


@pytest.fixture
def dump(tmp_path, monkeypatch):
    """Runs `fedcore dump` on a computation of the program, and returns its result."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "halving_program.py").write_text(PROGRAM)

    def run(name: str, format_: str):
        target = f"halving_program:{name}"
        return CliRunner().invoke(main, ["dump", target, "--stage", "traced", "--format", format_])

    return run


def test_a_pb_file_is_a_graph_that_tensorflow_imports_and_runs(dump):
    graph_def = graph_pb2.GraphDef.FromString(dump("mean_of", "pb").stdout_bytes)
    assert {"halvings/arg", "halvings/halve/while"} <= {node.name for node in graph_def.node}
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    with tf.compat.v1.Session(graph=graph) as session:
        assert session.run("halvings/ret0:0", {"halvings/arg:0": 5.0}) == 3.0


def test_an_event_file_has_the_graph_for_tensorboard(dump, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "events.out.tfevents.1").write_bytes(dump("mean_of", "tensorboard").stdout_bytes)
    graph_def = accumulator.EventAccumulator(str(logs)).Reload().Graph()
    assert graph_def.SerializeToString(deterministic=True) == dump("mean_of", "pb").stdout_bytes


def test_a_collection_of_model_explorer_has_each_graph_behind_the_node_that_calls_it(dump):
    collection = json.loads(dump("mean_of", "model-explorer").stdout)
    graphs = {graph["id"]: {node["id"]: node for node in graph["nodes"]} for graph in collection["graphs"]}
    for nodes in graphs.values():
        for node in nodes.values():
            assert {edge["sourceNodeId"] for edge in node["incomingEdges"]} <= set(nodes)
            assert set(node["subgraphIds"]) <= set(graphs)
    (call,) = [node for node in graphs["@mean_of"].values() if node["subgraphIds"]]
    assert (call["label"], call["subgraphIds"]) == ("federated_map @halvings", ["halvings"])
    loop = graphs["halvings"]["halve/while"]
    assert (loop["namespace"], len(loop["subgraphIds"])) == ("halve", 2)


def test_nodes_of_model_explorer_have_attributes_in_the_notation_and_no_chains_of_identities(dump):
    collection = json.loads(dump("mean_of", "model-explorer").stdout)
    nodes = [node for graph in collection["graphs"] for node in graph["nodes"]]
    assert "Identity" not in {node["label"] for node in nodes}
    values = [a["value"] for node in nodes if node["label"] == "Const" for a in node["attrs"] if a["key"] == "value"]
    assert "2.0" in values


def test_a_module_without_graphs_has_none_to_show(dump):
    result = dump("total", "pb")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the traced module of @total calls no TensorFlow graph" in result.stderr
