"""The dataflow graph of modules, as a graph of networkx."""

import io
import sys

import networkx
import pytest
from click.testing import CliRunner

import fedcore as fc
from fedcore.cli import main
from fedcore.errors import FedcoreError
from fedcore.ir.module import STAGES


@fc.federated_computation(fc.types.at_clients("float32"), fc.types.at_server("float32"))
def spread(readings, centre):
    away = fc.federated_map(lambda x, c: (x - c) * (x - c), (readings, fc.federated_broadcast(centre)))
    return fc.federated_mean(away)


def graph(stage: str) -> networkx.DiGraph:
    return fc.ir.to_networkx(spread.to_module(stage))


@pytest.mark.parametrize("stage", STAGES)
def test_every_operation_and_parameter_is_a_node(stage):
    module = spread.to_module(stage)
    names = {f"@{f.name} %{x.name}" for f in module.functions for x in (*f.parameters, *f.operations)}
    assert names <= set(graph(stage))


@pytest.mark.parametrize("stage", STAGES)
def test_the_graph_is_acyclic_and_ends_at_the_result(stage):
    assert networkx.is_directed_acyclic_graph(graph(stage))
    assert [node for node, degree in graph(stage).out_degree if degree == 0 and "@spread" in node] == ["@spread return"]


def test_an_operand_that_stands_twice_is_one_edge():
    double = fc.federated_computation(lambda x: fc.generic_plus(x, x), fc.types.at_server("int32"))
    edges = fc.ir.to_networkx(double.module).in_edges("@lambda %0", data="operands")
    assert [*edges] == [("@lambda %x", "@lambda %0", "0,1")]


def test_a_plan_has_placements_bits_lines_and_strategies():
    nodes = graph("planned").nodes(data=True)
    (fold,) = (d for _, d in nodes if d["kind"] == "fold")
    assert (fold["placement"], fold["strategy"]) == ("CLIENTS", "vectorised")
    assert fold["type"] == "{<float32,float32>}@CLIENTS"
    assert "test_networkx_graph.py:" in fold["location"]
    (merge,) = (d for _, d in nodes if d["kind"] == "merge")
    assert (merge["placement"], merge["bits"]) == ("SERVER", 32)


def test_a_size_that_is_not_known_is_left_out():
    texts = fc.federated_computation(lambda x: fc.federated_broadcast(x), fc.types.at_server("str"))
    assert "bits" not in fc.ir.to_networkx(texts.module).nodes["@lambda %0"]


def test_graphml_holds_the_graph(tmp_path):
    path = tmp_path / "spread.fed"
    path.write_text(str(spread.module))
    result = CliRunner().invoke(main, ["dump", str(path), "--stage", "traced", "--format", "graphml"])
    assert result.exit_code == 0, result.output
    read = networkx.read_graphml(io.BytesIO(result.stdout.encode()))
    assert {n: d["kind"] for n, d in read.nodes(data=True)} == dict(graph("traced").nodes(data="kind"))


def test_graphml_takes_one_stage(tmp_path):
    path = tmp_path / "spread.fed"
    path.write_text(str(spread.module))
    result = CliRunner().invoke(main, ["dump", str(path), "--format", "graphml"])
    assert result.exit_code == 2
    assert "choose a --stage" in result.output


def test_without_networkx_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(FedcoreError, match=r"pip install 'fedcore\[networkx\]'"):
        fc.ir.to_networkx(spread.module)
