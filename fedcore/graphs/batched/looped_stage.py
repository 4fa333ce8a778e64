"""A client stage whose clients are computed one by one, several at once, with the kernels of large layers low-rank.

In:  broadcasts, then the seed of each client, the lane of each client of a call, and the tensors of `pack_for_loop`.
Out: see `stage_fold`.

Example: a block of 4 clients that train a convolutional network. `LowRankLoop` trains each of them over its own
batches, of any number of rows, and the change of the kernel [3136, 512] of a dense layer stays two factors. The block's
sum is one product of the factors of all clients, so that no change is made.
"""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

import tensorflow as tf

from fedcore.graphs.batched.batched_value import shared
from fedcore.graphs.batched.client_contribution import Factors
from fedcore.graphs.batched.low_rank_loop import LowRankLoop, LowRankSteps
from fedcore.graphs.batched.stage_fold import Group, StageFold, or_factors
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.stages.loop_in_graph import loop_specs, of_client
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import unflatten
from fedcore.ir.module import Module
from fedcore.types import leaves


class LoopedFold(StageFold):
    """The parts of a looped stage.

    Args:
        layouts: for each leaf of a client's arguments the layout of its sequence; None for a tensor.
        steps: of all clients of the block. If one exceeds the limit, its change is no product of factors, and those of
            all clients of the block are added.
        parallel: clients that are computed at once.
    """

    def __init__(
        self,
        module: Module,
        zero: str,
        stage: str,
        join: str,
        broadcasts: int,
        layouts: SequenceOf[Layout | None],
        steps: LowRankSteps,
        measured: SequenceOf[str],
        *,
        parallel: int,
    ):
        super().__init__(module, zero, stage, join, broadcasts, 1, measured, joined=not steps.exceeds)
        self._layouts = layouts
        self._loop = LowRankLoop(module, steps)
        self.parallel = parallel

    @property
    def client_specs(self) -> list[tf.TensorSpec]:
        of_leaves = loop_specs([p.type for p in self.client_parameters], self._layouts)
        return [*(tf.TensorSpec([None], tf.int64) for _ in range(2)), *(s for of_leaf in of_leaves for s in of_leaf)]

    @property
    def has_factors(self) -> bool:
        return self._joined

    def groups(self, tensors: list) -> tuple[list[tuple[Group, tf.Tensor]], tf.Tensor]:
        seeds, lane_of = tensors.pop(0), tensors.pop(0)
        types = [p.type for p in self.client_parameters]
        of_leaves = [[tensors.pop(0) for _ in of_leaf] for of_leaf in loop_specs(types, self._layouts)]

        def group(first_lane: tf.Tensor, in_factors: Mapping[int, int]) -> list[tf.Tensor | Factors]:
            values = [of_client(first_lane, *pair) for pair in zip(self._layouts, of_leaves, strict=True)]
            wrapped = [v if layout else shared(v) for v, layout in zip(values, self._layouts, strict=True)]
            scope = dict(self.invariant)
            for parameter in self.client_parameters:
                scope[parameter.name] = unflatten([wrapped.pop(0) for _ in leaves(parameter.type)], parameter.type)
            self._loop.operations(self.client_operations, scope, dict(self.types), tensor_seed(seeds[first_lane]))
            found = enumerate(self.contribution(scope))
            return [*(or_factors(v, 1, may_be_factors=i in in_factors) for i, v in found), *self.sizes_of(scope)]

        return [(group, tf.size(seeds, tf.int64))], lane_of
