"""One step of a client's pipeline: what `tf.data` calls a transformation."""

from collections.abc import Hashable

import attrs
import numpy as np

from fedcore.errors import FedcoreError
from fedcore.graphs.capture.graph_capture import TracedGraph

INFINITE = -1
"""The count of `repeat()` without a number; only a `take` after it ends the sequence."""


@attrs.frozen
class Step:
    """One step over a sequence.

    Args:
        kind: map, filter, repeat, shuffle, take, skip, batch, cache or prefetch.
        number: how often, how many, or the size of a shuffle's buffer, 0 for all there is; none for a map.
        drop_remainder: of a batch.
        reshuffles: of a shuffle: a new order in every repetition.
        seeds: of a shuffle: the two that TensorFlow makes of the user's seed; None where the call's decides.
        token: of a step that fixes the order of shuffles without seeds: all sequences that have it have one order.
        graph: of a map.
        mask: of a filter: for each row of the columns whether it stays.
    """

    kind: str
    number: int = 0
    drop_remainder: bool = False
    reshuffles: bool = True
    seeds: tuple[int, int] | None = None
    token: Hashable | None = attrs.field(default=None, eq=False)
    graph: TracedGraph | None = attrs.field(default=None, eq=lambda g: g and g.digest)
    mask: np.ndarray | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def traced(self) -> TracedGraph:
        """The graph of a `map`."""
        if self.graph is None:
            raise FedcoreError(f"the step {self.kind} has no graph")
        return self.graph
