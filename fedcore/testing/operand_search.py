"""Finds operands of a TensorFlow operation by trial: by its definition, from few shapes, axes and sizes.

Each operand has candidates by its dtype and its name; combinations are run for one client, the most likely first.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import InvalidValue
from fedcore.graphs import private_api
from fedcore.graphs.dataflow.graph import Value, new_region
from fedcore.graphs.dataflow.op_signature import Argument, attribute_value, operand_names, signature
from fedcore.graphs.dataflow.shape_inference import infer
from fedcore.testing.rule_cases import Structures
from fedcore.testing.rule_subjects import Operation
from fedcore.testing.trial_process import OperandsRefused

RANKED_SHAPES = ((), (6,), (6, 3), (4, 6, 3), (6, 4, 4, 2), (2, 4, 4, 4, 2))
"""The shape of the first operand of data, by rank; even sizes may be two entries for each row of a batch."""

SQUARE_SHAPES = ((3, 3), (2, 4, 4))
LONG_SHAPES = ((301,), (37, 19))
"""Longer than a vector register, and no multiple of it."""

MOST_GUESSES = 5
"""Combinations that are tried before TensorFlow's shape function is asked which candidates are possible."""

MOST_TRIALS = 100
MOST_FOUND = 3
"""Combinations to find for a matrix, and for a scalar beside indices, which have own shapes; one for other shapes."""

_RANKS_OF_WINDOWS = (4, 5)

_DTYPES = (tf.float32, tf.int32, tf.bool, tf.complex64, tf.string, tf.int64, tf.float64, tf.uint8, tf.half)
_OTHER_DTYPES = (tf.int32, tf.half, tf.bool, tf.complex64)
_EXACT_DTYPES = (tf.float64, tf.int32, tf.int64, tf.int8)
"""Dtypes that float32 does not hold: operands of these are found too, of one shape."""
_AXES = ("axis", "axes", "dim", "dims", "dimension", "reduction_indices", "concat_dim", "split_dim", "seq_dim")
_SHAPES = ("shape", "size", "sizes", "input_sizes", "filter_sizes", "output_shape", "orig_input_shape", "dense_shape")
_STATIC = {
    **dict.fromkeys(_AXES, "axis"),
    **dict.fromkeys(_SHAPES, "shape"),
    **dict.fromkeys(("perm",), "perm"),
    **dict.fromkeys(("paddings", "crops"), "paddings"),
    **dict.fromkeys(("multiples", "strides", "block_shape"), "counts"),
    **dict.fromkeys(("begin", "end"), "bounds"),
    **dict.fromkeys(("k", "n", "depth", "num_segments", "num_lower", "num_upper", "shift", "num_split"), "number"),
}


@attrs.frozen(eq=False)
class Candidate:
    """A value for an operand of one client.

    Args:
        is_static: it is a shape, an axis or a count.
    """

    array: np.ndarray
    is_static: bool = False


@attrs.frozen(eq=False)
class OperandMatch:
    """Operands of one client that TensorFlow takes.

    Args:
        is_variation: another match differs by a dtype only.
    """

    attributes: Mapping[str, Any]
    candidates: tuple[Candidate, ...]
    is_variation: bool = False


class OperandsNotFound(InvalidValue):
    """No operands of an operation were found; `cases=` has to give some.

    Args:
        op: the operation.
        operand: the operand or attribute without a value.
        why: TensorFlow's reason.
    """

    def __init__(self, op: str, operand: str, why: str) -> None:
        self.op, self.operand, self.why = op, operand, why
        which = f"no value of {operand!r} was found" if operand else "no operands were found that fit each other"
        takes = ", ".join(a.name for a in signature(op).operands)
        super().__init__(
            f"{op}: {which} ({why}).\n"
            f"fix: give operands of one client, check_batching_rule({op!r}, cases=[({takes}, {{attributes}})])"
        )

    def __reduce__(self) -> tuple[type, tuple]:
        return type(self), (self.op, self.operand, self.why)


def find_operands(op: str, structures: Structures | None = None) -> list[OperandMatch]:
    """Operands of several ranks, dtypes and attributes.

    Raises:
        OperandsNotFound: there are none.
    """
    unknown = next((a.name for a in private_api.op_definition(op).attr if not _values(op, a)), None)
    if unknown is not None:
        raise OperandsNotFound(op, unknown, "an attribute without a default, whose values its definition does not list")
    search = _Search(op, structures or {})
    for rank in _RANKS_OF_WINDOWS:
        base, *others = _attribute_sets(op, rank)
        search.add_ranks(base)
        if search.matches:
            break
    else:
        raise search.failure(base)
    ranks = sorted({each.candidates[search.main(base)].array.ndim for each in search.matches})
    for attributes in others:
        search.add_variation(attributes, ranks)
    count = len(search.matches)
    for attributes in _attributes_of_values(op, base, [m.attributes for m in search.matches]):
        search.add_variation(attributes, ranks)
    variations = [attrs.evolve(m, is_variation=True) for m in search.matches[count:]]
    return [*search.matches[:count], *variations]


def _attributes_of_values(op: str, base: Mapping, others: Sequence[Mapping]) -> Iterator[dict[str, Any]]:
    """Attributes with dtypes of which float32 does not have all numbers, and complex ones with each boolean."""
    for attribute in private_api.op_definition(op).attr:
        if attribute.type != "type" or not any(a.type_attr == attribute.name for a in signature(op).operands):
            continue
        allowed = [tf.as_dtype(t) for t in attribute.allowed_values.list.type] or _EXACT_DTYPES
        for dtype in _EXACT_DTYPES:
            attributes = {**base, attribute.name: dtype}
            if dtype in allowed and attributes not in others:
                yield attributes
        if tf.complex64 in allowed:
            flags = [name for name, value in base.items() if isinstance(value, bool)]
            yield from ({**base, attribute.name: tf.complex64, f: not base[f]} for f in flags)


class _Search:
    def __init__(self, op: str, structures: Structures) -> None:
        self.op = op
        self.structures = structures
        self.matches: list[OperandMatch] = []
        self._reasons: dict[str, int] = {}

    def main(self, attributes: Mapping) -> int:
        """The position of the first operand that is data, and no condition if there is another."""
        kinds = operand_kinds(self.op, attributes)
        data = [i for i, kind in enumerate(kinds) if kind == "data"]
        arguments = _flat_arguments(self.op, attributes)
        conditions = [i for i in data if arguments[i][1] == tf.bool and not arguments[i][0].type_attr]
        return next((i for i in data if i not in conditions), data[0] if data else 0)

    def add_ranks(self, attributes: Mapping) -> None:
        """Operands of each rank; of many axes, and square ones, only if there are few others; and long ones."""
        for shape in RANKED_SHAPES:
            if len(shape) < 4 or len(self.matches) < 2:
                self.add(attributes, shape, MOST_FOUND if len(shape) == 2 else 1)
        for shape in SQUARE_SHAPES if len(self.matches) < 2 else ():
            self.add(attributes, shape, 1)
        main = self.main(attributes)
        ranks = {each.candidates[main].array.ndim for each in self.matches}
        for shape in LONG_SHAPES:
            if len(shape) in ranks:
                self.add(attributes, shape, 1)

    def add(self, attributes: Mapping, shape: tuple[int, ...], most: int) -> None:
        visited: set[tuple] = set()
        if not shape and "index" in operand_kinds(self.op, attributes):
            most = MOST_FOUND
        arguments = _flat_arguments(self.op, attributes)
        main = self.main(attributes)
        operation = Operation(self.op, attributes)  # one for all trials, since an operation with checks keeps its graph
        choices = []
        for i, (argument, dtype) in enumerate(arguments):
            kind = _kind(self.op, (argument, dtype))
            each = _candidates(kind, dtype, shape)
            if argument.name in self.structures:
                each = list(self._structured(argument.name, each))
            choices.append([c for c in each if c.array.shape == shape][:1] if i == main and kind == "data" else each)
        for candidates in self._combinations(attributes, choices, main):
            key = tuple((c.array.shape, c.array.tobytes() if c.is_static else b"") for c in candidates)
            if key in visited or not self._fits(operation, candidates):
                continue
            visited.add(key)
            self.matches.append(OperandMatch(attributes, self._in_domain(operation, candidates)))
            if len(visited) == most:
                return

    def _combinations(
        self, attributes: Mapping, choices: Sequence[Sequence[Candidate]], main: int
    ) -> Iterator[tuple[Candidate, ...]]:
        """The likeliest combinations; then those of candidates that fit the first operand of data by their shapes."""
        yield from itertools.islice(_likely_first(choices), MOST_GUESSES)
        first = {main: choices[main][0]} if len(choices[main]) == 1 else {}
        possible = [
            [c for c in each if _shapes_fit(self.op, attributes, {**first, i: c})] for i, each in enumerate(choices)
        ]
        yield from itertools.islice(_likely_first(possible), MOST_TRIALS)

    def _structured(self, name: str, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """The candidates that can be made valid."""
        for each in candidates:
            with contextlib.suppress(ValueError, IndexError, np.linalg.LinAlgError):
                array = np.asarray(self.structures[name](each.array), each.array.dtype)
                yield attrs.evolve(each, array=array)

    def add_variation(self, attributes: Mapping, ranks: Sequence[int]) -> None:
        """Operands for other attributes: of a middle rank, else of any."""
        match_count = len(self.matches)
        for rank in sorted(ranks, key=lambda r: abs(r - 2)):
            if rank >= len(RANKED_SHAPES):
                continue
            self.add(attributes, RANKED_SHAPES[rank], 1)
            if len(self.matches) > match_count:
                return

    def failure(self, attributes: Mapping) -> OperandsNotFound:
        """The error that no operands were found, with TensorFlow's most frequent reason."""
        names = operand_names(self.op, attributes)
        reason = max(self._reasons, key=lambda r: self._reasons[r], default="no values of its dtypes are known")
        for name, (_, dtype) in zip(names, _flat_arguments(self.op, attributes), strict=True):
            if dtype in (tf.resource, tf.variant):
                return OperandsNotFound(self.op, name, f"its dtype is {dtype.name}")
        mentioned = next((n for n in names if f"'{n}'" in reason or f"{n} must" in reason or f" {n} " in reason), "")
        return OperandsNotFound(self.op, mentioned, reason)

    def _fits(self, operation: Operation, candidates: Sequence[Candidate]) -> bool:
        try:
            return any(r.size for r in operation.alone([c.array for c in candidates]))
        except OperandsRefused as error:
            reason = str(error).split("\n")[0].split(" [Op:")[0].split(" for '{{node")[0][-200:]
        self._reasons[reason] = self._reasons.get(reason, 0) + 1
        return False

    def _in_domain(self, operation: Operation, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The candidates with floats for which the results are finite, such as positive ones of a logarithm."""
        if any(a.name in self.structures for a in signature(self.op).operands):
            return candidates
        best, fewest = candidates, None
        for low, high in ((-2.0, 2.0), (0.1, 0.9), (1.1, 3.0)):
            moved = tuple(c if c.is_static else _within(c, low, high) for c in candidates)
            try:
                results = operation.alone([c.array for c in moved])
            except OperandsRefused:
                continue
            infinite = sum(int((~np.isfinite(r)).sum()) for r in results if r.dtype.kind in "fc")
            if fewest is None or infinite < fewest:
                best, fewest = moved, infinite
            if not infinite:
                break
        return best


def _shapes_fit(op: str, attributes: Mapping, candidates: Mapping[int, Candidate]) -> bool:
    """Whether TensorFlow's shape function takes the shapes of some operands, by position; others are unknown."""
    specs = [
        (dtype, tf.TensorShape(candidates[i].array.shape if i in candidates else None))
        for i, (_, dtype) in enumerate(_flat_arguments(op, attributes))
    ]

    def body(*values: Value) -> list[Value]:
        infer(op, signature(op).by_operand(values, attributes), attributes)
        return []

    try:
        new_region(specs, body)
    except ValueError:
        return False
    return True


def _within(candidate: Candidate, low: float, high: float) -> Candidate:
    array = candidate.array
    if array.dtype.kind not in "fcV":
        return candidate
    values = np.random.default_rng(array.size).uniform(low, high, array.shape)
    return attrs.evolve(candidate, array=values.astype(array.dtype))


def _likely_first(choices: Sequence[Sequence[Candidate]]) -> Iterator[tuple[Candidate, ...]]:
    """The combinations, by the sum of the positions of their parts."""
    most = sum(len(each) - 1 for each in choices)
    for total in range(most + 1):
        yield from _combinations_of_total(choices, total)


def _combinations_of_total(choices: Sequence[Sequence[Candidate]], total: int) -> Iterator[tuple[Candidate, ...]]:
    if not choices:
        if not total:
            yield ()
        return
    for i, candidate in enumerate(choices[0][: total + 1]):
        for tail in _combinations_of_total(choices[1:], total - i):
            yield (candidate, *tail)


# --- attributes ---


def _attribute_sets(op: str, rank: int) -> Iterator[dict[str, Any]]:
    """Attributes of an operation, all of them: the most usual values first, then others one at a time.

    Args:
        rank: of the images for which lists, such as strides and windows, are.
    """
    definition = private_api.op_definition(op)
    values = {a.name: _values(op, a, rank) for a in definition.attr}
    base = {name: each[0] for name, each in values.items()}
    yield base
    for name, each in values.items():
        for value in each[1:]:
            yield {**base, name: value}


def _values(op: str, attribute: Any, rank: int = 4) -> list:
    """Values of an attribute, the most usual first; empty where its definition says too little."""
    default = [attribute_value(attribute.default_value)] if attribute.HasField("default_value") else []
    allowed = attribute.allowed_values.list
    kind, name = attribute.type, attribute.name
    declared = signature(op)
    if kind == "type":
        among = [tf.as_dtype(t) for t in allowed.type] or [*_DTYPES]
        is_operand = any(a.type_attr == name for a in declared.operands)
        if default and not is_operand:
            return default
        usual = [t for t in _DTYPES if t in among] or among
        is_result = any(a.type_attr == name for a in declared.results)
        return [*usual[:1], *(t for t in _OTHER_DTYPES if t in usual[1:] and is_result)]
    if any(a.number_attr == name for a in declared.operands):
        return [max(2, attribute.minimum), 3]
    if any(a.type_list_attr == name for a in declared.operands):
        return [[tf.float32, tf.float32]]
    if kind == "bool":
        return [*(default or [False]), not (default or [False])[0]]
    if kind == "string":
        encodings = [b"utf-8"] if name == "encoding" else []
        return list(dict.fromkeys([*default, *allowed.s, *encodings]))
    if kind == "int":
        first = [0] if name in _AXES else []
        return list(dict.fromkeys([*(default or [max(1, attribute.minimum)]), *first, 1, -1]))
    if kind == "float":
        return [*default, 0.25]
    if kind == "list(int)" and not default:
        return [[1, *[2] * (rank - 2), 1], [1] * rank]
    return default


def operand_kinds(op: str, attributes: Mapping) -> list[str]:
    """Each operand is "data", an "index" (integers of data), or of a kind of static operands."""
    return [_kind(op, argument) for argument in _flat_arguments(op, attributes)]


def _flat_arguments(op: str, attributes: Mapping) -> list[tuple[Argument, tf.DType]]:
    return [(a, dtype) for a in signature(op).operands for dtype in a.dtypes(attributes)]


def _kind(op: str, argument: tuple[Argument, tf.DType]) -> str:
    """ "data", "index" (integers of data), or a kind of static operands."""
    declared, dtype = argument
    static = _STATIC.get(declared.name)
    if static is not None and dtype.is_integer:
        return static
    others = [a for a in signature(op).operands if a is not declared]
    typed_alike = any(a.type_attr == declared.type_attr for a in (*others, *signature(op).results))
    if not dtype.is_integer or (declared.type_attr and typed_alike) or not others:
        return "data"
    return "index"


# --- candidates ---


def _candidates(kind: str, dtype: tf.DType, shape: tuple[int, ...]) -> list[Candidate]:
    if kind == "data":
        return [_data(dtype, s) for s in _data_shapes(shape)]
    indices = [_data(dtype, s) for s in _index_shapes(shape)]
    if kind == "index":
        return [
            *indices,
            *(_static(dtype, v) for k in ("number", "axis", "shape", "paddings") for v in _values_of(k, shape)),
        ]
    other = [v for k in ("axis", "number", "shape", "perm", "paddings", "counts", "bounds") if k != kind
             for v in _values_of(k, shape)]  # fmt: skip
    return [_static(dtype, v) for v in (*_values_of(kind, shape), *other)]


def _static(dtype: tf.DType, value: object) -> Candidate:
    return Candidate(np.asarray(value).astype(dtype.as_numpy_dtype), is_static=True)


def _data(dtype: tf.DType, shape: tuple[int, ...]) -> Candidate:
    return Candidate(draw_operand(dtype, shape, np.random.default_rng(len(shape) + sum(shape))))


def draw_operand(dtype: tf.DType, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Letters, floats within ±2, and integers of 0 and 1, which are valid indices of most things."""
    if dtype == tf.string:
        return np.asarray(rng.choice(np.array([b"a", b"bc", "d é".encode()], object), shape), object)
    if dtype.is_floating or dtype.is_complex:
        values = rng.uniform(-2, 2, shape) + (1j * rng.uniform(-2, 2, shape) if dtype.is_complex else 0)
        return np.asarray(values, dtype.as_numpy_dtype)
    if not (dtype.is_integer or dtype.is_bool):
        return np.zeros(shape, np.float32)  # resources and variants: TensorFlow refuses it
    return np.asarray(rng.integers(0, 2, shape), dtype.as_numpy_dtype)


def _data_shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    shapes = [shape, shape[-1:], (), shape[:-1], shape[:1], shape[1:]]
    if len(shape) > 1:
        shapes += [(*shape[:-2], shape[-1], 4), (*shape[:-2], shape[-1], shape[-2]), (shape[-1], 4)]
    if len(shape) > 3:
        shapes += [(*(2 for _ in shape[:-2]), shape[-1], 2), (*(2 for _ in shape[1:-1]), shape[-1], 2)]
    return list(dict.fromkeys([*shapes, (2,), (4,), (1,)]))


def _index_shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(dict.fromkeys([shape[:-1], shape[:1], shape, (4,), (), (*shape[:-1], 1), (4, 1), (4, 2)]))


def _values_of(kind: str, shape: tuple[int, ...]) -> list:
    rank, vector = len(shape), [*range(len(shape))]
    values: dict[str, list] = {
        "axis": [0, [0], -1, [-1], 1, [1], [0, 1], []],
        "number": [2, 4, 1, 3, [1], [2], 0, (2.0,)[:0]],
        "shape": [shape, shape[::-1], [int(np.prod(shape))], [2, *shape], [4], [4, 3], [-1]],
        "perm": [vector[::-1], [*vector[1:], *vector[:1]]],
        "paddings": [[[1, 2]] * rank, [[0, 1]] * rank, [[1, 1]] * max(rank - 2, 0)],
        "counts": [[1] * rank, [2] * rank, [*([1] * (rank - 1)), 2], [2] * max(rank - 2, 0)],
        "bounds": [[0] * rank, shape, [1] * rank, [2] * rank, [-1] * rank],
    }
    return values[kind]
