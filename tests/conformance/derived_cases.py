"""Programs with one derived intrinsic, or one local operation, each."""

import numpy as np
import tensorflow as tf
from cases import (
    CLIENTS,
    FLOAT_SEQUENCES,
    FLOATS,
    INTS,
    SEQUENCES,
    SERVER,
    VECTORS,
    case,
    columns,
    floats,
    ints,
    sequences,
)

import fedcore as fc

LOWEST, LARGEST = np.finfo(np.float32).min, np.finfo(np.float32).max
BYTES = fc.FederatedType("uint8", CLIENTS)
STRUCTS = fc.FederatedType({"a": "int32", "b": ("float32", (2,))}, CLIENTS)


def structs(n):
    return [{"a": a, "b": b} for a, b in zip(ints(n), floats(n, (2,)), strict=True)]


@case("federated_max", FLOATS, inputs=lambda n: [floats(n)], expected=lambda xs: max(xs, default=LOWEST))
def largest(xs):
    return fc.federated_max(xs)


@case("federated_min", FLOATS, inputs=lambda n: [floats(n)], expected=lambda xs: min(xs, default=LARGEST))
def smallest(xs):
    return fc.federated_min(xs)


@case(
    "federated_max",
    FLOATS,
    inputs=lambda n: [[np.float32(-np.inf)] * n],
    expected=lambda xs: max(xs, default=LOWEST),
)
def largest_of_infinities(xs):
    return fc.federated_max(xs)


@case(
    "federated_min",
    FLOATS,
    inputs=lambda n: [[np.float32(np.nan if k == 1 else k) for k in range(n)]],
    expected=lambda xs: np.nan if len(xs) > 1 else (xs[0] if xs else LARGEST),
)
def smallest_with_nan(xs):
    return fc.federated_min(xs)


@case(
    "federated_max",
    STRUCTS,
    inputs=lambda n: [structs(n)],
    expected=lambda xs: {
        "a": np.int32(max((x["a"] for x in xs), default=-(2**31))),
        "b": np.max([x["b"] for x in xs], axis=0) if xs else np.full(2, LOWEST),
    },
)
def largest_of_structs(xs):
    return fc.federated_max(xs)


@case(
    "federated_min",
    BYTES,
    inputs=lambda n: [[np.uint8(200 - k) for k in range(n)]],
    expected=lambda xs: np.uint8(min(xs, default=255)),
)
def smallest_of_bytes(xs):
    return fc.federated_min(xs)


@case("federated_count", SEQUENCES, inputs=lambda n: [sequences(n)], expected=lambda xs: np.int32(len(xs)))
def counts_clients(xs):
    return fc.federated_count(xs)


@case(
    "federated_collect",
    VECTORS,
    inputs=lambda n: [floats(n, (3,))],
    expected=lambda xs: (np.int32(min(len(xs), 4)), columns(xs).reshape(-1, 3)[:4].sum(0)),
)
def collects_four(xs):
    collected = fc.federated_collect(xs, 4)
    return fc.federated_map(lambda s: (fc.sequence_reduce(s, 0, lambda n, _: n + 1), fc.sequence_sum(s)), collected)


@case(
    "federated_collect",
    INTS,
    inputs=lambda n: [ints(n)],
    expected=lambda xs: np.int32(sum(int(x) * 3**k for k, x in enumerate(reversed(xs)))),
)
def collects_in_order(xs):
    return fc.sequence_reduce(fc.federated_collect(xs, 100), 0, lambda total, x: total * 3 + x)


KEYS = fc.FederatedType(("int32", (None,)), CLIENTS)
TABLE = fc.FederatedType(("float32", (5,)), SERVER)


def keys(n):
    return [np.arange(k, dtype=np.int32) * 2 - 1 for k in range(n)]  # some below 0, some too large


@fc.tf_computation(("float32", (5,)), "int32")
def entry(table, key):
    return table[key]


def _selection(name):
    @case(
        name,
        KEYS,
        TABLE,
        inputs=lambda n: [keys(n), np.float32([1, 10, 100, 1000, 10000])],
        expected=lambda ks, table: [np.float32(table[np.clip(k, 0, 4)].sum()) for k in ks],
        label=f"{name}_of_entries",
    )
    def selected(ks, table):
        slices = getattr(fc, name)(ks, fc.federated_value(4, SERVER), table, entry)
        return fc.federated_map(lambda s: fc.sequence_sum(s), slices)


_selection("federated_select")
_selection("federated_secure_select")


@case(
    "federated_secure_sum",
    INTS,
    inputs=lambda n: [ints(n)],
    expected=lambda xs: np.int32(sum(min(max(int(x), 0), 50) for x in xs)),
)
def adds_securely(xs):
    return fc.federated_secure_sum(xs, 50)


@case(
    "federated_secure_sum",
    fc.FederatedType({"a": "int64", "b": ("uint8", (2,))}, CLIENTS),
    inputs=lambda n: [[{"a": np.int64(2**40 + k), "b": np.uint8([k, 100])} for k in range(n)]],
    expected=lambda xs: {
        "a": np.int64(sum(min(int(x["a"]), 2**40 + 2) for x in xs)),
        "b": np.sum([np.minimum(x["b"], 7) for x in xs], axis=0, dtype=np.uint8) if xs else np.zeros(2, np.uint8),
    },
)
def adds_structs_securely(xs):
    return fc.federated_secure_sum(xs, {"a": 2**40 + 2, "b": 7})


@case(
    "federated_secure_sum_bitwidth",
    INTS,
    inputs=lambda n: [ints(n)],
    expected=lambda xs: np.int32(sum(min(max(int(x), 0), 15) for x in xs)),
)
def adds_four_bits_securely(xs):
    return fc.federated_secure_sum_bitwidth(xs, 4)


@case(
    "federated_secure_sum_bitwidth",
    BYTES,
    inputs=lambda n: [[np.uint8(200 + k) for k in range(n)]],
    expected=lambda xs: np.sum(np.array(xs, np.uint8), dtype=np.uint8),
)
def adds_more_bits_than_there_are(xs):
    return fc.federated_secure_sum_bitwidth(xs, 60)


@case(
    "federated_secure_modular_sum",
    INTS,
    inputs=lambda n: [ints(n)],
    expected=lambda xs: np.int32(sum(map(int, xs)) % 17),
)
def adds_modulo_17(xs):
    return fc.federated_secure_modular_sum(xs, 17)


@case(
    "federated_secure_modular_sum",
    fc.FederatedType(["int32", ("uint8", (2,))], CLIENTS),
    inputs=lambda n: [[[np.int32(2**31 - 1 - k), np.uint8([250, k])] for k in range(n)]],
    expected=lambda xs: [
        np.int32(sum(int(x[0]) for x in xs) % 255),
        np.asarray(sum((x[1].astype(np.int64) for x in xs), np.zeros(2, np.int64)) % 255, np.uint8),
    ],
)
def adds_structs_modulo_255(xs):
    return fc.federated_secure_modular_sum(xs, 255)


@case(
    "federated_secure_modular_sum",
    INTS,
    inputs=lambda n: [[np.int32(2**31 - 2 - k) for k in range(n)]],
    expected=lambda xs: np.int32(sum(map(int, xs)) % (2**31 - 1)),
)
def adds_modulo_the_largest(xs):
    return fc.federated_secure_modular_sum(xs, 2**31 - 1)


# Local operations, mapped over client values by being called on them.


def two_floats(n):
    return [floats(n), floats(n, salt=1)]


def with_nan(n):
    return [[np.float32(np.nan if k == 0 else k) for k in range(n)], [np.float32(1)] * n]


def _of_two(name, fn):
    """Cases of a binary operation: two values, NaN, a vector with a constant."""

    def pairs(xs, ys):
        return [fn(x, y) for x, y in zip(xs, ys, strict=True)]

    def of_two(xs, ys):
        return getattr(fc, name)(xs, ys)

    def of_vectors_and_a_constant(xs):
        return getattr(fc, name)(xs, 0.25)

    case(name, FLOATS, FLOATS, inputs=two_floats, expected=pairs, label=f"{name}_of_two")(of_two)
    case(name, FLOATS, FLOATS, inputs=with_nan, expected=pairs, label=f"{name}_with_nan")(of_two)
    case(
        name,
        VECTORS,
        inputs=lambda n: [floats(n, (3,))],
        expected=lambda xs: [fn(x, np.float32(0.25)) for x in xs],
        label=f"{name}_of_vectors_and_a_constant",
    )(of_vectors_and_a_constant)


_of_two("minimum", np.minimum)
_of_two("maximum", np.maximum)
_of_two("less", np.less)
_of_two("equal", np.equal)


@case(
    "equal",
    fc.FederatedType("str", CLIENTS),
    inputs=lambda n: [[b"ab" if k % 2 else b"c" for k in range(n)]],
    expected=lambda xs: [np.bool_(x == b"ab") for x in xs],
)
def compares_strings(xs):
    return fc.equal(xs, "ab")


@case(
    "modulo",
    INTS,
    inputs=lambda n: [ints(n)],
    expected=lambda xs: [np.int32(int(x) % 7) for x in xs],
)
def takes_remainders(xs):
    return fc.modulo(xs, 7)


@case(
    "where",
    FLOATS,
    VECTORS,
    inputs=lambda n: [floats(n), floats(n, (3,))],
    expected=lambda xs, vs: [v if x < 0 else np.where(v < 0, np.float32(0), v) for x, v in zip(xs, vs, strict=True)],
)
def chooses(xs, vs):
    return fc.where(fc.less(xs, 0.0), vs, fc.where(fc.less(vs, 0.0), fc.generic_multiply(vs, 0.0), vs))


@case(
    "where",
    STRUCTS,
    inputs=lambda n: [structs(n)],
    expected=lambda xs: [{"a": min(x["a"], np.int32(0)), "b": np.minimum(x["b"], 0)} for x in xs],
)
def chooses_by_leaf(xs):
    return fc.federated_map(lambda x: fc.where(fc.less(x, 0), x, 0), xs)


@case(
    "cast",
    STRUCTS,
    inputs=lambda n: [structs(n)],
    expected=lambda xs: [{"a": np.int64(x["a"]), "b": x["b"].astype(np.int64)} for x in xs],
)
def casts_structs(xs):
    return fc.cast(xs, "int64")


@case(
    "cast",
    FLOATS,
    inputs=lambda n: [floats(n)],
    expected=lambda xs: [np.float64(x > 0) for x in xs],
)
def casts_bools(xs):
    return fc.cast(fc.less(0.0, xs), np.float64)


@case(
    "sequence_from_rows",
    VECTORS,
    inputs=lambda n: [floats(n, (3,))],
    expected=lambda xs: [np.float32(x[0] * 4 + x[1] * 2 + x[2]) for x in xs],
)
def goes_through_rows(xs):
    return fc.sequence_reduce(fc.sequence_from_rows(xs), 0.0, lambda total, x: total * 2.0 + x)


# Sequences at a placement.


@case("sequence_sum", SEQUENCES, inputs=lambda n: [sequences(n)], expected=lambda xs: [np.int32(sum(x)) for x in xs])
def sums_placed_sequences(xs):
    return fc.sequence_sum(xs)


@case(
    "sequence_map",
    FLOAT_SEQUENCES,
    inputs=lambda n: [[floats(3, salt=k) for k in range(n)]],
    expected=lambda xs: [columns(x).sum() * 2 for x in xs],
)
def maps_placed_sequences(xs):
    return fc.sequence_sum(fc.sequence_map(lambda e: e * 2.0, xs))


@case(
    "sequence_reduce",
    fc.FederatedType(fc.SequenceType("int32"), SERVER),
    INTS,
    inputs=lambda n: [[np.int32(k) for k in range(n)], ints(n)],
    expected=lambda s, xs: np.int32(sum(s) + 100),
)
def reduces_a_sequence_at_the_server(s, xs):
    return fc.sequence_reduce(s, 100, lambda total, e: total + e)


@case(
    "federated_broadcast",
    fc.FederatedType(fc.SequenceType("int32"), SERVER),
    INTS,
    inputs=lambda n: [[np.int32(k) for k in range(n)], ints(n)],
    expected=lambda s, xs: [np.int32(sum(s) + x) for x in xs],
)
def broadcasts_a_sequence(s, xs):
    return fc.federated_map(
        lambda elements, x: fc.sequence_reduce(elements, x, lambda total, e: total + e), (fc.federated_broadcast(s), xs)
    )


@fc.tf_computation("float32", ("float32", [None]))
def appended(total, group):
    return total * 2.0 + tf.reduce_sum(group) * tf.cast(tf.size(group), tf.float32)


@case(
    "sequence_from_groups",
    INTS,
    fc.FederatedType(("float32", (6,)), SERVER),
    inputs=lambda n: [ints(n), np.arange(6, dtype=np.float32)],
    expected=lambda xs, rows: np.float32(4 * (0 + 1 + 2) * 3 + (3 + 4 + 5) * 3),
)
def groups_rows(xs, rows):
    splits = fc.federated_value(np.array([0, 3, 3, 6]), SERVER)
    return fc.sequence_reduce(fc.sequence_from_groups(rows, splits), 0.0, appended)
