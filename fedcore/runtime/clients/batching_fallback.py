"""Fallback of a vectorised stage: blocks that have no batched graph, or much padding, run client by client.

Decisions 0050, 0210, 0266, 0267 and 0288.
"""

import itertools

import tensorflow as tf

from fedcore.graphs.batched.batched_value import NoBatchingRule
from fedcore.graphs.batched.schedule import pads_too_much
from fedcore.graphs.sequences.streams import is_large
from fedcore.runtime.client_work import ClientSlice, ClientWork, SliceResult
from fedcore.runtime.clients.memory import Merge, Run, in_halves
from fedcore.runtime.reports.report import Report


class BatchingFallback:
    """Runs slices vectorised where possible, else client by client.

    Guarantees:
      - A block runs client by client if its clients' layouts differ, if one has more than `HELD_BYTES` of data, if its
        batches, whose sizes the data decide, would be padded too much, or if the vectorised run raises NoBatchingRule.
      - An error is that of a client alone: a block whose vectorised run fails by its values runs client by client.
      - Bits do not depend on the other blocks of a slice: one with such a block runs in halves, down to its blocks.
      - A stage tries layouts without batching rules once; a note in the report has the reason.
      - `client_by_client` is given single blocks.
    """

    def __init__(self, work: ClientWork, vectorised: Run, client_by_client: Run, merge: Merge, report: Report) -> None:
        self._work = work
        self._vectorised = vectorised
        self._client_by_client = client_by_client
        self._merge = merge
        self._report = report

    def __call__(self, clients: ClientSlice) -> SliceResult:
        with self._report.span("compare", self._work.stage, clients=[clients.present[0], clients.present[-1]]):
            layouts = clients.common_layouts
            lacks_rules = layouts is None or layouts in self._work.without_rules
            differ = lacks_rules or self._are_large(clients) or self._are_padded_too_much(clients)
        if differ and clients.places > self._work.block:
            return in_halves(clients, self._work.block, self, self._merge)
        if layouts is None or differ:
            return self._client_by_client(clients)
        try:
            return self._vectorised(clients)
        except tf.errors.InvalidArgumentError as error:  # its message has padded sizes, and row numbers of all clients
            if clients.places > self._work.block:
                return in_halves(clients, self._work.block, self, self._merge)
            result = self._client_by_client(clients)
            kind = type(error).__name__  # the message may quote a client's value, which masks may hide
            self._report.note(f"@{self._work.stage} ran client by client: its clients together raised {kind}")
            return result
        except NoBatchingRule as error:
            self._work.without_rules.add(layouts)
            self._report.note(f"@{self._work.stage} runs client by client: {error}")
            return self(clients)

    def _are_large(self, clients: ClientSlice) -> bool:
        """Whether the data of a client are not packed, since a group has other lanes with as many rows."""
        return self._work.is_vectorised and any(map(is_large, itertools.chain.from_iterable(clients.leaves.each)))

    def _are_padded_too_much(self, clients: ClientSlice) -> bool:
        """Whether a block of a slice is; or whether the longest batch of another would decide its rows."""
        work = self._work
        if not work.is_vectorised or not clients.leaves.has_ragged_batches:
            return False
        blocks = clients.parts(work.block, work.block)
        if len(blocks) > 1 and work.schedule_rules.products:
            longest = {block.leaves.longest_batches for block in blocks}
            if len(longest) > 1 or None in longest:
                return True
        return any(pads_too_much(block.leaves, work.schedule_rules) for block in blocks)
