"""Data sources, and calls that return references."""

import asyncio

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch
from fedcore.program import (
    Capability,
    DatasetDataSource,
    DatasetDataSourceIterator,
    FederatedDataSourceIterator,
    NativeFederatedContext,
    check_in_federated_context,
    contains_only_server_placed_data,
    materialize_value,
)


def datasets(number=4):
    return [tf.data.Dataset.from_tensor_slices({"x": np.arange(i + 1, dtype=np.float32)}) for i in range(number)]


def sizes(selection):
    return [len(list(dataset)) for dataset in selection]


def test_an_iterator_without_bytes_selects_but_cannot_be_saved():
    class First(FederatedDataSourceIterator):
        @property
        def federated_type(self):
            return fc.FederatedType(fc.SequenceType("int32"), fc.CLIENTS)

        def select(self, k=None):
            return [[1]] * k

    assert First().select(2) == [[1], [1]]
    for save in (First().to_bytes, lambda: First.from_bytes(b"")):
        with pytest.raises(FedcoreError, match="a First cannot be saved: it has no to_bytes and from_bytes of its own"):
            save()


def test_selections_depend_on_the_seed_and_have_no_client_twice():
    source = DatasetDataSource(datasets(), seed=1)
    assert str(source.federated_type) == "{<x=float32>*}@CLIENTS"
    assert source.capabilities == [Capability.RANDOM_UNIFORM]
    first, again = source.iterator(), source.iterator()
    selections = [sizes(first.select(3)) for _ in range(5)]
    assert selections == [sizes(again.select(3)) for _ in range(5)]
    assert len({tuple(s) for s in selections}) > 1
    assert all(len(set(s)) == 3 for s in selections)
    assert sizes(source.iterator().select(0)) == []
    assert sizes(DatasetDataSource(datasets()).iterator().select(4)) != []


def test_wrong_data_and_wrong_numbers_of_clients():
    iterator = DatasetDataSource(datasets(), seed=1).iterator()
    for k in (None, -1, 5):
        with pytest.raises(InvalidValue, match="k is a number of clients from 0 to 4"):
            iterator.select(k)
    with pytest.raises(InvalidValue, match="not empty"):
        DatasetDataSource([])
    with pytest.raises(TypeMismatch, match=r"data set 1 is not like data set 0\n.*\n.*int64"):
        DatasetDataSource([tf.data.Dataset.from_tensors(1), tf.data.Dataset.range(2)])


def test_an_iterator_comes_back_from_its_bytes_where_it_was():
    iterator = DatasetDataSource(datasets(), seed=1).iterator()
    iterator.select(2)
    back = DatasetDataSourceIterator.from_bytes(iterator.to_bytes())
    assert back == iterator
    assert back.federated_type == iterator.federated_type
    assert [list(d.as_numpy_iterator()) for d in back.select(3)] == [
        list(d.as_numpy_iterator()) for d in iterator.select(3)
    ]
    for wrong in (b"", iterator.to_bytes()[:-1], b"[1,2]\nabc"):
        with pytest.raises(InvalidValue, match="not the bytes of a DatasetDataSourceIterator"):
            DatasetDataSourceIterator.from_bytes(wrong)


@fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
def total(xs):
    return {"sum": fc.federated_sum(xs), "max": (fc.federated_max(xs), fc.federated_sum(xs))}


@fc.federated_computation(fc.FederatedType("int32", fc.SERVER))
def doubled(x):
    return fc.federated_map(fc.tf_computation(lambda x: 2 * x), x)


def run(program):
    async def within():
        with fc.use(NativeFederatedContext(fc.runtime.local())):
            return await program()

    return asyncio.run(within())


def test_a_call_returns_references_in_the_containers_of_its_result():
    async def program():
        found = total([1, 2, 3])
        assert str(found["sum"].type_signature) == "int32"
        assert isinstance(found["max"], tuple)
        assert found["sum"] != found["max"][1]
        return await materialize_value(found)

    assert run(program) == {"sum": 6, "max": (3, 6)}


def test_programs_install_it_as_tffs_tutorials_do():
    fc.framework.set_default_context(
        NativeFederatedContext(fc.backends.native.create_async_local_cpp_execution_context())
    )

    async def program():
        return await materialize_value(total([1, 2])["sum"])

    try:
        assert asyncio.run(program()) == 3
    finally:
        fc.set_runtime(None)


def test_references_are_arguments_of_further_calls():
    async def program():
        return await materialize_value(doubled(total([1, 2])["sum"]))

    assert run(program) == 6


def test_errors_come_where_the_value_is_awaited():
    async def program():
        reference = total([1, "a"])["sum"]
        with pytest.raises(TypeMismatch):
            await reference.get_value()

    run(program)


def test_invoke_and_what_it_refuses():
    context = NativeFederatedContext(fc.runtime.local())

    async def program():
        return await materialize_value(context.invoke(total, [4, 5]))

    assert asyncio.run(program())["sum"] == 9
    with pytest.raises(InvalidValue, match="no event loop is running\n  fix: call it in an async function"):
        context.invoke(total, [1])

    @fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
    def same(xs):
        return xs

    with pytest.raises(InvalidValue, match=r"same is called in a program, but its result is no server value"):
        context.invoke(same, [1])


def test_programs_that_need_such_a_context_say_so():
    with pytest.raises(InvalidValue, match=r"not in a LocalRuntime\n  fix: fc.set_runtime"):
        check_in_federated_context()

    async def program():
        check_in_federated_context()

    run(program)
    assert contains_only_server_placed_data(total.type_signature.result)
    assert not contains_only_server_placed_data(total.type_signature.parameter)
    assert not contains_only_server_placed_data(total.type_signature)
