"""Batching rules, one file for each family of operations; importing the package registers them.

A rule computes one operation for K clients. `x.batched`: the tensor of x has a client axis in front, [K, …]; otherwise
all clients share it. `x.padded_axis`: the axis of one client's value that is the batch, or None; along it, each row of
the batch has `x.entries_per_row` entries, such as 2 after a reshape of rows of 2 (`batched_value`).
Batches are padded to one size; `x.padding` says what the padded rows hold: copies of real rows, zeros, or anything.
"""

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
