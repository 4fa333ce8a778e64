"""The tutorials' way to install a runtime."""

import asyncio
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


@fc.federated_computation
def ones():
    return fc.federated_sum(fc.federated_value(1, fc.CLIENTS))


@pytest.mark.parametrize("module", [native, fc.backends.test], ids=["native", "test"])
def test_a_synchronous_context_has_the_default_number_of_clients(module):
    place = module.__name__.rpartition(".")[2].replace("native", "local")
    getattr(module, f"set_sync_{place}_cpp_execution_context")(default_num_clients=3)
    assert ones() == 3
    fc.framework.set_default_context(getattr(module, f"create_sync_{place}_cpp_execution_context")(4))
    assert ones() == 4


@pytest.mark.parametrize("calls", [1, 3])
def test_the_calls_in_flight_may_be_bounded(calls):
    native.set_sync_local_cpp_execution_context(max_concurrent_computation_calls=calls)
    assert workers_of_each_device() == calls


def test_without_a_bound_the_cores_bound_the_calls_in_flight():
    native.set_sync_local_cpp_execution_context()
    assert workers_of_each_device() == max(1, CORES // len(context.current_runtime()._clients.devices))


@pytest.mark.parametrize("module", [native, fc.backends.test], ids=["native", "test"])
def test_calls_in_an_asynchronous_context_are_awaited(module):
    place = module.__name__.rpartition(".")[2].replace("native", "local")
    getattr(module, f"set_async_{place}_cpp_execution_context")(default_num_clients=2)
    total = fc.federated_computation(lambda xs: fc.federated_sum(xs), fc.FederatedType("int32", fc.CLIENTS))

    async def both():
        return await asyncio.gather(ones(), total([1, 2, 3]))

    assert asyncio.run(both()) == [2, 6]


def test_an_executor_factory_is_a_runtime():
    factory = fc.framework.local_cpp_executor_factory(default_num_clients=5)
    fc.framework.set_default_context(fc.framework.ExecutionContext(executor_fn=factory))
    assert ones() == 5


def test_modular_sums_are_of_the_backend_too():
    fc.set_runtime(fc.runtime.reference())
    modular = fc.federated_computation(
        lambda xs: fc.backends.mapreduce.federated_secure_modular_sum(xs, 7), fc.FederatedType("int32", fc.CLIENTS)
    )
    assert modular([5, 6]) == 4


@pytest.mark.parametrize("name", ["transform_to_native_form", "desugar_and_transform_to_native"])
def test_a_computation_is_compiled_before_its_calls(name, tmp_path):
    mean = fc.federated_computation(lambda xs: fc.federated_mean(xs), fc.FederatedType("float32", fc.CLIENTS))
    compiled = getattr(native, name)(mean)
    assert compiled.type_signature == mean.type_signature
    assert (mean.module.stage, compiled.module.stage) == ("traced", "planned")
    assert compiled([1.0, 2.0]) == mean([1.0, 2.0]) == 1.5
    fc.save(compiled, tmp_path / "mean.fed")
    assert fc.load(tmp_path / "mean.fed").module.stage == "planned"


def test_only_a_computation_with_types_is_compiled():
    with pytest.raises(FedcoreError, match="is no computation with types"):
        native.transform_to_native_form(fc.tf_computation(lambda x: x))
