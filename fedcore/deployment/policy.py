"""A site's policy: what may run there, and what may leave. Nothing that a server sends can widen it.

A plan is checked once, when it arrives, by following its data flow; a run is checked against the budgets of the day;
and what would leave is checked before it does. Each rule has a name, which a refusal tells
(decisions 0271 and 0273).
"""

import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from fedcore.compiler.disclosures import ClientDataFlow, Disclosure, accumulation_line, disclosures, tensors_of
from fedcore.compiler.leaf_sets import NOTHING, Leaves, everything, flat
from fedcore.compiler.liveness import Liveness
from fedcore.compiler.noiseless_values import noiseless_values
from fedcore.deployment.site_log import SiteLog
from fedcore.errors import FedcoreError, InvalidValue, Location, brief
from fedcore.graphs.graphdef.form.parsed_graph import operations_of
from fedcore.intrinsics.crossings import crossings
from fedcore.intrinsics.planned import fold_of, sent_by
from fedcore.intrinsics.sent_names import readable, readable_list
from fedcore.ir import Function, Module, Operation, Parameter, Ref, Symbol
from fedcore.runtime.client_work import SliceResult
from fedcore.runtime.network.plan_runner import ClientStageOf
from fedcore.types import FederatedType, SequenceType, StructType, Type, leaves

RULES = {
    "policy": "the site's policy can be read",
    "plans": "the plan is listed by digest, or signed by a key of the policy",
    "operations": "client stages use operations that the policy allows",
    "columns": "client stages read columns that the policy allows",
    "values": "no value of a single client is a result",
    "aggregated": "values reach the server in sums only, under masks",
    "noise": "what leaves depends on random numbers that the site draws",
    "noise_std": "what leaves differs enough between two runs with other random numbers",
    "clip": "the norm of what leaves is bounded",
    "clients": "a sum has enough clients",
    "sizes": "the size of what leaves is fixed by its type, so that it tells nothing",
    "bits": "a client sends few enough bits in a run",
    "bits_per_day": "a client sends few enough bits in a day",
    "rounds_per_day": "there are few enough runs in a day",
}


class Refusal(FedcoreError):
    """The policy has a rule against a request.

    Args:
        rule: its name, one of `RULES`.
    """

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(why)
        self.rule = rule

    def __reduce__(self) -> tuple[type["Refusal"], tuple[str, str]]:
        return Refusal, (self.rule, str(self))


@attrs.frozen
class Policy:
    """The rules of a site. A bound that is None does not hold.

    Args:
        aggregated: values leave in sums only, under masks.
        client_values: whether a plan may keep a client's value as a result; it stays at the site in any case.
        noise: what leaves has to depend on random numbers of the client's stage, and the site draws the run's seed, so
            that nobody else can compute them. That finds plans without noise; how much there is, a reader of the plan
            decides (see `signers`). With it the bits are no longer those of a local run.
        noise_std: least standard deviation of the numbers that leave. The site runs the client's stage twice, with
            seeds of its own, and measures it in each tensor (`measured_std`); with it, `noise` holds too. All
            randomness counts, also that of shuffles. Integers of masked sums are measured as they are.
        clip: largest Euclidean norm of the numbers that leave in a run, all tensors together. A refusal tells that
            this bound was exceeded, so a plan is to clip to it by itself.
        columns: those that may be read; None for all of the site's table.
        operations: those of TensorFlow that client stages may use; None for all that files from elsewhere may hold.
        without: operations of TensorFlow that client stages may not use.
        clients: least number of clients in a sum.
        bits: most bits that leave in a run.
        bits_per_day, rounds_per_day: most bits and runs of a day, in UTC.
        digests: of plans that may run; None for all.
        signers: Ed25519 public keys (raw bytes), one of which must have signed the plan; None for none.
    """

    aggregated: bool = True
    client_values: bool = False
    noise: bool = False
    noise_std: float | None = None
    clip: float | None = None
    columns: frozenset[str] | None = None
    operations: frozenset[str] | None = None
    without: frozenset[str] = frozenset()
    clients: int = 2
    bits: int | None = None
    bits_per_day: int | None = None
    rounds_per_day: int | None = None
    digests: frozenset[str] | None = None
    signers: tuple[bytes, ...] | None = None

    def check_plan(self, plan: Module, data: Any = None, signature: bytes | None = None) -> None:
        """Checks a plan when it arrives.

        Args:
            data: the site's data, which says of which columns a leaf is made; without it, leaves are columns.
            signature: of the plan's digest.
        Raises:
            Refusal: a rule is against the plan; the message names the line.
        """
        for refusal in self.refusals(plan, data, signature):
            raise refusal

    def refusals(self, plan: Module, data: Any = None, signature: bytes | None = None) -> Iterator[Refusal]:
        """The refusals of a plan, at most one for each line and rule."""
        checked = _Plan(plan)
        yield from self._check_origin(plan, signature)
        yield from self._check_operations(checked)
        yield from self._check_columns(checked, data)
        yield from self._check_values(checked)
        if self.aggregated:
            for d in dict.fromkeys([*disclosures(plan), *unsummed_values(plan)]):
                yield Refusal(
                    "aggregated", f"{_at(d.location)}{readable(d.tensor)} : {d.type} leaves outside of a secure sum"
                )
        if self.draws_seed:
            for value in noiseless_values(plan):
                yield Refusal(
                    "noise", f"{_at(value.location)}{readable(value.tensor)} : {value.type} leaves without noise"
                )
        yield from self._check_sizes(checked)

    def _check_origin(self, plan: Module, signature: bytes | None) -> Iterator[Refusal]:
        if self.digests is None and self.signers is None:
            return
        if self.digests is not None and plan.digest() in self.digests:
            return
        if self.signers is not None and signature is not None and is_signed(plan.digest(), signature, self.signers):
            return
        what = "is not signed by a key of the policy" if self.signers is not None else "is none that the policy lists"
        yield Refusal("plans", f"the plan {plan.digest()} {what}")

    def _check_operations(self, checked: "_Plan") -> Iterator[Refusal]:
        for location, names in checked.operations():
            wrong = names & self.without
            if self.operations is not None:
                wrong |= names - self.operations
            if wrong:
                yield Refusal("operations", f"{_at(location)}{', '.join(sorted(wrong))}")

    def _check_columns(self, checked: "_Plan", data: Any) -> Iterator[Refusal]:
        if self.columns is None:
            return
        for location, leaf in checked.read_leaves():
            names = (leaf,) if data is None else data.columns_of(leaf)
            wrong = [name for name in names if name not in self.columns]
            if wrong:
                yield Refusal("columns", f"{_at(location)}reads {', '.join(wrong)}")

    def _check_values(self, checked: "_Plan") -> Iterator[Refusal]:
        if not self.client_values and _has_client_values(checked.plan.main.result_type):
            yield Refusal("values", f"{_at(checked.line_of_result())}the result has values of single clients")

    def _check_sizes(self, checked: "_Plan") -> Iterator[Refusal]:
        for op, crossing in checked.merges():
            if crossing.bits is None and (self.aggregated or self.bits is not None):
                yield Refusal(
                    "sizes", f"{_at(op.location)}{readable(crossing.tensor)} : {crossing.type} has no fixed size"
                )
        for op, bits in checked.bits():
            if self.bits is not None and bits > self.bits:
                yield Refusal("bits", f"{_at(op.location)}a client sends {bits} bits; at most {self.bits} may leave")

    def check_run(self, plan: Module, stage: ClientStageOf, clients: int | None, log: SiteLog, *, masks: bool) -> None:
        """Checks a run before it begins.

        Args:
            masks: the site has joined the session of the run's secure sums.
            clients: number of clients of the sum, as the server says; under masks the protocol checks it.
        Raises:
            Refusal: a rule is against the run.
        """
        if stage.partial_type is not None and (clients or 0) < self.clients:
            raise Refusal("clients", f"{clients} clients are in the sum; it needs {self.clients}")
        if self.aggregated and stage.work.secure and not masks:
            raise Refusal("aggregated", "the server asks for a sum without masks")
        today = [*log.today()]
        if self.rounds_per_day is not None and len(today) >= self.rounds_per_day:
            raise Refusal("rounds_per_day", f"this day has had {len(today)} runs")
        if self.bits_per_day is not None:
            sent = sum(int(line.get("bits", 0)) for line in today)
            bits = dict((op.operands[1].name, b) for op, b in _Plan(plan).bits()).get(stage.work.operation, 0)
            if sent + bits > self.bits_per_day:
                raise Refusal("bits_per_day", f"{sent} bits have left this day, and {bits} more would")

    def count_bits(self, plan: Module, stage: ClientStageOf, result: SliceResult) -> int:
        """The bits that leave with a result."""
        static = dict((op.operands[1].name, b) for op, b in _Plan(plan).bits()).get(stage.work.operation, 0)
        return static + sum(int(bits.sum()) for bits in result.sent_bits.values())

    def check_sent(self, plan: Module, stage: ClientStageOf, result: SliceResult, bits: int, log: SiteLog) -> None:
        """Checks a result before it leaves.

        Raises:
            Refusal: a rule is against it.
        """
        if self.bits is not None and bits > self.bits:
            raise Refusal("bits", f"the client would send {bits} bits; at most {self.bits} may leave")

    def check_numbers(
        self,
        plan: Module,
        stage: ClientStageOf,
        numbers: Sequence[np.ndarray],
        others: Sequence[np.ndarray] | None,
        *,
        masked: bool,
    ) -> None:
        """Checks the numbers that would leave.

        Args:
            numbers: the tensors of `sent_leaves`, before they are masked.
            others: those of a run with another seed, where `noise_std` holds.
        Raises:
            Refusal: a rule is against them.
        """
        if self.clip is not None:
            norm = math.sqrt(sum(float(np.square(array.astype(np.float64)).sum()) for array in map(_numeric, numbers)))
            if not norm <= self.clip:
                at = _at(_Plan(plan).by_name[stage.work.operation].location)
                raise Refusal("clip", f"{at}the norm of what would leave exceeds {self.clip:g}")
        if self.noise_std is None or others is None:
            return
        for (label, line), array, other in zip(sent_leaves(plan, stage, masked=masked), numbers, others, strict=True):
            std = measured_std(array, other)
            if std is not None and std < self.noise_std:
                least = f"a standard deviation of {self.noise_std:g}"
                raise Refusal("noise_std", f"{_at(line)}{label} leaves with less noise than {least}")

    def sent_tensors(self, plan: Module, stage: ClientStageOf) -> list[str]:
        """The tensors that leave with a run of the stage, with their types."""
        merges = _Plan(plan).merges()
        return readable_list((c.tensor, c.type) for op, c in merges if op.operands[1].name == stage.work.operation)

    def seed(self, seed: int) -> int:
        """The seed of a run: the server's, or one that nobody else knows."""
        return int.from_bytes(os.urandom(8), "little", signed=True) if self.draws_seed else seed

    @property
    def draws_seed(self) -> bool:
        """Whether the site draws the seeds of runs."""
        return self.noise or self.noise_std is not None


def unsummed_values(plan: Module) -> Iterator[Disclosure]:
    """The values that depend on a client's data and are sent in stages without secure sums.

    Those of `disclosures` are in the partial. A stage may also send a value and then not use it.
    """
    flow = ClientDataFlow(plan)
    by_fold = {fold_of(op, flow.by_name).name: op for op in plan.main.operations if op.kind == "merge"}
    for fold, stage, tainted in flow.folds():
        if "secure" in by_fold[fold.name].attributes:  # it runs under masks, where the partial is sent
            continue
        for name, sent in sent_by(fold, stage, flow.types).items():
            for path, type_ in tensors_of(sent.type, tainted.get(name, NOTHING)):
                yield Disclosure(f"{sent.label}{_dotted(path)}", type_, accumulation_line(stage, name) or fold.location)


def sent_leaves(plan: Module, stage: ClientStageOf, *, masked: bool) -> list[tuple[str, Location | None]]:
    """The name and the line of each tensor that a run of a stage sends, in the order of its leaves.

    Under masks it sends its partial, else the values of `sent_by`.
    """
    fold, function = _Plan(plan).by_name[stage.work.operation], plan.function(stage.work.stage)
    if masked:
        assert stage.partial_type is not None
        return [(f"partial{_dotted(path)}", fold.location) for path, _ in leaves(stage.partial_type)]
    return [
        (f"{sent.label}{_dotted(path)}", accumulation_line(function, name) or fold.location)
        for name, sent in sent_by(fold, function, plan.main.types()).items()
        for path, _ in leaves(sent.type)
    ]


def measured_std(array: np.ndarray, other: np.ndarray) -> float | None:
    """The standard deviation of noise, of two runs: that of their difference, divided by the root of 2.

    It is raised by three times its own standard error, so that noise of just the bound is refused once in a thousand
    runs. A tensor of few numbers says little: less than 5 count as noisy enough if they differ.

    Returns:
        None for a tensor without numbers.
    """
    array, other = _numeric(array), _numeric(other)
    if not array.size or array.shape != other.shape:  # other sizes: codes, which two runs cut differently
        return None
    difference = array.astype(np.float64) - other.astype(np.float64)
    std = math.sqrt(float(np.square(difference).mean()) / 2)
    room = 1 - 3 / math.sqrt(2 * array.size)
    return std / room if room > 0 else (math.inf if std else 0.0)


def _numeric(array: np.ndarray) -> np.ndarray:
    """The array, or no numbers in place of texts."""
    return array if array.dtype.kind in "biuf" else np.zeros(0)


def _dotted(path: str) -> str:
    return f".{path}" if path and path[0] != "[" else path


def _at(location: Location | None) -> str:
    return "" if location is None else f"{location}: "


class _Plan:
    """A plan, as rules look at it."""

    def __init__(self, plan: Module) -> None:
        self.plan = plan
        self.by_name = {op.name: op for op in plan.main.operations}
        self.types = plan.main.types()
        self.live = Liveness(plan)
        self.folds = [op for op in plan.main.operations if op.kind in ("fold", "collect")]

    def stage(self, op: Operation) -> Function:
        """The client stage of a fold or a collect."""
        return self.plan.function(op.operands[0 if op.kind == "collect" else 1].name)

    def operations(self) -> Iterator[tuple[Location | None, set[str]]]:
        """The TensorFlow operations of client stages, with the line that calls them."""
        graphs = {g.name: g for g in self.plan.graphs}
        functions = {f.name: f for f in self.plan.functions}
        todo, visited = [(self.stage(op), op.location) for op in self.folds], set[str]()
        while todo:
            function, line = todo.pop(0)
            for op in function.operations:
                at = op.location or line
                for symbol in (o.name for o in op.operands if not isinstance(o, Ref)):
                    if symbol in visited:
                        continue
                    visited.add(symbol)
                    if symbol in graphs:
                        digest = graphs[symbol].digest
                        yield at, set(operations_of(digest, self.plan.blob(digest)))
                    elif symbol in functions:
                        todo.append((functions[symbol], at))

    def read_leaves(self) -> Iterator[tuple[Location | None, str]]:
        """The leaves of clients' arguments that client stages use, by their names in an element."""
        for op in self.folds:
            stage = self.stage(op)
            operands = [o for o in op.operands if isinstance(o, Ref)]
            first = len(stage.parameters) - len(operands)
            live = self.live.of(stage, everything(stage.result_type))
            for operand, parameter in zip(operands, stage.parameters[first:], strict=True):
                if not _is_argument(operand, self.by_name, self.plan, self.types):
                    continue
                used = live.get(parameter.name, NOTHING)
                for name in self._leaf_names(stage, parameter, used):
                    yield _line_of_use(stage, parameter.name) or op.location, name

    def _leaf_names(self, stage: Function, parameter: Parameter, used: Leaves) -> Iterator[str]:
        """The names of a client value's leaves that are used; a sequence's leaves are those of its elements."""
        whole = [i for i, leaf in enumerate(flat(parameter.type)) if not isinstance(leaf, StructType)]
        for i, (path, leaf) in zip(whole, leaves(parameter.type), strict=True):
            if i not in used:
                continue
            if isinstance(leaf, SequenceType):
                read = self._element_reads(stage, parameter)
                solid = [j for j, part in enumerate(flat(leaf.element)) if not isinstance(part, StructType)]
                names = zip(solid, leaves(leaf.element), strict=True)
                yield from (name for j, (name, _) in names if read is None or j in read)
            else:
                yield path

    def _element_reads(self, stage: Function, parameter: Parameter) -> Leaves | None:
        """The leaves of a sequence's elements that the stage uses; None for all, also where that is not known."""
        read: Leaves = NOTHING
        for op in stage.operations:
            if not any(isinstance(o, Ref) and o.name == parameter.name for o in op.operands):
                continue
            symbols = [o.name for o in op.operands if isinstance(o, Symbol)]
            if op.kind not in ("sequence_reduce", "sequence_map") or len(symbols) != 1:
                return None
            read |= self.live.argument_reads(symbols[0])[-1]
        return read

    def merges(self) -> Iterator[tuple[Operation, Any]]:
        """The values that clients send, each with the merge that adds it."""
        for crossing in crossings(self.plan):
            if crossing.kind == "merge":
                yield self.by_name[crossing.op], crossing

    def bits(self) -> Iterator[tuple[Operation, int]]:
        """The bits of a client in each merge, as far as types fix them."""
        total: dict[str, int] = {}
        for op, crossing in self.merges():
            total[op.name] = total.get(op.name, 0) + (crossing.bits or 0)
        for name, bits in total.items():
            yield self.by_name[name], bits

    def line_of_result(self) -> Location | None:
        """The line that makes the client value of the result."""
        keeping = (op for op in reversed(self.folds) if op.kind == "collect" or op.attributes.get("keeps"))
        return next((op.location for op in keeping), None)


def _is_argument(operand: Ref, by_name: Mapping[str, Operation], plan: Module, types: Mapping[str, Type]) -> bool:
    """Whether an operand of a client stage is a client value that the caller gives."""
    type_ = types[operand.name]
    if not isinstance(type_, FederatedType) or type_.all_equal:
        return False
    name = operand.name
    while name in by_name and by_name[name].kind in ("item", "struct"):
        name = next((o.name for o in by_name[name].operands if isinstance(o, Ref)), name)
    return name in {p.name for p in plan.main.parameters}


def _line_of_use(stage: Function, name: str) -> Location | None:
    users = (op for op in stage.operations if any(isinstance(o, Ref) and o.name == name for o in op.operands))
    return next((op.location for op in users if op.location), None)


def _has_client_values(type_: Type) -> bool:
    if isinstance(type_, FederatedType):
        return type_.placement.name == "CLIENTS" and not type_.all_equal
    return isinstance(type_, StructType) and any(map(_has_client_values, type_.types))


def is_signed(digest: str, signature: bytes, keys: tuple[bytes, ...]) -> bool:
    """Whether one of the keys has signed a plan's digest."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    for key in keys:
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, SIGNED_PREFIX + digest.encode())
        except InvalidSignature:
            continue
        return True
    return False


SIGNED_PREFIX = b"fedcore plan "
"""Precedes the digest in what is signed, so that a signature means nothing elsewhere."""


def read_policy(file: Path) -> Policy:
    """The policy of a TOML file, whose keys are the arguments of `Policy`.

    Raises:
        FedcoreError: the file cannot be read, or a key or a value is none of a policy.
    """
    try:
        table = tomllib.loads(file.read_text())
    except OSError as error:
        raise FedcoreError(f"cannot read {file}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"{file} is no TOML: {error}") from None
    fields = attrs.fields_dict(Policy)
    for key in table:
        if key not in fields:
            raise InvalidValue(f"{file}: there is no rule {key!r}; there are {', '.join(fields)}")
    return Policy(**{key: _parse_setting(file, key, value) for key, value in table.items()})


def _parse_setting(file: Path, key: str, value: Any) -> Any:
    if key in ("aggregated", "client_values", "noise"):
        is_right, wants = isinstance(value, bool), "true or false"
    elif key in ("noise_std", "clip"):
        is_right = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        wants = "a number above 0"
    elif key in ("clients", "bits", "bits_per_day", "rounds_per_day"):
        is_right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        wants = "a whole number, 0 or more"
    else:
        is_right, wants = isinstance(value, list) and all(isinstance(v, str) for v in value), "a list of texts"
    if not is_right:
        raise InvalidValue(f"{file}: {key} is {wants}, not {brief(value)}")
    if key == "signers":
        return tuple(public_key(file.parent / name) for name in value)
    return frozenset(value) if isinstance(value, list) else value


def public_key(file: Path) -> bytes:
    """The raw bytes of an Ed25519 public key in a PEM file.

    Raises:
        FedcoreError: it is none.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(file.read_bytes())
    except (OSError, ValueError) as error:
        raise FedcoreError(f"{file} is no public key in PEM: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise FedcoreError(f"{file} is no Ed25519 key")
    return key.public_bytes_raw()
