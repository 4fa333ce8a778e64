"""Threads and memory stay as they are, whatever the cohorts and however many rounds."""

import numpy as np
import pytest
from participants import COHORTS
from separate_process import in_process

ROUNDS = """
import os, threading
import numpy as np, psutil, tensorflow as tf

process, most = psutil.Process(), [0]

def sample():
    while not stopped.wait(0.002):
        most[0] = max(most[0], process.num_threads())

stopped = threading.Event()
sampler = threading.Thread(target=sample, daemon=True)
sampler.start()

def peak():
    found, most[0] = max(most[0], process.num_threads()), 0
    return found - 1  # the sampler's
"""

LEARNING = """
import fedcore as fc

def model_fn():
    layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    return fc.learning.from_keras_model(
        keras.Sequential([keras.Input((64,)), *layers]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=(tf.TensorSpec((None, 64), tf.float32), tf.TensorSpec((None,), tf.int32)),
    )

def client(index):
    draws = np.random.default_rng(index)
    rows = 10 + index % 40
    columns = (draws.normal(size=(rows, 64)).astype(np.float32), draws.integers(0, 10, rows).astype(np.int32))
    return fc.data.ClientDataset.from_columns(columns).repeat(2).shuffle(100).batch(10)

sgd = fc.learning.optimizers.build_sgdm
learning = fc.learning.algorithms.build_weighted_fed_avg(model_fn, sgd(0.1), sgd(1.0))
fc.set_runtime(fc.runtime.local(vectorize=VECTORIZE))
state = learning.initialize()
"""

PLAIN = """
net = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
data = tf.data.Dataset.from_tensor_slices((np.zeros((200, 64), np.float32), np.zeros(200, np.int32))).batch(20)
net.fit(data, epochs=3, verbose=0)
tell([peak(), os.cpu_count()])
"""

KERAS = "import warnings\nwarnings.simplefilter('ignore')\nimport keras\n"


@pytest.mark.slow
def test_a_thousand_clients_take_no_more_threads_than_ten_and_few_more_than_tensorflow():
    ((plain, cores),) = in_process(ROUNDS + KERAS + PLAIN)
    few, many = in_process(
        ROUNDS
        + KERAS
        + "VECTORIZE = 'auto'\n"
        + LEARNING
        + """
for count in (10, 1000):
    for _ in range(2):
        state, _ = learning.next(state, [client(i) for i in range(count)])
    tell(peak())
"""
    )
    assert many <= few + 2
    assert many <= plain + cores + 8


@pytest.mark.soak
@pytest.mark.parametrize("vectorize", ["auto", False])
def test_the_45_cohorts_again_and_again_take_no_more_threads_and_no_more_memory(vectorize):
    samples = in_process(
        ROUNDS
        + KERAS
        + f"VECTORIZE, COHORTS = {vectorize!r}, {COHORTS}\n"
        + LEARNING
        + """
candidates = [client(i) for i in range(500)]
draws = np.random.default_rng(0)
for number in range(300):
    chosen = draws.choice(500, COHORTS[number % 45], replace=False)
    state, _ = learning.next(state, [candidates[i] for i in chosen])
    tell([peak(), process.memory_info().rss / 2**20])
""",
        timeout_s=1200,
    )
    threads, resident_mb = np.transpose(samples)
    assert len(threads) == 300
    assert max(threads[3:]) <= max(threads[:3])
    mb_a_round = np.polyfit(np.arange(200), resident_mb[-200:], 1)[0]
    assert mb_a_round <= 0.1
