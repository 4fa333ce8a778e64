"""The size of a stage's graph calls, so that all calls in flight fit into a memory budget.

In:  a client stage, the clients of a slice, and the bytes that client stages may take. Out: a `CallSize`.

Groups get narrower, loops compute fewer clients at once, slices are cut, and then fewer calls run at once. None of
these decides bits: groups have at least two lanes, slices are cut into whole blocks, and blocks that do not fit run one
client after another.
"""

import itertools
from collections.abc import Iterator, Sequence

import attrs

from fedcore.errors import ExecutionError
from fedcore.graphs.batched.client_contribution import PARALLEL_GROUPS, PARALLEL_GROUPS_OF_LOOPS
from fedcore.graphs.batched.client_needs import ClientNeeds, client_needs, factor_rows
from fedcore.graphs.batched.low_rank_policy import ONE_STEP
from fedcore.graphs.batched.schedule import LEAST_WIDTH, quantity
from fedcore.graphs.graphdef.form.operations import has_loops
from fedcore.runtime.client_slice import ClientSlice
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.devices.machine_memory import memory_limit_bytes
from fedcore.runtime.reports.report import StageMemory, bytes_text

DEFAULT_SHARE = 3 / 4
"""The part of the process's memory that client stages may take if the user gives no budget."""

DATA_COPIES = 2
"""Copies of the clients' data in a call: packed rows, and the rows of a step."""

KEPT_COPIES = 2
"""Copies of the values that a call keeps of its clients: by group or iteration, and stacked in the clients' order."""


@attrs.frozen
class MemoryBudget:
    """Bytes that the client stages of a device may take at once.

    Args:
        size_bytes: bytes of broadcasts, partials, clients' data and their computation.
        is_asked: the user asks for the budget, so a client that does not fit by itself is an error.
    """

    size_bytes: int
    is_asked: bool = False


def memory_budget(asked_bytes: int | None, devices: Sequence[str], part: float = 1.0) -> MemoryBudget | None:
    """The budget of each device; None where there is no limit: by default on GPUs, whose memory is not known.

    Args:
        asked_bytes: bytes that the user asks for, for all devices together; None for the default.
        devices: names of the devices that run client stages.
        part: the part of this machine that this process has, where other processes run client stages beside it. It
            counts for the default only.
    """
    count = len(set(devices))
    if asked_bytes is not None:
        return MemoryBudget(asked_bytes // count, is_asked=True)
    if any("GPU" in name for name in devices):
        return None
    return MemoryBudget(int(DEFAULT_SHARE * part * memory_limit_bytes()) // count)


@attrs.frozen
class CallSize:
    """The size of a graph call.

    Args:
        places: clients of the call.
        lanes: clients of a group; of a loop, the clients that it computes at once.
        size_bytes: bytes that the call holds.
        calls: number of such calls that may run at once.
        is_narrow: whether there are fewer `lanes` than planned.
    """

    places: int
    lanes: int
    size_bytes: int
    calls: int
    is_narrow: bool = False


class OverBudget(ExecutionError):
    """The memory budget that the user asks for has no room for one client."""


class StageSizes:
    """The sizes of one stage's calls on one device.

    Args:
        budget: budget of the device.
        workers: calls in flight on the device, as far as the budget allows them.
    """

    def __init__(self, work: ClientWork, budget: MemoryBudget, workers: int) -> None:
        self._work = work
        self._budget = budget
        self._workers = workers
        self._cut_places = 0  # places of the largest slice that the budget has cut
        # Number of groups that one call computes at once.
        self._groups = PARALLEL_GROUPS_OF_LOOPS if has_loops(work.module) else PARALLEL_GROUPS

    def call_size(self, clients: ClientSlice) -> CallSize | None:
        """The quickest calls of a slice's clients that fit; None if a call of one block does not fit."""
        needs, shared_bytes = self._needs(clients)
        candidates = list(self._candidates(clients))
        _, _, planned_lanes = candidates[0]
        for calls, places, lanes in candidates:
            call_bytes = self._size_bytes(needs, clients, places, lanes)
            if shared_bytes + calls * call_bytes <= self._budget.size_bytes:
                if places < clients.places:
                    self._cut_places = max(self._cut_places, clients.places)
                return CallSize(places, lanes, call_bytes, calls, is_narrow=lanes < planned_lanes)
        self._cut_places = max(self._cut_places, clients.places)
        return None

    def lone_call_size(self, clients: ClientSlice) -> CallSize:
        """The size of a call that adds one client to a partial.

        Raises:
            OverBudget: the user's budget has no room for the call.
        """
        needs, shared = self._needs(clients)
        lanes = LEAST_WIDTH if self._work.is_vectorised else 1
        data = DATA_COPIES * clients.leaves.size_bytes // len(clients.present)
        # Two partials: the operand and the result.
        size = lanes * needs.client + needs.contribution + needs.kept + 2 * needs.partial + data
        if self._budget.is_asked and shared + size > self._budget.size_bytes:
            raise OverBudget(
                f"@{self._work.stage} needs {bytes_text(shared + size)} if clients run one after another, and "
                f"memory_bytes allows {bytes_text(self._budget.size_bytes)}: {bytes_text(shared)} for broadcasts and "
                f"partial sums, {bytes_text(size)} for client {clients.present[0]} in batches of "
                f"{quantity(clients.leaves.batch_rows, 'row')}; give the runtime memory_bytes={shared + size}, or "
                "clients smaller batches"
            )
        return CallSize(1, lanes, size, 1)

    def stage_memory(self, clients: ClientSlice, size: CallSize) -> StageMemory:
        """The report's facts of a call."""
        needs, shared = self._needs(clients)
        reductions = self._reductions(clients, size)
        return StageMemory(
            budget_bytes=self._budget.size_bytes,
            needed_bytes=shared + size.calls * size.size_bytes,
            shared_bytes=shared,
            client_bytes=needs.client,
            clients_of_call=size.places,
            clients_at_once=size.lanes,
            calls_at_once=size.calls,
            why=reductions or str(self._work.plan.get("why", "")) or "the plan's width",
            is_limited=bool(reductions),
        )

    def _reductions(self, clients: ClientSlice, size: CallSize) -> str:
        """A text of how the budget made calls smaller; empty if it did not."""
        if size.places == 1 and self.call_size(clients) is not None:
            return ""  # no graph computes the clients together
        calls, _, lanes = next(self._candidates(clients))
        kind = "groups" if self._work.is_vectorised else "loops"
        numbers = [  # text, number, planned number
            (f"{kind} of {quantity(size.lanes, 'client')}", size.lanes, lanes),
            (f"calls of {quantity(size.places, 'client')}", size.places, self._cut_places),
            (f"{quantity(size.calls, 'call')} at once", size.calls, calls),
        ]
        reduced = [f"{text} in the place of {planned}" for text, number, planned in numbers if number < planned]
        return f"{', '.join(reduced)}, to fit into {bytes_text(self._budget.size_bytes)}" if reduced else ""

    def _candidates(self, clients: ClientSlice) -> Iterator[tuple[int, int, int]]:
        """(calls at once, clients of a call, lanes) of the possible calls, the planned size first, slower ones later.

        Lanes are reduced first, then the clients of a call, and last the calls at once.
        """
        work, leaves = self._work, clients.leaves
        most_lanes, least_lanes = (work.parallel if work.block > 1 else 1), 1
        if work.is_vectorised:
            takes_one_step = work.low_rank == ONE_STEP and leaves.most_steps == 1
            rules = work.schedule_rules
            most_lanes, least_lanes = (rules.one_step_width if takes_one_step else 0) or rules.width, LEAST_WIDTH
        slices = 1 if work.clients is None else -(-work.clients // clients.places)
        calls = _halves(self._workers if work.clients is None else min(self._workers, slices), 1)
        return itertools.product(calls, _halves(clients.places, work.block), _halves(most_lanes, least_lanes))

    def _needs(self, clients: ClientSlice) -> tuple[ClientNeeds, int]:
        """(bytes that a client needs, bytes of broadcasts and partials that all calls share)."""
        work, leaves = self._work, clients.leaves
        rows = 1 << (leaves.batch_rows - 1).bit_length()  # powers of two, so that few sizes are analysed
        steps = 1 << (leaves.most_steps - 1).bit_length() if work.table_rows and leaves.most_steps else 1
        factors = factor_rows(work.low_rank, leaves.batch_rows, leaves.most_steps)
        needs = client_needs(work.client_stage, rows, factors, steps)
        slices = 1 if work.clients is None else -(-work.clients // clients.places)
        return needs, needs.shared + needs.partial * slices.bit_length()  # a partial waits at each height of the tree

    def _size_bytes(self, needs: ClientNeeds, clients: ClientSlice, places: int, lanes: int) -> int:
        """Bytes that a call of `places` clients of the slice holds; places, lanes: as of `CallSize`."""
        work, count = self._work, min(places, len(clients.present))
        data = DATA_COPIES * clients.leaves.size_bytes * count // len(clients.present)
        kept_values = KEPT_COPIES * count * needs.kept
        if not work.is_vectorised:
            stores_contributions = work.low_rank or work.table_rows  # other loops add each client to a partial at once
            stored = count * needs.contribution if stores_contributions else 0
            return data + min(lanes, count) * needs.client + stored + kept_values + 2 * needs.partial
        groups, blocks = -(-count // lanes), -(-count // work.block)
        computed = min(groups, self._groups) * lanes * needs.client
        return data + computed + count * needs.contribution + kept_values + (blocks + 1) * needs.partial


def _halves(most: int, least: int) -> list[int]:
    """`most`, its half, a quarter, … down to `least`."""
    numbers = [most]
    while numbers[-1] >= 2 * least:
        numbers.append(numbers[-1] // 2)
    return numbers
