"""Operands of an operation for eight clients, of which batching rules are checked on some at once."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import attrs
import ml_dtypes
import numpy as np
import tensorflow as tf

from fedcore.testing.values import draw, has_bits_of

CLIENTS = 8

Alone = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""From one client's operands to its results. It raises where they do not fit."""

Structures = Mapping[str, Callable[[np.ndarray], np.ndarray]]
"""From the name of an operand to a function that makes drawn values valid, such as a positive definite matrix."""


def _without_large(array: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(array) & (np.abs(array) > 100), np.asarray(3, array.dtype), array)


STRUCTURES: dict[str, Structures] = {
    "ClipByValue": {  # kernels differ where limits are NaN or not in order
        "clip_value_min": lambda a: -np.abs(np.nan_to_num(a, nan=1)),
        "clip_value_max": lambda a: np.abs(np.nan_to_num(a, nan=1)),
    },
    "Prod": {"input": _without_large},  # whether a product with 0 overflows depends on the order
    "Cumprod": {"x": _without_large},
    "SigmoidGrad": {"y": _without_large},  # of three factors
}
"""By operation: makes operands for which all its kernels have one result."""


@attrs.frozen(eq=False)
class Operand:
    """An operand of all clients.

    Args:
        name: as the operation's definition, or the function, has it.
        array: [CLIENTS, …].
        is_static: it decides shapes or axes, for which rules may ask for a constant.
        batch_axes: the axes that may be a padded batch; None where any may.
        kind: "data", "index", or of a static operand.
    """

    name: str
    array: np.ndarray
    is_static: bool = False
    batch_axes: tuple[int, ...] | None = None
    kind: str = "data"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape[1:]

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def differs(self) -> bool:
        """Whether clients have values of their own."""
        return any(not has_bits_of(self.of(k), self.of(0)) for k in range(1, CLIENTS))

    def of(self, client: int) -> np.ndarray:
        """The value of a client; an array also of a text."""
        return np.asarray(self.array[client], self.dtype)


EQUAL_ENTRIES = ((2, np.nanmin), (4, np.nanmax))
"""Clients whose entries are all the least, or the greatest: no other entry of theirs hides an entry of padding."""

REFUSED = "refused"
"""The spread of a case whose first client is refused alone: the run of all clients may be refused too."""


@attrs.frozen(eq=False)
class RuleCase:
    """The operands of all clients, flat, and the attributes of the operation, defaults included.

    Args:
        spread: of the numbers.
        is_variation: only a dtype differs from another case, so few layouts tell enough.
    """

    operands: tuple[Operand, ...]
    attributes: Mapping[str, object] = attrs.field(factory=dict)
    spread: str = "small"
    is_variation: bool = False

    @property
    def entries(self) -> int:
        return sum(math.prod(o.shape) for o in self.operands)


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
    names: Sequence[str],
    arrays: Sequence[np.ndarray],
    static: Sequence[bool],
    attributes: Mapping,
    alone: Alone,
    structures: Structures | None,
    kinds: Sequence[str],
) -> RuleCase | None:
    """A case in which as many operands as possible differ between clients; None if the operands do not fit.

    An operand stays the same for all clients where other values would not fit, or give results of other shapes.
    """
    shapes = result_shapes(alone, arrays)
    if shapes is None:
        return None
    rng = np.random.default_rng(0)
    spreads = [array[None] if static[i] else spread_over_clients(array, rng) for i, array in enumerate(arrays)]
    for i, name in enumerate(names):
        if structures and name in structures and not static[i]:
            spreads[i] = np.stack([np.asarray(structures[name](value), arrays[i].dtype) for value in spreads[i]])
    each = [[s[k % len(s)] for s in spreads] for k in range(CLIENTS)]
    all_fit = all(result_shapes(alone, values) == shapes for values in each)
    operands: list[Operand] = []
    for i, (name, array) in enumerate(zip(names, arrays, strict=True)):

        def fits(client: int, value: np.ndarray, position: int = i) -> bool:
            others = [o.array[client] for o in operands]
            return result_shapes(alone, [*others, value, *arrays[position + 1 :]]) == shapes

        if not static[i] and (all_fit or all(fits(k, v) for k, v in enumerate(spreads[i]))):
            operands.append(Operand(name, spreads[i], kind=kinds[i]))
        else:
            is_static = array.dtype.kind in "iu"
            values = [v for v in _other_values(array) if fits(0, v)] if is_static else []
            own = [[array, *values][k % (1 + len(values))] for k in range(CLIENTS)]
            operands.append(Operand(name, np.stack(own), is_static))
    return RuleCase(tuple(operands), attributes)


def cases_of_values(
    case: RuleCase, alone: Alone, structures: Structures, *, keep: Collection[str] = ()
) -> Iterator[RuleCase]:
    """The case with numbers of other spreads, and with an axis of size 0, where a client alone has results.

    An operand keeps its values where other numbers do not fit, and if `keep` has its name.
    """
    shapes = result_shapes(alone, [o.array[0] for o in case.operands])
    data = [i for i, o in enumerate(case.operands) if o.kind in ("data", "index") and not o.is_static]
    rng = np.random.default_rng(0)
    for spread in ("special", "large") if shapes is not None else ():
        operands = list(case.operands)
        for i in data:
            for values in () if operands[i].name in keep else _numbers(operands[i], operands[:i], spread, rng):
                if operands[i].name in structures:
                    values = np.stack([structures[operands[i].name](v) for v in values]).astype(values.dtype)
                each = [*operands[:i], attrs.evolve(operands[i], array=values), *operands[i + 1 :]]
                if all(result_shapes(alone, [o.array[k] for o in each]) == shapes for k in range(CLIENTS)):
                    operands = each
                    break
        if any(a is not b for a, b in zip(operands, case.operands, strict=True)):
            yield attrs.evolve(case, operands=tuple(operands), spread=spread)
    yield from _empty_case(case, alone, data[:1])
    yield from _refused_case(case, alone)


def _numbers(
    operand: Operand, earlier: Sequence[Operand], spread: str, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Numbers of clients, those most likely to fit last; a quarter equals those of an earlier operand, or almost."""
    kind = operand.dtype.kind
    if spread == "large" and kind not in "fcV":
        return
    if kind == "O":
        values = np.asarray(draw(operand.dtype, operand.array.shape, rng, spread))
        yield values
        yield np.where(values == b"\xff", b"a", values)  # texts in UTF-8
        return
    if operand.kind == "data":
        values = np.asarray(draw(operand.dtype, operand.array.shape, rng, spread))
        like = next((o for o in earlier if o.kind == "data" and o.array.shape == values.shape), None)
        if like is not None and like.dtype == values.dtype:
            flat, other = values.reshape(-1), like.array.reshape(-1)
            flat[::4] = other[::4]
            if kind in "iu":
                flat[1::4] = other[1::4] ^ np.asarray(1, values.dtype)
        if kind in "fV":  # kernels may take denormal floats for 0
            values[np.abs(values) < ml_dtypes.finfo(values.dtype).smallest_normal] = 0
        equal = np.array(values)
        for client, entry in EQUAL_ENTRIES if spread == "special" and kind in "biuf" else ():
            equal[client] = entry(values)
        yield equal
        yield values
        yield np.where(values == 0, np.asarray(3, values.dtype), values)  # divisors
    if kind == "i":
        steps = np.arange(CLIENTS).reshape(-1, *[1] * (operand.array.ndim - 1)) % 3
        yield (operand.array - steps).astype(operand.dtype)  # negative indices


def _empty_case(case: RuleCase, alone: Alone, data: Sequence[int]) -> Iterator[RuleCase]:
    """The case whose first operand has an axis of size 0, and results that have entries."""
    for i in data:
        for axis in range(case.operands[i].array.ndim - 1):
            empty = attrs.evolve(case.operands[i], array=np.take(case.operands[i].array, range(0), axis + 1))
            operands = (*case.operands[:i], empty, *case.operands[i + 1 :])
            shapes = result_shapes(alone, [o.array[0] for o in operands])
            if shapes and all(np.prod(shape) > 0 for shape, _ in shapes):
                yield attrs.evolve(case, operands=operands, spread="empty")
                return


def _refused_case(case: RuleCase, alone: Alone) -> Iterator[RuleCase]:
    """The case whose first client has an index that is refused where it is alone, which may change no other client."""
    for i, operand in enumerate(case.operands):
        if operand.kind not in ("data", "index") or operand.is_static or operand.dtype.kind != "i":
            continue
        for beyond in (1, 2, 4, 8):
            array = operand.array.copy()
            array[0] += np.asarray(beyond, array.dtype)
            operands = (*case.operands[:i], attrs.evolve(operand, array=array), *case.operands[i + 1 :])
            if result_shapes(alone, [o.array[0] for o in operands]) is None:
                yield attrs.evolve(case, operands=operands, spread=REFUSED)
                return


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
