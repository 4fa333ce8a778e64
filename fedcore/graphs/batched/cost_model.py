"""Cost model of local training: groups of clients side by side, or a loop over clients; by shapes and the target.

Both strategies compute the same products. Per client and step, seconds of a core:

- products: `FLOPS_PER_BYTE` floating-point operations for each byte of the client's state;
- memory: a step passes `PASSES` times over the state. A group runs each operation for all of its clients before the
  next operation, so `width` states pass between two uses of one; in a loop, one state. The part of these bytes that
  exceeds the core's second-level cache comes from memory;
- calls: TensorFlow starts `OPERATIONS` operations; a group shares them.

Example: the state of a dense network has 0.61 MiB and groups have 4 clients. With 512 KiB of cache a group misses for
79 % of its bytes, a loop for 18 %. At 5 GB/s the loop takes two thirds of the group's time. With 2 MiB of cache a group
misses for 18 %, a loop for none, and the group is faster, as it starts fewer operations.

Decision 0245.
"""

from fedcore.ir.target import Target

PARALLEL = 4
"""Clients that a loop computes at once: one operation of each can wait for memory while others compute."""

WORTH_IT = 0.7
"""A loop replaces groups if its cost is at most this fraction of theirs; the model is coarse."""

LARGE_STATE_BYTES = 8 << 20
"""Bytes of a client's state from which a group gains nothing: its products fill a core, and its weights no cache."""

PASSES = 8  # read: forward, backward, twice for W - rG, once for rG; written: G, rG, W
ROWS = 32
FLOPS_PER_BYTE = 6 * ROWS / 4  # three products (two operations each) with `ROWS` rows, for each float32
OPERATIONS = 60  # of a step of a small network
OPERATION_S = 2e-6
LOOP_ITERATIONS = 10  # of a loop in a step

_FLOPS = {"avx512": 80e9, "avx2": 40e9, "neon": 40e9, "sse": 20e9}  # of a core, in products of 32 rows
_L2_BYTES = {"large": 2 << 20, "small": 512 << 10}
_BYTES_PER_S = {"fast": 20e9, "slow": 5e9}  # of a core, where its second-level cache misses


def step_cost_s(target: Target, state_bytes: int, width: int) -> float:
    """Seconds of a core for one client's step in a group of `width` clients; a loop over clients has width 1."""
    missing = max(0.0, 1 - _L2_BYTES[target.l2] / max(1, width * state_bytes))
    products = FLOPS_PER_BYTE * state_bytes / _FLOPS[target.isa]
    memory = PASSES * state_bytes * missing / _BYTES_PER_S[target.memory]
    return products + memory + OPERATIONS * OPERATION_S / width


def start_rows(target: Target, state_bytes: int, positions: int, *, has_loops: bool) -> float:
    """The rows of a batch that a step computes in the time in which it starts its operations.

    Args:
        positions: of a row, such as the tokens of a text: each is multiplied with the state.
        has_loops: as for `why_loop`.
    """
    row_s = FLOPS_PER_BYTE / ROWS * max(1, state_bytes) * positions / _FLOPS[target.isa]
    return OPERATIONS * (LOOP_ITERATIONS if has_loops else 1) * OPERATION_S / row_s


def clients_at_once(dense_bytes: int) -> int:
    """The clients that a loop computes at once; the operations of a large client use all cores by themselves."""
    return 1 if dense_bytes >= LARGE_STATE_BYTES else PARALLEL


def why_loop(target: Target, state_bytes: int, dense_bytes: int, width: int, *, has_loops: bool) -> str | None:
    """The reason why a loop over clients is cheaper than groups of `width` clients; None if it is not.

    Args:
        dense_bytes: the part of a client's state that is not kept low-rank.
        has_loops: a step has a loop of its own, such as over time steps, which starts operations by thousands.
    """
    if target.gpu != "no":
        return None  # a GPU is filled by groups
    if dense_bytes >= LARGE_STATE_BYTES:
        return f"a client's state has {dense_bytes >> 20} MiB"
    if has_loops or dense_bytes < state_bytes:
        return None
    if step_cost_s(target, state_bytes, 1) > WORTH_IT * step_cost_s(target, state_bytes, width):
        return None
    return f"the states of {width} clients exceed a core's cache"
