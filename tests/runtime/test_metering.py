"""What crosses between server and clients: in bits, exactly, for every tensor and call."""

import re

import numpy as np
import pytest
import tensorflow as tf
from local_runtimes import local_runtime

import fedcore as fc
from fedcore import context

FLAGS = fc.FederatedType({"on": "bool", "levels": ("float16", (3,))}, fc.CLIENTS)


def crossed():
    """(kind, type, clients, bits) of each tensor in the last call."""
    return [(c.kind, str(c.type), c.clients, c.bits) for c in context.last_report().crossings]


@fc.tf_computation("bool", "bool")
def either(a, b):
    return tf.logical_or(a, b)


@fc.federated_computation(fc.FederatedType("bool", fc.CLIENTS), fc.FederatedType("bool", fc.SERVER))
def any_differs(values, usual):
    differs = fc.federated_map(
        fc.tf_computation(lambda a, b: tf.not_equal(a, b), "bool", "bool"), (values, fc.federated_broadcast(usual))
    )
    return fc.federated_aggregate(differs, False, either, either, fc.tf_computation(lambda x: x, "bool"))


def test_a_bool_is_one_bit():
    assert any_differs([True, False, False], True)
    assert crossed() == [("broadcast", "bool", 3, 3), ("merge", "bool", 3, 3)]


@fc.tf_computation(("int32", (None,)))
def longer(rows):
    return tf.concat([rows, rows[:1]], 0)


@fc.tf_computation("int32", ("int32", (None,)))
def add_rows(total, rows):
    return total + tf.reduce_sum(rows)


@fc.tf_computation("int32", "int32")
def add(a, b):
    return a + b


@fc.federated_computation(fc.FederatedType(("int32", (None,)), fc.CLIENTS))
def sum_of_rows(rows):
    sent = fc.federated_map(longer, rows)
    return fc.federated_aggregate(sent, 0, add_rows, add, fc.tf_computation(lambda x: x, "int32"))


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_that_clients_send_are_measured_one_by_one(workers):
    with local_runtime(workers_per_device=workers):
        assert sum_of_rows([[1, 2, 3], [4], [5, 6]]) == 1 + 2 + 3 + 1 + 4 + 4 + 5 + 6 + 5
    assert crossed() == [("merge", "int32[?]", 3, 32 * (4 + 2 + 3))]


def test_no_clients_send_nothing():
    assert sum_of_rows([]) == 0
    assert crossed() == [("merge", "int32[?]", 0, 0)]


@fc.tf_computation("str", "str")
def joined(a, b):
    return a + b


@fc.federated_computation(fc.FederatedType("str", fc.CLIENTS), fc.FederatedType("str", fc.SERVER))
def sentences(words, prefix):
    sent = fc.federated_map(joined, (fc.federated_broadcast(prefix), words))
    return fc.federated_aggregate(sent, "", joined, joined, fc.tf_computation(lambda x: x, "str"))


def test_a_string_is_eight_bits_a_byte():
    assert sentences(["a", "bcd"], "é") == "éaébcd".encode()
    assert crossed() == [("broadcast", "str", 2, 2 * 16), ("merge", "str", 2, 8 * (3 + 5))]


def test_a_broadcast_of_an_unknown_size_is_measured():
    @fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS), fc.FederatedType(("int32", (None,)), fc.SERVER))
    def picked(values, table):
        take = fc.tf_computation(lambda i, rows: rows[i], "int32", ("int32", (None,)))
        return fc.federated_sum(fc.federated_map(take, (values, fc.federated_broadcast(table))))

    assert picked((i for i in (0, 1)), np.arange(5, dtype=np.int32)) == 1
    assert crossed() == [("broadcast", "int32[?]", 2, 2 * 5 * 32), ("merge", "int32", 2, 64)]


def test_a_sequence_that_clients_send_is_measured_element_by_element():
    batches = fc.SequenceType(("int16", (None,)))
    count = fc.tf_computation(lambda total, data: data.reduce(total, lambda a, x: a + tf.shape(x)[0]), "int32", batches)

    @fc.federated_computation(fc.FederatedType(batches, fc.CLIENTS))
    def rows(data):
        return fc.federated_aggregate(data, 0, count, add, fc.tf_computation(lambda x: x, "int32"))

    assert rows([[[1, 2], [3]], [[4]], []]) == 4
    assert crossed() == [("merge", "int16[?]*", 3, 16 * 4)]


def test_the_names_say_which_tensor_it_is():
    @fc.federated_computation(FLAGS, fc.FederatedType({"a": "int32", "b": ("int8", (2,))}, fc.SERVER))
    def on(flags, limits):
        @fc.tf_computation({"on": "bool", "levels": ("float16", (3,))}, {"a": "int32", "b": ("int8", (2,))})
        def pick(f, x):
            return {"n": tf.cast(f["on"], tf.int32) + x["a"], "b": x["b"] * tf.cast(f["on"], tf.int8)}

        return fc.federated_sum(fc.federated_map(pick, (flags, fc.federated_broadcast(limits))))

    on([{"on": True, "levels": [0.0, 1.0, 2.0]}], {"a": 1, "b": [1, 2]})
    report = context.last_report()
    assert [(c.tensor, c.bits) for c in report.crossings if c.kind == "broadcast"] == [("a", 32), ("b", 16)]
    assert [(c.tensor, c.bits) for c in report.crossings if c.kind == "merge"] == [("pick.n", 32), ("pick.b", 16)]
    assert (report.broadcast_bits, report.aggregate_bits) == (48, 48)


def test_sums_of_one_work_have_the_names_of_its_results():
    @fc.tf_computation("float32")
    def train(x):
        return {"update": tf.stack([x, -x]), "weight": x * x, "metrics": {"loss": x + 1.0}}

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def sums(xs):
        out = fc.federated_map(train, xs)
        weighted = fc.federated_map(lambda u, w: fc.generic_multiply(u, w), (out["update"], out["weight"]))
        return fc.federated_sum(weighted), fc.federated_mean(out["weight"]), fc.federated_max(out["metrics"])

    sums([1.0, 2.0])
    assert [c.tensor for c in context.last_report().crossings] == ["update", "weight", "metrics.loss"]


def test_results_of_a_lambda_have_the_name_and_the_line_of_their_operation():
    halved = fc.tf_computation(lambda x: (x / 2.0, {"square": x * x}), "float32")
    total = fc.federated_computation(
        lambda xs: fc.federated_sum(fc.federated_map(halved, xs)), fc.types.at_clients("float32")
    )
    total([1.0])
    names = [c.tensor for c in context.last_report().crossings]
    assert [re.sub(r":\d+", "", name) for name in names] == [
        "truediv at tests/runtime/test_metering.py",
        "mul at tests/runtime/test_metering.py",
    ]


def test_names_of_elements_are_shown_and_are_not_in_the_digest():
    weights = fc.FederatedType({"weights": ["float32", "int8"]}, fc.SERVER)

    @fc.federated_computation(fc.types.at_clients("float32"), weights)
    def total(xs, model):
        sent = fc.federated_broadcast(model)
        return fc.federated_sum(
            fc.federated_map(lambda x, m: x * m["weights"][0] + fc.cast(m["weights"][1], "float32"), (xs, sent))
        )

    named = total.with_element_names({"weights": ["dense/kernel", "dense/bias"]})
    named([1.0], {"weights": [2.0, 3]})
    names = [c.tensor for c in context.last_report().crossings if c.kind == "broadcast"]
    assert names == ["weights/dense/kernel", "weights/dense/bias"]
    assert named.to_module("planned").digest() == total.to_module("planned").digest()


@fc.tf_computation(("int32", (None,)))
def of_positive(rows):
    with tf.control_dependencies([tf.debugging.assert_positive(rows)]):
        return tf.identity(rows)


@fc.federated_computation(fc.FederatedType(("int32", (None,)), fc.CLIENTS), fc.FederatedType("int32", fc.SERVER))
def sum_of_positive(rows, usual):
    checked = fc.federated_map(of_positive, rows)
    total = fc.federated_aggregate(checked, 0, add_rows, add, fc.tf_computation(lambda x: x, "int32"))
    times = fc.tf_computation(lambda x, r: x * tf.size(r), "int32", ("int32", (None,)))
    return total, fc.federated_sum(fc.federated_map(times, (fc.federated_broadcast(usual), rows)))


@pytest.mark.parametrize("block_size", [1, 4])
def test_a_client_that_is_dropped_sends_nothing_and_no_other_counts_twice(block_size):
    policy = fc.runtime.drop(min_fraction=0.5)
    with local_runtime(workers_per_device=1, block_size=block_size, on_client_failure=policy):
        assert sum_of_positive([[1, 2], [3], [-1, 1, 1], [4, 5, 6, 7]], 10) == (28, 70)
    assert list(context.last_report().dropped) == [2]
    sent = 32 * (2 + 1 + 4)
    assert sorted(crossed()) == [
        ("broadcast", "int32", 4, 4 * 32),
        ("merge", "int32", 3, 96),
        ("merge", "int32[?]", 3, sent),
    ]


# Constants are not sent.

FLOATS = fc.FederatedType("float32", fc.CLIENTS)


@fc.tf_computation
def four_zeros():
    return tf.zeros([4])


@fc.tf_computation(("float32", (4,)), "float32")
def add_to_each(total, x):
    return total + x


@fc.tf_computation(("float32", (4,)), ("float32", (4,)))
def add_fours(a, b):
    return a + b


@fc.federated_computation(FLOATS)
def largest_square(xs):
    return fc.federated_max(fc.federated_map(lambda x: x * x, xs))


@fc.federated_computation(FLOATS)
def from_a_computed_zero(xs):
    return fc.federated_aggregate(xs, four_zeros(), add_to_each, add_fours, lambda total: total)


@fc.federated_computation(FLOATS)
def with_a_computed_constant(xs):
    twice = fc.federated_map(lambda v: v + v, fc.federated_eval(four_zeros, fc.SERVER))
    sent = fc.federated_broadcast(twice)
    return fc.federated_sum(fc.federated_map(add_to_each, (sent, xs)))


@fc.federated_computation(FLOATS)
def counted_and_averaged(xs):
    return fc.federated_sum(fc.federated_map(lambda x: 1.0, xs)), fc.federated_mean(xs)


@fc.federated_computation(FLOATS)
def average_of_squares(xs):
    return fc.federated_mean(fc.federated_map(lambda x: x * x, xs))


@fc.federated_computation(FLOATS)
def the_same_twice(xs):
    return fc.federated_sum(fc.federated_map(lambda x: (x, x), xs)), fc.federated_sum(xs)


def beside_a_fill(size):
    both = fc.tf_computation(lambda x: (x, tf.fill([size], 2.0)), "float32")
    return fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(both, xs)), FLOATS)


@pytest.mark.parametrize(
    ("program", "result", "bits"),
    [
        (largest_square, 9.0, 32),
        (from_a_computed_zero, np.full(4, 6.0), 32),
        (with_a_computed_constant, np.full(4, 6.0), 128),
        (counted_and_averaged, (3.0, 2.0), 32),
        (average_of_squares, np.float32(14 / 3), 32),
        (the_same_twice, ((6.0, 6.0), 6.0), 32),
        (beside_a_fill(4), (6.0, np.full(4, 6.0)), 32),
        (beside_a_fill(2**16 + 1), (6.0, np.full(2**16 + 1, 6.0)), 32 + 32 * (2**16 + 1)),  # too large for the plan
    ],
)
def test_only_what_differs_from_client_to_client_crosses(program, result, bits):
    plan = program.to_module("planned")
    crossing = [op for op in plan.main.operations if op.kind in ("broadcast", "merge")]
    assert [(op.kind, op.attributes["bits"]) for op in crossing] == [("merge", bits)]
    found = program([1.0, 2.0, 3.0])
    tf.nest.map_structure(np.testing.assert_array_equal, found, result)
    crossings = context.last_report().crossings
    assert sum(c.bits for c in crossings) == 3 * bits
    assert {c.kind for c in crossings} == {"merge"}


@fc.federated_computation(FLOATS)
def constant_used_and_returned(xs):
    at_server = fc.federated_eval(four_zeros, fc.SERVER)
    sent = fc.federated_broadcast(at_server)
    return at_server, fc.federated_sum(fc.federated_map(add_to_each, (sent, xs)))


def test_a_constant_that_is_returned_too_is_computed_at_the_clients_again():
    zeros, total = constant_used_and_returned([1.0, 2.0])
    assert (list(zeros), list(total)) == ([0.0] * 4, [3.0] * 4)
    assert crossed() == [("merge", "float32[4]", 2, 256)]


# Constants and copies inside a result, and tensors that several broadcasts hold.


@fc.tf_computation("float32")
def with_a_constant(x):
    return x * x, tf.constant(1.0)


@fc.tf_computation("float32")
def pair(x):
    square = x * x
    return square, square


@fc.tf_computation("float32")
def computed_twice(x):
    return {"a": x * x, "b": (x * x, tf.ones([2]))}


@fc.tf_computation("float32")
def itself(x):
    return x, x * x


@fc.federated_computation(FLOATS)
def sum_with_a_constant(xs):
    return fc.federated_sum(fc.federated_map(with_a_constant, xs))


@fc.federated_computation(FLOATS)
def sum_of_a_pair(xs):
    return fc.federated_sum(fc.federated_map(pair, xs))


@fc.federated_computation(FLOATS)
def sum_computed_twice(xs):
    return fc.federated_sum(fc.federated_map(computed_twice, xs))


@fc.federated_computation(FLOATS)
def sum_of_itself(xs):
    return fc.federated_sum(fc.federated_map(itself, xs)), fc.federated_sum(xs)


SERVER_FLOAT = fc.FederatedType("float32", fc.SERVER)


@fc.tf_computation("float32", ("float32", "float32"))
def scaled(x, pair_):
    return x * pair_[0] + pair_[1]


@fc.federated_computation(FLOATS, SERVER_FLOAT)
def zipped_with_itself(xs, s):
    return fc.federated_sum(fc.federated_map(scaled, (xs, fc.federated_broadcast(fc.federated_zip((s, s))))))


@fc.federated_computation(FLOATS, SERVER_FLOAT)
def beside_a_zip(xs, s):
    both = fc.federated_broadcast(fc.federated_zip((s, fc.federated_map(lambda x: x + 1.0, s))))
    alone = fc.federated_broadcast(s)
    sums = fc.federated_map(fc.tf_computation(lambda x, y: x + y, "float32", "float32"), (xs, alone))
    return fc.federated_sum(fc.federated_map(scaled, (sums, both)))


@fc.federated_computation(FLOATS, SERVER_FLOAT)
def pair_from_a_graph(xs, s):
    return fc.federated_sum(fc.federated_map(scaled, (xs, fc.federated_broadcast(fc.federated_map(pair, s)))))


@fc.federated_computation(FLOATS, SERVER_FLOAT)
def constant_from_a_graph(xs, s):
    sent = fc.federated_broadcast(fc.federated_map(with_a_constant, s))
    return fc.federated_sum(fc.federated_map(scaled, (xs, sent)))


@fc.federated_computation(FLOATS, fc.FederatedType({"a": "float32", "b": "float32"}, fc.SERVER))
def element_beside_its_struct(xs, s):
    ab = fc.tf_computation(lambda x, s, a: x * s["b"] + a, "float32", {"a": "float32", "b": "float32"}, "float32")
    sent = (fc.federated_broadcast(s), fc.federated_broadcast(s["a"]))
    first = fc.federated_map(lambda x, s: x * s["a"], (xs, sent[0]))
    return fc.federated_sum(fc.federated_map(ab, (first, *sent)))


@fc.federated_computation(FLOATS, SERVER_FLOAT)
def echo(xs, s):
    return fc.federated_sum(fc.federated_map(lambda x, s: s, (xs, fc.federated_broadcast(s)))), fc.federated_sum(xs)


@fc.federated_computation(FLOATS, SERVER_FLOAT)
def only_an_echo(xs, s):
    back = fc.federated_map(
        fc.tf_computation(lambda x, s: (x, s), "float32", "float32"), (xs, fc.federated_broadcast(s))
    )
    return fc.federated_sum(back)


@pytest.mark.parametrize(
    ("program", "arguments", "down", "up"),
    [
        (sum_with_a_constant, (), 0, 32),
        (sum_of_a_pair, (), 0, 32),
        (sum_computed_twice, (), 0, 32),
        (sum_of_itself, (), 0, 32),
        (zipped_with_itself, (3.0,), 32, 32),
        (beside_a_zip, (3.0,), 64, 32),
        (pair_from_a_graph, (3.0,), 32, 32),
        (constant_from_a_graph, (3.0,), 32, 32),
        (element_beside_its_struct, ({"a": 3.0, "b": 4.0},), 64, 32),
        (echo, (3.0,), 32, 32),
        (only_an_echo, (3.0,), 32, 32),
    ],
)
@pytest.mark.parametrize("vectorize", ["auto", False])
def test_each_tensor_crosses_once_and_constants_do_not(program, arguments, down, up, vectorize):
    given = ([1.0, 2.0, 5.0], *arguments)
    with fc.use(fc.runtime.reference()):
        meant = program(*given)
    with local_runtime(vectorize=vectorize):
        sizes = fc.framework.sizing_executor_factory()
        with fc.use(sizes):
            plan = program.to_module("planned")
            tf.nest.map_structure(np.testing.assert_array_equal, program(*given), meant)
    bits = {"broadcast": 0, "merge": 0}
    for op in plan.main.operations:
        if op.kind in bits:
            bits[op.kind] += op.attributes["bits"]
    assert bits == {"broadcast": down, "merge": up}
    report = context.last_report()
    assert (report.broadcast_bits, report.aggregate_bits) == (3 * down, 3 * up)
    info = sizes.get_size_info()
    assert (sum(info.broadcast_bits), sum(info.aggregate_bits)) == (3 * down, 3 * up)


def test_what_is_sent_keeps_the_names_of_the_results():
    sum_computed_twice([1.0, 2.0])
    assert [(c.tensor.split(".")[-1], c.bits) for c in context.last_report().crossings] == [("a", 64)]
