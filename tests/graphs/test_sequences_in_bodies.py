"""Sequence parameters of tf_computations: loops over symbolic columns."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TracingError

FLOATS = fc.SequenceType("float32")
PAIRS = fc.SequenceType({"x": fc.TensorType("float32", [None, 2]), "y": fc.TensorType("float32", [None])})
RUNTIMES = {"local": fc.runtime.local(workers_per_device=1), "reference": fc.runtime.reference()}


@pytest.fixture(params=list(RUNTIMES))
def runtime(request):
    with fc.use(RUNTIMES[request.param]) as used:
        yield used


def graph_of(computation):
    (data,) = computation.module.blobs.values()
    return tf.compat.v1.GraphDef.FromString(data)


def ops_of(graph_def) -> list[str]:
    return [n.op for n in graph_def.node] + [n.op for f in graph_def.library.function for n in f.node_def]


@fc.tf_computation(FLOATS)
def weighted(xs):
    total = 0.0
    position = 1.0
    for x in xs:
        total += position * x
        position += 1.0
    return total


def test_a_for_loop_reads_in_order(runtime):
    assert weighted([3.0, 5.0, 7.0]) == 3.0 + 10.0 + 21.0


def test_a_for_loop_over_nothing_keeps_the_start(runtime):
    assert weighted([]) == 0.0


def test_datasets_and_lists_give_the_same(runtime):
    columns = np.arange(6, dtype=np.float32)
    assert weighted(fc.data.ClientDataset.from_columns(columns)) == weighted(list(columns))


def test_epochs_read_every_element_again(runtime):
    @fc.tf_computation(FLOATS, "int32")
    def epochs(xs, n):
        total = 0.0
        for _ in range(n):
            for x in xs:
                total += x
        return total

    assert epochs([1.0, 2.0], 3) == 9.0


def test_break_ends_the_loop(runtime):
    @fc.tf_computation(FLOATS)
    def until_negative(xs):
        total = 0.0
        for x in xs:
            if x < 0.0:
                break
            total += x
        return total

    assert until_negative([1.0, 2.0, -1.0, 5.0]) == 3.0


def test_reduce_folds_structures(runtime):
    @fc.tf_computation(PAIRS)
    def sums(batches):
        return batches.reduce(
            (tf.constant(0.0), 0), lambda state, b: (state[0] + tf.reduce_sum(b["x"]), state[1] + tf.size(b["y"]))
        )

    batches = [{"x": np.ones([n, 2], np.float32), "y": np.zeros([n], np.float32)} for n in (3, 2)]
    assert sums(batches) == (10.0, 5)


def test_next_goes_on_where_the_iterator_stands(runtime):
    @fc.tf_computation(FLOATS)
    def first_and_rest(xs):
        it = iter(xs)
        first = next(it)
        second = next(it)
        rest = 0.0
        for x in it:
            rest += x
        return first, second, rest

    assert first_and_rest([1.0, 2.0, 3.0, 4.0]) == (1.0, 2.0, 7.0)


def test_next_in_a_loop_moves_the_iterator(runtime):
    @fc.tf_computation(FLOATS, "int32")
    def alternate(xs, n):
        it = iter(xs)
        total = 0.0
        for _ in tf.range(n):
            total = total * 10.0 + next(it)
        return total

    assert alternate([1.0, 2.0, 3.0], 3) == 123.0
    assert alternate([1.0, 2.0, 3.0], 3) == 123.0


@pytest.mark.parametrize("elements", [[], [1.0], [1.0, 2.0], [1.0, 2.0, 3.0]])
def test_next_with_a_default_gives_it_after_the_end(runtime, elements):
    @fc.tf_computation(FLOATS)
    def first_three(xs):
        it = iter(xs)
        first = next(it, -1.0)
        return first, next(it, -2), next(it, tf.constant(-3.0))

    assert first_three(elements) == (*elements, -1.0, -2.0, -3.0)[: len(elements)] + (-1.0, -2.0, -3.0)[len(elements) :]


def test_next_with_a_default_takes_the_elements_structure(runtime):
    @fc.tf_computation(fc.SequenceType({"x": "float32", "n": "int32"}))
    def first(xs):
        return next(iter(xs), {"x": 0.5, "n": 7})

    assert first([{"x": 1.0, "n": 2}]) == {"x": 1.0, "n": 2}
    assert first([]) == {"x": 0.5, "n": 7}


@pytest.mark.parametrize("default", [None, (1.0, 2.0), "none", 0.5])
def test_a_default_of_another_type_is_refused(default):
    def first(xs):
        return next(iter(xs), default)

    with pytest.raises(TracingError, match=r"the default is of the type of the elements, int32"):
        fc.tf_computation(fc.SequenceType("int32"))(first)


PIPELINES = {
    "map": lambda ds: ds.map(lambda x: x * 2.0),
    "take": lambda ds: ds.take(3),
    "take all": lambda ds: ds.take(-1),
    "skip": lambda ds: ds.skip(2),
    "skip too many": lambda ds: ds.skip(9),
    "repeat": lambda ds: ds.repeat(2),
    "batch": lambda ds: ds.batch(2).map(lambda b: tf.reduce_sum(b)),
    "full batches": lambda ds: ds.batch(2, drop_remainder=True).map(lambda b: tf.reduce_sum(b)),
    "enumerate": lambda ds: ds.enumerate().map(lambda i, x: tf.cast(i, tf.float32) + x),
    "chain": lambda ds: ds.skip(1).map(lambda x: x + 1.0).batch(3).map(tf.reduce_max).repeat(2).prefetch(1),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_steps_inside_a_body_have_the_elements_of_tf_data(name):
    pipeline = PIPELINES[name]
    columns = np.array([3, 1, 4, 1, 5], np.float32)

    def folded(ds):
        return pipeline(ds).reduce(0.0, lambda total, x: total * 7.0 + x)

    inside = fc.tf_computation(FLOATS)(folded)
    assert inside(columns) == folded(tf.data.Dataset.from_tensor_slices(columns)).numpy()


def test_shuffle_inside_a_body_is_a_permutation():
    @fc.tf_computation(FLOATS)
    def shuffled(ds):
        drawn = tf.zeros([8])
        for i, x in enumerate(ds.shuffle(8)):
            drawn = tf.tensor_scatter_nd_update(drawn, [[i]], [x])
        return drawn

    columns = np.arange(8, dtype=np.float32)
    draws = [tuple(shuffled.invoke(columns, seed=s)) for s in range(4)]
    assert all(sorted(d) == list(columns) for d in draws)
    assert len(set(draws)) > 1


def test_two_sequences_are_told_apart(runtime):
    @fc.tf_computation(FLOATS, fc.SequenceType("int32"))
    def both(xs, ns):
        total = 0.0
        for x in xs:
            for n in ns:
                total += x * tf.cast(n, tf.float32)
        return total

    assert both([1.0, 2.0], [10, 100]) == 330.0


def test_a_nested_tf_function_loops_too(runtime):
    @tf.function
    def inner(xs, start):
        for x in xs:
            start += x
        return start

    assert fc.tf_computation(FLOATS)(lambda xs: inner(xs, 1.0))([1.0, 2.0]) == 4.0


@fc.tf_computation({"w": "float32[2]", "b": "float32"}, PAIRS)
def local_training(weights, dataset):
    w = tf.Variable(weights["w"])
    b = tf.Variable(weights["b"])
    examples = 0
    for batch in dataset:
        with tf.GradientTape() as tape:
            error = tf.linalg.matvec(batch["x"], w) + b - batch["y"]
            loss = tf.reduce_mean(error * error)
        for variable, gradient in zip((w, b), tape.gradient(loss, (w, b)), strict=True):
            variable.assign_sub(0.1 * gradient)
        examples += tf.size(batch["y"])
    return {"w": w.read_value(), "b": b.read_value()}, examples


def batches_of(seed: int, sizes) -> list:
    rng = np.random.default_rng(seed)
    return [
        {"x": rng.normal(size=[n, 2]).astype(np.float32), "y": rng.normal(size=[n]).astype(np.float32)} for n in sizes
    ]


def trained_in_numpy(weights, batches):
    w, b = np.array(weights["w"], np.float64), float(weights["b"])
    for batch in batches:
        error = batch["x"] @ w + b - batch["y"]
        w, b = w - 0.1 * 2 * (error @ batch["x"]) / len(error), b - 0.1 * 2 * error.mean()
    return w, b


def test_the_tutorials_training_loop_trains(runtime):
    weights, batches = {"w": np.array([0.5, -0.5], np.float32), "b": np.float32(0.1)}, batches_of(0, (4, 4, 3))
    trained, examples = local_training(weights, batches)
    w, b = trained_in_numpy(weights, batches)
    np.testing.assert_allclose(trained["w"], w, rtol=1e-5)
    np.testing.assert_allclose(trained["b"], b, rtol=1e-5)
    assert examples == 11


def test_every_client_trains_from_fresh_variables(runtime):
    @fc.federated_computation(
        fc.FederatedType(local_training.type_signature.parameter.types[0], fc.SERVER),
        fc.FederatedType(PAIRS, fc.CLIENTS),
    )
    def everywhere(weights, data):
        return fc.federated_map(local_training, (fc.federated_broadcast(weights), data))

    weights = {"w": np.array([0.5, -0.5], np.float32), "b": np.float32(0.1)}
    clients = [batches_of(k, (3,) * (k + 1)) for k in range(5)]
    for (trained, _), batches in zip(everywhere(weights, clients), clients, strict=True):
        np.testing.assert_allclose(trained["w"], trained_in_numpy(weights, batches)[0], rtol=1e-5)


@pytest.mark.parametrize("computation", [weighted, local_training], ids=["weighted", "local_training"])
def test_no_dataset_op_is_in_the_graph(computation):
    ops = ops_of(graph_of(computation))
    assert not [op for op in ops if "Dataset" in op or "Iterator" in op]
    assert any(op in ("While", "StatelessWhile") for op in ops)


def test_the_digest_does_not_tell_how_the_data_lie():
    @fc.federated_computation(fc.FederatedType(FLOATS, fc.CLIENTS))
    def totals(data):
        return fc.federated_map(weighted, data)

    before = totals.to_module("planned").digest()
    columns = fc.data.ClientDataset.from_columns(np.arange(3, dtype=np.float32))
    results = totals([columns, columns.repeat(2), columns.take(1), [1.0]])
    assert [float(r) for r in results] == [8.0, 8.0 + 4.0 * 0 + 5.0 + 12.0, 0.0, 1.0]
    assert totals.to_module("planned").digest() == before


def test_a_mapped_sequence_is_read(runtime):
    double = fc.tf_computation("float32")(lambda x: x * 2.0)

    @fc.federated_computation(FLOATS)
    def doubled(xs):
        return weighted(fc.sequence_map(double, xs))

    assert doubled([1.0, 2.0]) == 10.0


def test_a_graph_with_a_sequence_is_saved_and_loaded(tmp_path):
    fc.save(weighted, tmp_path / "weighted.fed")
    assert fc.load(tmp_path / "weighted.fed")([3.0, 5.0]) == 13.0


def test_iterating_without_source_is_refused():
    scope: dict = {}
    exec("def hidden(xs):\n    total = 0.0\n    for x in xs:\n        total += x\n    return total", scope)
    with pytest.raises(TracingError, match=r"cannot become a part of the graph; use \.reduce\(\)"):
        fc.tf_computation(FLOATS)(scope["hidden"])


def test_a_state_may_change_its_size_in_a_reduce(runtime):
    @fc.tf_computation(FLOATS)
    def gathered(xs):
        return xs.reduce((tf.zeros([0]), tf.zeros([2])), lambda s, x: (tf.concat([s[0], [x]], 0), s[1] + x))[0]

    assert gathered.type_signature.result == fc.TensorType("float32", [None])
    np.testing.assert_array_equal(gathered([1.0, 2.0]), [1.0, 2.0])
