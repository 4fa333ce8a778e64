"""A name in a file is a claim: it stands for nothing of this process, and nothing of this process for it."""

import re
import zipfile
from pathlib import Path

import attrs
import pytest
import tensorflow as tf
from elsewhere import module_of, with_graph
from tensorflow.core.framework import graph_pb2
from tensorflow.python.eager import context

import fedcore as fc
from fedcore.compiler import DEFAULT_PIPELINE, compile_module
from fedcore.compiler.pinned_plans import pin_plan
from fedcore.errors import FedcoreError, TracingError
from fedcore.graphs.graphdef.form.canonical_form import ANONYMOUS, with_content_names
from fedcore.graphs.graphdef.validation.allow_list import check_graphs
from fedcore.ir import Module, bundle
from fedcore.learning import models


def functions_of(module: Module) -> list[str]:
    """The names of the library functions of the module's graphs."""
    graph_defs = [graph_pb2.GraphDef.FromString(module.blob(g.digest)) for g in module.graphs]
    return [f.signature.name for graph_def in graph_defs for f in graph_def.library.function]


def nodes_of(graph_def: graph_pb2.GraphDef) -> list:
    return [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]


def named_as(names: list[str]):
    """A change of a GraphDef that gives its functions these names."""

    def change(graph_def):
        new = dict(zip([f.signature.name for f in graph_def.library.function], names, strict=False))
        for function in graph_def.library.function:
            function.signature.name = new.get(function.signature.name, function.signature.name)
        for node in nodes_of(graph_def):
            node.op = new.get(node.op, node.op)
            for value in node.attr.values():
                for func in [value.func] if value.HasField("func") else value.list.func:
                    func.name = new.get(func.name, func.name)

    return change


def forge(path: Path, member: str, change) -> None:
    """Changes the graph of one program of a saved model."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    parts[member] = bundle.to_bytes(with_graph(bundle.from_bytes(parts[member]), change))
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts.items():
            file.writestr(name, data)


def branches(factor: float):
    return lambda x: tf.cond(x > 1.0, lambda: x * factor, lambda: x - factor)


def test_a_file_that_defines_a_function_of_this_process_changes_no_program_here(tmp_path):
    own = fc.tf_computation("float32")(branches(3.0))
    forged = with_graph(module_of(branches(70.0), "float32"), named_as(functions_of(own.module)))
    bundle.write(forged, tmp_path / "forged.fed")
    assert fc.load(tmp_path / "forged.fed")(2.0) == 140.0
    assert own(2.0) == 6.0
    assert own(0.0) == -3.0


def test_a_definition_in_a_file_does_not_stand_for_a_trusted_function_of_this_process(tmp_path):
    path = tmp_path / "written.txt"

    def writes(x):
        def now():
            with tf.control_dependencies([tf.raw_ops.WriteFile(filename=str(path), contents="text")]):
                return x * 2.0

        return tf.cond(x > 1.0, now, lambda: x)

    trusted = fc.tf_computation("float32")(branches(5.0))
    graph_def = graph_pb2.GraphDef.FromString(trusted.module.blob(trusted.module.graphs[0].digest))
    writing = tf.function(writes).get_concrete_function(tf.TensorSpec((), tf.float32)).graph.as_graph_def()
    (written,) = [f for f in writing.library.function if any(n.op == "WriteFile" for n in f.node_def)]
    written = type(graph_def.library.function[0]).FromString(written.SerializeToString())
    context.context().add_function_def(written)  # as a trusted program of this process would
    forged = with_graph(trusted.module, named_as([written.signature.name]))
    check_graphs(forged, trusted=False)
    bundle.write(forged, tmp_path / "forged.fed")
    assert fc.load(tmp_path / "forged.fed")(2.0) == 10.0
    assert not path.exists()


def test_names_of_a_file_never_reach_tensorflow(tmp_path):
    module = with_graph(module_of(branches(11.0), "float32"), named_as(["__inference_main_1", "mine"]))
    bundle.write(module, tmp_path / "named.fed")
    assert fc.load(tmp_path / "named.fed")(2.0) == 22.0
    assert not context.context().has_function("mine")
    assert not context.context().has_function("__inference_main_1")


def test_a_content_name_is_a_digest_of_all_that_a_function_calls():
    def nested(factor):
        inner = tf.function(lambda y: y * factor)
        return lambda x: tf.function(lambda y: inner(y) + 1.0)(x)

    def names(module):
        graph_def = graph_pb2.GraphDef.FromString(module.blob(module.graphs[0].digest))
        return {f.signature.name for f in with_content_names(graph_def).library.function}

    two, three = module_of(nested(2.0), "float32"), module_of(nested(3.0), "float32")
    assert len(names(two)) == 2
    assert names(two).isdisjoint(names(three))
    assert names(two) == names(with_graph(two, named_as(["a", "b"])))
    assert all(re.fullmatch("f_[0-9a-f]{64}", name) for name in names(two))


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def doubled(xs):
    return fc.federated_sum(fc.federated_map(fc.tf_computation("float32")(branches(2.0)), xs))


@pytest.mark.parametrize("options", ["", "{vectorize=false}"])
def test_a_pinned_plan_that_names_functions_of_this_process_changes_no_program_here(tmp_path, options):
    plan = pin_plan(compile_module(doubled.module, DEFAULT_PIPELINE + options), doubled.module.digest())
    own = fc.tf_computation("float32")(branches(9.0))
    forged = plan
    for graph in plan.graphs:
        forged = with_graph(forged, named_as(functions_of(own.module)), graph.name)
    bundle.write(forged, tmp_path / "forged.fed")
    with fc.use(plans=tmp_path):
        assert doubled([2.0] * 9 + [0.0]) == 34.0
    assert own(2.0) == 18.0


def test_a_saved_model_that_names_functions_of_this_process_changes_no_program_here(tmp_path):
    def predict(weights, x, training):
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: x @ weights.trainable[0] + 1.0, lambda: x @ weights.trainable[0])

    def forward_pass(weights, batch, training):
        predictions = predict(weights, batch[0], training)
        loss = tf.reduce_mean((predictions - batch[1]) ** 2)
        return models.BatchOutput(loss, predictions, tf.shape(batch[0])[0])

    spec = (tf.TensorSpec((None, 2)), tf.TensorSpec((None, 1)))
    model = models.FunctionalModel(lambda: models.ModelWeights((tf.zeros((2, 1)),), ()), forward_pass, spec, predict)
    models.save(model, tmp_path / "model")
    own = fc.tf_computation("float32")(branches(13.0))
    forge(tmp_path / "model" / "model.zip", "predict.fed", named_as(functions_of(own.module)))
    loaded = models.load(tmp_path / "model")
    predicted = loaded._parts["predict"](((tf.zeros((2, 1)),), ()), [[1.0, 1.0]])
    assert predicted.tolist() == [[1.0]]
    assert own(2.0) == 26.0


def counts(x):
    """Adds x to a variable of the whole process, which it makes when there is none."""
    total = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="total")
    tf.cond(
        tf.raw_ops.VarIsInitializedOp(resource=total),
        tf.no_op,
        lambda: tf.group(tf.raw_ops.AssignVariableOp(resource=total, value=0.0)),
    )
    tf.raw_ops.AssignAddVariableOp(resource=total, value=x)
    return tf.raw_ops.ReadVariableOp(resource=total, dtype=tf.float32)


def shared_as(name: bytes):
    def change(graph_def):
        for node in nodes_of(graph_def):
            if node.op == "VarHandleOp":
                node.attr["shared_name"].s = name

    return change


@pytest.mark.parametrize(("name", "trusted"), [(b"", False), (ANONYMOUS, False), (b"", True), (b"total", True)])
def test_a_variable_of_a_file_starts_fresh_in_every_call(tmp_path, name, trusted):
    bundle.write(with_graph(module_of(counts, "float32"), shared_as(name)), tmp_path / "counts.fed")
    loaded, again = (fc.load(tmp_path / "counts.fed", trusted=trusted) for _ in range(2))
    assert [loaded(1.0), loaded(2.0), again(4.0)] == [1.0, 2.0, 4.0]


def test_clients_do_not_see_a_variable_of_each_other(tmp_path):
    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def totals(xs):
        return fc.federated_map(fc.tf_computation("float32")(counts), xs)

    bundle.write(with_graph(totals.module, shared_as(b"")), tmp_path / "totals.fed")
    loaded = fc.load(tmp_path / "totals.fed")
    for _ in range(2):
        assert list(loaded([1.0, 2.0, 3.0, 4.0, 5.0])) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_traced_variable_with_a_name_starts_fresh_in_every_call():
    own = fc.tf_computation("float32")(counts)
    assert [own(1.0), own(2.0)] == [1.0, 2.0]


def test_a_queue_cannot_be_traced_since_all_calls_would_share_it():
    def queues(x):
        queue = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32], capacity=10)
        tf.raw_ops.QueueEnqueueV2(handle=queue, components=[x])
        return tf.raw_ops.QueueSizeV2(handle=queue)

    with pytest.raises(TracingError, match=r"`queues` \(.*\) keeps state in the op FIFOQueueV2, which every call"):
        fc.tf_computation("float32")(queues)


def test_a_gradient_that_a_file_names_is_not_looked_up_in_this_process(tmp_path):
    called = []

    @tf.RegisterGradient("FedcoreTestGradient")
    def gradient(op, grad):
        called.append(op)
        return [grad * 100.0] * len(op.inputs)

    def change(graph_def):
        for node in nodes_of(graph_def):
            node.attr["_gradient_op_type"].s = b"FedcoreTestGradient"

    bundle.write(with_graph(module_of(lambda x: tf.sin(x) * 2.0, "float32"), change), tmp_path / "named.fed")
    loaded = fc.load(tmp_path / "named.fed")

    @fc.tf_computation("float32")
    def slope(x):
        return tf.gradients(loaded(x), x)[0]

    assert slope(0.0) == 2.0
    assert called == []


def test_what_a_file_says_of_its_functions_beside_their_bodies_never_reaches_tensorflow():
    def change(graph_def):
        for function in graph_def.library.function:
            function.attr["api_implements"].s = b"lstm_of_this_process"
            function.attr["api_preferred_device"].s = b"CPU"
            function.node_def[0].attr["_kernel"].s = b"host"
            function.signature.description = "described"

    module = with_graph(module_of(branches(2.0), "float32"), change)
    graph_def = with_content_names(graph_pb2.GraphDef.FromString(module.blob(module.graphs[0].digest)))
    for function in graph_def.library.function:
        assert not function.attr
        assert "_kernel" not in function.node_def[0].attr
        assert not function.signature.description


def hands_a_function(graph_def):
    branch = next(n for n in graph_def.node if n.op in ("If", "StatelessIf")).attr["then_branch"].func
    branch.attr["f"].func.name = "of_this_process"


def uses_a_placeholder(graph_def):
    next(n for n in graph_def.node if n.op == "Greater").attr["_XlaMustCompile"].placeholder = "f"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (hands_a_function, "passes attributes to 'f_"),
        (uses_a_placeholder, "'_XlaMustCompile' has a value of another kind"),
    ],
)
@pytest.mark.parametrize("trusted", [True, False])
def test_attributes_that_could_name_a_function_elsewhere_are_refused(change, says, trusted):
    with pytest.raises(FedcoreError, match=says):
        check_graphs(with_graph(module_of(branches(2.0), "float32"), change), trusted=trusted)


def asserts(x):
    tf.debugging.assert_less(x, 100.0)
    return x


@pytest.mark.parametrize(
    ("fn", "trait"), [(counts, "stateful"), (lambda x: x + tf.random.normal(()), "seeded"), (asserts, "effects")]
)
def test_a_graph_does_what_its_file_says_and_no_more(fn, trait):
    module = fc.tf_computation("float32")(fn).module
    (graph,) = module.graphs
    kept = {k: v for k, v in graph.attributes.items() if k != trait}
    silent = attrs.evolve(module, graphs=(attrs.evolve(graph, attributes=kept),))
    check_graphs(module, trusted=True)
    with pytest.raises(FedcoreError, match=f"is {trait}, but the file does not say so|is no argument of"):
        check_graphs(silent, trusted=True)


def test_no_module_imports_a_library_under_names_that_are_not_made_from_content():
    """TensorFlow is given functions in one place; graphs are imported from that place or made by this process."""
    gives = re.compile(r"private_api\.(?:define_function|optimize_graph)\(|add_function_def\(|import_graph_def\(")
    found = {
        (str(path.relative_to(Path(fc.__file__).parent)), match)
        for path in Path(fc.__file__).parent.rglob("*.py")
        if not path.name.startswith("private_api")
        for match in gives.findall(path.read_text())
    }
    assert found == {
        ("graphs/graphdef/form/process_functions.py", "private_api.define_function("),
        ("graphs/capture/graph_import.py", "import_graph_def("),
        ("graphs/graphdef/form/sequence_operands.py", "import_graph_def("),
        ("graphs/graphdef/validation/stepwise_import.py", "import_graph_def("),
        ("graphs/graphdef/rewrites/grappler.py", "private_api.optimize_graph("),
    }


def as_placeholder_v2(graph_def):
    """Old TensorFlow fed it as an argument, while analyses read an operation without inputs."""
    for node in graph_def.node:
        node.op = "PlaceholderV2" if node.name == "arg0" else node.op
    graph_def.versions.producer = 22


def of_an_old_version(graph_def):
    graph_def.versions.producer = 22


def of_no_version(graph_def):
    graph_def.ClearField("versions")


@pytest.mark.parametrize("change", [as_placeholder_v2, of_an_old_version, of_no_version])
def test_a_graph_of_another_version_is_refused(change):
    module = module_of(lambda x: x + 1, "float32")
    check_graphs(module, trusted=False)
    with pytest.raises(FedcoreError, match=r"its operations are those of another version of graphs|PlaceholderV2"):
        check_graphs(with_graph(module, change), trusted=False)


def test_an_argument_is_a_placeholder_of_todays_kind():
    def change(graph_def):
        as_placeholder_v2(graph_def)
        graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION

    with pytest.raises(FedcoreError, match=r"it lacks the argument|PlaceholderV2"):
        check_graphs(with_graph(module_of(lambda x: x + 1, "float32"), change), trusted=False)
