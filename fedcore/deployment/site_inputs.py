"""Inputs of a client stage at a site: arrays of the request, the site's data, values that earlier stages left here."""

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from fedcore.compiler.client_data import KEPT, ClientData, Source, type_at
from fedcore.runtime.network.leaves import array_names
from fedcore.runtime.network.messages import MalformedMessage, Message
from fedcore.runtime.network.plan_runner import ClientStageOf
from fedcore.runtime.network.transcript import (
    NAMED_SOURCES,
    SERVER_VALUE,
    KeptName,
    Sources,
    ValueSource,
    parse_sources,
    provenance,
)

_SEEDS = (-(2**63), 2**64 - 1)
"""The least and the greatest seed, of 64 bits with or without a sign."""


@attrs.frozen(eq=False)
class RunRequest:
    """A request to run a client stage.

    Args:
        plan: digest of the plan.
        operation: name of the fold or collect that runs the stage.
        run: digest that the server chooses for the run.
        index: of the client in its call.
        seed: of the call.
        sources: where the client's values come from, as the server says.
        arrays: by name, those included that an earlier request had.
        digests: of the arrays that the stage reads.
        reply_by_s: seconds after which the server waits no longer for the reply.
        own_seed: of the site, by which the run draws; None for the call's.
    """

    plan: str
    operation: str
    run: str
    index: int
    seed: int
    sources: Sources
    arrays: Mapping[str, np.ndarray]
    digests: Mapping[str, str]
    reply_by_s: float
    own_seed: int | None = None

    @classmethod
    def of(cls, request: Message, arrays: Mapping[str, np.ndarray], digests: Mapping[str, str]) -> "RunRequest":
        """The request of a message.

        Args:
            arrays, digests: of the message, and those that it names from earlier requests.
        Raises:
            MalformedMessage: a fact is missing or malformed.
        """
        reply_by_s = request.facts.get("reply_by_s")
        is_number = isinstance(reply_by_s, int | float) and not isinstance(reply_by_s, bool)
        plan, operation, run = request.digest("plan"), request.name("operation"), request.digest("run")
        index, seed = request.number("index"), request.number("seed", *_SEEDS)
        sources = parse_sources(request.fact("sources", list))
        operand_digests = {name: digest for name, digest in digests.items() if name[:1] in ("b", "v")}
        seconds = float(reply_by_s or 0) if is_number else 0.0
        return cls(plan, operation, run, index, seed, sources, arrays, operand_digests, seconds)

    @property
    def log_facts(self) -> dict[str, str]:
        """Which run it is, as lines of the log tell."""
        return {"plan": self.plan, "operation": self.operation, "run": self.run}

    @property
    def broadcasts(self) -> dict[str, str]:
        """By name the digest of each array that all clients get."""
        return {name: digest for name, digest in self.digests.items() if name[0] == "b"}

    @property
    def server_values(self) -> dict[str, str]:
        """By name the digest of each array of the client's values that the server gives it."""
        return {name: digest for name, digest in self.digests.items() if name[0] == "v"}

    @property
    def kept_sources(self) -> list[ValueSource]:
        """The sources that are values of earlier stages."""
        return [source for source in self.sources if source.name not in NAMED_SOURCES]

    @property
    def provenance(self) -> str:
        """The digest of what the stage reads, except for the site's data."""
        return provenance(self.plan, self.operation, self.run, self.seed, self.digests, self.sources)

    @property
    def kept_name(self) -> KeptName:
        """The name of the value that the stage leaves."""
        return KeptName(self.operation, self.run, self.index, self.provenance)

    @property
    def kept_kind(self) -> str:
        """The kind of the value that the stage leaves, of which there is one, ever.

        A second value of one provenance would move, in a later sum, what this site adds and nothing else. So the
        client's place in the call counts only where the server's seed decides what is drawn.
        """
        return f"{self.plan}/{self.provenance}/{'' if self.own_seed is not None else self.index}"


def check_arrays(stage: ClientStageOf, request: RunRequest) -> None:
    """Checks that the arrays of a request are those that the stage reads: others would make what it draws another.

    Raises:
        MalformedMessage: one is missing, or a further one is there.
    """
    names = set[str]()
    for position, type_ in enumerate(stage.broadcast_types):
        names |= array_names(type_, f"b{position}.")
    for position, (type_, source) in enumerate(zip(stage.value_types, request.sources, strict=True)):
        names |= array_names(type_, f"v{position}.") if source.name == SERVER_VALUE else set()
    if request.digests.keys() != names:
        raise MalformedMessage("the arrays of the request are not those that the stage reads")


def check_sources(request: RunRequest, data: ClientData) -> tuple[Source, ...]:
    """The sources of the client's values, by the plan.

    A value of an earlier stage of the call is that of this call, and an argument is the site's data, a value of the
    server, or a value that this program has returned as the client's.

    Raises:
        MalformedMessage: the server says something else.
    """
    sources = data.stages[request.operation].sources
    if len(sources) != len(request.sources):
        raise MalformedMessage("the request does not say where each of the client's values comes from")
    for source, claim in zip(sources, request.sources, strict=True):
        if not _is_allowed(source, claim, request, data):
            raise MalformedMessage("the request says that a value comes from elsewhere than the plan says")
    return sources


def _is_allowed(source: Source, claim: ValueSource, request: RunRequest, data: ClientData) -> bool:
    """Whether a value may come from where the server says, `claim`, by what the plan says, `source`."""
    if source.kind == KEPT:
        if claim.name in NAMED_SOURCES or claim.path != source.path:
            return False
        name = KeptName.parse(claim.name)
        return (name.operation, name.run, name.index) == (source.name, request.run, request.index)
    if claim.name == SERVER_VALUE:
        return claim.path == ()
    if claim.name in NAMED_SOURCES:
        return claim.path == source.path
    kept_type = data.returned.get(KeptName.parse(claim.name).operation)
    if kept_type is None or claim.path[len(claim.path) - len(source.path) :] != source.path:
        return False
    part = type_at(kept_type, claim.path)
    return part is not None and source.element_type.is_assignable_from(part)


def element_of(value: Any, path: tuple[int, ...]) -> Any:
    """The element of a value at a path of positions in nested structs."""
    for index in path:
        value = value[index]
    return value
