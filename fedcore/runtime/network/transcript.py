"""Transcripts, on which the parties of a masked run agree before masks are made, and names of values at sites.

Decisions 0300 and 0301.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from fedcore.runtime.network.messages import MalformedMessage, Message

DATA, HELD_OUT, SERVER_VALUE = NAMED_SOURCES = "data", "held out", "server"
"""Sources of a client value beside a `KeptName`: the site's data, the rows that the site holds out, the server."""

MAX_PATH = 64
"""Steps to an element of a value."""

_KEPT = re.compile(r"([^/]{1,200})/([0-9a-f]{32})/([0-9]{1,9})/([0-9a-f]{64})")


@attrs.frozen
class KeptName:
    """The name of a value that a client stage has left at its site.

    Args:
        operation, run, index: the plan's operation that ran the stage, the identifier of the call, and the index of the
            client in the call. With the digest of the plan, which the site knows itself, they determine the value.
        provenance: digest of all that the stage read except for the site's data, see `provenance`.
    """

    operation: str
    run: str
    index: int
    provenance: str

    def __str__(self) -> str:
        return f"{self.operation}/{self.run}/{self.index}/{self.provenance}"

    @classmethod
    def parse(cls, text: str) -> "KeptName":
        """The inverse of `str`.

        Raises:
            MalformedMessage: the text is no such name.
        """
        match = _KEPT.fullmatch(text)
        if match is None:
            raise MalformedMessage("the request names a value by something else than a stage, a run and a client")
        return cls(match[1], match[2], int(match[3]), match[4])


@attrs.frozen
class ValueSource:
    """Where a client value of a stage comes from.

    Args:
        name: one of NAMED_SOURCES, or the text of a `KeptName`.
        path: positions of the element within that value.
    """

    name: str
    path: tuple[int, ...] = ()

    @classmethod
    def parse(cls, fact: Any) -> "ValueSource":
        """The inverse of the property `fact`.

        Raises:
            MalformedMessage: the fact is no source.
        """
        is_pair = isinstance(fact, list) and len(fact) == 2 and isinstance(fact[0], str) and isinstance(fact[1], list)
        if not is_pair or len(fact[1]) > MAX_PATH or not all(type(i) is int and 0 <= i < 2**31 for i in fact[1]):
            raise MalformedMessage("a source of a client value is a name and the positions of an element")
        return cls(fact[0], tuple(fact[1]))

    @property
    def fact(self) -> list:
        """The source as a fact of a request: [name, path]."""
        return [self.name, list(self.path)]

    @property
    def kind(self) -> tuple:
        """A key for sources of equal rank in a sum: equal for two clients that take the same value of the server, or
        each its own data, or each a value that it kept of one provenance.
        """
        if self.name in NAMED_SOURCES:
            return self.name, self.path
        name = KeptName.parse(self.name)
        return name.operation, name.provenance, self.path


Sources = tuple[ValueSource, ...]
"""The sources of a client's values, in the order in which the stage takes them."""


def parse_sources(fact: Any) -> Sources:
    """The sources that a fact of a request lists.

    Raises:
        MalformedMessage: it lists none.
    """
    if not isinstance(fact, list):
        raise MalformedMessage("the sources of a client's values are a list")
    return tuple(map(ValueSource.parse, fact))


def seed_commitment(run: str, seed: int) -> str:
    """The digest of a call's seed, by which a site checks that it runs with the seed of its transcript."""
    return hashlib.sha256(f"fedcore call seed {run} {seed}".encode()).hexdigest()


def provenance(
    plan: str, operation: str, run: str, seed: int, arrays: Mapping[str, str], sources: Sequence[ValueSource]
) -> str:
    """The digest of all that a client stage read except for the site's data: equal for clients that were told the same.

    Args:
        plan: digest of the plan.
        arrays: name -> digest of each array that the stage reads.
        sources: sources of the client's values.
    """
    read = [plan, operation, run, seed_commitment(run, seed), dict(arrays), [list(s.kind) for s in sources]]
    return hashlib.sha256(b"fedcore provenance" + _canonical(read)).hexdigest()


@attrs.frozen
class Transcript:
    """The facts that the server tells each site of a masked run; the keys of all masks are derived from their digest.

    A site computes the digest from the plan that it has checked, the names and keys of its own list, and the arrays
    that it gets. A site that is told something else has other masks, so that they do not cancel.

    Args:
        plan, operation, run: digest of the plan, its client stage, and the call.
        round: of the learning process; None outside of one.
        names: the sites, in the order of the clients.
        seed: `seed_commitment` of the call's seed.
        broadcasts: name -> digest of each array that all clients get.
        server_values: name -> digest of each array of values that the server gives clients, such as first states.
        sources: for each client the sources of its values.
    """

    plan: str
    operation: str
    run: str
    round: int | None
    names: tuple[str, ...]
    seed: str
    broadcasts: Mapping[str, str]
    server_values: Mapping[str, str]
    sources: tuple[Sources, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """The transcript as facts of a request."""
        return {
            "plan": self.plan,
            "operation": self.operation,
            "run": self.run,
            "round": self.round,
            "names": list(self.names),
            "seed": self.seed,
            "broadcasts": dict(self.broadcasts),
            "server_values": dict(self.server_values),
            "sources": [[source.fact for source in client] for client in self.sources],
        }

    @classmethod
    def of(cls, request: Message) -> "Transcript":
        """The transcript in the facts of a request.

        Raises:
            MalformedMessage: the facts are none of a transcript.
        """
        plan, operation, run = request.digest("plan"), request.name("operation"), request.digest("run")
        seed = request.digest("seed")
        names, sources = request.fact("names", list), request.fact("sources", list)
        broadcasts, server_values = request.fact("broadcasts", dict), request.fact("server_values", dict)
        round_number = request.facts.get("round")
        if (
            not all(isinstance(name, str) for name in names)
            or len(sources) != len(names)
            or not all(isinstance(digest, str) for digest in (*broadcasts.values(), *server_values.values()))
            or not (round_number is None or type(round_number) is int)
        ):
            raise MalformedMessage("a request of a secure sum does not say who takes part with what")
        clients = tuple(map(parse_sources, sources))
        return cls(plan, operation, run, round_number, tuple(names), seed, broadcasts, server_values, clients)

    def digest(self, keys: Sequence[bytes]) -> bytes:
        """The digest of the transcript.

        Args:
            keys: for each client the public key by which its site signs.
        """
        content = [self.facts, [key.hex() for key in keys]]
        return hashlib.sha256(b"fedcore transcript" + _canonical(content)).digest()

    def alike(self, index: int) -> int:
        """The number of clients whose values have sources of the same kinds as those of client `index`, it included.

        A server may know the contributions of all other clients, since it may have chosen their values.
        """
        kinds = [source.kind for source in self.sources[index]]
        return sum([source.kind for source in client] == kinds for client in self.sources)


def _canonical(value: Any) -> bytes:
    """A text for hashing: one text for equal values, different texts for different ones."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
