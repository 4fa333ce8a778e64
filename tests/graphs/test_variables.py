"""Variables made inside a tf_computation start fresh in every call."""

import concurrent.futures

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc

RUNTIMES = {"local": fc.runtime.local(workers_per_device=2), "reference": fc.runtime.reference()}


@pytest.fixture(params=list(RUNTIMES))
def runtime(request):
    with fc.use(RUNTIMES[request.param]) as used:
        yield used


@fc.tf_computation("float32")
def counted(x):
    total = tf.Variable(10.0)
    total.assign_add(x)
    for _ in tf.range(3):
        total.assign_add(1.0)
    return total.read_value()


def test_a_variable_starts_from_its_first_value_in_each_call(runtime):
    assert [counted(1.0), counted(1.0), counted(2.0)] == [14.0, 14.0, 15.0]


def test_concurrent_calls_share_no_variable():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(counted, map(float, range(40)))) == [13.0 + k for k in range(40)]


def test_clients_of_a_block_share_no_variable():
    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def everywhere(xs):
        return fc.federated_sum(fc.federated_map(counted, xs))

    assert everywhere([float(k) for k in range(7)]) == 7 * 13.0 + 21.0


def test_a_variable_that_a_function_of_a_dataset_makes_is_initialised_once(runtime):
    @fc.tf_computation(fc.SequenceType("float32"))
    def total(numbers):
        made = []

        def add(_, x):
            if not made:
                made.append(tf.Variable(lambda: 10.0))
            return made[0].assign_add(x)

        return numbers.reduce(0.0, add)

    assert total([1.0, 2.0, 3.0]) == 16.0


@pytest.mark.parametrize("first", [1.0, [1.0], np.float32(1), tf.constant(1.0)])
def test_a_variable_that_a_step_of_a_loop_makes_is_initialised_once(first):
    @fc.tf_computation("int32")
    def count(steps):
        made = []

        def step(i):
            if not made:
                made.append(tf.Variable(first))
            made[0].assign_add(tf.ones_like(made[0]))
            return i + 1

        tf.while_loop(lambda i: i < steps, step, [tf.constant(0)])
        return tf.reshape(made[0].read_value(), [])

    assert (count(3), count(3), count(1)) == (4.0, 4.0, 2.0)


def test_a_variable_that_a_nested_tf_function_makes_is_initialised_once():
    made = []

    @fc.tf_computation
    def twice():
        made.clear()

        @tf.function
        def count():
            if not made:
                made.append(tf.Variable(1.0))
            return made[0].assign_add(1.0)

        return count(), count()

    assert twice() == (2.0, 3.0)


@pytest.mark.parametrize("start", [lambda x: x, lambda x: [x], lambda x: tf.Variable(x)])
def test_a_variable_in_a_step_of_a_loop_starts_from_a_tensor_of_the_step(start):
    @fc.tf_computation("int32")
    def doubled(steps):
        def step(i, _):
            return i + 1, tf.reshape(tf.Variable(start(2 * i)).read_value(), [])

        return tf.while_loop(lambda i, _: i < steps, step, [tf.constant(0), tf.constant(0)])[1]

    assert doubled(3) == 4


def test_a_graph_with_variables_is_marked_stateful():
    assert dict(counted.module.graphs[0].attributes) == {"stateful": True}
    assert "{stateful=true}" in counted.to_text()


def test_a_graph_without_is_not():
    assert not fc.tf_computation("float32")(lambda x: x + 1.0).module.graphs[0].attributes


def test_a_variable_of_a_nested_tf_function_starts_fresh(runtime):
    held = []

    @tf.function
    def inner(x):
        if not held:
            held.append(tf.Variable(5.0))
        return held[0].assign_add(x)

    computation = fc.tf_computation("float32")(lambda x: inner(x))
    assert [computation(1.0), computation(1.0)] == [6.0, 6.0]


def test_a_first_value_may_depend_on_an_argument(runtime):
    @fc.tf_computation("float32[3]")
    def doubled(x):
        v = tf.Variable(lambda: x * 2.0)
        return v + 1.0

    np.testing.assert_array_equal(doubled([1.0, 2.0, 3.0]), [3.0, 5.0, 7.0])


def keras_training():
    @fc.tf_computation(fc.SequenceType((fc.TensorType("float32", [None, 3]), fc.TensorType("float32", [None, 1]))))
    def train(batches):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
        first = [tf.identity(v.value) for v in model.trainable_variables]
        for x, y in batches:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return first, [tf.identity(v.value) for v in model.trainable_variables]

    return train


def test_a_keras_model_built_inside_trains_from_its_initialisers(runtime):
    train = keras_training()
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=[4, 3]).astype("f"), rng.normal(size=[4, 1]).astype("f")) for _ in range(3)]
    (kernel, bias), trained = train.invoke(batches, seed=1)
    for x, y in batches:
        error = 2 * (x @ kernel + bias - y) / len(x)
        kernel, bias = kernel - 0.1 * x.T @ error, bias - 0.1 * error.sum(0)
    np.testing.assert_allclose(trained[0], kernel, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(trained[1], bias, rtol=1e-4, atol=1e-6)


def test_a_keras_model_traced_twice_has_one_digest():
    assert keras_training().digest == keras_training().digest


def test_the_initialisers_of_a_keras_model_draw_from_the_calls_seed():
    train = keras_training()
    kernels = [train.invoke([], seed=s)[0][0] for s in (1, 2, 1)]
    assert not np.array_equal(kernels[0], kernels[1])
    np.testing.assert_array_equal(kernels[0], kernels[2])


def test_a_seed_of_the_users_stays():
    @fc.tf_computation
    def kernel():
        layer = keras.layers.Dense(2, kernel_initializer=keras.initializers.GlorotUniform(seed=3))
        layer.build([None, 2])
        return tf.identity(layer.kernel.value)

    np.testing.assert_array_equal(kernel.invoke(seed=1), kernel.invoke(seed=2))
    np.testing.assert_allclose(kernel(), keras.initializers.GlorotUniform(seed=3)([2, 2]), rtol=1e-6)


def test_tracing_leaves_the_random_state_of_keras_as_it_was():
    drawn = fc.tf_computation(lambda: keras.random.normal([3]))
    assert not np.array_equal(drawn.invoke(seed=1), drawn.invoke(seed=2))
    assert not np.array_equal(keras.random.normal([3]), keras.random.normal([3]))


def test_a_graph_with_variables_is_saved_and_loaded(tmp_path):
    fc.save(counted, tmp_path / "counted.fed")
    assert fc.load(tmp_path / "counted.fed")(1.0) == 14.0
