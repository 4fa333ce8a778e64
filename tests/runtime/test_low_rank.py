"""Kernels that a vectorised client stage keeps as a shared kernel plus factors of low rank."""

import functools
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from equal_rows import needs_equal_rows
from local_runtimes import shared_runtime

import fedcore as fc
from fedcore import context
from fedcore.context import plan_of
from fedcore.errors import FedcoreError
from fedcore.graphs.batched import client_groups
from fedcore.graphs.batched.aligned_reductions import reduce_aligned
from fedcore.graphs.batched.batched_value import batched
from fedcore.graphs.batched.batching_rewrites import DATA_PRODUCTS, KNOWN_INPUTS, ONE_STEP_FACTORS
from fedcore.graphs.batched.known_inputs import KnownInputs
from fedcore.graphs.batched.low_rank import LowRank, multiply_by, negative, product_of_factors
from fedcore.graphs.batched.schedule import MAX_JOINED_ROWS
from fedcore.runtime.clients import client_calls
from fedcore.runtime.clients.device_stage import DeviceStage
from fedcore.testing.faults import out_of_memory

own_plans = pytest.mark.usefixtures("plans_for_this_machine")

INPUTS, HIDDEN, BATCH = 256, 64, 5  # a kernel of 16,384 entries, whose factors break even at rank 51: 10 steps
SGD = fc.learning.optimizers.build_sgdm
ALGORITHMS = {
    "sgd": lambda model: fc.learning.algorithms.build_weighted_fed_avg(model, client_optimizer_fn=SGD(0.1)),
    "nesterov and decay": lambda model: fc.learning.algorithms.build_weighted_fed_avg(
        model, client_optimizer_fn=keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
    ),
    "proximal": lambda model: fc.learning.algorithms.build_weighted_fed_prox(
        model, proximal_strength=0.3, client_optimizer_fn=SGD(0.1)
    ),
    "clipping": lambda model: fc.learning.algorithms.build_weighted_fed_avg(
        model, client_optimizer_fn=SGD(0.1), model_aggregator=fc.learning.robust_aggregator()
    ),
    "metrics of some": lambda model: fc.learning.algorithms.build_weighted_fed_avg(
        model, client_optimizer_fn=SGD(0.1), metrics_aggregator=fc.learning.metrics.finalize_then_sample
    ),
    "gradients": fc.learning.algorithms.build_fed_sgd,
    "adam": lambda model: fc.learning.algorithms.build_weighted_fed_avg(
        model, client_optimizer_fn=fc.learning.optimizers.build_adam(0.01)
    ),
}


def model_fn():
    model = keras.Sequential([keras.layers.Input((INPUTS,)), keras.layers.Dense(HIDDEN, "relu"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    spec = (tf.TensorSpec([None, INPUTS]), tf.TensorSpec([None], tf.int32))
    return fc.learning.models.from_keras_model(model, loss=loss, input_spec=spec)


def clients(sizes, batch: int = BATCH, *, drop_remainder: bool = False) -> list:
    rng = np.random.default_rng(0)
    columns = [(rng.normal(size=(n, INPUTS)).astype("f") * 0.3, rng.integers(0, 3, n).astype("i")) for n in sizes]
    return [fc.data.ClientDataset.from_columns(c).batch(batch, drop_remainder=drop_remainder) for c in columns]


@functools.cache
def built(algorithm: str):
    """The process of an algorithm, built once."""
    return ALGORITHMS[algorithm](model_fn)


def trained(algorithm: str, data: list, *, rounds: int = 2, runtime=None, **settings) -> list[np.ndarray]:
    """The weights after some rounds, by default in a runtime that tests share: not with data that are not finite."""
    with fc.use(runtime or shared_runtime(**{"workers_per_device": 1, **settings}), seed=3):
        process = built(algorithm)
        state = process.initialize()
        for _ in range(rounds):
            state = process.next(state, data).state
    return [np.asarray(w) for w in state.global_model_weights.trainable]


def client_stage(algorithm: str, **settings) -> str:
    with fc.use(shared_runtime(**settings)):
        text = str(plan_of(built(algorithm).next.module))
    return next(line for line in text.splitlines() if "strategy=" in line)


def same_bits(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


MANY_STEPS = (61, 4, 0, 33, 118, 50, 51, 9, 12, 70, 5)  # up to 24 steps: factors are added up twice


FEW_STEPS = (41, 4, 0, 33, 50, 9, 12)  # factors are never added up: the inputs of the first layer are known


@pytest.mark.parametrize(
    ("algorithm", "sizes"),
    [
        *((a, MANY_STEPS) for a in ("sgd", "nesterov and decay", "metrics of some", "gradients")),
        *((a, FEW_STEPS) for a in ("sgd", "gradients")),
        *(pytest.param(a, MANY_STEPS, marks=pytest.mark.soak) for a in ("proximal", "clipping")),
        *(pytest.param(a, FEW_STEPS, marks=pytest.mark.soak) for a in ("nesterov and decay", "proximal", "clipping")),
    ],
)
def test_low_rank_training_agrees_with_dense_training(algorithm, sizes):
    data = clients(sizes)
    low, dense = trained(algorithm, data), trained(algorithm, data, low_rank=False)
    assert "low_rank=51" in client_stage(algorithm)
    assert not same_bits(low, dense)  # it is another strategy
    for x, y in zip(low, dense, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


@own_plans
@pytest.mark.parametrize("algorithm", ["sgd", "gradients"])
def test_the_bits_of_a_last_batch_of_one_row_do_not_depend_on_the_group(algorithm):
    """Other kernels multiply a single row."""
    data = clients((21, 30, 21, 39, 21, 33), batch=20)
    expected = trained(algorithm, data)
    for width in (2, 3):
        assert same_bits(expected, trained(algorithm, data, vectorize=width)), width


def test_an_evaluation_of_clients_that_were_trained_reads_its_own_groups():
    data, train, evaluate = clients(MANY_STEPS), built("sgd"), fc.learning.algorithms.build_fed_eval(model_fn)

    def metrics(rounds: int) -> dict:
        with fc.use(fc.runtime.local(vectorize=3), seed=3):
            state = train.initialize()
            for _ in range(rounds):  # packed groups are kept at their second use
                train.next(state, data)
            weights = train.get_model_weights(state)
            return evaluate.next(evaluate.set_model_weights(evaluate.initialize(), weights), data).metrics

    assert metrics(3) == metrics(0)


@own_plans
@pytest.mark.parametrize(
    ("algorithm", "sizes"),
    [
        *(("sgd", sizes) for sizes in (MANY_STEPS, FEW_STEPS, (1, 7, 6, 0, 1, 11, 16))),
        pytest.param("sgd", (5, 0, 0, 0, 3, 0, 0), marks=pytest.mark.soak),
        *((a, (50, *FEW_STEPS, 51)) for a in ("nesterov and decay", "gradients")),
        *(
            pytest.param(a, (50, *FEW_STEPS, 51), marks=pytest.mark.soak)
            for a in ("sgd", "clipping", "metrics of some")
        ),
        *(pytest.param(a, FEW_STEPS, marks=pytest.mark.soak) for a in ("nesterov and decay", "clipping", "gradients")),
    ],
)
def test_the_bits_depend_neither_on_workers_nor_on_widths_nor_on_the_calls_of_other_clients(algorithm, sizes):
    data = clients(sizes)
    expected = trained(algorithm, data)
    for width, workers in ((2, 4), (3, 1)):
        found = trained(algorithm, data, vectorize=width, workers_per_device=workers)
        assert same_bits(expected, found), (width, workers)


@own_plans
@pytest.mark.parametrize("sizes", [(30, 12, 61), (30, 12)], ids=["many steps", "few steps"])
def test_the_bits_do_not_depend_on_memory(sizes):
    data = clients(sizes)
    expected = trained("sgd", data, rounds=1)
    runtime = fc.runtime.local(workers_per_device=1)
    with fc.use(runtime, seed=3):
        process = built("sgd")
        state = process.initialize()
        plan = plan_of(process.next.module).function("clients").attributes
        sizes = (plan["call"] // plan["block"]).bit_length()  # from a whole call down to one block
        with out_of_memory(runtime, "CPU:0", calls=range(sizes)) as failed:
            state = process.next(state, data).state
        assert "in calls of 1 client" in context.last_report().notes[-1]
    runtime.close()
    assert len(failed) == sizes
    assert same_bits(expected, [np.asarray(w) for w in state.global_model_weights.trainable])


@own_plans
def test_rows_that_no_batch_has_take_no_part():
    data = clients(FEW_STEPS, drop_remainder=True)
    arrays = [[np.asarray(a)[: len(a) // BATCH * BATCH] for a in d.columns.arrays] for d in data]
    whole = [fc.data.ClientDataset.from_columns(tuple(of_client)).batch(BATCH) for of_client in arrays]
    assert same_bits(trained("sgd", data, rounds=1), trained("sgd", whole, rounds=1))


def test_a_client_that_is_not_finite_does_not_reach_the_others():
    data = clients((20, 33, 7))
    x, y = np.full((7, INPUTS), np.inf, "f"), np.zeros(7, "i")
    poisoned = [data[0], data[1], fc.data.ClientDataset.from_columns((x, y)).batch(BATCH)]
    found = trained("sgd", poisoned, rounds=1, runtime=fc.runtime.local())
    assert same_bits(found, trained("sgd", [*data[:2]], rounds=1))


def test_the_first_layers_inputs_are_known_behind_rescaling_too(monkeypatch):
    found = []
    gram = KnownInputs.gram_of_step
    monkeypatch.setattr(KnownInputs, "gram_of_step", lambda self, of, *step: found.append(of) or gram(self, of, *step))
    layers = [keras.layers.Input((16, 16), dtype="uint8"), keras.layers.Rescaling(1 / 255, offset=-0.5)]
    layers += [keras.layers.Flatten(), keras.layers.Dense(HIDDEN, "relu"), keras.layers.Dense(3)]

    def images():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        spec = (tf.TensorSpec([None, 16, 16], tf.uint8), tf.TensorSpec([None], tf.int32))
        return fc.learning.models.from_keras_model(keras.Sequential(layers), loss=loss, input_spec=spec)

    rng = np.random.default_rng(0)
    columns = [(rng.integers(0, 256, (n, 16, 16), "u1"), rng.integers(0, 3, n).astype("i")) for n in FEW_STEPS]
    data = [fc.data.ClientDataset.from_columns(c).batch(BATCH) for c in columns]
    process = fc.learning.algorithms.build_weighted_fed_avg(images, client_optimizer_fn=SGD(0.1))
    results = []
    for low_rank in ("auto", False):
        with fc.use(fc.runtime.local(low_rank=low_rank)):
            state = process.next(process.initialize(), data).state
        results.append([np.asarray(w) for w in state.global_model_weights.trainable])
    assert [operation.op for operation in found[0].operations] == ["Cast", "Mul", "AddV2", "Reshape"]
    for x, y in zip(*results, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


@own_plans
@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_of_another_client_that_are_not_finite_do_not_reach_one_without_examples(shuffled):
    x, y = np.full((40, INPUTS), np.nan, "f"), np.zeros(40, "i")
    nan = fc.data.ClientDataset.from_columns((x, y)).batch(BATCH)
    others = clients((0, 12, 23))
    data = [nan, *others, nan]
    if shuffled:
        data = [d.shuffle(50, seed=1) for d in data]
    expected = trained("sgd", data[1:4], rounds=1)
    found = trained("sgd", data, rounds=1, runtime=fc.runtime.local())
    assert np.isfinite(expected[0]).all()
    if "products=" in client_stage("sgd"):  # the rows of a block are those of all its clients, and decide bits
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-6 * np.abs(y).max())
    else:
        assert same_bits(found, expected)


@own_plans
def test_the_bits_of_a_client_do_not_depend_on_whether_another_one_takes_more_steps():
    data = clients((20, 33, 7))
    x, y = np.zeros((61, INPUTS), "f"), np.zeros(61, "i")
    x[-1] = np.inf  # found in its last step, behind those whose factors are added up
    longer = fc.data.ClientDataset.from_columns((x, y)).batch(BATCH)
    found = trained("sgd", [*data, longer], rounds=1, runtime=fc.runtime.local())
    assert same_bits(found, trained("sgd", data, rounds=1))


@own_plans
@pytest.mark.parametrize(
    "sizes",
    [
        (61, 8, 0, 33, 50, 9, 12),
        *(pytest.param(sizes, marks=pytest.mark.soak) for sizes in ((12, 3, 0), (10, 10, 20), (20,) * 9)),
    ],
)
def test_batches_of_some_rows_leave_out_the_pairs_that_no_step_takes(sizes):
    data = clients(sizes, batch=10)
    expected, dense = trained("sgd", data, workers_per_device=1), trained("sgd", data, low_rank=False)
    for x, y in zip(expected, dense, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())
    for width in (2, 3):
        assert same_bits(expected, trained("sgd", data, vectorize=width)), width


def test_an_optimizer_that_needs_whole_kernels_keeps_them_dense():
    assert "strategy=vectorised" in client_stage("adam")
    assert "low_rank" not in client_stage("adam")
    assert "low_rank" not in client_stage("sgd", low_rank=False)
    assert "low_rank" not in client_stage("sgd", xla=True)


@pytest.mark.parametrize(("columns", "kept"), [(1, False), (2, False), (3, True)])
def test_a_kernel_of_few_columns_is_dense(columns, kept):
    """The factors of a kernel with two columns have as many entries as the kernel from rank 1 on."""

    def wide():
        model = keras.Sequential([keras.layers.Input((10_000,)), keras.layers.Dense(columns)])
        spec = (tf.TensorSpec([None, 10_000]), tf.TensorSpec([None, columns]))
        return fc.learning.models.from_keras_model(model, loss=keras.losses.MeanSquaredError(), input_spec=spec)

    x, y = np.ones((4, 10_000), "f"), np.ones((4, columns), "f")
    process = fc.learning.algorithms.build_weighted_fed_avg(wide, client_optimizer_fn=SGD(1e-5))
    with fc.use(fc.runtime.local()):
        state = process.next(process.initialize(), [fc.data.ClientDataset.from_columns((x, y)).batch(2)]).state
        assert ("low_rank=" in str(plan_of(process.next.module))) is kept
    assert np.isfinite(state.global_model_weights.trainable[0]).all()


ONE_STEP = {
    "one step each": (20, 3, 17, 20, 1, 9, 20, 12, 20, 5),
    "some more": (45, 3, 0, 20, 61, 9, 20, 12, 33, 5),
    "all more": (45, 33, 61),
    "none but one": (0, 0, 7),
}


def small():
    """A kernel of 4,096 entries: as factors for clients of one step only."""
    model = keras.Sequential([keras.layers.Input((INPUTS,)), keras.layers.Dense(16)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    spec = (tf.TensorSpec([None, INPUTS]), tf.TensorSpec([None], tf.int32))
    return fc.learning.models.from_keras_model(model, loss=loss, input_spec=spec)


@functools.cache
def one_step_process(name: str):
    if name == "large batches":  # a batch has more than half of the break-even rank
        return fc.learning.algorithms.build_weighted_fed_avg(model_fn, client_optimizer_fn=SGD(0.1))
    if name == "proximal":  # its step reads the broadcast weights
        return fc.learning.algorithms.build_weighted_fed_prox(
            small, proximal_strength=0.3, client_optimizer_fn=SGD(0.1)
        )
    if name == "gradients":
        return fc.learning.algorithms.build_fed_sgd(small)
    aggregator = fc.learning.robust_aggregator() if name == "clipping" else None
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, weight_decay=0.01) if name == "decay" else SGD(0.1)
    return fc.learning.algorithms.build_weighted_fed_avg(
        small, client_optimizer_fn=optimizer, model_aggregator=aggregator
    )


def one_step_round(name: str, sizes: tuple[int, ...], runtime=None, **settings) -> list[np.ndarray]:
    process = one_step_process(name)
    data = clients([2 * n for n in sizes], 40) if name == "large batches" else clients(sizes, 20)
    with fc.use(runtime or shared_runtime(**{"workers_per_device": 1, **settings}), seed=3):
        state = process.next(process.initialize(), data).state
    return [np.asarray(w) for w in state.global_model_weights.trainable]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("sgd", kind) for kind in ONE_STEP),
        *((name, "some more") for name in ("gradients", "large batches")),
        ("decay", "all more"),
        *(pytest.param(name, "some more", marks=pytest.mark.soak) for name in ("decay", "clipping", "proximal")),
        pytest.param("large batches", "all more", marks=pytest.mark.soak),
    ],
)
def test_clients_of_one_step_keep_factors_and_others_dense_kernels(name, kind):
    sizes = ONE_STEP[kind]
    found, dense = one_step_round(name, sizes), one_step_round(name, sizes, low_rank=False)
    for x, y in zip(found, dense, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6 * np.abs(y).max())
    if min(sizes) > 20:
        assert same_bits(found, dense)
    elif name != "gradients":  # g * n / n of one client has the bits of (g * n) / n
        assert not same_bits(found, dense)
    with fc.use(fc.runtime.local()):
        assert f"low_rank={51 if name == 'large batches' else 1}}}" in str(plan_of(one_step_process(name).next.module))


@own_plans
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("sgd", kind) for kind in ("one step each", "some more")),
        ("large batches", "some more"),
        *(pytest.param("sgd", kind, marks=pytest.mark.soak) for kind in ("all more", "none but one")),
        *(pytest.param(name, "some more", marks=pytest.mark.soak) for name in ("clipping", "proximal", "gradients")),
        *(pytest.param(name, "one step each", marks=pytest.mark.soak) for name in ("clipping", "large batches")),
    ],
)
def test_the_bits_of_clients_of_one_step_depend_on_no_other_client(name, kind):
    sizes = ONE_STEP[kind]
    expected = one_step_round(name, sizes)
    for settings in ({"vectorize": 2, "block_size": 8}, {"vectorize": 3, "block_size": 8, "workers_per_device": 3}):
        assert same_bits(expected, one_step_round(name, sizes, **settings)), settings
    runtime = fc.runtime.local(workers_per_device=1)
    with fc.use(runtime):
        plan = plan_of(one_step_process(name).next.module).function("clients").attributes
    calls = range((plan["call"] // plan["block"]).bit_length())  # from a whole call down to one block
    with out_of_memory(runtime, "CPU:0", calls=calls):
        found = one_step_round(name, sizes, runtime)
    assert same_bits(expected, found)


@own_plans
@pytest.mark.parametrize("name", ["sgd", pytest.param("clipping", marks=pytest.mark.soak)])
def test_wide_groups_of_clients_of_one_step_have_the_bits_of_narrow_ones(name, monkeypatch):
    sizes = [*np.random.default_rng(0).integers(1, 21, 120)]
    widths = []
    build = client_calls.realize_batched
    monkeypatch.setattr(client_calls, "realize_batched", lambda *a, **kw: widths.append(a[1].width) or build(*a, **kw))
    wide = one_step_round(name, sizes, fc.runtime.local())
    assert widths == [128]
    assert same_bits(wide, one_step_round(name, sizes, fc.runtime.local(vectorize=4)))
    assert same_bits(wide[:1], one_step_round(name, sizes, fc.runtime.local(client_devices=["CPU:0"] * 4))[:1])
    assert set(widths) == {128, 4, 32}  # 32 clients a device: a wide group would be empty for the most part


# --- rewrites that a plan leaves out by name ---


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dce", {"product_of_step", "data_products"}),
        (DATA_PRODUCTS, {"product_of_step"}),
        (KNOWN_INPUTS, set()),
    ],
)
def test_products_of_the_data_are_left_out_by_name(name, expected, monkeypatch):
    used = set()

    def watch(owner, function):
        original = getattr(owner, function)
        monkeypatch.setattr(owner, function, lambda *a, **kw: used.add(function) or original(*a, **kw))

    watch(KnownInputs, "product_of_step")
    watch(client_groups, "data_products")
    data = clients(FEW_STEPS)
    with fc.use(pipeline=f"default{{without={name}}}"):
        found = trained("sgd", data, runtime=fc.runtime.local())
    assert used == expected
    for x, y in zip(found, trained("sgd", data), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


@pytest.mark.parametrize("name", ["sgd", "large batches"])
def test_factors_of_one_step_are_left_out_by_name(name):
    sizes = ONE_STEP["some more"]
    with fc.use(pipeline=f"default{{without={ONE_STEP_FACTORS}}}"):
        found = one_step_round(name, sizes)
    assert same_bits(found, one_step_round(name, sizes, low_rank=False))


@needs_equal_rows
@pytest.mark.parametrize("columns", [3, 10, 16, 17, 64, 200])
@pytest.mark.parametrize("rows", [40, 160, MAX_JOINED_ROWS])
def test_zero_rows_between_clients_do_not_change_the_bits_of_a_block(rows, columns):
    """How many there are depends on the longest batch of a call."""
    rng = np.random.default_rng(rows)
    left, right = rng.normal(size=(rows // 2, 300)).astype("f"), rng.normal(size=(rows // 2, columns)).astype("f")
    expected = product_of_factors(left[np.newaxis], right[np.newaxis]).numpy()[0]
    for _ in range(5):
        places = np.sort(rng.choice(rows, rows // 2, replace=False))
        lefts, rights = rng.normal(size=(2, rows, 300)).astype("f"), np.zeros((2, rows, columns), "f")
        lefts[1, places], rights[1, places] = left, right
        assert product_of_factors(tf.constant(lefts), tf.constant(rights)).numpy()[1].tobytes() == expected.tobytes()


@pytest.fixture
def products_made(monkeypatch) -> list:
    """The slices whose products of rows were computed."""
    made = []
    run = DeviceStage._products

    def products(self, clients, *given):
        found = len(self._device.products)
        result = run(self, clients, *given)
        made.extend([clients.first] * (len(self._device.products) - found))
        return result

    monkeypatch.setattr(DeviceStage, "_products", products)
    return made


@own_plans
def test_products_of_the_data_are_kept_as_long_as_packed_data_are(products_made):
    runtime, process = fc.runtime.local(workers_per_device=1), built("sgd")
    kept = runtime._clients.devices[0].products

    def weights(data) -> list[np.ndarray]:
        state = process.next.invoke(process.initialize.invoke(seed=1), data, seed=2).state
        return [np.asarray(w) for w in state.global_model_weights.trainable]

    with fc.use(runtime):
        data = clients(FEW_STEPS, batch=10)
        expected = weights(data)
        gc.collect()
        assert len(kept) == 0  # packed data are kept from their second use on
        for rounds in range(3):
            assert same_bits(weights(data), expected), rounds
        assert len(kept) == 1
        assert products_made == [0, 0]
        assert same_bits(weights(clients(FEW_STEPS, batch=10)), expected)
        del data
        gc.collect()
        weights(clients((3,)))
        assert len(kept) == 0
    runtime.close()


def test_low_rank_is_auto_or_false():
    with pytest.raises(FedcoreError, match="low_rank is 'auto' or False, not 7"):
        fc.runtime.local(low_rank=7)


def test_products_and_sums_of_low_rank_matrices_are_those_of_dense_ones():
    rng = np.random.default_rng(1)
    left, right, own = (tf.constant(rng.normal(size=s).astype("f")) for s in ((4, 6, 9), (4, 6, 7), (4, 9, 7)))
    base, rate = tf.constant(rng.normal(size=(9, 7)).astype("f")), tf.constant(rng.normal(size=4).astype("f"))
    a = LowRank((9, 7), 4, ((base, 1.0), (own, 1.0)), ((left, right),))
    b = LowRank((9, 7), 4, ((base, 1.0),), ((left, right * 2),))
    difference = a.map_linear(multiply_by(rate)).plus(b.map_linear(negative))
    assert len(difference.terms) == 2
    assert len(difference.factors) == 1
    expected = rate[:, None, None] * a.dense() - b.dense()
    np.testing.assert_allclose(difference.dense(), expected, atol=1e-5)
    x = tf.constant(rng.normal(size=(4, 5, 9)).astype("f"))
    np.testing.assert_allclose(difference.product_with(x), x @ expected, atol=1e-4)
    y = tf.constant(rng.normal(size=(4, 5, 7)).astype("f"))
    product = difference.product_with(y, transposed=True)
    np.testing.assert_allclose(product, tf.matmul(y, expected, transpose_b=True), atol=1e-4)
    assert not a.plus(a.map_linear(negative)).terms  # what cancels exactly is no term


@pytest.mark.parametrize("size", [1, 3, 10, 17, 62])
@pytest.mark.parametrize("reduce", [tf.reduce_sum, tf.reduce_mean, tf.reduce_prod])
def test_a_reduction_gives_a_client_the_same_bits_at_every_place(reduce, size):
    one = np.random.default_rng(size).normal(size=(1, 100, size)).astype("f")
    expected = None
    for width in (2, 3, 5, 8):
        value = batched(tf.constant(np.repeat(one, width, 0)))
        rows = reduce_aligned(reduce, value.tensor, [1]).numpy()
        assert {row.tobytes() for row in rows} == {rows[0].tobytes()}
        assert expected in (None, rows[0].tobytes())
        expected = rows[0].tobytes()


def test_a_fold_that_reads_the_sum_of_earlier_clients_reads_the_whole_sum():
    """The products of a block's factors are added at once only where nothing reads the sum in between."""
    kernel = fc.to_type(("float32", (INPUTS, HIDDEN)))
    partial = fc.to_type([kernel, "float32"])

    @fc.tf_computation(kernel, ("float32", (None, INPUTS)))
    def step(weights, x):
        return weights - 0.01 * tf.matmul(x, tf.matmul(x, weights) - 1.0, transpose_a=True)

    change = fc.tf_computation(lambda after, before: after - before, kernel, kernel)

    @fc.tf_computation(partial, kernel)
    def accumulate(partial, change):
        total, largest = partial
        return total + change, tf.maximum(largest, tf.reduce_max(tf.abs(total)))

    merge = fc.tf_computation(lambda a, b: (a[0] + b[0], tf.maximum(a[1], b[1])), partial, partial)

    @fc.federated_computation(
        fc.FederatedType(kernel, fc.SERVER),
        fc.FederatedType(fc.SequenceType(("float32", (None, INPUTS))), fc.CLIENTS),
    )
    def totals(weights, data):
        start = fc.federated_broadcast(weights)
        ends = fc.federated_map(lambda s, w: fc.sequence_reduce(s, w, step), (data, start))
        changes = fc.federated_map(change, (ends, start))
        return fc.federated_aggregate(changes, fc.generic_zero(partial), accumulate, merge, lambda x: x)

    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, INPUTS)).astype("f") * 0.3 for n in (10, 5, 15)]
    data = [fc.data.ClientDataset.from_columns(x).batch(BATCH) for x in rows]
    with fc.use(fc.runtime.local()):
        assert "low_rank=" in str(plan_of(totals.module))
        found = totals(np.zeros((INPUTS, HIDDEN), "f"), data)
    with fc.use(fc.runtime.reference()):
        expected = totals(np.zeros((INPUTS, HIDDEN), "f"), data)
    assert expected[1] > 0
    for have, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-6)
