"""Random ops draw from an implicit seed: an operand that every place has."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.compiler.pipeline import compile_module
from fedcore.errors import TracingError
from fedcore.graphs.tensors.tensor_seeds import fold_in as fold_in_tensor
from fedcore.seeds import fold_in

RUNTIMES = [fc.runtime.local(workers_per_device=1), fc.runtime.local(workers_per_device=3), fc.runtime.reference()]
AT_CLIENTS = fc.FederatedType("int32", fc.CLIENTS)

uniform = fc.tf_computation(lambda: tf.random.uniform([2]))
noise = fc.tf_computation("int32")(lambda n: tf.random.normal([]) + tf.cast(n, tf.float32))


def everywhere(computation, *args, seed=5):
    results = []
    for runtime in RUNTIMES:
        with fc.use(runtime):
            results.append(computation.invoke(*args, seed=seed))
    return results


def assert_same_bits(results):
    for other in results[1:]:
        tf.nest.map_structure(np.testing.assert_array_equal, results[0], other)
    return results[0]


@pytest.mark.parametrize("seed", [0, 1, -7, 2**62])
@pytest.mark.parametrize("number", [0, 3, -1, 2**63 - 1])
def test_seeds_fold_alike_in_graphs_and_in_python(seed, number):
    assert fold_in_tensor(tf.constant(seed, tf.int64), number).numpy() == fold_in(seed, number)
    assert fold_in_tensor(tf.constant(seed, tf.int64), tf.constant(number, tf.int64)).numpy() == fold_in(seed, number)


DRAWS = {
    "uniform": (lambda: tf.random.uniform([4000], 2.0, 4.0), 3.0, 1 / 3),
    "integers": (lambda: tf.cast(tf.random.uniform([4000], 0, 10, tf.int32), tf.float32), 4.5, 8.25),
    "normal": (lambda: tf.random.normal([4000], 1.0, 2.0), 1.0, 4.0),
    "truncated normal": (lambda: tf.random.truncated_normal([4000]), 0.0, 0.774),
    "gamma": (lambda: tf.random.gamma([2000], [2.0, 2.0]), 2.0, 2.0),
    "poisson": (lambda: tf.random.poisson([4000], 3.0), 3.0, 3.0),
    "categorical": (lambda: tf.cast(tf.random.categorical([[0.0, 0.0]], 4000), tf.float32), 0.5, 0.25),
    "shuffle": (lambda: tf.random.shuffle(tf.range(4000.0))[:2000] / 4000, 0.5, 1 / 12),
    "keras": (lambda: keras.random.normal([4000]), 0.0, 1.0),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_distribution_stays(name):
    fn, mean, variance = DRAWS[name]
    drawn = fc.tf_computation(fn).invoke(seed=3)
    assert abs(np.mean(drawn) - mean) < 0.15 * max(1.0, np.sqrt(variance))
    assert abs(np.var(drawn) - variance) < 0.15 * max(1.0, variance)


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_gives_one_draw_and_another_another(name):
    computation = fc.tf_computation(DRAWS[name][0])
    first, again, other = (computation.invoke(seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_without_a_seed_calls_differ():
    assert not np.array_equal(uniform(), uniform())


def test_use_gives_the_seed():
    with fc.use(seed=9):
        first = uniform()
    np.testing.assert_array_equal(first, uniform.invoke(seed=fold_in(9, 0)))


def test_two_ops_draw_differently():
    a, b = fc.tf_computation(lambda: (tf.random.uniform([3]), tf.random.uniform([3]))).invoke(seed=1)
    assert not np.array_equal(a, b)


def test_ops_with_one_seed_draw_alike_and_follow_the_calls():
    computation = fc.tf_computation(lambda: (tf.random.uniform([3], seed=4), tf.random.uniform([3], seed=4)))
    a, b = computation.invoke(seed=1)
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, computation.invoke(seed=2)[0])


def control_flow(n):
    drawn = tf.TensorArray(tf.float32, size=n)
    for i in tf.range(n):
        if i % 2 == 0:
            drawn = drawn.write(i, tf.random.uniform([]))
        else:
            drawn = drawn.write(i, 1.0 + nested(tf.random.normal([])))
    return drawn.stack()


@tf.function
def nested(x):
    return tf.abs(x) + tf.random.uniform([])


def test_iterations_branches_and_nested_functions_draw_anew():
    computation = fc.tf_computation("int32")(control_flow)
    drawn = assert_same_bits(everywhere(computation, 12))
    assert len(set(drawn.tolist())) == 12
    assert (drawn[::2] < 1.0).all()
    assert (drawn[1::2] > 1.0).all()


def test_map_fn_draws_for_each_element():
    drawn = fc.tf_computation(lambda: tf.map_fn(lambda x: x + tf.random.uniform([]), tf.zeros([20]))).invoke(seed=2)
    assert len(set(drawn.tolist())) == 20


def test_the_gradient_sees_the_draw_of_the_forward_pass():
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(3):
                y *= tf.random.uniform([], 1.0, 2.0)
        return y, tape.gradient(y, x)

    y, gradient = fc.tf_computation("float32")(slope).invoke(2.0, seed=4)
    np.testing.assert_allclose(y, 2.0 * gradient, rtol=1e-6)


def test_a_graph_that_draws_is_marked_and_holds_no_stateful_op():
    graph = noise.module.graphs[0]
    assert dict(graph.attributes) == {"seeded": True}
    assert str(graph.type) == "(int32 -> float32)"


def test_a_program_that_draws_has_one_digest():
    one, other = (fc.tf_computation("int32")(control_flow) for _ in range(2))
    assert one.digest == other.digest


def test_clients_calls_and_places_draw_differently():
    @fc.federated_computation(AT_CLIENTS)
    def twice(x):
        return fc.federated_map(noise, x), fc.federated_map(noise, x), fc.federated_eval(uniform, fc.SERVER)

    a, b, server = assert_same_bits(everywhere(twice, [0] * 6))
    assert len({*map(float, a), *map(float, b), *map(float, server)}) == 14


def test_a_cohorts_client_draws_the_same_in_another_cohort():
    @fc.federated_computation(AT_CLIENTS)
    def drawn(x):
        return fc.federated_map(noise, x)

    assert drawn.invoke([0] * 5, seed=3)[:2] == drawn.invoke([0] * 2, seed=3)


def test_elements_of_a_sequence_draw_differently():
    step = fc.tf_computation("float32[3]", "int32")(
        lambda carry, x: tf.tensor_scatter_nd_update(carry, [[x]], [tf.random.uniform([])])
    )
    zeros = fc.tf_computation(lambda: tf.zeros([3]))

    @fc.federated_computation(fc.FederatedType(fc.SequenceType("int32"), fc.CLIENTS))
    def drawn(data):
        return fc.federated_map(
            fc.federated_computation(fc.SequenceType("int32"))(lambda xs: fc.sequence_reduce(xs, zeros(), step)), data
        )

    results = assert_same_bits(everywhere(drawn, [[0, 1, 2], [2, 1, 0]]))
    assert len({float(x) for r in results for x in r}) == 6


def test_an_accumulation_draws_by_client():
    accumulate = fc.tf_computation("float32", "int32")(lambda total, x: total + tf.random.uniform([]))
    add = fc.tf_computation("float32", "float32")(lambda a, b: a + b)
    same = fc.tf_computation("float32")(lambda a: a)

    @fc.federated_computation(AT_CLIENTS)
    def summed(x):
        return fc.federated_aggregate(x, 0.0, accumulate, add, same)

    results = everywhere(summed, [1, 2, 3])
    np.testing.assert_allclose(results, results[0], rtol=1e-6)


def nested_program():
    two = fc.federated_computation("int32")(lambda n: (noise(n), noise(n)))
    four = fc.federated_computation("int32")(lambda n: (two(n), two(n)))

    @fc.federated_computation(AT_CLIENTS, fc.FederatedType("int32", fc.SERVER))
    def program(x, y):
        a = fc.federated_map(lambda n: (four(n), noise(n)), x)
        return a, fc.federated_map(four, y), fc.federated_map(four, y)

    return program


def test_passes_keep_every_bit():
    computation = nested_program()
    drawn = assert_same_bits(everywhere(computation, [0, 0], 0))
    assert len({float(v) for v in tf.nest.flatten(drawn)}) == 2 * 5 + 8
    runtime = fc.runtime.reference()
    for pipeline in ("inline", "inline,lower-intrinsics", "inline,lower-intrinsics,inline,dce,partition,dce,fuse"):
        module = compile_module(computation.module, pipeline)
        report = fc.context.Report(seed=5)
        tf.nest.map_structure(np.testing.assert_array_equal, drawn, runtime.run(module, [[0, 0], 0], report))


def test_what_is_drawn_is_never_metered():
    @fc.federated_computation(AT_CLIENTS)
    def summed(x):
        return fc.federated_sum(fc.federated_map(noise, x))

    summed([1, 2])
    report = fc.context.last_report()
    assert (report.broadcast_bits, report.aggregate_bits) == (0, 64)


def test_a_saved_program_draws_the_same(tmp_path):
    fc.save(noise, tmp_path / "noise.fed")
    assert fc.load(tmp_path / "noise.fed").invoke(1, seed=2) == noise.invoke(1, seed=2)


def test_an_op_without_a_stateless_form_is_refused():
    def sampled():
        return tf.random.uniform_candidate_sampler([[0]], 1, 2, True, 10)[0]

    with pytest.raises(TracingError, match=r"`sampled` .*draws with the op UniformCandidateSampler"):
        fc.tf_computation(sampled)


def test_mapped_maps_draw_the_same_everywhere():
    more = fc.tf_computation("float32")(lambda x: x + tf.floor(tf.random.normal([]) * 1e3))
    first = fc.tf_computation("int32")(lambda n: tf.floor(tf.random.normal([]) * 1e3) + tf.cast(n, tf.float32))

    @fc.federated_computation(AT_CLIENTS)
    def program(x):
        return fc.federated_map(more, fc.federated_map(more, fc.federated_map(first, x)))

    drawn = assert_same_bits(everywhere(program, [0, 1, 2]))
    assert len({float(v) for v in drawn}) == 3
