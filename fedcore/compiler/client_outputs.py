"""Outputs of clients: the one analysis of a plan that policies of sites, their logs and `verify --secure` read.

A fold sends the values that its accumulation reads, whether a merge reads its partials or not; where a session of
secure sums masks its partial, it sends that partial. What a stage keeps for a client stays with the client.

Decision 0271.
"""

from collections.abc import Container, Iterator, Mapping

import attrs

from fedcore.compiler.client_data import ClientData, NotFollowed, StageFlow
from fedcore.compiler.drawn_leaves import DrawnLeaves
from fedcore.compiler.leaf_sets import NOTHING, flat, nonempty_leaves, within
from fedcore.compiler.liveness import Live
from fedcore.errors import Location
from fedcore.intrinsics.crossings import SentTensor, join_path, sent_tensors
from fedcore.intrinsics.secure_ranges import OPEN
from fedcore.intrinsics.sent_names import readable
from fedcore.intrinsics.sent_values import sent_bits, sent_by
from fedcore.ir import Function, Graph, Module, Ref, Symbol
from fedcore.types import TensorType, Type, is_static, leaves


@attrs.frozen
class ClientOutput:
    """A tensor that leaves a client.

    Args:
        label, tensor: its name, as that of a `SentTensor`; of a partial the names of what is added there, joined by
            ` and `.
        location: the line of the aggregation; None if the module has no lines.
        secure: the range of the integers that are masked; `OPEN` for a tensor that leaves as it is.
        depends: it depends on the client's data.
        draws: it depends on random numbers that the client's stage draws.
        bits: the size; None if the type leaves it open, the most of a tensor that crosses in rows (`Crossing`).
        is_added: a leaf of the merged partial depends on it.
        grows: the partial that holds it has more rows with each client: the server gets the tensor itself.
        in_rows: its non-zero rows leave where these are fewer bits.
    """

    label: str
    tensor: str
    type: Type
    location: Location | None
    secure: str
    depends: bool
    draws: bool
    bits: int | None
    is_added: bool = True
    grows: bool = False
    in_rows: bool = False

    @property
    def name(self) -> str:
        """The name for the owner of the data."""
        return _readable(self.tensor)

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which a policy knows it: those that the plan's digest covers."""
        return (*self.label.split(" and "), *_readable(self.label).split(" and "))

    def __str__(self) -> str:
        return f"{self.name} : {self.type}"


def _readable(names: str) -> str:
    """Names joined by ` and `, each as `readable` shows it to the owner of the data; equal ones once."""
    return " and ".join(dict.fromkeys(map(readable, names.split(" and "))))


class ClientOutputs:
    """The tensors that leave by the client stages of a plan.

    Raises:
        NotFollowed: the plan has a way of client values that the analysis does not follow.
    """

    def __init__(self, plan: Module) -> None:
        self.plan = plan
        self.data = ClientData(plan)
        self._draws = DrawnLeaves(plan, self.data)
        self._outputs: dict[tuple[str, bool], tuple[ClientOutput, ...]] = {}  # by the arguments of `of`
        for flow in self.data.stages.values():
            if flow.merge is not None and len(self._marks(flow)) != len(nonempty_leaves(_partial(flow))):
                raise NotFollowed("the marks of a merge are not those of its partial", flow.merge.location)
        _ = self.data.returned  # computed here, since it raises for a result that is not followed
        self.folds = [name for name, flow in self.data.stages.items() if flow.op.kind == "fold"]

    @classmethod
    def cached(cls, plan: Module) -> "ClientOutputs":
        """The outputs of a plan, computed once."""
        return plan.fact("client outputs", cls)

    def is_secure(self, operation: str) -> bool:
        """Whether a tensor of the stage's partial crosses in a secure sum, where there is a protocol for it."""
        flow = self.data.stages[operation]
        return flow.merge is not None and any(mark != OPEN for mark in self._marks(flow))

    def of(self, operation: str, *, masked: bool) -> tuple[ClientOutput, ...]:
        """The tensors that leave by a stage, in the order of the message; none of a collect.

        Args:
            masked: a session of secure sums masks the partial.
        """
        key = operation, masked
        if key not in self._outputs:
            flow = self.data.stages[operation]
            if flow.op.kind == "collect":
                self._outputs[key] = ()
            else:
                self._outputs[key] = tuple(self._masked_outputs(flow) if masked else self._plain_outputs(flow))
        return self._outputs[key]

    def _marks(self, flow: StageFlow) -> tuple[str, ...]:
        """For each tensor of the stage's partial the range of a secure sum; `OPEN` if it crosses as it is."""
        open_marks = (OPEN,) * len(nonempty_leaves(_partial(flow)))
        return open_marks if flow.merge is None else flow.merge.attributes.get("secure", open_marks)

    def _plain_outputs(self, flow: StageFlow) -> Iterator[ClientOutput]:
        """The tensors that cross by the plan, where nothing is masked."""
        added, drawn = self._added_leaves(flow), self._draws.inside(flow.stage)
        for sent in sent_tensors(self.plan, flow.op):
            leaf = nonempty_leaves(flow.stage.types()[sent.value])[sent.leaf]
            yield ClientOutput(
                sent.label,
                sent.tensor,
                sent.type,
                location=accumulation_line(flow.stage, sent.value) or flow.op.location,
                secure=OPEN,
                depends=leaf in flow.tainted.get(sent.value, NOTHING),
                draws=leaf in drawn.get(sent.value, NOTHING),
                bits=sent.bits,
                is_added=(sent.value, leaf) in added,
                grows=added.get((sent.value, leaf), False),
                in_rows=sent.in_rows,
            )

    def _added_leaves(self, flow: StageFlow) -> dict[tuple[str, int], bool]:
        """By (name, leaf) of a sent value in the merged partial, whether the partial grows by rows with each client."""
        added: dict[tuple[str, int], bool] = {}
        if flow.merge is None:
            return added
        partial = _partial(flow)
        sent = sent_by(self.plan, flow.op)
        for leaf in sorted(flow.tainted[flow.stage.parameters[0].name]):
            live = self.data.live.of(flow.stage, frozenset([leaf]))
            grows = not _is_static(flat(partial)[leaf]) and self._appends(flow.stage, live)
            for name in sent_for(live, flow.stage, sent):
                for part in live[name]:
                    added[name, part] = added.get((name, part), False) or grows
        return added

    def _masked_outputs(self, flow: StageFlow) -> Iterator[ClientOutput]:
        """The tensors of a masked partial, each named after the values that are added to it."""
        partial, result, sent = _partial(flow), flow.stage.result.name, sent_by(self.plan, flow.op)
        tainted = flow.tainted[flow.stage.parameters[0].name] | flow.tainted[result]
        tensors = {
            (t.value, nonempty_leaves(flow.stage.types()[t.value])[t.leaf]): t for t in sent_tensors(self.plan, flow.op)
        }
        drawn = self._draws.inside(flow.stage)[result]
        drawn = within(drawn, 0, partial) if flow.op.attributes.get("keeps") else drawn  # of <partial,kept>
        for leaf, (path, type_), mark in zip(nonempty_leaves(partial), leaves(partial), self._marks(flow), strict=True):
            live = self.data.live.of(flow.stage, frozenset([leaf]))
            names = sent_for(live, flow.stage, sent)
            added = _added_tensors(flow, live, names, tensors)
            label, tensor = (
                " and ".join(dict.fromkeys(parts)) or join_path("partial", path)
                for parts in ([t.label for t in added], [t.tensor for t in added])
            )
            lines = (accumulation_line(flow.stage, name) for name in names)
            location = next((line for line in lines if line), flow.location)
            grows = not _is_static(flat(partial)[leaf]) and self._appends(flow.stage, live)
            bits = sent_bits(type_, OPEN)
            depends, draws = leaf in tainted, leaf in drawn
            yield ClientOutput(label, tensor, type_, location, mark, depends, draws, bits, grows=grows)

    def _appends(self, stage: Function, live: Live) -> bool:
        """Whether an operation that computes live leaves from the partial appends rows to it.

        Such an operation is an `append_rows`, or calls a graph that concatenates tensors.

        Args:
            live: the liveness of the stage for a leaf of its result.
        """
        from fedcore.graphs.graphdef.form.operations import operations_of

        folded = {stage.parameters[0].name}
        for op in stage.operations:
            if folded.intersection(o.name for o in op.operands if isinstance(o, Ref)):
                folded.add(op.name)
                graphs = [self.plan[o.name] for o in op.operands if isinstance(o, Symbol)]
                inside = [operations_of(g.digest, self.plan.blob(g.digest)) for g in graphs if isinstance(g, Graph)]
                if live.get(op.name) and (op.kind == "append_rows" or any("ConcatV2" in ops for ops in inside)):
                    return True
        return False


def _is_static(leaf: Type) -> bool:
    """Whether a leaf has the same shape in each call, and so in the partial after any number of clients."""
    return not isinstance(leaf, TensorType) or is_static(leaf.shape)


def _partial(flow: StageFlow) -> Type:
    """The type of the partial of a fold."""
    return flow.stage.parameters[0].type


def _added_tensors(
    flow: StageFlow, live: Live, names: list[str], tensors: Mapping[tuple[str, int], SentTensor]
) -> list[SentTensor]:
    """The sent tensors that are added to live leaves of the partial; those that depend on data, if any does.

    Args:
        names: the values that clients send for the leaves.
        tensors: by (name, leaf) of a sent value.
    """
    parts = [(name, part) for name in names for part in sorted(live[name])]
    tainted = [(name, part) for name, part in parts if part in flow.tainted[name]]
    return [tensors[p] for p in tainted or parts if p in tensors]  # a count of clients depends on no data


def sent_for(live: Live, stage: Function, sent: Container[str]) -> list[str]:
    """The values that clients send for some leaves of the partial, in order of the stage.

    A value that is sent for other leaves only is left out, also where these leaves are computed from it.

    Args:
        live: the liveness of the stage for the leaves.
        sent: the names of all values that clients send.
    """
    by_name = {op.name: op for op in stage.operations}
    folded = {stage.parameters[0].name}
    names = [stage.result.name]
    for op in stage.operations:
        operands = [o.name for o in op.operands if isinstance(o, Ref)]
        if folded.intersection(operands):
            folded.add(op.name)
            names += operands if live.get(op.name) else []
    waiting = [n for n in names if n not in folded and live.get(n)]
    visited = set(waiting)
    while waiting:
        name = waiting.pop()
        if name not in sent and name in by_name:
            operands = [o.name for o in by_name[name].operands if isinstance(o, Ref)]
            waiting += (new := [n for n in operands if n not in visited and live.get(n)])
            visited.update(new)
    return [n for n in (*(p.name for p in stage.parameters), *by_name) if n in visited and n in sent]


def accumulation_line(stage: Function, name: str) -> Location | None:
    """The line of the operation that accumulates a client's value into the partial, the first parameter of a stage."""
    folded = {stage.parameters[0].name}
    for op in stage.operations:
        names = [o.name for o in op.operands if isinstance(o, Ref)]
        if folded.intersection(names):
            folded.add(op.name)
            if name in names:
                return op.location
    return None
