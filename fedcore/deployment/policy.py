"""A site's policy: what may run there, and what may leave. Nothing that a server sends can widen it.

A plan is checked once, when it arrives, by following its data flow; a run is checked against the budgets of the day;
and what would leave is checked before it does. Each rule has a name, which a refusal tells
(decision 0271).
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fedcore.compiler.client_data import ARGUMENT, NotFollowed
from fedcore.compiler.client_outputs import ClientOutput, ClientOutputs
from fedcore.deployment.client_stage_uses import leaves_read, operations_used
from fedcore.deployment.record_privacy import NoisyPasses, epsilon, mechanisms_of, passes_in
from fedcore.deployment.sent_numbers import joint_norm, measured_std
from fedcore.deployment.site_log import MAX_TEXTS, RunsToday, SiteLog
from fedcore.errors import FedcoreError, Location
from fedcore.intrinsics.secure_ranges import OPEN
from fedcore.intrinsics.sent_names import readable_list
from fedcore.intrinsics.sent_values import sent_bits
from fedcore.ir import Module
from fedcore.privacy.events import dp_accounting
from fedcore.runtime.client_slice import SliceResult
from fedcore.runtime.network.plan_runner import ClientStageOf
from fedcore.runtime.stopping import GRACE_S
from fedcore.types import FederatedType, StructType, TensorType, Type, leaves

RULES = {
    "policy": "the site's policy can be read",
    "plans": "the plan is listed by digest, or signed by a key of the policy",
    "ways": "each way from the data to the server can be followed",
    "operations": "client stages use operations that the policy allows",
    "columns": "client stages read columns that the policy allows",
    "values": "no value of a single client is a result",
    "aggregated": "all that leaves does so in sums, under masks",
    "noise": "what leaves depends on random numbers that the site draws",
    "noise_std": "what leaves differs enough between two runs with other random numbers",
    "clip": "the norm of what leaves is bounded",
    "clients": "a sum has enough clients",
    "sizes": "the size of what leaves, and of what stages keep, is fixed by its type, so that it tells nothing",
    "bits": "a client sends few enough bits in a run",
    "bits_per_day": "a client sends few enough bits in a day",
    "rounds_per_day": "there are few enough runs in a day",
    "failures_per_day": "few enough runs of a day have failed, since each tells whether a value makes the plan fail",
    "max_epsilon": "the privacy loss of the site's records, over all runs, has a bound",
}


_TIMED_WITH_VARIABLES = frozenset({"PrefetchDataset"})
TIMED = frozenset({"AccumulateNV2", "ParallelDynamicStitch"}) | _TIMED_WITH_VARIABLES
"""Operations of TensorFlow whose result time may decide, some of them in graphs with variables only. Decision 0329."""


class Refusal(FedcoreError):
    """The policy has a rule against a request.

    Args:
        rule: its name, one of `RULES`.
        why: the message.
    """

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(why)
        self.rule = rule

    def __reduce__(self) -> tuple[type["Refusal"], tuple[str, str]]:
        return Refusal, (self.rule, str(self))


@attrs.frozen
class Policy:
    """The rules of a site. A bound that is None is not checked.

    Args:
        aggregated: all that leaves does so in sums, under masks. Decision 0315.
        client_values: whether a plan may keep a client's value as a result; it stays at the site in any case.
        noise: what leaves has to depend on random numbers of the client's stage, and the site draws the run's seed, so
            that nobody else can compute them. That finds plans without noise; how much there is, a reader of the plan
            decides (see `signers`). With it the bits are no longer those of a local run. A set of names asks for noise
            in the values of these names only, such as `update`; others may leave in masked sums without. In a plan
            without such a value, all of more than one number have to have noise. The plan chooses the names, so that
            they mean something in plans that somebody has read.
        noise_std: least standard deviation of the numbers that leave. The site runs the client's stage twice, with
            seeds of its own, and measures it in each tensor (`measured_std`); with it, `noise` holds too. All
            randomness counts, also that of shuffles. Integers of masked sums are measured as they are.
        clip: largest Euclidean norm of the numbers that leave in a run, all tensors together. A refusal tells that
            this bound was exceeded, so a plan is to clip to it by itself.
        columns: those that may be read; None for all of the site's table.
        operations: those of TensorFlow that client stages may use; None for all that files from elsewhere may hold.
        without: operations of TensorFlow that client stages may not use.
        clients: least number of clients in a sum. Under masks, of clients whose values are of one kind (the data, or
            what one run has kept) and that are left when as many are lost as the threshold allows.
        bits: most bits that leave in a run.
        bits_per_day, rounds_per_day: most bits and runs of a day, in UTC. A run counts when it starts.
        tells_failures: whether the server learns that this site's run has failed, where `aggregated` holds. Else it
            learns that a site of the masked sum has, and the sum shows nothing. Decisions 0303 and 0317.
        failures_per_day: most runs of a day that the server has seen failing, where `aggregated` holds.
        reply_s: the reply to a run, whatever it is, leaves so many seconds after the run could start, so that its time
            tells nothing. A run that takes longer has failed. None for replies at once. Decision 0310.
        max_epsilon: largest epsilon of a record, over all runs in the log, by the noise that plans say
            (`build_dp_sgd`). Stages without such noise read no data. A run that would exceed it does not start. That
            the plan adds the noise, and that nothing else leaves, a reader of the plan decides: without `digests` or
            `signers` no plan reads data.
        delta: of `max_epsilon`, and of the epsilons in the log; below 1 over the number of records.
        digests: of plans that may run; None for all.
        signers: Ed25519 public keys (raw bytes), one of which must have signed the plan; None for none.
    """

    aggregated: bool = True
    client_values: bool = False
    noise: bool | frozenset[str] = False
    noise_std: float | None = None
    clip: float | None = None
    columns: frozenset[str] | None = None
    operations: frozenset[str] | None = None
    without: frozenset[str] = frozenset()
    clients: int = 2
    bits: int | None = None
    bits_per_day: int | None = None
    rounds_per_day: int | None = None
    tells_failures: bool = False
    failures_per_day: int | None = 4
    reply_s: float | None = None
    max_epsilon: float | None = None
    delta: float = 1e-5
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
        yield from self._check_origin(plan, signature)
        try:
            outputs = ClientOutputs.cached(plan)
        except NotFollowed as error:
            yield Refusal("ways", f"{_at(error.location)}{error}")
            return
        yield from self._check_operations(outputs)
        yield from self._check_columns(outputs, data)
        yield from self._check_client_values(outputs)
        yield from self._check_kept_sizes(outputs)
        yield from self._check_noise_for_records(outputs)
        for fold in outputs.folds:
            refusals = (r for masked in self._maskings(outputs, fold) for r in self._check_fold(outputs, fold, masked))
            yield from {(refusal.rule, str(refusal)): refusal for refusal in refusals}.values()  # equal ones once

    def _maskings(self, outputs: ClientOutputs, fold: str) -> list[bool]:
        """Whether a session of secure sums masks what leaves by a fold: all cases that the policy allows."""
        if not outputs.is_secure(fold):
            return [False]
        return [True] if self.aggregated else [True, False]

    def _check_fold(self, plan_outputs: ClientOutputs, fold: str, masked: bool) -> Iterator[Refusal]:
        """Refuses tensors that leave by a fold, and their size together."""
        outputs = plan_outputs.of(fold, masked=masked)
        for output in outputs:
            line = _at(output.location)
            if self.aggregated and not output.secure:
                yield Refusal("aggregated", f"{line}{output} leaves outside of a secure sum")
            lacks_noise = output.depends and not output.draws
            if self.draws_seed and lacks_noise and self._needs_noise(output, plan_outputs):
                yield Refusal("noise", f"{line}{output} leaves without noise")
            if output.bits is None and self._needs_fixed_size(output):
                yield Refusal("sizes", f"{line}{output} has no fixed size")
            if output.depends and not _has_numbers(output.type):
                if self.clip is not None:
                    yield Refusal("clip", f"{line}{output} leaves, which has no norm")
                if self.noise_std is not None:
                    yield Refusal("noise_std", f"{line}{output} leaves, whose noise is not measured")
        bits = sum(output.bits or 0 for output in outputs)
        if self.bits is not None and bits > self.bits:
            line = _at(plan_outputs.data.stages[fold].op.location)
            yield Refusal("bits", f"{line}a client sends {bits} bits; at most {self.bits} may leave")

    def _needs_fixed_size(self, output: ClientOutput) -> bool:
        """Whether the type of a value that leaves has to fix its size, since an open size could tell of the data."""
        bounds = (self.bits, self.clip, self.noise_std)
        return (
            self.aggregated
            or self.draws_seed
            or any(bound is not None for bound in bounds)
            or (self.bits_per_day is not None and not _is_code(output.type))  # the size of codes is counted
        )

    def _needs_noise(self, output: ClientOutput, outputs: ClientOutputs) -> bool:
        """Whether a tensor that leaves has to have noise, where the policy asks for noise.

        All have to; or, where `noise` is a set of names, those of these names and those that leave outside of masks.
        In a plan without a tensor of these names, each of more than one number has to.
        """
        if isinstance(self.noise, bool) or not output.secure:
            return True
        names = self.noise
        folds = ((fold, masked) for fold in outputs.folds for masked in self._maskings(outputs, fold))
        if any(_is_named(other, names) for fold, masked in folds for other in outputs.of(fold, masked=masked)):
            return _is_named(output, names)
        return not _is_single(output.type)

    def _check_origin(self, plan: Module, signature: bytes | None) -> Iterator[Refusal]:
        """Refuses a plan whose digest is neither listed nor signed; without `digests` and `signers` any may run."""
        if self.digests is None and self.signers is None:
            return
        if self.digests is not None and plan.digest() in self.digests:
            return
        if self.signers is not None and signature is not None and is_signed(plan.digest(), signature, self.signers):
            return
        what = "is not signed by a key of the policy" if self.signers is not None else "is none that the policy lists"
        yield Refusal("plans", f"the plan {plan.digest()} {what}")

    def _check_operations(self, outputs: ClientOutputs) -> Iterator[Refusal]:
        for location, names in operations_used(outputs):
            has_variables = "VarHandleOp" in names
            timed = names & (TIMED if has_variables else TIMED - _TIMED_WITH_VARIABLES)
            if timed:
                why = "which thread comes first may decide its result"
                yield Refusal("operations", f"{_at(location)}{', '.join(sorted(timed))}: {why}")
            wrong = names & self.without
            if self.operations is not None:
                wrong |= names - self.operations
            if wrong:
                yield Refusal("operations", f"{_at(location)}{', '.join(sorted(wrong))}")

    def _check_columns(self, outputs: ClientOutputs, data: Any) -> Iterator[Refusal]:
        if self.columns is None:
            return
        for location, leaf in leaves_read(outputs):
            names = (leaf,) if data is None else data.columns_of(leaf)
            wrong = [name for name in names if name not in self.columns]
            if wrong:
                yield Refusal("columns", f"{_at(location)}reads {', '.join(wrong)}")

    def _check_client_values(self, outputs: ClientOutputs) -> Iterator[Refusal]:
        if self.client_values or not _has_client_values(outputs.plan.main.result_type):
            return
        stage_ops = [flow.op for flow in outputs.data.stages.values()]
        keeping = (op for op in reversed(stage_ops) if op.kind == "collect" or op.attributes.get("keeps"))
        line = next((op.location for op in keeping), None)
        yield Refusal("values", f"{_at(line)}the result has values of single clients")

    def _check_kept_sizes(self, outputs: ClientOutputs) -> Iterator[Refusal]:
        """Refuses kept values whose type does not fix the size: room and time of later runs would tell it.
        Decision 0315.
        """
        for flow in outputs.data.stages.values() if self.aggregated else ():
            for _, leaf in [] if flow.kept_type is None else leaves(flow.kept_type):
                if sent_bits(leaf, OPEN) is None:
                    yield Refusal("sizes", f"{_at(flow.op.location)}a stage keeps {leaf}, which has no fixed size")

    def _check_noise_for_records(self, outputs: ClientOutputs) -> Iterator[Refusal]:
        """Refuses stages that read the site's data, and whose privacy loss cannot be bounded or counted."""
        for flow in outputs.data.stages.values():
            if all(source.kind != ARGUMENT for source in flow.sources):
                continue
            try:
                if not mechanisms_of(outputs.plan, flow.stage.name):
                    why = "" if self.max_epsilon is None else "reads the site's data without noise for its records"
                elif self.max_epsilon is not None and self.digests is None and self.signers is None:
                    why = (
                        "says its noise itself, which holds if somebody has read the plan\n"
                        f'  fix: digests = ["{outputs.plan.digest()}"] in the policy, or signers'
                    )
                else:
                    dp_accounting()  # a run counts its noise, also without a bound
                    continue
            except FedcoreError as error:
                why = str(error)
            if why:
                yield Refusal("max_epsilon", f"{_at(flow.op.location)}{why}")

    def count_epsilon(self, new: Sequence[NoisyPasses], log: SiteLog, facts: Mapping[str, Any]) -> None:
        """Counts a run's privacy loss before it begins, in the log.

        Args:
            new: the run's passes over the site's data with noisy gradients.
            facts: of the run, for the line of the log.
        Raises:
            Refusal: the epsilon of all runs would exceed `max_epsilon`.
        """
        if not new:
            return
        if len(new) > MAX_TEXTS:
            raise Refusal("max_epsilon", f"the plan says {len(new)} kinds of noise; at most {MAX_TEXTS} are counted")
        total = epsilon([*passes_in(log), *new], self.delta)
        if self.max_epsilon is not None and not total <= self.max_epsilon:
            bound = f"at most {self.max_epsilon:g} is allowed, at delta {self.delta:g}"
            raise Refusal("max_epsilon", f"with this run the epsilon of the site's records is {total:.4g}; {bound}")
        number = total if math.isfinite(total) else None
        log.write("spent", **facts, noise=[*map(str, new)], epsilon=number, delta=self.delta)

    def check_run(self, plan: Module, stage: ClientStageOf, clients: int | None, log: SiteLog, *, masks: bool) -> None:
        """Checks the number of clients of a sum, its masks, and the budgets of the day before a run begins.

        Args:
            clients: number of clients of the sum. Under masks it is `SiteSum.least_clients`, else the number that the
                server tells; None, if it tells none, counts as 0.
            log: it has the runs of the day.
            masks: the site has joined the session of the run's secure sums.
        Raises:
            Refusal: a rule is against the run.
        """
        if stage.partial_type is not None and (clients or 0) < self.clients:
            fix = " (fc.runtime.masked(threshold=…) sets how many may be lost)" if masks else ""
            raise Refusal("clients", f"{clients or 0} clients are in the sum; it needs {self.clients}{fix}")
        if self.aggregated and stage.work.secure and not masks:
            raise Refusal("aggregated", "the server asks for a sum without masks")
        runs = RunsToday(log)
        if self.rounds_per_day is not None and runs.count >= self.rounds_per_day:
            raise Refusal("rounds_per_day", f"this day has had {runs.count} runs")
        if self.aggregated and self.failures_per_day is not None and runs.failures >= self.failures_per_day:
            raise Refusal("failures_per_day", f"{runs.failures} runs of this day have failed; the log says why")
        bits = self.planned_bits(plan, stage, masked=masks)
        if self.bits_per_day is not None and runs.bits + bits > self.bits_per_day:
            raise Refusal("bits_per_day", f"{runs.bits} bits have left this day, and {bits} more would")

    def planned_bits(self, plan: Module, stage: ClientStageOf, *, masked: bool) -> int:
        """The bits that leave with a run at most, as far as types fix them."""
        return sum(o.bits or 0 for o in ClientOutputs.cached(plan).of(stage.work.operation, masked=masked))

    def count_bits(self, plan: Module, stage: ClientStageOf, result: SliceResult, *, masked: bool) -> int:
        """The bits that leave with a result: of values sent in rows or as codes the measured ones, else the planned."""
        if masked:
            return self.planned_bits(plan, stage, masked=True)
        outputs = ClientOutputs.cached(plan).of(stage.work.operation, masked=False)
        measured = sum(int(size) for sizes in result.sent_bits.values() for size in sizes)
        return sum(o.bits or 0 for o in outputs if not o.in_rows) + measured

    def check_sent(self, bits: int, log: SiteLog, planned_bits: int) -> None:
        """Checks the size of a result before it leaves.

        Args:
            planned_bits: of the run, which the log counts already.
        Raises:
            Refusal: it is too large.
        """
        if self.bits is not None and bits > self.bits:
            raise Refusal("bits", f"the client would send {bits} bits; at most {self.bits} may leave")
        if self.bits_per_day is not None and bits > planned_bits:  # it has codes, whose sizes no type fixes
            sent_bits = RunsToday(log).bits - planned_bits
            if sent_bits + bits > self.bits_per_day:
                raise Refusal("bits_per_day", f"{sent_bits} bits have left this day, and {bits} more would")

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
            numbers: the tensors that leave by the stage, before they are masked.
            others: those of a run with another seed, where `noise_std` holds.
        Raises:
            Refusal: a rule is against them.
        """
        plan_outputs = ClientOutputs.cached(plan)
        outputs = plan_outputs.of(stage.work.operation, masked=masked)
        if self.clip is not None and not joint_norm(numbers) <= self.clip:  # `not <=`: a norm of NaN is refused too
            line = plan_outputs.data.stages[stage.work.operation].op.location
            raise Refusal("clip", f"{_at(line)}the norm of what would leave exceeds {self.clip:g}")
        if self.noise_std is None or others is None:
            return
        for output, array, other in zip(outputs, numbers, others, strict=True):
            if not output.depends or not self._needs_noise(output, plan_outputs):
                continue
            std = measured_std(array, other)
            if std is not None and not std >= self.noise_std:  # also NaN
                least = f"a standard deviation of {self.noise_std:g}"
                raise Refusal("noise_std", f"{_at(output.location)}{output.name} leaves with less noise than {least}")

    def sent_tensors(self, plan: Module, stage: ClientStageOf, *, masked: bool) -> list[str]:
        """The tensors that leave with a run of the stage, with their types."""
        outputs = ClientOutputs.cached(plan).of(stage.work.operation, masked=masked)
        return readable_list((output.name, output.type) for output in outputs)

    def own_seed(self, plan: Module, stage: ClientStageOf, *, masked: bool) -> int | None:
        """A new seed of a run that nobody else knows; None if the run draws by the server's.

        Where values leave in masked sums only, the site draws it: random numbers may be noise against the server, and a
        server that chooses the seed could choose whose values a plan lets through, or which rows a shuffle puts first.
        So it does where the stage's noise protects records. Decision 0302.
        """
        protects_records = bool(mechanisms_of(plan, stage.work.stage))
        is_own = self.draws_seed or protects_records or masked or self.aggregated
        return int.from_bytes(os.urandom(8), "little", signed=True) if is_own else None

    @property
    def run_s(self) -> float:
        """Seconds after which a run is stopped, so that it has ended when its reply leaves."""
        return math.inf if self.reply_s is None else max(self.reply_s / 2, self.reply_s - 2 * GRACE_S)

    @property
    def hides_failures(self) -> bool:
        """Whether the server does not learn which site's run has failed."""
        return self.aggregated and not self.tells_failures

    @property
    def draws_seed(self) -> bool:
        """Whether the site draws the seeds of all runs."""
        return bool(self.noise) or self.noise_std is not None


def _has_numbers(type_: Type) -> bool:
    """Whether a tensor of the type has numbers of which a norm is computed; codes and texts have none."""
    return isinstance(type_, TensorType) and (type_.dtype.is_numeric or type_.dtype.name == "bool")


def _is_code(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.name == "code"


def _is_single(type_: Type) -> bool:
    """Whether tensors of the type have one element."""
    return isinstance(type_, TensorType) and type_.shape is not None and all(size == 1 for size in type_.shape)


def _is_named(output: ClientOutput, names: frozenset[str]) -> bool:
    """Whether a tensor is a value of one of the policy's names, or a part of one, such as `update/k` of `update`."""
    return any(
        tensor_name == name or (tensor_name.startswith(name) and tensor_name[len(name)] in ".[/ (")
        for tensor_name in output.names
        for name in names
    )


def _at(location: Location | None) -> str:
    """A line as the beginning of a message; nothing where it is not known."""
    return "" if location is None else f"{location}: "


def _has_client_values(type_: Type) -> bool:
    """Whether a result of the type has values of single clients, also in structs."""
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
