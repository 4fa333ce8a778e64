"""A client stage with groups of one client each, several at once, that keeps the kernels of large layers low-rank.

In:  broadcasts, then the seed of each client, the lane of each client of a call, and the tensors of `pack_for_loop`.
Out: see `stage_fold`.

Example: a block of 4 clients that train a convolutional network. Each of them trains in its lane over its own batches,
of any number of rows, and the change of the kernel [3136, 512] of a dense layer stays two factors. The block's
sum is one product of the factors of all clients, so that no change is made.

Decision 0179.
"""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

import tensorflow as tf

from fedcore.graphs.batched.batched_interpreter import BatchedInterpreter
from fedcore.graphs.batched.client_contribution import Factors
from fedcore.graphs.batched.client_lane import LowRankSteps, as_tensors, as_values, call_graph
from fedcore.graphs.batched.stage_fold import Group, StageFold
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.stages.client_loop import client_arguments, client_specs
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.tensors.tensor_seeds import tensor_seed


class LoopedFold(StageFold):
    """The parts of a stage whose groups are single clients.

    Args:
        layouts: for each leaf of a client's arguments the layout of its sequence; None for a tensor.
        steps: of all clients of the block. If one exceeds the low-rank steps, its change is no product of factors,
            and the changes of all clients of the block are added.
        parallel: clients that are computed at once.
    """

    def __init__(
        self, stage: ClientStage, layouts: SequenceOf[Layout | None], steps: LowRankSteps, *, parallel: int
    ) -> None:
        super().__init__(stage, 1, joined=not steps.exceeds)
        self._layouts = layouts
        self._lane = BatchedInterpreter(stage.module, steps.layout, xla=False, is_lane=True)
        self.parallel = parallel

    @property
    def client_specs(self) -> list[tf.TensorSpec]:
        """Specs of the seeds, of the lane of each client, and of the tensors of `pack_for_loop`."""
        numbers = [tf.TensorSpec([None], tf.int64) for _ in ("seeds", "lane_of")]
        return [*numbers, *(s for leaf in client_specs(self.stage, self._layouts) for s in leaf)]

    @property
    def has_factors(self) -> bool:
        return self._joined

    def groups(self, tensors: list) -> tuple[list[tuple[Group, Value]], Value]:
        """One function that trains the client of a lane; see `StageFold.groups`.

        It is called for each client of the call, since a group has one lane.
        """
        seeds, lane_of = tensors.pop(0), tensors.pop(0)
        leaf_tensors = [[tensors.pop(0) for _ in leaf] for leaf in client_specs(self.stage, self._layouts)]
        names = [p.name for p in self.stage.client_parameters]

        def group(first_lane: Value, factored_leaves: Mapping[int, int]) -> list[Value | Factors]:
            """The work of the client in a lane: its contribution (tensors [1, …], or factors where a matrix may stay
            so), then its `own_leaves`, then the sizes of its messages in bits.

            Args:
                first_lane: int64, the lane.
                factored_leaves: as in `Group`.
            """
            arguments = client_arguments(self.stage, self._layouts, leaf_tensors, first_lane, call_graph)
            scope = {**self.invariant, **dict(zip(names, map(as_values, arguments), strict=True))}
            self._lane.operations(self.client_operations, scope, dict(self.types), tensor_seed(seeds[first_lane]))
            bits = self.stage.bits({name: as_tensors(scope[name]) for name in self.stage.measured}, self.types)
            sizes = [ops.stack(bits)[None]] if bits else []
            return [*self.contribution(scope, factored_leaves), *self.own_leaves(scope), *sizes]

        return [(group, ops.size(seeds, tf.int64))], lane_of
