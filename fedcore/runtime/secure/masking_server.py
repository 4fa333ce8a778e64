"""The server of a session."""

import threading
from collections.abc import Container

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.errors import SecureSumError
from fedcore.runtime.secure import masks, neighbours, shamir, survivors
from fedcore.runtime.secure.masked_client import (
    ARRIVED,
    DROPPED,
    GIVEN,
    KEY_BYTES,
    SEALED_BYTES,
    Messages,
    commitment,
    curve_point,
    own_mask_key,
    private_key,
    shared_mask_key,
)
from fedcore.runtime.secure.masks import Vector
from fedcore.runtime.secure.settings import PHASES
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

_COMMITMENT_BYTES = 32


class MaskingServer:
    """The server: `take_*` takes a client's message of a phase, `end_*` ends the phase and gives the server's messages.

    Guarantees:
      - Holds the sum of the masked vectors, not the vectors.
      - A message that is refused changes nothing: its sender counts as one that sent none. Refused are all messages out
        of their phase, of a client that takes no part in it, and the second of a client in a phase.
      - `result` is the sum of the vectors of all clients whose message of phase `masked` was taken, or an error.
      - `take_masked` may be called in several threads.
    """

    def __init__(self, terms: Terms, key: Ed25519PrivateKey, directory: Directory) -> None:
        self._terms = terms
        self._directory = directory
        self._signer = Signer(SERVER, terms.session, key)
        self._lock = threading.Lock()
        self._phase = KEYS
        self._keys: dict[int, bytes] = {}  # client -> its signed message of phase `keys`
        self._points: set[int] = set()  # the points of all clients' keys, see `curve_point`
        self._neighbours: dict[int, list[int]] = {}
        self._commitments: dict[int, bytes] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}  # client that seals -> neighbour -> the shares for it
        self._sum = masks.zeros(terms.layout)
        self._arrived: set[int] = set()  # clients whose masked vector is in the sum
        self._survivors = b""  # these clients from the end of phase `masked` on, see `survivors.to_bytes`
        self._acknowledgements: dict[int, bytes] = {}  # client -> its signed message of phase `survivors`
        self._unmasking: set[int] = set()  # clients whose message of that phase was taken
        self._shares: dict[int, dict[int, bytes]] = {}  # owner of the secret -> point of the holder -> share

    def _expect(self, client: int, phase: int, senders: Container[int], past: Container[int]) -> None:
        """Checks that a client may send its message of a phase now.

        Args:
            senders: the clients that take part in the phase.
            past: the clients whose message of the phase was taken.
        Raises:
            MessageRefused: another phase is in progress, the client takes no part in it, or has sent a message.
        """
        if phase != self._phase:
            raise MessageRefused(f"client {client} sends its message of phase {PHASES[phase]} outside of that phase")
        if client not in senders:
            raise MessageRefused(f"client {client} takes no part in phase {PHASES[phase]}")
        if client in past:
            raise MessageRefused(f"client {client} sends two messages of phase {PHASES[phase]}")

    def _end(self, phase: int, count: int) -> None:
        """Ends a phase.

        Args:
            count: number of the clients whose message was taken.
        Raises:
            SecureSumError: they are too few, or another phase is in progress.
        """
        if phase != self._phase:
            raise SecureSumError(f"secure sum: phase {PHASES[phase]} cannot end, since it is not in progress")
        if count < self._terms.threshold and phase != UNMASKING:  # `_secret` says whose shares are too few
            raise SecureSumError(
                f"secure sum: {count} of {self._terms.clients} clients are left after phase {PHASES[phase]}, but "
                f"{self._terms.threshold} are needed"
            )
        self._phase = phase + 1

    def take_keys(self, client: int, message: bytes) -> None:
        """Takes the two public keys of a client.

        Raises:
            MessageRefused: the message does not hold two keys, or one of them was sent before.
        """
        self._expect(client, KEYS, range(self._terms.clients), self._keys)
        body = self._directory.body(message, KEYS, client)
        if len(body) != 2 * KEY_BYTES:
            raise MessageRefused(f"client {client} does not send two keys")
        points = {curve_point(body[:KEY_BYTES]), curve_point(body[KEY_BYTES:])}
        if len(points) < 2 or points & self._points:
            raise MessageRefused(f"client {client} sends a key that was sent before")
        self._points |= points
        self._keys[client] = message

    def end_keys(self) -> Messages:
        """For each client the keys of its neighbours, as those signed them."""
        self._end(KEYS, len(self._keys))
        self._neighbours = neighbours.graph(list(self._keys), self._terms.degree)
        return {
            client: self._signer.message(KEYS, join_entries([self._keys[other] for other in neighbours_of_client]))
            for client, neighbours_of_client in self._neighbours.items()
        }

    def take_shares(self, client: int, message: bytes) -> None:
        """Takes the commitment of a client to its seed, and the shares that it sealed for each neighbour.

        Raises:
            MessageRefused: the shares are not for exactly its neighbours, in their order.
        """
        self._expect(client, SHARES, self._neighbours, self._sealed)
        body = self._directory.body(message, SHARES, client)
        sealed = {
            int.from_bytes(entry[:4], "little"): bytes(entry[4:])
            for entry in entries(body[_COMMITMENT_BYTES:], SEALED_BYTES, "sealed shares")
        }
        if list(sealed) != self._neighbours[client]:
            raise MessageRefused(f"client {client} seals shares for others than its neighbours")
        self._commitments[client] = bytes(body[:_COMMITMENT_BYTES])
        self._sealed[client] = sealed

    def end_shares(self) -> Messages:
        """For each client the shares that its neighbours sealed for it."""
        self._end(SHARES, len(self._sealed))
        messages = {}
        for client in self._sealed:
            shares = [other.to_bytes(4, "little") + self._sealed[other][client] for other in self._partners(client)]
            messages[client] = self._signer.message(SHARES, join_entries(shares))
        return messages

    def take_masked(self, client: int, message: bytes) -> None:
        """Adds a masked vector. Raises MessageRefused if the message holds none."""
        self._expect(client, MASKED, self._sealed, self._arrived)
        vector = masks.from_bytes(self._directory.body(message, MASKED, client), self._terms.layout)
        if vector is None:
            raise MessageRefused(f"client {client} sends no masked integers of this session")
        # Vectors are large, so they are read outside of the lock. Meanwhile another thread may have taken a message of
        # this client, which would be added twice, or ended the phase, whose set of survivors would lack the client.
        with self._lock:
            self._expect(client, MASKED, self._sealed, self._arrived)
            masks.add(self._sum, vector, self._terms.layout)
            self._arrived.add(client)

    def end_masked(self) -> Messages:
        """For each client whose vector arrived, the set of these clients."""
        with self._lock:
            self._end(MASKED, len(self._arrived))
        # From here on `take_masked` refuses under the lock, so that `_arrived` stays as it is and is read without.
        self._survivors = survivors.to_bytes(self._arrived, self._terms.clients)
        message = self._signer.message(MASKED, self._survivors)
        return dict.fromkeys(self._arrived, message)

    def take_acknowledgement(self, client: int, message: bytes) -> None:
        """Takes a client's signed acknowledgement of the set of clients whose vectors arrived.

        Raises:
            MessageRefused: it acknowledges another set, or other keys of its own.
        """
        self._expect(client, SURVIVORS, self._arrived, self._acknowledgements)
        body = self._directory.body(message, SURVIVORS, client)
        if body != survivors.digest(self._terms.session, self._survivors, self._public_keys(client)):
            raise MessageRefused(f"client {client} acknowledges other survivors")
        self._acknowledgements[client] = message

    def end_survivors(self) -> Messages:
        """For each client that acknowledged the survivors, the acknowledgements that its neighbours signed."""
        self._end(SURVIVORS, len(self._acknowledgements))
        messages = {}
        for client in self._acknowledgements:
            partners = [other for other in self._partners(client) if other in self._acknowledgements]
            acknowledgements = join_entries([self._acknowledgements[other] for other in partners])
            messages[client] = self._signer.message(SURVIVORS, acknowledgements)
        return messages

    def _partners(self, client: int) -> list[int]:
        """The neighbours with whom the client shares a mask: those that sealed shares."""
        return [other for other in self._neighbours[client] if other in self._sealed]

    def take_unmasking(self, client: int, message: bytes) -> None:
        """Takes the shares with which the server removes masks from the sum.

        For each partner and for itself, the client gives a share of the owner's seed if the owner's vector arrived,
        else a share of the owner's private key.

        Raises:
            MessageRefused: it gives other shares.
        """
        self._expect(client, UNMASKING, self._acknowledgements, self._unmasking)
        body = self._directory.body(message, UNMASKING, client)
        given = [GIVEN.unpack(entry) for entry in entries(body, GIVEN.size, "shares")]
        owners = (*self._partners(client), client)
        expected = [(owner, ARRIVED if owner in self._arrived else DROPPED) for owner in owners]
        if [(owner, kind) for owner, kind, _ in given] != expected or not all(shamir.is_share(s) for _, _, s in given):
            raise MessageRefused(f"client {client} gives other shares than it was asked for")
        self._unmasking.add(client)
        for owner, _, share in given:
            self._shares.setdefault(owner, {})[client + 1] = share  # client i holds the share at the point i + 1

    def result(self) -> Vector:
        """The sum of the vectors that arrived.

        Raises:
            SecureSumError: too few clients answered, their shares are wrong, or phase `unmasking` is not in progress.
        """
        self._end(UNMASKING, len(self._unmasking))
        for client in sorted(self._arrived):
            seed = self._secret(client, "seed")
            if commitment(self._terms.session, client, seed) != self._commitments[client]:
                raise SecureSumError(f"secure sum: the shares of client {client}'s seed are wrong")
            masks.add_mask(self._sum, own_mask_key(self._terms.session, seed), self._terms.layout, negative=True)
        for client in sorted(self._sealed.keys() - self._arrived):
            self._remove_masks_of(client)
        return [segment.reduce(array) for segment, array in zip(self._terms.layout, self._sum, strict=True)]

    def _remove_masks_of(self, client: int) -> None:
        """Removes the masks that a client that dropped out shares with clients whose vectors arrived."""
        partners = [other for other in self._partners(client) if other in self._arrived]
        if not partners:
            return
        key = private_key(self._secret(client, "private key"), self._masking_key(client))
        if key is None:
            raise SecureSumError(f"secure sum: the shares of client {client}'s private key are wrong")
        for other in partners:
            shared = shared_mask_key(self._terms.session, key, self._masking_key(other), (client, other))
            # The partner subtracted the mask if its index is greater, see `MaskedClient.mask`.
            masks.add_mask(self._sum, shared, self._terms.layout, negative=other < client)

    def _public_keys(self, client: int) -> bytes:
        """The client's key for sealing, and behind it its key for masks."""
        return bytes(self._directory.body(self._keys[client], KEYS, client))

    def _masking_key(self, client: int) -> bytes:
        return self._public_keys(client)[KEY_BYTES:]

    def _secret(self, client: int, what: str) -> bytes:
        """The secret of a client, joined from its shares: its seed if its vector arrived, else its private key.

        Args:
            what: "seed" or "private key", for errors.
        Raises:
            SecureSumError: there are too few shares, or no secret has them.
        """
        shares, threshold = self._shares.get(client, {}), self._terms.threshold
        if len(shares) < threshold:
            raise SecureSumError(
                f"secure sum: {len(shares)} shares of client {client}'s {what} arrived in phase {PHASES[UNMASKING]}, "
                f"but {threshold} are needed"
            )
        secret = shamir.join(shares, threshold)
        if secret is None:
            raise SecureSumError(f"secure sum: the shares of client {client}'s {what} are wrong")
        return secret
