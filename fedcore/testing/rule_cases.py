"""Operands of an operation for eight clients, of which batching rules are checked on some at once."""

from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np
import tensorflow as tf

CLIENTS = 8

Alone = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""From one client's operands to its results. It raises where they do not fit."""


@attrs.frozen(eq=False)
class Operand:
    """An operand of all clients.

    Args:
        name: as the operation's definition, or the function, has it.
        array: [CLIENTS, …].
        is_static: it decides shapes or axes, for which rules may ask for a constant.
        batch_axes: the axes that may be a padded batch; None where any may.
    """

    name: str
    array: np.ndarray
    is_static: bool = False
    batch_axes: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape[1:]

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def differs(self) -> bool:
        """Whether clients have values of their own."""
        return any(a.tobytes() != self.array[0].tobytes() for a in self.array[1:])


@attrs.frozen(eq=False)
class RuleCase:
    """The operands of all clients, flat, and the attributes of the operation, defaults included."""

    operands: tuple[Operand, ...]
    attributes: Mapping[str, object] = attrs.field(factory=dict)

    @property
    def entries(self) -> int:
        return sum(o.array[0].size for o in self.operands)

    @property
    def has_batch(self) -> bool:
        """Whether some axes are declared as batches."""
        return any(o.batch_axes for o in self.operands)


def spread_over_clients(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Values of `CLIENTS` clients, made of one client's: entries in other orders, floats smaller by up to a half."""
    rows = [array]
    for k in range(1, CLIENTS):
        row = rng.permutation(array.reshape(-1)).reshape(array.shape)
        if array.dtype == bool and array.size == 1:
            row = np.asarray(array ^ bool(k % 2))
        elif row.dtype.kind in "fcV":  # V: bfloat16 and the like
            row = (row * np.asarray(1 - k / (2 * CLIENTS), row.dtype)).astype(row.dtype)
        rows.append(row)
    return np.stack(rows)


def case_of_arrays(
    names: Sequence[str], arrays: Sequence[np.ndarray], static: Sequence[bool], attributes: Mapping, alone: Alone
) -> RuleCase | None:
    """A case in which as many operands as possible differ between clients; None if the operands do not fit.

    An operand stays the same for all clients where other values would not fit, or give results of other shapes.
    """
    shapes = result_shapes(alone, arrays)
    if shapes is None:
        return None
    rng = np.random.default_rng(0)
    operands: list[Operand] = []
    for i, (name, array) in enumerate(zip(names, arrays, strict=True)):

        def fits(client: int, value: np.ndarray, position: int = i) -> bool:
            others = [o.array[client] for o in operands]
            return result_shapes(alone, [*others, value, *arrays[position + 1 :]]) == shapes

        spread = None if static[i] else spread_over_clients(array, rng)
        if spread is not None and all(fits(k, v) for k, v in enumerate(spread)):
            operands.append(Operand(name, spread))
        else:
            is_static = array.dtype.kind in "iu"
            values = [v for v in _other_values(array) if fits(0, v)] if is_static else []
            each = [[array, *values][k % (1 + len(values))] for k in range(CLIENTS)]
            operands.append(Operand(name, np.stack(each), is_static))
    return RuleCase(tuple(operands), attributes)


def _other_values(array: np.ndarray) -> list[np.ndarray]:
    """Further values for an operand of axes, sizes or counts."""
    moved = [array + np.asarray(d, array.dtype) for d in (1, 2, -1)]
    return [*moved, np.roll(array, 1, -1) if array.ndim else array]


def result_shapes(alone: Alone, arrays: Sequence[np.ndarray]) -> list[tuple] | None:
    """The shapes and dtypes of one client's results; None if its operands do not fit."""
    try:
        return [(r.shape, r.dtype) for r in alone(arrays)]
    except (tf.errors.OpError, ValueError, TypeError, NotImplementedError):
        return None


__all__ = ["CLIENTS", "Alone", "Operand", "RuleCase", "case_of_arrays", "result_shapes"]
