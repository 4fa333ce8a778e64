"""The bits of a client's work do not depend on the other clients of its call, which the number of devices decides.

They decide the size to which batches are padded, and whether the clients of a call can run side by side at all.
"""

import functools
import platform

import keras
import numpy as np
import pytest
import tensorflow as tf
from equal_rows import needs_equal_rows
from separate_process import in_process

import fedcore as fc
from fedcore.compiler.host_target import host_target
from fedcore.graphs.batched import schedule
from fedcore.runtime.clients import client_calls
from fedcore.runtime.clients.client_calls import StageCalls

pytestmark = pytest.mark.usefixtures("plans_for_this_machine")

BATCH = 20
SIZES = (1, 2, 5, 8, 9, 17)
FEATURES, WORDS, LINE = 60, 30, 6
layers = keras.layers


def mlp(units: int):
    return [layers.Input((FEATURES,)), layers.Dense(units, "relu"), layers.Dense(3)]


MODELS = {
    "logistic": lambda: [layers.Input((FEATURES,)), layers.Dense(3)],
    "mlp": lambda: mlp(64),
    "wide mlp": lambda: mlp(500),  # a kernel that is kept low-rank
    "normalised": lambda: [*mlp(16)[:2], layers.BatchNormalization(), layers.LayerNormalization(), layers.Dense(3)],
    "dropout": lambda: [*mlp(16)[:2], layers.Dropout(0.3), layers.Dense(3)],
    "text": lambda: [
        *(layers.Input((LINE,), dtype="int32"), layers.Embedding(WORDS, 4), layers.LSTM(8)),
        layers.Dense(3),
    ],
    "lines": lambda: [
        *(layers.Input((LINE,), dtype="int32"), layers.Embedding(WORDS, 4), layers.GRU(5, return_sequences=True)),
        *(layers.Dense(7, "tanh"), layers.GlobalAveragePooling1D(), layers.Dense(3)),
    ],
    "convolution": lambda: [
        *(layers.Input((FEATURES,)), layers.Reshape((10, 6, 1)), layers.Conv2D(3, 3), layers.MaxPooling2D(2)),
        *(layers.Flatten(), layers.Dense(3)),
    ],
}
OPTIMIZERS = {
    "sgd": fc.learning.optimizers.build_sgdm(0.1),
    "momentum": fc.learning.optimizers.build_sgdm(0.1, momentum=0.9),
    "adam": fc.learning.optimizers.build_adam(0.01),
    "decay": keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.05),
}


def has_words(model: str) -> bool:
    return model in ("text", "lines")


@functools.cache
def process(model: str, optimizer: str):
    def model_fn():
        keras.utils.set_random_seed(1)
        feature = tf.TensorSpec([None, LINE], tf.int32) if has_words(model) else tf.TensorSpec([None, FEATURES])
        return fc.learning.models.from_keras_model(
            keras.Sequential(MODELS[model]()),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=(feature, tf.TensorSpec([None], tf.int32)),
            metrics=[keras.metrics.SparseCategoricalAccuracy(), keras.metrics.SparseCategoricalCrossentropy()],
        )

    return fc.learning.algorithms.build_weighted_fed_avg(model_fn, client_optimizer_fn=OPTIMIZERS[optimizer])


def clients(model: str, sizes) -> list:
    rng = np.random.default_rng(7)
    found = []
    for n in sizes:
        x = rng.integers(0, WORDS, (n, LINE)).astype("i") if has_words(model) else rng.normal(size=(n, FEATURES))
        columns = x if has_words(model) else x.astype("f"), rng.integers(0, 3, n).astype("i")
        found.append(fc.data.ClientDataset.from_columns(columns).batch(BATCH))
    return found


def after_a_round(model: str, optimizer: str, data: list, **settings) -> bytes:
    with fc.use(fc.runtime.local(**settings), seed=3):
        of_model = process(model, optimizer)
        result = of_model.next(of_model.initialize(), data)
    weights = result.state.global_model_weights
    leaves = [*weights.trainable, *weights.non_trainable, *tf.nest.flatten(result.metrics["client_work"]["train"])]
    return b"".join(np.asarray(leaf).tobytes() for leaf in leaves)


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        *((m, "sgd") for m in MODELS if m not in ("logistic", "text")),
        *(pytest.param(m, "sgd", marks=pytest.mark.soak) for m in ("logistic", "text")),
        *(
            pytest.param(*more, marks=pytest.mark.soak)
            for more in (("mlp", "momentum"), ("text", "adam"), ("wide mlp", "decay"))
        ),
    ],
)
def test_devices_do_not_decide_the_bits_where_they_decide_the_padding(model, optimizer):
    """In calls of one block, the first batches are padded to few rows, and only the last client takes many steps."""
    data = clients(model, [*SIZES, 3, 4, 20, 33, 7, 90])
    whole = after_a_round(model, optimizer, data, workers_per_device=1, block_size=2)
    blocks = after_a_round(model, optimizer, data, client_devices=["CPU:0"] * 8, workers_per_device=1, block_size=2)
    assert whole == blocks


def test_devices_do_not_decide_the_bits_of_products_of_float64():
    """oneDNN has none, and TensorFlow's kernels multiply other numbers of rows in another order on every processor."""
    dtype = "float64"

    def model_fn():
        keras.utils.set_random_seed(1)
        parts = [layers.Input((FEATURES,), dtype=dtype), layers.Dense(70, dtype=dtype), layers.Dense(3, dtype=dtype)]
        return fc.learning.models.from_keras_model(
            keras.Sequential(parts),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype=dtype),
            input_spec=(tf.TensorSpec([None, FEATURES], dtype), tf.TensorSpec([None], tf.int32)),
        )

    sgd = fc.learning.optimizers.build_sgdm(0.1)
    of_model = fc.learning.algorithms.build_weighted_fed_avg(model_fn, client_optimizer_fn=sgd)
    rng = np.random.default_rng(7)
    columns = [(rng.normal(size=(n, FEATURES)).astype(dtype), rng.integers(0, 3, n).astype("i")) for n in (2, 5, 33)]
    data = [fc.data.ClientDataset.from_columns(c).batch(BATCH) for c in columns]
    found = set()
    for devices in (1, 3):
        with fc.use(fc.runtime.local(client_devices=["CPU:0"] * devices, workers_per_device=1, block_size=1), seed=3):
            weights = of_model.next(of_model.initialize(), data).state.global_model_weights.trainable
        found.add(b"".join(np.asarray(w).tobytes() for w in weights))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("model", "shuffles"),
    [
        *(("logistic", True), ("wide mlp", False)),
        *(
            pytest.param(*more, marks=pytest.mark.soak)
            for more in (("wide mlp", True), ("text", False), ("text", True))
        ),
    ],
)
def test_clients_of_a_call_may_all_have_no_examples(model, shuffles):
    """As the first ones, which have a device of their own."""
    data = clients(model, [0, 0, 0, 0, 5, 23, 0, 7])
    data = [d.unbatch().shuffle(50, seed=1).batch(BATCH) if shuffles else d for d in data]
    whole = after_a_round(model, "sgd", data, workers_per_device=1, block_size=2)
    blocks = after_a_round(model, "sgd", data, client_devices=["CPU:0"] * 4, workers_per_device=1, block_size=2)
    assert whole == blocks
    with fc.use(fc.runtime.local()):
        start = process(model, "sgd").initialize()
        after = process(model, "sgd").next(start, data[:2]).state
    for x, y in zip(start.global_model_weights.trainable, after.global_model_weights.trainable, strict=True):
        np.testing.assert_array_equal(x, y)


@needs_equal_rows
@pytest.mark.parametrize(
    ("model", "optimizer", "shuffles"),
    [("text", "sgd", False), ("text", "adam", True), pytest.param("lines", "decay", False, marks=pytest.mark.soak)],
)
def test_small_last_batches_are_computed_with_half_the_rows(model, optimizer, shuffles, monkeypatch):
    data = clients(model, [23, 42, 30, 20, 3, 61, 45, 50, 0, 29])
    data = [d.unbatch().shuffle(50).batch(BATCH) if shuffles else d for d in data]

    def found(**settings) -> tuple[bytes, set[bool]]:
        of_calls = []
        build = client_calls.realize_batched
        with monkeypatch.context() as patch:
            patch.setattr(client_calls, "realize_batched", lambda *a, **kw: of_calls.append(a[1]) or build(*a, **kw))
            bits = after_a_round(model, optimizer, data, workers_per_device=1, vectorize=2, **settings)
        return bits, {layout.has_half_steps for layout in of_calls}

    bits, has_halves = found()
    assert has_halves == {True}
    assert found(client_devices=["CPU:0"] * 4)[0] == bits
    monkeypatch.setattr(schedule, "LEAST_SAVED", 1.0)
    assert found() == (bits, {False})


@pytest.mark.parametrize("other", ["layout", "batch size"])
def test_clients_of_another_kind_decide_the_strategy_of_their_block_only(other):
    """On one device they are in one call with clients that can run vectorised."""
    data = clients("wide mlp", [7, 20, 33, 45, 7, 20, 33])
    if other == "layout":
        data[3:] = [d.map(lambda x, y: (x * 1.0, y)) for d in data[3:]]
    else:
        data[3:] = [d.unbatch().batch(5) for d in data[3:]]
    whole = after_a_round("wide mlp", "sgd", data, workers_per_device=1, block_size=2)
    blocks = after_a_round("wide mlp", "sgd", data, client_devices=["CPU:0"] * 4, workers_per_device=1, block_size=2)
    assert whole == blocks


@needs_equal_rows
def test_devices_do_not_decide_the_bits_of_batches_whose_sizes_the_data_decide(monkeypatch):
    """On one device, groups of several levels; on eight, each block has the padding of its own clients. The batches of
    two clients differ so much that their block runs client by client.
    """
    rng = np.random.default_rng(7)
    sizes = [[3, 4], [2, 5], [70, 66], [90], [1, 2, 2], [5], [12, 9], [6], [300, *[1] * 9], [200, *[2] * 5]]
    data = [[(rng.normal(size=(n, FEATURES)).astype("f"), rng.integers(0, 3, n).astype("i")) for n in s] for s in sizes]
    levels, one_by_one = [], []
    build, alone = client_calls.realize_batched, StageCalls._alone
    monkeypatch.setattr(client_calls, "realize_batched", lambda *a, **kw: levels.append(a[1].levels) or build(*a, **kw))
    monkeypatch.setattr(StageCalls, "_alone", lambda calls, c: one_by_one.append(c.present) or alone(calls, c))
    settings = {"workers_per_device": 1, "block_size": 2, "vectorize": 2, "low_rank": False}
    whole = after_a_round("wide mlp", "sgd", data, **settings)
    assert (max(levels), one_by_one) == ((128, 64, 32, 16), [[8], [9]])
    assert after_a_round("wide mlp", "sgd", data, client_devices=["CPU:0"] * 8, **settings) == whole


def test_lists_whose_blocks_have_equal_longest_batches_are_one_call_where_rows_decide_bits():
    """A block with another longest batch has a call of its own, and so has each half of the others."""
    rng = np.random.default_rng(7)
    longest = [BATCH] * 64
    longest[17] = BATCH - 1
    longest[16] = BATCH - 1
    data = [[rng.normal(size=(n, FEATURES)).astype("f") for n in (size, 3)] for size in longest]
    weights = fc.TensorType("float32", (FEATURES, 2))

    @fc.tf_computation(weights, fc.TensorType("float32", (None, FEATURES)))
    def step(kernel, batch):
        return kernel + 0.1 * tf.matmul(batch, tf.nn.relu(batch @ kernel), transpose_a=True)

    @fc.federated_computation(
        fc.FederatedType(weights, fc.SERVER),
        fc.FederatedType(fc.SequenceType(step.type_signature.parameter[1]), fc.CLIENTS),
    )
    def average(kernel, batches):
        start = fc.federated_broadcast(kernel)
        return fc.federated_mean(fc.federated_map(lambda k, b: fc.sequence_reduce(b, k, step), (start, batches)))

    def calls_and_bits(clients: list, **settings: object) -> tuple[int, bytes]:
        target = "avx2/large-l2/fast-memory/no-gpu"
        with fc.use(fc.runtime.local(target=target, block_size=2, workers_per_device=1, **settings)):
            result = average(np.full((FEATURES, 2), 0.01, "f"), clients)
            return fc.context.last_report().graph_calls["blocks"], result.tobytes()

    calls, bits = calls_and_bits(data)
    assert calls == 6  # clients 0 to 15, 16 and 17, 18 and 19, 20 to 23, 24 to 31, 32 to 63
    assert calls_and_bits(data[:16])[0] == 1
    assert calls_and_bits(data, client_devices=["CPU:0"] * 32)[1] == bits


def test_the_place_in_a_group_does_not_decide_the_bits_of_norms():
    """Kernels add up long rows in an order that depends on where they begin in memory."""
    values = np.random.default_rng(0).normal(size=(12, 26003)).astype("f")
    of_client = fc.TensorType("float32", values.shape[1:])

    @fc.tf_computation(of_client)
    def bits(x):
        return tf.cast(tf.bitcast(tf.norm(x), tf.int32), tf.int64)

    @fc.federated_computation(fc.FederatedType(of_client, fc.CLIENTS))
    def sum_of_bits(xs):
        return fc.federated_sum(fc.federated_map(bits, xs))

    found = set()
    for width in (2, 3, 4, 5):
        with fc.use(fc.runtime.local(vectorize=width, workers_per_device=1)):
            found.add(int(sum_of_bits(list(values))))
    assert len(found) == 1


OTHER_PROCESSORS = """
import hashlib, keras, numpy as np, tensorflow as tf
import fedcore as fc

def model():
    layers = [keras.layers.Input((256,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(3)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    spec = (tf.TensorSpec([None, 256]), tf.TensorSpec([None], tf.int32))
    return fc.learning.models.from_keras_model(keras.Sequential(layers), loss=loss, input_spec=spec)

rng = np.random.default_rng(0)
sizes = [3, 7, 5, 1] * 4 + [20, 33, 45, 60] * 4
columns = [(rng.normal(size=(n, 256)).astype("f"), rng.integers(0, 3, n).astype("i")) for n in sizes]
data = [fc.data.ClientDataset.from_columns(c).batch(20) for c in columns]
sgd = fc.learning.optimizers.build_sgdm(0.1)
average = fc.learning.algorithms.build_weighted_fed_avg(model, client_optimizer_fn=sgd)
for process in (average, fc.learning.algorithms.build_fed_sgd(model)):
    digests = set()
    for settings in ({"workers_per_device": 1}, {"client_devices": ["CPU:0"] * 4}, {"vectorize": 2}):
        with fc.use(fc.runtime.local(**settings), seed=1):
            result = process.next(process.initialize(), data)
            text = str(fc.context.plan_of(process.next.module))
        leaves = [*result.state.global_model_weights.trainable, *tf.nest.flatten(dict(result.metrics))]
        digests.add(hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest())
    tell([len(digests), "low_rank" in text, [p for p in ("each", "tiles") if f"products={p}" in text]])
    data = [[(x[: n % 5 + 1], y[: n % 5 + 1]), (x, y)] for n, (x, y) in enumerate(columns)]  # in lists
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN can be held to older instructions of x86 only")
@pytest.mark.parametrize(
    ("isa", "products"), [("AVX2", "tiles"), pytest.param("SSE41", "each", marks=pytest.mark.soak)]
)
def test_bits_stay_equal_on_processors_where_rows_decide_the_bits_of_products(isa, products):
    environment = {"ONEDNN_MAX_CPU_ISA": isa, "FEDCORE_TARGET": ""}
    if host_target().isa == isa.lower():  # whose plans with oneDNN's kernels the other tests have
        environment["TF_ENABLE_ONEDNN_OPTS"] = "0"
    assert in_process(OTHER_PROCESSORS, env=environment, cold=True) == [[1, True, [products]]] * 2
