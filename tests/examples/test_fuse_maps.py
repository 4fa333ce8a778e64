"""The example's pass fuses chains of maps, and clients draw the random numbers that they drew before."""

import importlib.util
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.compiler import compile_module, pipeline

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/fuse_maps.py"
AT_CLIENTS = fc.FederatedType("float32", fc.CLIENTS)


@pytest.fixture
def example(monkeypatch):
    pipeline.all_passes()  # built-in passes register when they are first named
    monkeypatch.setattr(pipeline._passes, "_parts", dict(pipeline._passes._parts))
    spec = importlib.util.spec_from_file_location("fuse_maps", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kinds(module) -> list[str]:
    return [op.kind for op in module.main.operations]


def test_it_keeps_the_laws_of_a_pass_and_shows_the_fused_program(example):
    assert kinds(example.main()) == ["federated_map", "federated_mean"]


def test_a_chain_becomes_one_map(example):
    @fc.federated_computation(AT_CLIENTS)
    def chain(values):
        inner = fc.federated_map(lambda x: x + 1.0, values)
        return fc.federated_map(lambda x: x * 2.0, fc.federated_map(lambda x: x - 1.0, inner))

    assert kinds(example.fuse_maps(chain.module)) == ["federated_map"]
    with fc.use(pipeline="fuse-maps,default"):
        assert chain([1.0, 5.0]) == [2.0, 10.0]


def test_a_map_with_two_users_stays(example):
    @fc.federated_computation(AT_CLIENTS)
    def shared(values):
        inner = fc.federated_map(lambda x: x + 1.0, values)
        return fc.federated_map(lambda x: x * 2.0, inner), fc.federated_sum(inner)

    assert example.fuse_maps(shared.module) is shared.module


def test_clients_draw_the_same_numbers(example):
    add_noise = fc.tf_computation("float32")(lambda x: x + tf.floor(tf.random.normal([]) * 1e3))

    @fc.federated_computation(AT_CLIENTS)
    def program(x):
        return fc.federated_map(add_noise, fc.federated_map(add_noise, fc.federated_map(add_noise, x)))

    fused = compile_module(example.fuse_maps(program.module), "default")
    assert kinds(example.fuse_maps(program.module)) == ["federated_map"]
    numbers = program.invoke([0.0, 1.0, 2.0], seed=5)
    fused_numbers = fc.runtime.local().run(fused, [[0.0, 1.0, 2.0]], fc.context.Report(seed=5))
    np.testing.assert_array_equal(numbers, fused_numbers)
    assert len({float(x) for x in numbers}) == 3
