import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import ClientError, ExecutionError, Location
from fedcore.graphs.dataflow.graph import Node
from fedcore.graphs.emission.source_names import operation_name, source_in
from fedcore.graphs.graphdef.graph_text import print_graph
from fedcore.ir.module import NodeSource

TABLE = [1.0, 2.0, 3.0]


def line_of(function, text: str) -> int:
    """The number of the line of a function's source that has the text."""
    import inspect

    lines, first = inspect.getsourcelines(getattr(function, "__wrapped__", function))
    return first + next(i for i, line in enumerate(lines) if text in line)


def look_up(i):
    rows = tf.constant(TABLE)
    for _ in range(2):
        rows = rows + 1.0
    return tf.gather(rows, i)  # the line that fails


def triple(x):
    return x * 3.0


def halve_while_large(x):
    while x > 1.0:
        x = x / 2.0
    return x


@pytest.fixture(scope="module")
def look_up_graph():
    return fc.tf_computation(look_up, "int32")


@pytest.fixture(scope="module")
def failing_calls(look_up_graph):
    """Computations whose operation `GatherV2` fails for an index beyond the table."""

    @fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
    def total(xs):
        return fc.federated_sum(fc.federated_map(look_up_graph, xs))

    @fc.federated_computation(fc.FederatedType("int32", fc.SERVER))
    def at_server(x):
        return fc.federated_map(look_up_graph, x)

    return {"clients": total, "server": at_server}


def test_nodes_of_a_graph_have_the_lines_of_the_user_though_autograph_converts_the_function(look_up_graph):
    (graph,) = look_up_graph.module.graphs
    lines = {source.name: source.location.line for source in graph.sources.values() if source.location}
    assert lines["GatherV2"] == line_of(look_up, "tf.gather")


def test_nodes_of_a_loop_have_their_own_lines():
    module = fc.tf_computation(halve_while_large, "float32").module
    text = print_graph(module, module.graphs[0])
    (halved,) = [line for line in text.splitlines() if " = RealDiv" in line]
    assert f"test_node_sources.py:{line_of(halve_while_large, 'x / 2.0')} " in halved


def test_a_fused_graph_has_the_lines_of_the_graphs_and_operations_in_it(failing_calls):
    plan = failing_calls["clients"].to_module("planned")
    text = "".join(print_graph(plan, graph) for graph in plan.graphs)
    assert f"test_node_sources.py:{line_of(look_up, 'tf.gather')} GatherV2" in text
    assert "generic_plus" in text


def test_equal_graphs_of_other_lines_have_one_digest():
    first, second = (
        fc.tf_computation(lambda x: x * 3.0, "float32").module,
        fc.tf_computation(triple, "float32").module,
    )
    assert first.graphs[0].digest == second.graphs[0].digest
    assert first.graphs[0].sources != second.graphs[0].sources


@pytest.mark.parametrize(("place", "value", "error"), [("clients", [1, 7], ClientError), ("server", 7, ExecutionError)])
def test_the_error_of_a_call_names_the_line_of_the_operation_that_failed(failing_calls, place, value, error):
    with pytest.raises(error, match=rf"test_node_sources.py:{line_of(look_up, 'tf.gather')}, in "):
        failing_calls[place](value)


def test_a_plan_from_a_file_names_the_line_of_the_operation_that_failed(failing_calls, tmp_path):
    fc.save(fc.Computation(failing_calls["clients"].to_module("planned")), tmp_path / "plan.fed")
    with pytest.raises(ClientError, match=rf"test_node_sources.py:{line_of(look_up, 'tf.gather')}, in "):
        fc.load(tmp_path / "plan.fed")([1, 7])


@pytest.mark.parametrize("file", ["train.py", "a folder/train.py", "tests/über.py"])
@pytest.mark.parametrize("name", ["mul_1", "sequential/dense/MatMul"])
def test_the_name_of_an_emitted_operation_has_its_source(file, name):
    library = Location("fedcore/learning/optimizers/sgdm.py", 20)
    node = Node("Mul", (), source=NodeSource(name, Location(file, 34, library=library)))
    source = source_in(f"bad [[{{{{node {operation_name(node)}}}}}]]")
    assert source is not None
    assert source.location is not None
    assert (source.location.line, source.name) == (34, name.removesuffix("/MatMul"))
    assert source.location.library == (None if "/" in name else library)
