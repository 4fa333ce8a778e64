"""Client data by URIs, as TFF's tutorial on remote data reads them."""

import asyncio

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import ClientError, FedcoreError, TypeMismatch

NUMBERS = fc.SequenceType("int32")


@fc.tf_computation(NUMBERS)
def total(numbers):
    return numbers.reduce(np.int32(0), lambda x, y: x + y)


@fc.federated_computation(fc.FederatedType(NUMBERS, fc.CLIENTS))
def totals(data):
    return fc.federated_sum(fc.federated_map(total, data))


class Shards(fc.framework.DataBackend):
    def __init__(self):
        self.asked = []

    async def materialize(self, data, type_spec):
        self.asked.append((data.uri, str(type_spec)))
        await asyncio.sleep(0)
        return tf.data.Dataset.range(int(data.uri[-1])).map(lambda x: tf.cast(x, tf.int32))


def runtime_over(backend):
    def leaf(device):
        return fc.framework.DataExecutor(fc.framework.EagerTFExecutor(device), data_backend=backend)

    return fc.framework.SyncExecutionContext(executor_fn=fc.framework.local_executor_factory(leaf_executor_fn=leaf))


@pytest.fixture
def shards():
    backend = Shards()
    fc.framework.set_default_context(runtime_over(backend))
    yield backend
    fc.set_runtime(None)


def test_a_round_reads_each_clients_data_from_the_backend(shards):
    data = fc.framework.CreateDataDescriptor(arg_uris=["uri://3", "uri://5"], arg_type=NUMBERS)
    assert totals(data) == 3 + 10
    assert shards.asked == [("uri://3", "int32*"), ("uri://5", "int32*")]
    assert str(data.type_signature) == "{int32*}@CLIENTS"
    assert len(data) == 2


def test_data_are_read_while_an_event_loop_runs_as_in_notebooks(shards):
    async def cell():
        return totals(fc.framework.CreateDataDescriptor(["uri://4"], fc.FederatedType(NUMBERS, fc.CLIENTS)))

    assert asyncio.run(cell()) == 6


def test_other_arguments_are_taken_as_they_are(shards):
    assert totals([[1, 2], [3]]) == 6
    assert shards.asked == []


def test_a_plain_function_may_give_the_data():
    class Lists(fc.framework.DataBackend):
        def materialize(self, data, type_spec):
            return [len(data.uri)]

    with fc.use(runtime_over(Lists())):
        assert totals(fc.framework.CreateDataDescriptor(["a", "bcd"], NUMBERS)) == 4


def test_a_backend_that_fails_names_the_client():
    class Missing(fc.framework.DataBackend):
        async def materialize(self, data, type_spec):
            raise OSError(f"no {data.uri}")

    data = fc.framework.CreateDataDescriptor(["uri://0"], NUMBERS)
    with fc.use(runtime_over(Missing())), pytest.raises((OSError, ClientError), match="no uri://0"):
        totals(data)


def test_uris_of_another_type_are_refused_before_anything_is_read(shards):
    data = fc.framework.CreateDataDescriptor(["uri://3"], fc.SequenceType("float32"))
    with pytest.raises(TypeMismatch, match=r"data is of type \{int32\*\}@CLIENTS, but its URIs name data of type"):
        totals(data)
    assert shards.asked == []


def test_one_text_is_no_list_of_uris():
    with pytest.raises(TypeMismatch, match="arg_uris is a list of texts, one for each client, not 'uri://3'"):
        fc.framework.CreateDataDescriptor("uri://3", NUMBERS)


def test_a_leaf_is_an_executor():
    with pytest.raises(FedcoreError, match="leaf_executor_fn gives a DataExecutor or an EagerTFExecutor, not None"):
        fc.framework.local_executor_factory(leaf_executor_fn=lambda device: None)


def test_without_a_backend_the_factory_gives_a_local_runtime():
    with fc.use(fc.framework.local_executor_factory(leaf_executor_fn=fc.framework.EagerTFExecutor)):
        assert totals([[1, 2], [3]]) == 6
    assert fc.framework.local_executor_factory(default_num_clients=2).default_num_clients == 2
