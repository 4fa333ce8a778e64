"""The cut of a client stage: the values that clients send, and what the server computes from them."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.intrinsics import where
from fedcore.intrinsics.sent_values import client_cut

SIZE = 40
VALUES = fc.FederatedType(("int32", (SIZE,)), fc.CLIENTS)
FLOATS = fc.FederatedType(("float32", (SIZE,)), fc.CLIENTS)
RNG = np.random.default_rng(0)
INTEGERS = [RNG.integers(-50, 50, SIZE).astype(np.int32) for _ in range(11)]


def program(body, *types) -> fc.Computation:
    return fc.federated_computation(*types)(body)


def sent(computation) -> list[str]:
    """What clients of the only fold of a plan send: types, with ranges."""
    plan = computation.to_module("planned")
    (fold,) = (op for op in plan.main.operations if op.kind == "fold")
    return [f"{s.type} {s.secure}".strip() for s in client_cut(plan, fold).sent.values()]


def bits(computation) -> int:
    (merge,) = (op for op in computation.to_module("planned").main.operations if op.kind == "merge")
    return merge.attributes["bits"]


@pytest.mark.parametrize(("modulus", "width"), [(7, 3), (8, 3), (1000, 10), (1, 0)])
def test_a_modular_sum_sends_remainders_in_the_bits_of_its_modulus(modulus, width):
    total = program(lambda x: fc.federated_secure_modular_sum(x, modulus), VALUES)
    assert sent(total) == [f"int32[{SIZE}] mod {modulus}"]
    assert bits(total) == width * SIZE
    np.testing.assert_array_equal(total(INTEGERS), sum(INTEGERS) % modulus)
    assert fc.context.last_report().aggregate_bits == width * SIZE * len(INTEGERS)
    assert sum(c.bits for c in fc.context.last_report().crossings) == width * SIZE * len(INTEGERS)


def test_a_power_of_2_is_a_modulus_of_sums_that_wrap():
    total = program(lambda x: fc.federated_secure_modular_sum(x, 64), fc.FederatedType("int8", fc.CLIENTS))
    assert total([-128] * 3 + [127] * 2) == (3 * -128 + 2 * 127) % 64


def test_a_secure_sum_sends_integers_in_the_bits_of_its_largest_one():
    assert bits(program(lambda x: fc.federated_secure_sum(x, 1000), VALUES)) == 10 * SIZE
    assert bits(program(lambda x: fc.federated_secure_sum_bitwidth(x, 5), VALUES)) == 5 * SIZE


def test_what_follows_from_a_sent_value_is_not_sent():
    def body(x):
        square = fc.federated_map(lambda v: v * v, x)
        return fc.federated_sum(x), fc.federated_sum(square), fc.federated_secure_modular_sum(square, 7)

    totals = program(body, VALUES)
    assert sent(totals) == [f"int32[{SIZE}]"]
    plain, squares, remainders = totals(INTEGERS)
    np.testing.assert_array_equal(plain, sum(INTEGERS))
    np.testing.assert_array_equal(squares, sum(v * v for v in INTEGERS))
    np.testing.assert_array_equal(remainders, sum(v * v for v in INTEGERS) % 7)


@fc.tf_computation(FLOATS.member)
def clip(x):
    return tf.clip_by_norm(x, 1.0)


@fc.tf_computation(FLOATS.member)
def norm(x):
    return tf.norm(x)


@fc.tf_computation(FLOATS.member)
def noisy(x):
    return x + tf.random.normal([SIZE])


@fc.tf_computation(FLOATS.member)
def shown(x):
    tf.print(tf.norm(x), output_stream="file:///dev/null")
    return 2.0 * x


@fc.tf_computation("int32")
def one_hot(x):
    return tf.one_hot(x, 1000)


def test_no_value_is_sent_that_the_accumulation_does_not_read():
    histogram = program(lambda x: fc.federated_sum(fc.federated_map(one_hot, x)), fc.FederatedType("int32", fc.CLIENTS))
    assert sent(histogram) == ["float32[1000]"]

    def clipped_and_norm(x):
        return fc.federated_sum(fc.federated_map(clip, x)), fc.federated_sum(fc.federated_map(norm, x))

    assert sent(program(clipped_and_norm, FLOATS)) == [f"float32[{SIZE}]", "float32"]


def test_the_norm_of_a_sent_value_is_not_sent():
    def body(x):
        clipped = fc.federated_map(clip, x)
        return fc.federated_sum(clipped), fc.federated_sum(fc.federated_map(norm, clipped))

    total = program(body, FLOATS)
    assert sent(total) == [f"float32[{SIZE}]"]
    assert "call(@clip, %x)" in total.to_text("planned")  # the client clips


def test_draws_and_graphs_with_effects_stay_with_the_client():
    def both(graph):
        return program(lambda x: (fc.federated_sum(x), fc.federated_sum(fc.federated_map(graph, x))), FLOATS)

    for graph in (noisy, shown):
        assert sent(both(graph)) == [f"float32[{SIZE}]"] * 2


def test_a_value_that_the_client_keeps_too_is_computed_once():
    def body(x):
        doubled = fc.federated_map(lambda v: v + v, x)
        return fc.federated_sum(x), fc.federated_sum(doubled), doubled

    total, doubled_total, doubled = program(body, VALUES)(INTEGERS)
    np.testing.assert_array_equal(doubled_total, 2 * total)
    np.testing.assert_array_equal(doubled[3], 2 * INTEGERS[3])


def test_a_comparison_with_the_accumulator_gets_what_is_sent():
    def largest_and_negative(x):
        def add(total, v):
            negative = fc.tf_computation(lambda v: -v)(v)
            return where(fc.less(v, total), total + negative, total - negative)

        return fc.federated_aggregate(x, 0, add, lambda a, b: a + b, lambda a: a)

    total = program(largest_and_negative, fc.FederatedType("int32", fc.CLIENTS))
    assert sent(total) == ["int32"]
