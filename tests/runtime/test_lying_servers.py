"""A server that lies to clients, and steals no key, does not read a client's integers from a masked sum."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedcore.errors import SecureSumError
from fedcore.runtime.secure import masks, neighbours, shamir, survivors
from fedcore.runtime.secure.masked_client import (
    ARRIVED,
    DROPPED,
    GIVEN,
    KEY_BYTES,
    SEALED_BYTES,
    MaskedClient,
    own_mask_key,
    shared_mask_key,
)
from fedcore.runtime.secure.masking_server import MaskingServer
from fedcore.runtime.secure.masks import Segment
from fedcore.runtime.secure.session import Session
from fedcore.runtime.secure.settings import Masked, masked
from fedcore.runtime.secure.signed_messages import (
    KEYS,
    MASKED,
    SERVER,
    SHARES,
    SURVIVORS,
    UNMASKING,
    Directory,
    MessageRefused,
    Signer,
    entries,
    join_entries,
)
from fedcore.runtime.secure.terms import Terms

LAYOUT = [Segment(4, 2**32)]


class Lies:
    """Honest clients, and the server's key in the hands of a liar, who keeps what clients send."""

    def __init__(self, clients: int, degree: int, threshold: int):
        self.terms = Terms(clients, degree, threshold, LAYOUT)
        keys = [Ed25519PrivateKey.generate() for _ in range(clients)]
        server = Ed25519PrivateKey.generate()
        self.directory = Directory(self.terms.session, [k.public_key() for k in keys], server.public_key())
        self.signer = Signer(SERVER, self.terms.session, server)
        self.identities = keys
        self.invite()

    def invite(self) -> None:
        """Has all clients join anew, in a session of the same identifier."""
        self.clients = [MaskedClient(i, self.terms, key, self.directory) for i, key in enumerate(self.identities)]
        self.keys: dict[int, bytes] = {}
        self.sealed: dict[int, dict[int, bytes]] = {}  # by receiver and sender
        self.shares: dict[tuple[int, int], dict[int, bytes]] = {}  # by client and kind

    def exchange_keys(self, graph: dict[int, list[int]]) -> None:
        self.keys = {i: c.advertise(self.terms.packed) for i, c in enumerate(self.clients)}
        for i, client in enumerate(self.clients):
            message = client.share(self.signer.message(KEYS, join_entries([self.keys[o] for o in graph[i]])))
            for entry in entries(self.directory.body(message, SHARES, i)[32:], SEALED_BYTES, "sealed shares"):
                receiver = int.from_bytes(entry[:4], "little")
                self.sealed.setdefault(receiver, {})[i] = i.to_bytes(4, "little") + bytes(entry[4:])

    def mask(self, client: int, senders: list[int] | None = None) -> masks.Vector:
        """A client's masked integers, which are all 7; it gets the shares of these senders only."""
        sealed = self.sealed[client]
        parts = [sealed[o] for o in (sealed if senders is None else senders)]
        vector = [np.full(s.length, 7, s.dtype) for s in LAYOUT]
        self.clients[client].take_shares(self.signer.message(SHARES, join_entries(parts)))
        message = self.clients[client].mask(vector)
        return [np.copy(s) for s in masks.from_bytes(self.directory.body(message, MASKED, client), LAYOUT)]

    def acknowledge(self, client: int, dropped: set[int]) -> bytes:
        """The client's acknowledgement that these have dropped out."""
        told = survivors.to_bytes(set(range(len(self.clients))) - dropped, len(self.clients))
        return self.clients[client].acknowledge(self.signer.message(MASKED, told))

    def tell(self, dropped: dict[int, set[int]], earlier: dict[int, dict[int, bytes]] | None = None) -> list[str]:
        """Tells each client of other clients that dropped out, and keeps the shares that clients then give.

        Args:
            earlier: for each client what others have acknowledged of the same survivors in other sessions.
        Returns:
            The reasons for which clients gave none.
        """
        refusals = []
        acknowledgements = {i: self.acknowledge(i, dropped.get(i, set())) for i in range(len(self.clients))}
        for i, client in enumerate(self.clients):
            signed = acknowledgements if earlier is None else earlier[i]
            passed = [signed[o] for o in self.sealed[i] if o not in dropped.get(i, set())]
            try:
                message = client.unmask(self.signer.message(SURVIVORS, join_entries(passed)))
            except MessageRefused as refusal:
                refusals.append(str(refusal))
                continue
            for entry in entries(self.directory.body(message, UNMASKING, i), GIVEN.size, "shares"):
                owner, kind, share = GIVEN.unpack(entry)
                self.shares.setdefault((owner, kind), {})[i + 1] = share
        return refusals

    def secret(self, client: int, kind: int) -> bytes | None:
        shares, threshold = self.shares.get((client, kind), {}), self.terms.threshold
        return shamir.join(shares, threshold) if len(shares) >= threshold else None

    def masking_key(self, client: int) -> bytes:
        return bytes(self.directory.body(self.keys[client], KEYS, client)[KEY_BYTES:])


def others_of(clients: int) -> dict[int, list[int]]:
    return {i: [o for o in range(clients) if o != i] for i in range(clients)}


def test_a_client_refuses_more_neighbours_than_the_terms_say():
    """Of 20 holders, 5 would give its seed and 5 others its private key."""
    lies = Lies(20, 8, 5)
    with pytest.raises(MessageRefused, match="gets keys of 19 neighbours, but the terms say 8"):
        lies.exchange_keys(others_of(20))


@pytest.mark.parametrize(
    ("degree", "threshold"), [(19, 10), (19, 5), (8, 4), (8, 10), (7, 5), (0, 1), (20, 20)], ids=str
)
def test_a_client_refuses_terms_by_which_its_holders_could_learn_both_secrets(degree, threshold):
    lies = Lies(20, degree, threshold)
    with pytest.raises(MessageRefused, match=f"client 3 is invited by a threshold of {threshold}, with {degree} neigh"):
        lies.clients[3].advertise(lies.terms.packed)


@pytest.mark.parametrize("clients", [2, 3, 4, 7, 12, 69, 200, 1000])
@pytest.mark.parametrize(
    "settings", [masked(), masked(neighbours=1), masked(neighbours=7), masked(9, 6), masked(20, 11)]
)
def test_the_terms_of_every_setting_are_accepted_by_clients(clients, settings):
    assert Terms.of(settings, clients, LAYOUT).protects_secrets


def dropped_for_each(graph: dict[int, list[int]], victim: int, threshold: int) -> dict[int, set[int]]:
    """By client the neighbours that it is told have dropped out, so that the keys of all the victim's neighbours come
    out, and the victim's seed: a client must be told of threshold - 1 neighbours that are left."""
    told: dict[int, set[int]] = {}
    for neighbour in graph[victim]:
        holders = [h for h in graph[neighbour] if h != victim]
        holders.sort(key=lambda h: (h in graph[victim], len(told.get(h, ()))))
        for holder in holders[:threshold]:
            told.setdefault(holder, set()).add(neighbour)
    assert all(len(graph[h]) - len(t) >= threshold - 1 for h, t in told.items())
    return told


def test_different_survivors_for_different_clients_read_nobody():
    """The graph is drawn honestly: 20 neighbours of 40 clients, threshold 11."""
    lies = Lies(40, 20, 11)
    graph = neighbours.graph(range(40), 20)
    lies.exchange_keys(graph)
    for client in range(40):
        lies.mask(client)
    refusals = lies.tell(dropped_for_each(graph, 0, 11))
    assert "are told of different survivors" in refusals[0]
    assert not any(lies.secret(neighbour, DROPPED) for neighbour in graph[0])


def test_what_clients_have_signed_in_another_session_of_one_identifier_reads_nobody():
    """By the terms, the nonce and the transcript, which are the server's: all clients agree there on what each of them
    is told here."""
    lies, graph = Lies(8, 4, 3), neighbours.graph(range(8), 4)
    dropped = dropped_for_each(graph, 0, 3)
    earlier = {}
    for client in range(8):
        lies.invite()
        lies.exchange_keys(graph)
        left = set(range(8)) - dropped.get(client, set())
        for other in left:
            lies.mask(other)
        earlier[client] = {other: lies.acknowledge(other, dropped.get(client, set())) for other in left}
    lies.invite()
    lies.exchange_keys(graph)
    for client in range(8):
        lies.mask(client)

    assert all("are told of different survivors" in refusal for refusal in lies.tell(dropped, earlier))
    assert not lies.shares


def test_a_client_that_nobody_agrees_with_gives_no_shares():
    lies = Lies(4, 3, 3)
    lies.exchange_keys(others_of(4))
    for client in range(4):
        lies.mask(client)
    lies.clients[0].acknowledge(lies.signer.message(MASKED, survivors.to_bytes(range(4), 4)))
    with pytest.raises(MessageRefused, match="too few neighbours of client 0 are told of its survivors"):
        lies.clients[0].unmask(lies.signer.message(SURVIVORS, join_entries([])))


def test_a_client_acknowledges_no_survivors_without_itself():
    lies = Lies(4, 3, 3)
    lies.exchange_keys(others_of(4))
    lies.mask(0)
    with pytest.raises(MessageRefused, match="client 0 is told that its integers did not arrive"):
        lies.clients[0].acknowledge(lies.signer.message(MASKED, survivors.to_bytes({1, 2, 3}, 4)))


@pytest.mark.parametrize("bits", [b"", b"\x0f\x00", b"\x1f"], ids=["none", "a byte more", "a fifth client"])
def test_survivors_of_other_clients_are_refused(bits):
    with pytest.raises(MessageRefused, match="a set of survivors is not of this session's clients"):
        survivors.from_bytes(memoryview(bits), 4)


def test_a_client_that_shares_masks_with_too_few_of_its_holders_sends_nothing():
    """Else the four other neighbours and the client give its seed, and these four are said to have dropped out."""
    lies = Lies(20, 8, 5)
    graph = neighbours.graph(range(20), 8)
    lies.exchange_keys(graph)
    with pytest.raises(MessageRefused, match="client 0 has too few neighbours left"):
        lies.mask(0, graph[0][:4])


def corrupt_keys(lies: Lies, corrupt: int, masking: bytes) -> bytes:
    """A message of keys that a corrupt client signs."""
    sealing = X25519PrivateKey.generate().public_key().public_bytes_raw()
    return Signer(corrupt, lies.terms.session, lies.identities[corrupt]).message(KEYS, sealing, masking)


@pytest.mark.parametrize("highest_bit", [0, 0x80], ids=["the same bytes", "another encoding"])
def test_a_client_refuses_a_neighbour_with_the_key_of_another(highest_bit):
    """Client 1 adds the mask of client 2, and would subtract that of client 0: one key would leave no mask."""
    lies = Lies(3, 2, 3)
    keys = [c.advertise(lies.terms.packed) for c in lies.clients]
    copied = bytearray(keys[0][-64 - KEY_BYTES : -64])
    copied[-1] |= highest_bit
    forged = corrupt_keys(lies, 2, bytes(copied))
    with pytest.raises(MessageRefused, match="client 1 gets one key from clients 0 and 2"):
        lies.clients[1].share(lies.signer.message(KEYS, join_entries([keys[0], forged])))


def test_a_client_refuses_its_own_key_from_a_neighbour():
    lies = Lies(3, 2, 3)
    keys = [c.advertise(lies.terms.packed) for c in lies.clients]
    forged = corrupt_keys(lies, 2, keys[1][-64 - KEY_BYTES : -64])
    with pytest.raises(MessageRefused, match="client 1 gets one key from clients 1 and 2"):
        lies.clients[1].share(lies.signer.message(KEYS, join_entries([keys[0], forged])))


def test_masks_of_two_pairs_differ_where_their_keys_are_equal():
    own, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    public = other.public_key().public_bytes_raw()
    session = bytes(16)
    assert shared_mask_key(session, own, public, (1, 0)) != shared_mask_key(session, own, public, (1, 2))
    assert shared_mask_key(session, own, public, (1, 2)) == shared_mask_key(
        session, other, own.public_key().public_bytes_raw(), (2, 1)
    )


def test_an_honest_server_reads_the_sum_and_a_seed_alone_reads_nobody():
    """The attacks above are refused for their lies: who tells the truth gets all seeds, and no private key."""
    lies = Lies(4, 3, 3)
    lies.exchange_keys(others_of(4))
    vectors = [lies.mask(client) for client in range(4)]
    assert lies.tell({}) == []
    total = masks.zeros(LAYOUT)
    for client, vector in enumerate(vectors):
        seed = lies.secret(client, ARRIVED)
        masks.add_mask(vector, own_mask_key(lies.terms.session, seed), LAYOUT, negative=True)
        masks.add(total, vector, LAYOUT)
        assert vector[0].tolist() != [7] * 4
        assert lies.secret(client, DROPPED) is None
    assert total[0].tolist() == [28] * 4


class Messages:
    """An honest server, and the messages that honest clients send it in each phase."""

    def __init__(self, clients: int = 4):
        self.session = Session(Masked(), clients, LAYOUT)
        self.server: MaskingServer = self.session._server
        self.take = [
            self.server.take_keys,
            self.server.take_shares,
            self.server.take_masked,
            self.server.take_acknowledgement,
            self.server.take_unmasking,
        ]
        self.end = [
            self.server.end_keys,
            self.server.end_shares,
            self.server.end_masked,
            self.server.end_survivors,
            self.server.result,
        ]
        self.sent: list[list[bytes]] = []

    def advance(self, phase: int) -> None:
        """Runs the session until clients have sent their messages of a phase, which the server has not taken."""
        inbox = dict.fromkeys(self.session._clients, self.session.terms.packed)
        for number in range(phase + 1):
            if number:
                for client, message in enumerate(self.sent[-1]):
                    self.take[number - 1](client, message)
                inbox = self.end[number - 1]()
            self.sent.append([self.answer(number, i, inbox[i]) for i in self.session._clients])

    def answer(self, phase: int, client: int, message: bytes) -> bytes:
        party = self.session._clients[client]
        if phase == MASKED:
            party.take_shares(message)
            return party.mask(masks.zeros(LAYOUT))
        return (party.advertise, party.share, None, party.acknowledge, party.unmask)[phase](message)


PHASES = [KEYS, SHARES, MASKED, SURVIVORS, UNMASKING]


@pytest.mark.parametrize("phase", PHASES)
def test_the_server_takes_a_message_once(phase):
    messages = Messages()
    messages.advance(phase)
    messages.take[phase](0, messages.sent[phase][0])
    with pytest.raises(MessageRefused, match="client 0 sends two messages of phase"):
        messages.take[phase](0, messages.sent[phase][0])


@pytest.mark.parametrize("phase", PHASES)
def test_the_server_takes_no_message_after_its_phase(phase):
    messages = Messages()
    messages.advance(phase)
    for client, message in enumerate(messages.sent[phase][:3]):
        messages.take[phase](client, message)
    messages.end[phase]()
    with pytest.raises(MessageRefused, match=r"client 3 sends its message of phase [a-z]* outside of that phase"):
        messages.take[phase](3, messages.sent[phase][3])


@pytest.mark.parametrize("phase", PHASES[:-1])
def test_the_server_takes_no_message_of_a_later_phase(phase):
    messages = Messages()
    messages.advance(phase)
    with pytest.raises(MessageRefused, match=r"client 0 sends its message of phase [a-z]* outside of that phase"):
        messages.take[phase + 1](0, messages.sent[phase][0])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("sender", [-1, 4, SERVER])
def test_the_server_takes_no_message_of_an_unknown_sender(phase, sender):
    messages = Messages()
    messages.advance(phase)
    with pytest.raises(MessageRefused, match=f"client {sender} takes no part in phase"):
        messages.take[phase](sender, messages.sent[phase][0])


@pytest.mark.parametrize("phase", PHASES[1:])
def test_the_server_takes_no_message_of_a_client_that_dropped_out_before(phase):
    messages = Messages(6)
    messages.advance(phase - 1)
    for client, message in enumerate(messages.sent[phase - 1][:5]):
        messages.take[phase - 1](client, message)
    inbox = messages.end[phase - 1]()
    with pytest.raises(MessageRefused, match="client 5 takes no part in phase"):
        messages.take[phase](5, messages.answer(phase, 0, inbox[0]))


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_ends_once(phase):
    messages = Messages()
    messages.advance(phase)
    for client, message in enumerate(messages.sent[phase]):
        messages.take[phase](client, message)
    messages.end[phase]()
    with pytest.raises(SecureSumError, match=r"phase [a-z]* cannot end, since it is not in progress"):
        messages.end[phase]()


def test_the_server_refuses_a_key_that_another_client_sent():
    messages = Messages()
    messages.advance(KEYS)
    messages.server.take_keys(0, messages.sent[KEYS][0])
    masking = messages.sent[KEYS][0][-64 - KEY_BYTES : -64]
    copy = messages.session._clients[1]._signer.message(
        KEYS, X25519PrivateKey.generate().public_key().public_bytes_raw(), masking
    )
    with pytest.raises(MessageRefused, match="client 1 sends a key that was sent before"):
        messages.server.take_keys(1, copy)


def test_a_client_contributes_once():
    session = Session(Masked(), 3, LAYOUT)
    session.start()
    for client in range(3):
        session.contribute(client, [np.full(4, 7, np.uint32)])
    with pytest.raises(SecureSumError, match="client 1 is not one whose integers are waited for"):
        session.contribute(1, [np.full(4, 7, np.uint32)])
    assert session.lost == {}
    assert session.finish()[0].tolist() == [21] * 4
