"""Evaluates one operation by its batching rule and for each client alone, and compares the results."""

import attrs
import numpy as np
import tensorflow as tf
from run_region import run_region

import fedcore.graphs.batched.batching_rules  # noqa: F401  registers the rules
from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue, batched, batching_rules, shared
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.graphdef.form.checked_operations import add_operation
from fedcore.graphs.graphdef.form.parsed_graph import Node

CLIENTS = 4
SIZES = (5, 2, 0, 3)
"""Rows of the clients' batches."""


@attrs.frozen(eq=False)
class Operand:
    """An operand of all clients.

    Args:
        array: [CLIENTS, …], or […] if the clients share it.
        kind: "own", "rows" (with the batch as leading axis, padded with copies), "shared" or "constant".
    """

    array: np.ndarray
    kind: str

    def value(self, tensor: Value | None) -> BatchedValue:
        if self.kind == "constant":
            return BatchedValue(None, known=KnownValue.from_constant(self.array))
        return shared(tensor) if self.kind == "shared" else batched(tensor, 0 if self.kind == "rows" else None)

    def of_client(self, client: int) -> np.ndarray:
        array = self.array[client] if self.kind in ("own", "rows") else self.array
        return array[: SIZES[client]] if self.kind == "rows" else array


def normal(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("f")


def own(*shape, seed=0) -> Operand:
    return Operand(normal(CLIENTS, *shape, seed=seed), "own")


def common(*shape, seed=0) -> Operand:
    return Operand(normal(*shape, seed=seed), "shared")


def rows(*shape, seed=0) -> Operand:
    return rows_of(normal(CLIENTS, max(SIZES), *shape, seed=seed))


def rows_of(array: np.ndarray) -> Operand:
    """A batch; behind a client's end its first row is repeated, or zeros if it has none."""
    array = np.array(array)
    for k, n in enumerate(SIZES):
        array[k, n:] = array[k, 0] if n else 0
    return Operand(array, "rows")


def own_of(array) -> Operand:
    return Operand(np.asarray(array), "own")


def constant(value, dtype=np.int32) -> Operand:
    return Operand(np.asarray(value, dtype), "constant")


def evaluated(op: str, attributes: dict, operands: list[Operand]) -> list[tuple[np.ndarray, BatchedValue]]:
    """The results of an operation's rule, each with the value that it was."""
    results: list[BatchedValue] = []
    arrays = [o.array for o in operands if o.kind != "constant"]

    def body(sizes, *tensors):
        evaluation = BatchedEvaluation(CLIENTS, max(SIZES), sizes)
        rest = list(tensors)
        values = [o.value(None if o.kind == "constant" else rest.pop(0)) for o in operands]
        results[:] = evaluation.evaluate(Node("node", op, (), attributes), values)
        return [evaluation.tensor(x) for x in results]

    found = run_region(body, np.array(SIZES), *arrays)
    return list(zip(found, results, strict=True))


def check_rule(op: str, attributes: dict, *operands: Operand, tolerance=1e-5) -> None:
    """Each client has the results that it has alone, for its own rows."""
    has_batch = any(o.kind == "rows" for o in operands)
    found = evaluated(op, attributes, list(operands))
    for client in range(CLIENTS):
        if has_batch and not SIZES[client]:
            continue
        alone = add_operation(op, [tf.constant(o.of_client(client)) for o in operands], attributes)
        for (array, value), want in zip(found, alone, strict=True):
            have = array[client] if value.batched else array
            if value.padded_axis is not None:
                have = np.take(have, range(SIZES[client] * value.entries_per_row), value.padded_axis)
            np.testing.assert_allclose(have, want.numpy(), rtol=tolerance, atol=tolerance)
            assert have.shape == want.shape


def operations_of(module) -> set[str]:
    """The operations whose rules stand in a module."""
    return {op for op, rule in batching_rules.items() if rule.__module__ == module.__name__}
