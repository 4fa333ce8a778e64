"""Distinct counts: registers, their maximum, and the error that the paper promises."""

import math

import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import FedcoreError, TypeMismatch

count_distinct = fc.analytics.count_distinct
STRINGS = fc.SequenceType("str")


def registers_of(hashes, precision, bits):
    """The registers in plain Python, by the digits of each number."""
    found = [0] * 2**precision
    for number in hashes:
        digits = f"{number:0{bits}b}"
        place, rest = int(digits[:precision], 2), digits[precision:]
        found[place] = max(found[place], rest.index("1") + 1 if "1" in rest else len(rest) + 1)
    return found


@pytest.mark.parametrize(("precision", "bits"), [(5, 32), (4, 62)])
def test_registers_keep_the_greatest_rank(precision, bits):
    computation = count_distinct.build_client_hyperloglog_computation(precision=precision, hash_bits=bits)
    assert str(computation.type_signature) == f"(int64* -> int64[{2**precision}])"
    hashes = [*np.random.default_rng(1).integers(0, 2**bits, 60).tolist(), 0, 2**bits - 1, 2 ** (bits - precision)]
    assert computation(hashes).tolist() == registers_of(hashes, precision, bits)
    assert computation([]).tolist() == [0] * 2**precision


def test_the_secure_maximum_is_the_maximum():
    largest = count_distinct.build_federated_secure_max_computation()
    clients = np.random.default_rng(2).integers(0, 29, (3, 32))
    assert largest(list(clients)).tolist() == clients.max(0).tolist()
    assert largest([]).tolist() == [0] * 32


@pytest.mark.parametrize("secure", [False, True])
def test_a_string_that_many_clients_have_counts_once(secure):
    count = count_distinct.create_federated_hyperloglog_computation(use_secagg=secure, precision=6)
    assert count([["a", "b", "c", "a"], ["c", "d", "d"], [], ["a", "d"]]) == 4
    assert count([]) == 0


def test_a_register_is_a_byte():
    count = count_distinct.create_federated_hyperloglog_computation(precision=6)
    assert count([["a", "b"], ["c"]]) == 3
    assert fc.context.last_report().aggregate_bits == 2 * 2**6 * 8


def test_the_registers_keep_the_laws_of_aggregators():
    fc.testing.check_aggregator(fc.analytics.HyperLogLogFactory(4), STRINGS)


def test_the_standard_error_is_that_of_the_paper():
    process = fc.analytics.HyperLogLogFactory(6).create(STRINGS)
    state, true, errors = process.initialize(), 500, []
    for trial in range(24):
        words = [f"{trial} {i}" for i in range(true)]
        errors.append(process.next(state, [words[:300], words[200:]]).result / true - 1)
    expected = 1.04 / math.sqrt(2**6)
    assert 0.75 * expected < np.std(errors) < 1.25 * expected
    assert abs(np.mean(errors)) < 3 * expected / math.sqrt(24)


def test_a_seed_gives_other_errors():
    words = [[str(i) for i in range(3000)]]
    found = set()
    for seed in (0, 1):
        process = fc.analytics.HyperLogLogFactory(5, seed=seed).create(STRINGS)
        found.add(int(process.next(process.initialize(), words).result))
    assert len(found) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fc.analytics.HyperLogLogFactory(3), "precision is a whole number, 4 to 16, not 3"),
        (
            lambda: count_distinct.build_client_hyperloglog_computation(hash_bits=5),
            "hash_bits is a whole number, 6 to 62, not 5",
        ),
        (
            lambda: count_distinct.build_federated_secure_max_computation(precision=0),
            "precision is a whole number, 1 to 16, not 0",
        ),
    ],
)
def test_arguments_outside_their_ranges_are_named(call, message):
    with pytest.raises(FedcoreError, match=message):
        call()


def test_other_types_are_refused():
    with pytest.raises(TypeMismatch, match=r"HyperLogLogFactory aggregates str\*, not int32\*"):
        fc.analytics.HyperLogLogFactory().create(fc.SequenceType("int32"))
