"""A step of a client's pipeline, which `tf.data` calls a transformation."""

import attrs
import numpy as np

from fedcore.errors import FedcoreError
from fedcore.graphs.capture.graph_capture import TracedGraph

INFINITE = -1
"""The count of `repeat()` without a number. Only a later `take` ends such a sequence."""


@attrs.frozen
class Step:
    """One step over a sequence.

    Args:
        kind: map, filter, repeat, shuffle, take, skip, batch, cache or prefetch.
        number: count of a repeat, take or skip; size of a batch; buffer size of a shuffle, 0 for the whole dataset.
        drop_remainder: of a batch.
        reshuffles: of a shuffle: every repetition has a new order.
        seeds: of a shuffle: TensorFlow's two seeds for the user's one; None if the call's seed decides.
        graph: of a map.
        mask: of a filter: for each row of the columns whether the predicate holds.
    """

    kind: str
    number: int = 0
    drop_remainder: bool = False
    reshuffles: bool = True
    seeds: tuple[int, int] | None = None
    graph: TracedGraph | None = None
    mask: np.ndarray | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def draws(self) -> bool:
        """Whether it is a map that draws random numbers."""
        return self.graph is not None and self.kind == "map" and self.graph.seeded

    @property
    def fixes_order(self) -> bool:
        """Whether it is a shuffle with one order for all iterations, which no seed decides."""
        return self.kind == "shuffle" and self.seeds is None and not self.reshuffles

    @property
    def traced(self) -> TracedGraph:
        """The graph of a `map`."""
        if self.graph is None:
            raise FedcoreError(f"the step {self.kind} has no graph")
        return self.graph
