"""Decides how a slice runs: its clients together where they can, else in smaller calls, else one by one.

One policy decides for all reasons: nested policies would run slices twice.

Decisions 0050, 0210 and 0266.
"""

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedcore.graphs.batched.batched_value import NoBatchingRule
from fedcore.graphs.batched.schedule import pads_too_much
from fedcore.graphs.sequences.streams import is_large
from fedcore.runtime.client_slice import ClientSlice, SliceResult
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.memory import DeviceMemory
from fedcore.runtime.reports.report import Report


class FittingSlices:
    """Runs slices in parts that fit into a device's memory, and in which no client fails because of the others.

    Guarantees:
      - A slice that does not fit is halved, down to one block. If a block does not fit, its clients run one by one.
        The bits are those of the whole slice. Later slices of the stage start with the size that fitted.
      - A slice that TensorFlow refuses for its values is halved too. Clients side by side take the branches and the
        steps of the others, with values for which their own program would not take them.
      - A block runs one by one without batching rules if its clients' layouts differ, if one has more than `HELD_BYTES`
        of data, if its batches, whose sizes the data decide, would be padded too much, if a rule is missing, or if its
        clients fail by their values side by side: an error is then that of a client alone.
      - Bits do not depend on the other blocks of a slice: a slice that has such a block runs in halves.
      - A stage tries layouts without batching rules once; a note in the report has the reason.

    Args:
        together: runs a slice in one graph call.
        one_by_one: runs a block by a graph call for each client, from the partial of the client before. Its keyword
            `batched` asks for the bits of the block together.
        merge: merges two partials.
        device: name of the device, for the report.
        fitting_places: of a slice, how many places a call may have for the memory budget; 0 if a block's clients run
            one by one.
    """

    def __init__(
        self,
        work: ClientWork,
        memory: DeviceMemory,
        together: Callable[[ClientSlice], SliceResult],
        one_by_one: Callable[..., SliceResult],
        merge: Callable[[Any, Any], Any],
        device: str,
        report: Report,
        fitting_places: Callable[[ClientSlice], int],
    ) -> None:
        self._work = work
        self._memory = memory
        self._together = together
        self._one_by_one = one_by_one
        self._merge = merge
        self._device = device
        self._report = report
        self._fitting_places = fitting_places
        self._has_rules = bool(work.is_vectorised or work.low_rank or work.table_rows)

    def __call__(self, clients: ClientSlice) -> SliceResult:
        """The result of a slice with at least one present client."""
        is_block = clients.places <= self._work.block
        batched = not self._has_rules or self._are_alike(clients)
        result = None  # stays None if the slice is to run in halves
        try:
            if batched:
                result = self._run_together(clients)
            if result is None and is_block:
                result = self._one_by_one(clients, batched=batched)
        except NoBatchingRule as error:
            assert clients.common_layouts is not None  # otherwise they are not alike
            self._work.without_rules.add(clients.common_layouts)
            self._report.note(f"@{self._work.stage} runs client by client: {error}")
            return self(clients)  # not batched now
        except tf.errors.InvalidArgumentError as error:  # its message has padded sizes, and row numbers of all clients
            if not self._has_rules or not batched:
                raise
            if is_block:
                result = self._one_by_one(clients, batched=False)
                kind = type(error).__name__  # the message may quote a client's value, which masks may hide
                self._report.note(f"@{self._work.stage} ran client by client: its clients together raised {kind}")
        if result is not None:
            return result
        halves = clients.parts(self._work.block, clients.places // 2)  # those without present clients are left out
        return clients.joined(halves, map(self, halves), self._merge)

    def _run_together(self, clients: ClientSlice) -> SliceResult | None:
        """The result of one graph call; None if the clients need smaller calls."""
        work = self._work
        if min(self._memory.clients(work.key, clients.places), self._fitting_places(clients)) < clients.places:
            return None
        try:
            return self._together(clients)
        except tf.errors.ResourceExhaustedError:
            if not self._memory.shrinks or (not work.is_vectorised and len(clients.present) == 1):
                raise
            half = clients.places // 2 if clients.places > work.block else 0  # 0: client by client
            self._memory.holds(work.key, half)
            self._report.note(
                f"{self._device} ran out of memory: @{work.stage} runs there in calls of {half or 1} "
                f"client{'s' * (half > 1)}"
            )
        except (tf.errors.InvalidArgumentError, tf.errors.CancelledError):
            # The call was not stopped: an operation that fails cancels the loops around it, and TensorFlow may name the
            # loop instead.
            if not work.is_vectorised or len(clients.present) == 1:
                raise
            self._report.note(f"@{work.stage}: clients failed side by side; they ran in smaller calls")
        return None

    def _are_alike(self, clients: ClientSlice) -> bool:
        """Whether batching rules can compute the clients of a slice together, as far as is known before they run."""
        work = self._work
        with self._report.span("compare", work.stage, clients=[clients.present[0], clients.present[-1]]):
            layouts = clients.common_layouts
            if layouts is None or layouts in work.without_rules:
                return False
            return not work.is_vectorised or not (self._holds_large(clients) or self._are_padded_too_much(clients))

    def _holds_large(self, clients: ClientSlice) -> bool:
        """Whether a client has too much data to be packed: each lane of its group would have room for as much."""
        return any(map(is_large, itertools.chain.from_iterable(clients.leaves.each)))

    def _are_padded_too_much(self, clients: ClientSlice) -> bool:
        """Whether a block of a slice is padded too much, or the longest batch of another block would decide its rows.

        Where the rows of products decide bits (`schedule_rules.products`), all blocks need one longest batch.
        """
        work = self._work
        if not clients.leaves.has_ragged_batches:
            return False
        blocks = clients.parts(work.block, work.block)
        if len(blocks) > 1 and work.schedule_rules.products:
            longest = {block.leaves.longest_batches for block in blocks}
            if len(longest) > 1 or None in longest:
                return True
        return any(pads_too_much(block.leaves, work.schedule_rules) for block in blocks)
