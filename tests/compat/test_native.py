"""The tutorials' way to install a runtime."""

import os

import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context
from fedcore.errors import FedcoreError

native = fc.backends.native


@pytest.fixture(autouse=True)
def installed():
    yield
    context.current_runtime().close()
    fc.set_runtime(None)


def workers_of_each_device():
    return context.current_runtime()._clients.workers.each


CORES = os.cpu_count() or 1


@pytest.mark.parametrize("clients_per_thread", [1, 2, CORES, 10 * CORES])
def test_clients_per_thread_divides_the_calls_in_flight(clients_per_thread):
    native.set_local_python_execution_context(clients_per_thread=clients_per_thread)
    devices = len(context.current_runtime()._clients.devices)
    assert workers_of_each_device() == max(1, max(1, CORES // devices) // clients_per_thread)


def test_devices_may_be_named_as_in_the_tutorial():
    cpu = tf.config.list_logical_devices("CPU")[0]
    native.set_local_execution_context(server_tf_device=cpu, client_tf_devices=[cpu, cpu], max_fanout=10)
    total = fc.federated_computation(lambda xs: fc.federated_sum(xs), fc.FederatedType("int32", fc.CLIENTS))
    assert total([1, 2, 3]) == 6
    assert [d.device for d in context.current_runtime()._clients.devices] == ["/device:CPU:0"] * 2


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"clients_per_thread": 0}, "clients_per_thread is a whole number, 1 or more, not 0"),
        ({"clients_per_thread": 1.5}, r"clients_per_thread is a whole number, 1 or more, not 1\.5"),
        ({"max_fanout": 1}, "max_fanout is a whole number, 2 or more, not 1"),
        ({"client_tf_devices": ["GPU:7"]}, "there is no device 'GPU:7'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(setting, says):
    with pytest.raises(FedcoreError, match=says):
        native.set_local_python_execution_context(**setting)
