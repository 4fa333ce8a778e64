"""Batching rules, one file for each family of operations; importing the package registers them."""

from fedcore.graphs.batched.batching_rules import (
    arrays,
    control_flow,
    convolutions,
    elementwise,
    gathers,
    low_rank,
    matmul,
    randomness,
    reductions,
    shapes,
    tensor_lists,
)
