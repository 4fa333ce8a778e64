"""What crosses in a program, what of clients reaches the server, and its longest chain of operations."""

import networkx

import fedcore as fc


@fc.federated_computation(fc.types.at_clients("float32"), fc.types.at_server("float32"))
def spread(readings, centre):
    away = fc.federated_map(lambda x, c: (x - c) * (x - c), (readings, fc.federated_broadcast(centre)))
    return fc.federated_mean(away)


graph = fc.ir.to_networkx(spread.to_module("planned"))
kinds = graph.nodes(data="kind")

# What crosses, and how much of it for each client.
crossings = {kind: graph.nodes[node]["bits"] for node, kind in kinds if kind in ("broadcast", "merge")}
assert crossings == {"broadcast": 32, "merge": 32}

# What of the clients' parameters reaches the server, and by which operations it has to pass.
(merge,) = (node for node, kind in kinds if kind == "merge")
assert "@spread %readings" in networkx.ancestors(graph, merge)
dominators = networkx.immediate_dominators(graph, "@spread %readings")
assert dominators["@spread return"] == "@spread %3"
assert kinds["@spread %3"] == "run"

# The longest chain of operations.
assert [kinds[node] for node in networkx.dag_longest_path(graph)][-4:] == ["fold", "merge", "run", "return"]
