"""Which devices clients run on, and that it does not show in the result."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from separate_process import in_process

import fedcore as fc
from fedcore.errors import FedcoreError
from fedcore.runtime import Report
from fedcore.runtime.devices.device import DeviceExecutor
from fedcore.runtime.stopping import Stop

CNN = """
import keras, numpy as np, tensorflow as tf
import fedcore as fc

def model_fn():
    L = keras.layers
    return fc.learning.from_keras_model(
        keras.Sequential([keras.Input((8, 8, 1)), L.Conv2D(4, 3), L.MaxPooling2D(), L.Flatten(), L.Dense(3)]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=(tf.TensorSpec((None, 8, 8, 1), tf.float32), tf.TensorSpec((None,), tf.int32)),
    )

def client(seed):
    draws = np.random.default_rng(seed)
    columns = (draws.normal(size=(12, 8, 8, 1)).astype(np.float32), draws.integers(0, 3, 12).astype(np.int32))
    return fc.data.ClientDataset.from_columns(columns).batch(4)

sgd = fc.learning.optimizers.build_sgdm
process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, sgd(0.1), sgd(1.0))
clients = [client(i) for i in range(10)]
"""


@pytest.mark.slow
def test_at_default_settings_the_clients_of_an_image_model_run_on_all_devices():
    (placements,) = in_process(
        CNN
        + """
from fedcore import context
process.next(process.initialize(), clients)
tell(context.last_report().placements)
""",
        cpus=4,
    )
    (devices,) = placements.values()
    assert set(devices) == {f"/device:CPU:{i}" for i in range(4)}
    ran = sorted(i for ranges in devices.values() for first, last in ranges for i in range(first, last + 1))
    assert ran == list(range(10))


@pytest.mark.slow
def test_neither_devices_nor_workers_nor_the_order_of_completion_show_in_the_bits():
    bits, orders = in_process(
        """
import hashlib, random, threading
import numpy as np, tensorflow as tf
import fedcore as fc
from fedcore.runtime.devices.device import DeviceExecutor

random.seed(3)
call, finished = DeviceExecutor.call, []

def shuffled(self, function, tensors, stop):
    out = call(self, function, tensors, stop)
    threading.Event().wait(random.random() * 0.01)
    finished.append(self.device)
    return out

DeviceExecutor.call = shuffled
FLOATS = fc.FederatedType(("float32", (3,)), fc.CLIENTS)
draws = np.random.default_rng(0)
cohort = [draws.normal(size=3).astype(np.float32) * 1e3 for _ in range(150)]

@fc.tf_computation(("float32", (3,)))
def tangent(x):
    return tf.tan(x) / 3.0

@fc.federated_computation(FLOATS)
def average(xs):
    return fc.federated_mean(fc.federated_map(tangent, xs))

for vectorize in ("auto", False):
    found = set()
    for devices, workers in ((1, 1), (1, 8), (2, 3), (4, 2), (4, 8)):
        runtime = fc.runtime.local(
            client_devices=[f"CPU:{i}" for i in range(devices)], workers_per_device=workers, vectorize=vectorize
        )
        with fc.use(runtime):
            found.add(hashlib.sha256(average(cohort).tobytes()).hexdigest())
        runtime.close()
    tell(len(found))
""",
        cpus=4,
    )
    assert bits == 1
    assert orders == 1


@pytest.mark.slow
def test_stacked_clients_are_dealt_to_all_devices_where_their_number_is_known():
    known, drawn = in_process(
        """
import fedcore as fc
from fedcore import context

@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def total(xs):
    return fc.federated_sum(fc.federated_map(lambda x: x * x, xs))

for cohort in ([1.0] * 64, (1.0 for _ in range(64))):
    assert total(cohort) == 64.0
    tell(context.last_report().placements["clients"])
""",
        cpus=4,
    )
    assert len(known) == 4
    assert sum(last - first + 1 for ranges in drawn.values() for first, last in ranges) == 64


@pytest.mark.slow
def test_a_device_may_be_named_as_in_tensorflow():
    seen = in_process(
        """
import tensorflow as tf
import fedcore as fc
from fedcore import context

@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def total(xs):
    return fc.federated_sum(xs)

for device in ("cpu:2", "/CPU:2", "/device:CPU:2", tf.config.list_logical_devices()[2]):
    with fc.use(fc.runtime.local(server_device=device, client_devices=[device])):
        assert total([1.0, 2.0]) == 3.0
    tell(list(context.last_report().placements["clients"]))
""",
        cpus=4,
    )
    assert seen == [["/device:CPU:2"]] * 4


@pytest.mark.slow
def test_nothing_is_put_on_a_device_that_clients_are_not_pinned_to():
    """TensorFlow's own choice is the first device (a GPU where there is one), here `CPU:0`."""
    seen = in_process(
        """
import numpy as np
import fedcore as fc
from fedcore.runtime.devices.device import DeviceExecutor

call, given = DeviceExecutor.call, set()

def noted(self, function, tensors, stop):
    given.update((t.device[-5:], self.device[-5:]) for t in tensors)
    return call(self, function, tensors, stop)

DeviceExecutor.call = noted

@fc.tf_computation("float32", ("float32", (None,)))
def add(total, batch):
    return total + batch[0] * 2.0

@fc.federated_computation(fc.FederatedType(fc.SequenceType(("float32", (None,))), fc.CLIENTS))
def total(data):
    return fc.federated_sum(fc.federated_map(lambda rows: fc.sequence_reduce(rows, 0.0, add), data))

@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS), fc.FederatedType("float32", fc.SERVER))
def shifted(xs, by):
    return fc.federated_sum(fc.federated_map(lambda x, y: x * y, (xs, fc.federated_broadcast(by))))

clients = [fc.data.ClientDataset.from_columns(np.ones(4, np.float32)).batch(2) for _ in range(20)]
for vectorize in ("auto", False):
    with fc.use(fc.runtime.local(server_device="CPU:1", client_devices=["CPU:1"], vectorize=vectorize)):
        assert total(clients) == total(clients) == 80.0
        assert shifted([1.0] * 20, 2.0) == 40.0
tell(sorted(given))
""",
        cpus=2,
    )
    assert seen == [[["CPU:1", "CPU:1"]]]


@pytest.mark.parametrize("asked", ["CPU:9", "GPU", "printer", "CPU:x", 3])
def test_a_device_that_is_not_there_is_refused(asked):
    with pytest.raises(FedcoreError, match=r"client_devices: there is no device .*; there are /device:CPU:0"):
        fc.runtime.local(client_devices=[asked])


@pytest.mark.parametrize("devices", ["CPU:0", []])
def test_what_is_no_list_of_devices_is_refused(devices):
    with pytest.raises(FedcoreError, match="client_devices is a list of one device or more, not "):
        fc.runtime.local(client_devices=devices)


def test_ranges_of_clients_that_touch_become_one():
    report = Report()
    for first, last in [(8, 11), (0, 3), (4, 7), (20, 20), (18, 18), (19, 19)]:
        report.ran("clients", "/device:CPU:0", first, last)
    assert report.placements == {"clients": {"/device:CPU:0": [(0, 11), (18, 20)]}}


def test_threads_wait_for_the_one_that_compiles_a_function():
    compiles, may_end, compiled = threading.Event(), threading.Event(), []

    class Function:
        name = "stage"

        def get_ready(self, tensors):
            compiled.append(threading.current_thread())
            compiles.set()
            assert may_end.wait(60)

    function, device = Function(), DeviceExecutor("/device:CPU:0")
    threads = [threading.Thread(target=device.get_ready, args=(function, [])) for _ in range(3)]
    threads[0].start()
    assert compiles.wait(60)
    for thread in threads[1:]:
        thread.start()
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert len(compiled) == 1


def test_all_functions_of_a_device_are_compiled_in_one_thread():
    compiled = []

    class Function:
        name = "stage"

        def get_ready(self, tensors):
            compiled.append(threading.current_thread())

        def __call__(self, tensors, cancellation):
            return ()

    device = DeviceExecutor("/device:CPU:0")
    for call in (device.get_ready, functools.partial(device.call, stop=Stop())):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(call, Function(), []).result()
    one, other = compiled
    assert one is other


def test_a_function_that_failed_to_compile_is_compiled_again():
    class Function:
        name = "stage"
        calls = 0

        def get_ready(self, tensors):
            self.calls += 1
            if self.calls == 1:
                raise ValueError("no memory")

    function, device = Function(), DeviceExecutor("/device:CPU:0")
    with pytest.raises(ValueError, match="no memory"):
        device.get_ready(function, [])
    device.get_ready(function, [])
    device.get_ready(function, [])
    assert function.calls == 2
