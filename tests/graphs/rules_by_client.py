"""Evaluates one operation by its batching rule, for clients with batches of different sizes."""

import attrs
import numpy as np
from run_region import run_region

import fedcore.graphs.batched.batching_rules  # noqa: F401  registers the rules
from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue, batched, batching_rules
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow.graph import Node, Value

CLIENTS = 4
SIZES = (5, 2, 0, 3)
"""Rows of the clients' batches."""


@attrs.frozen(eq=False)
class Operand:
    """An operand of all clients.

    Args:
        array: [CLIENTS, rows, …], padded with copies; or […] if it is constant.
    """

    array: np.ndarray
    is_constant: bool

    def value(self, tensor: Value | None) -> BatchedValue:
        if self.is_constant:
            return BatchedValue(None, form=KnownValue.from_constant(self.array))
        return batched(tensor, 0)


def normal(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("f")


def rows(*shape, seed=0) -> Operand:
    """A batch; behind a client's end its first row is repeated, or zeros if it has none."""
    array = normal(CLIENTS, max(SIZES), *shape, seed=seed)
    for k, n in enumerate(SIZES):
        array[k, n:] = array[k, 0] if n else 0
    return Operand(array, is_constant=False)


def constant(value, dtype=np.int32) -> Operand:
    return Operand(np.asarray(value, dtype), is_constant=True)


def evaluated(op: str, attributes: dict, operands: list[Operand]) -> list[tuple[np.ndarray, BatchedValue]]:
    """The results of an operation's rule, each with the value that it was."""
    results: list[BatchedValue] = []
    arrays = [o.array for o in operands if not o.is_constant]

    def body(sizes, *tensors):
        evaluation = BatchedEvaluation(CLIENTS, max(SIZES), sizes)
        rest = list(tensors)
        values = [o.value(None if o.is_constant else rest.pop(0)) for o in operands]
        results[:] = evaluation.evaluate(Node(op, (), attributes), values)
        return [evaluation.tensor(x) for x in results]

    found = run_region(body, np.array(SIZES), *arrays)
    return list(zip(found, results, strict=True))


def operations_of(module) -> set[str]:
    """The operations whose rules stand in a module."""
    return {op for op, rule in batching_rules.items() if rule.__module__ == module.__name__}
