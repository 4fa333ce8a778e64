"""A function may be called anything that Python, or a file, can write."""

import pytest

import fedcore as fc
from fedcore.graphs.capture.graph_import import scope
from fedcore.ir import parse_module

NAMES = [
    "_hidden", "__", "_", "é", "日本語", "😀", "a.b", "a b", "a/b", "a:b", "^a", 'a"b', "a\nb", "a\\b", "-", "1a",
    "<lambda>", "class", "None", "main", "arg0", "ret0", "seed", "n0", "clients", "zero", "PartitionedCall", "Identity",
    "x" * 3000,
]  # fmt: skip


@pytest.fixture(scope="module")
def local():
    runtime = fc.runtime.local(workers_per_device=1)
    yield runtime
    runtime.close()


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_function_of_any_name_runs(name, local):
    def doubled(x):
        return x * 2.0

    def total(x):
        return fc.federated_sum(fc.federated_map(graph, x))

    doubled.__name__ = total.__name__ = name
    graph = fc.tf_computation("float32")(doubled)
    both = fc.federated_computation(total, fc.FederatedType("float32", fc.CLIENTS))
    for runtime in (local, fc.runtime.reference()):
        with fc.use(runtime):
            assert graph(3.0) == 6.0
            assert both([1.0, 2.0]) == 6.0
    assert parse_module(str(both.module)) == both.module
    assert graph.__name__ == name


@pytest.mark.parametrize(
    ("name", "shown"), [("train", "train"), ("_train", "fn_train"), ("a b/é", "a_b__"), ("", "fn"), ("1.x", "1.x")]
)
def test_tensorflow_shows_a_legal_name(name, shown):
    assert scope(name) == shown
