"""Secure sums as a protocol between client objects and a server object, without TensorFlow."""

import os

import numpy as np
import pytest

from fedcore.errors import SecureSumError
from fedcore.runtime.secure import masks, neighbours, shamir
from fedcore.runtime.secure.masks import Segment
from fedcore.runtime.secure.session import Session
from fedcore.runtime.secure.settings import PHASES, Masked, masked
from fedcore.runtime.secure.terms import Terms
from fedcore.testing.faults import lossy

AFTER_MASKED = ("survivors", "unmasking")
"""The phases after that in which integers arrive."""

LAYOUT = [Segment(3, 2**8), Segment(5, 2**10), Segment(2, 2**40), Segment(4, 1000), Segment(2, 2**64 - 59)]


def vector_of(client: int, layout=LAYOUT) -> masks.Vector:
    rng = np.random.default_rng(client)
    return [rng.integers(0, s.modulus, s.length, np.uint64, endpoint=False).astype(s.dtype) for s in layout]


def plain_sum(clients) -> list[list[int]]:
    vectors = [vector_of(c) for c in clients]
    return [[sum(int(v[i][j]) for v in vectors) % s.modulus for j in range(s.length)] for i, s in enumerate(LAYOUT)]


def run(settings: Masked, clients: int, absent=()) -> tuple[list[list[int]], Session]:
    """The sum of a session, and the session; absent clients never get to send their integers."""
    session = Session(settings, clients, LAYOUT)
    session.start()
    for c in range(clients):
        if c not in session.lost and c not in absent:
            session.contribute(c, vector_of(c))
    return [v.tolist() for v in session.finish()], session


@pytest.mark.parametrize("clients", [2, 3, 8])
def test_the_sum_is_that_of_the_integers_modulo_each_number(clients):
    total, session = run(Masked(), clients)
    assert total == plain_sum(range(clients))
    assert session.lost == {}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("settings", [masked(), masked(neighbours=8, threshold=5)], ids=["complete", "sparse"])
def test_clients_that_drop_out_in_a_phase_are_left_out_of_the_sum(phase, settings):
    dropped = {2, 5, 11} if settings.degree is None else {2, 5}
    total, session = run(lossy(settings, drop={phase: dropped}), 12)
    left_out = set() if phase in AFTER_MASKED else dropped
    assert set(session.lost) == left_out
    assert total == plain_sum(sorted(set(range(12)) - left_out))


def test_a_client_whose_work_fails_drops_out_of_phase_masked():
    total, _ = run(Masked(), 6, absent=[3])
    assert total == plain_sum([0, 1, 2, 4, 5])


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ("keys", "3 of 6 clients are left after phase keys, but 5 are needed"),
        ("shares", "3 of 6 clients are left after phase shares, but 5 are needed"),
        ("masked", "3 of 6 clients are left after phase masked, but 5 are needed"),
        ("survivors", "3 of 6 clients are left after phase survivors, but 5 are needed"),
        ("unmasking", "3 shares of client 0's seed arrived in phase unmasking, but 5 are needed"),
    ],
)
def test_too_few_clients_are_an_error_that_says_the_phase(phase, message):
    with pytest.raises(SecureSumError, match=message):
        run(lossy(drop={phase: {1, 3, 5}}), 6)


def flipped(rng, wanted: int):
    """Alters message number `wanted` of a session in one random byte, cuts it, or doubles a piece of it."""
    seen = 0

    def alter(message, phase, client, to_server):
        nonlocal seen
        seen += 1
        if seen - 1 != wanted:
            return message
        at, how = int(rng.integers(len(message))), int(rng.integers(3))
        if how == 0:
            return message[:at] + bytes([message[at] ^ int(rng.integers(1, 256))]) + message[at + 1 :]
        return message[:at] if how == 1 else message[:at] + message[max(0, at - 7) :] + b"x"

    return alter


def check_altered(number: int) -> None:
    """One altered message of a session of 5 clients (50 messages): that client is left out, or there is no sum."""
    rng = np.random.default_rng(number)
    settings = lossy(alter=flipped(rng, number % 50))
    try:
        total, session = run(settings, 5)
    except SecureSumError:
        return
    assert total == plain_sum(sorted(set(range(5)) - session.lost.keys()))


def test_an_altered_message_never_makes_a_wrong_sum():
    for number in range(100):
        check_altered(number)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand_altered_messages_never_make_a_wrong_sum():
    for number in range(10_000):
        check_altered(number)


@pytest.mark.soak
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fraction", [0, 0.1, 0.3])
@pytest.mark.parametrize("clients", [2, 3, 5, 10, 31, 64, 100, 200])
def test_sums_of_many_clients_with_dropouts(clients, fraction, phase):
    dropped = set(np.random.default_rng(clients).choice(clients, int(fraction * clients), replace=False).tolist())
    total, _ = run(lossy(drop={phase: dropped}), clients)
    assert total == plain_sum(sorted(set(range(clients)) - (set() if phase in AFTER_MASKED else dropped)))


def test_messages_of_another_session_are_refused():
    kept = {}

    def record(message, phase, client, to_server):
        kept[phase, client, to_server] = message
        return message

    run(lossy(alter=record), 4)
    _, session = run(
        lossy(masked(threshold=3), alter=lambda m, p, c, up: kept[p, c, up] if (p, c) == ("masked", 1) else m), 4
    )
    assert "not of phase masked of this session" in session.lost[1] or "not of phase shares" in session.lost[1]


def test_a_client_gives_a_share_of_one_secret_of_each_neighbour_once():
    session = Session(Masked(), 4, LAYOUT)
    session.start()
    for c in range(4):
        session.contribute(c, vector_of(c))
    asked = session._server.end_masked()
    for c in range(4):
        session._server.take_acknowledgement(c, session._clients[c].acknowledge(asked[c]))
    asked = session._server.end_survivors()
    session._clients[0].unmask(asked[0])
    with pytest.raises(SecureSumError, match="client 0 is not in this phase"):
        session._clients[0].unmask(asked[0])


def test_wrong_shares_of_a_client_are_found():
    """A corrupt client signs a wrong share: the seed does not match what its owner committed to."""
    session = Session(Masked(), 4, LAYOUT)
    session.start()
    for c in range(4):
        session.contribute(c, vector_of(c))
    corrupt = session._clients[2]
    of_key, of_seed = corrupt._held[1]
    corrupt._held[1] = of_key, bytes([of_seed[0] ^ 1]) + of_seed[1:]
    with pytest.raises(SecureSumError, match="shares of client 1's seed are wrong"):
        session.finish()


def test_masked_integers_look_uniform():
    """All zeros, masked: the 4096 low bits of a message have the mean of fair coins."""
    sent = []

    def record(message, phase, client, to_server):
        if phase == "masked" and to_server:
            sent.append(message)
        return message

    settings = lossy(alter=record)
    layout = [Segment(4096, 2**16)]
    session = Session(settings, 3, layout)
    session.start()
    for c in range(3):
        session.contribute(c, masks.zeros(layout))
    assert session.finish()[0].tolist() == [0] * 4096
    for message in sent:
        bits = np.unpackbits(np.frombuffer(message, np.uint8)[-64 - 8192 : -64])
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)


def test_a_mask_is_uniform_below_its_modulus():
    segment = Segment(30_000, 3)
    total = masks.zeros([segment])
    masks.add_mask(total, bytes(32), [segment])
    counts = np.bincount(total[0].astype(int), minlength=3)
    assert np.all(np.abs(counts - 10_000) < 5 * np.sqrt(30_000 * 2 / 9))


@pytest.mark.parametrize("segment", LAYOUT, ids=str)
def test_a_mask_that_is_added_and_subtracted_leaves_nothing(segment):
    total = [vector_of(7, [segment])[0]]
    before = total[0].copy()
    masks.add_mask(total, b"k" * 32, [segment])
    assert segment.reduce(total[0]).tolist() != before.tolist()
    masks.add_mask(total, b"k" * 32, [segment], negative=True)
    assert segment.reduce(total[0]).tolist() == before.tolist()


@pytest.mark.parametrize("segment", LAYOUT, ids=str)
def test_a_vector_is_read_back_from_its_bytes(segment):
    (array,) = vector_of(3, [segment])
    data = memoryview(masks.to_bytes([array], [segment]))
    assert len(data) == segment.size_bytes
    assert masks.from_bytes(data, [segment])[0].tolist() == array.tolist()
    assert masks.from_bytes(data[:-1], [segment]) is None


def test_an_element_that_is_not_below_the_modulus_is_refused():
    assert masks.from_bytes(memoryview((1000).to_bytes(2, "little")), [Segment(1, 1000)]) is None


def test_a_secret_comes_from_any_shares_of_the_threshold_and_from_no_fewer():
    secret = os.urandom(32)
    shares = shamir.split(secret, 3, [1, 2, 5, 9])
    for points in ([1, 2, 5], [2, 5, 9], [1, 2, 5, 9]):
        assert shamir.join({p: shares[p] for p in points}, 3) == secret
    assert shamir.join({p: shares[p] for p in (1, 2)}, 2) != secret


def test_the_graph_is_regular_and_its_edges_have_two_ends():
    graph = neighbours.graph(range(20), 6)
    assert {len(n) for n in graph.values()} == {6}
    assert all(a in graph[b] for a in graph for b in graph[a])


def test_the_graph_is_complete_for_few_clients_and_sparse_for_many():
    assert neighbours.degree_and_threshold(10) == (9, 7)
    assert neighbours.degree_and_threshold(1000) == (174, 88)  # the least degree that a bare majority allows


def test_a_server_gets_terms_that_a_client_does_not_have():
    one, other = (Terms.of(Masked(), 4, LAYOUT) for _ in range(2))
    assert one.session != other.session
    session = Session(lossy(alter=lambda m, p, c, up: m[:-1] if (p, c, up) == ("keys", 2, False) else m), 5, LAYOUT)
    session.start()
    assert "client 2 is invited by other terms" in session.lost[2]
