"""Kernels: the implementation of each local operation in TensorFlow, over nested tuples of tensors."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.graphs.capture.graph_import import graph_callable
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.sequences.layout import Sequence, StreamedSequence, rows
from fedcore.graphs.sequences.sequence_results import as_columns, groups
from fedcore.graphs.stages.xla import can_compile
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.ir.interpret import Callee, Interpreter, Seed, require_seed
from fedcore.ir.module import Graph, Module, Operation
from fedcore.ir.operations import Intrinsic, lookup
from fedcore.ir.registry import note_declaration
from fedcore.types import SequenceType, StructType, TensorType, Type, leaves, map_tensors, tensor_leaves

AnySequence: TypeAlias = Sequence | StreamedSequence

Kernel = TypeVar("Kernel", bound=Callable[..., Nested])

kernels: dict[str, Callable] = {}
"""Kind of a local operation -> its kernel, see `kernel`."""


def kernel(kind: str) -> Callable[[Kernel], Kernel]:
    """Registers the kernel of a kind of local operation: (operation, *operands) -> result, nested tuples of tensors."""

    def register(fn: Kernel) -> Kernel:
        kernels[kind] = fn
        note_declaration(kind)
        return fn

    return register


def interpreter(module: Module, *, xla: bool = False) -> Interpreter:
    """Interpreter of the module's functions over tensors; it emits into the graph being built.

    Args:
        xla: compile graphs with XLA where possible.
    """
    return Interpreter(module, evaluate, _compiled_callable if xla else graph_callable)


def _compiled_callable(graph: Graph, data: bytes) -> Callable:
    """A function that calls a graph, which XLA compiles if it can."""
    return graph_callable(graph, data, xla=can_compile(graph, data))


def evaluate(op: Operation, operand_types: list[Type], operands: list, seed: Seed | None) -> Nested:
    """The result of a local operation over tensors: by its kernel, else by its meaning."""
    declared = lookup(op.kind)
    run = kernels.get(op.kind)
    if run is not None:
        result = run(op, *operands)
    else:
        keywords = declared.variables(op, operand_types)
        if "seed" in declared.meaning_keywords:
            keywords["seed"] = require_seed(seed, op.kind)
        result = _meaning_on_tensors(declared)(*operands, **keywords)
    return result if _is_builtin(declared) else _check_result(op, result)


def _is_builtin(declared: Intrinsic) -> bool:
    """Whether an intrinsic is one of fedcore's, whose results need no check."""
    return declared.meaning.__module__.startswith("fedcore.")


def _meaning_on_tensors(declared: Intrinsic) -> Callable:
    """The meaning of an operation without a kernel, which takes its place: a meaning may run on tensors as on arrays.

    Errors of a meaning that is not fedcore's name the missing kernel.
    """
    if _is_builtin(declared):
        return declared.meaning

    def run(*operands: Nested, **keywords: Any) -> Nested:
        try:
            return declared.meaning(*operands, **keywords)
        except Exception as error:
            raise FedcoreError(
                f"{declared.name} has no kernel (@kernel({declared.name!r})), and its meaning does not run on tensors: "
                f"{error}"
            ) from error

    return run


def _check_result(op: Operation, result: Nested) -> Nested:
    """The result of an operation that is not fedcore's.

    Raises:
        TypeMismatch: it is not of the operation's type in the program.
    """
    parts, types = flatten(result), [leaf for _, leaf in leaves(op.type)]
    if len(parts) != len(types) or not all(map(_has_type, parts, types)):
        values_text = ", ".join(map(brief, parts))
        run = "kernel" if op.kind in kernels else "meaning"
        raise TypeMismatch(f"the {run} of {op.kind} gives {values_text}, but its signature says {op.type}")
    return result


def _has_type(tensor: Any, type_: Type) -> bool:
    """Whether a leaf of a result may have the type of that leaf; sequences are not looked into."""
    if not isinstance(type_, TensorType):
        return True
    if tensor is None:
        return False
    expected, have = spec(type_), tf.convert_to_tensor(tensor)
    return have.dtype == expected.dtype and expected.shape.is_compatible_with(have.shape)


@kernel("literal")
def _(op: Operation) -> Nested:
    assert isinstance(op.type, TensorType)
    return ops.constant(op.attributes["value"].to_numpy(), dtype=spec(op.type).dtype)


@kernel("generic_zero")
def _(op: Operation) -> Nested:
    zeros = [ops.zeros(t.shape, spec(t).dtype) for t in tensor_leaves(op.type)]
    return unflatten(zeros, op.type)


def _cast_first(fn: Callable) -> Callable:
    """The function of two leaves, for a right one of another dtype, which is cast to that of the left one."""
    return lambda left, right: fn(left, tf.cast(right, left.dtype))


def _leafwise(fn: Callable, *, casts: Callable = _cast_first) -> Callable:
    """Kernel that applies a binary function leaf by leaf; a right operand that is one leaf is used for all leaves.

    Args:
        casts: function of two leaves of one dtype -> function of two leaves of different dtypes.
    """
    fn = casts(fn)

    def apply(op: Operation, left: Nested, right: Nested) -> Nested:
        if not isinstance(left, tuple):
            return fn(left, right)
        parts = right if isinstance(right, tuple) else [right] * len(left)
        return tuple(apply(op, a, b) for a, b in zip(left, parts, strict=True))

    return apply


def _map_leaves(fn: Callable, value: Nested) -> Nested:
    return tuple(_map_leaves(fn, part) for part in value) if isinstance(value, tuple) else fn(value)


def _by_parts(fn: Callable) -> Callable:
    """Casts of a sum or a difference, whose real and imaginary parts are computed separately.

    TensorFlow rewrites a complex `x + x` to `2 * x`, which makes NaN of infinities.
    """

    def apply(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        if not left.dtype.is_complex:
            return fn(left, tf.cast(right, left.dtype))
        right = tf.cast(right, left.dtype)
        return tf.complex(*(fn(part(left), part(right)) for part in (tf.math.real, tf.math.imag)))

    return apply


def _scaling(complex_: Callable) -> Callable:
    """Casts of a product or a quotient: a real right operand scales both parts of a complex left one.

    TensorFlow's complex kernels are not used: their results for infinities depend on the position of an element.

    Args:
        complex_: (left real, left imaginary, right real, right imaginary) -> (real, imaginary).
    """

    def casts(fn: Callable) -> Callable:
        def scale(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
            if not left.dtype.is_complex:
                return fn(left, tf.cast(right, left.dtype))
            real, imaginary = tf.math.real(left), tf.math.imag(left)
            if not right.dtype.is_complex:
                factor = tf.cast(right, real.dtype)
                return tf.complex(fn(real, factor), fn(imaginary, factor))
            right = tf.cast(right, left.dtype)
            return tf.complex(*complex_(real, imaginary, tf.math.real(right), tf.math.imag(right)))

        return scale

    return casts


def _product(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """(real, imaginary) of (a + bi) * (c + di)."""
    return a * c - b * d, a * d + b * c


def _quotient(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """(real, imaginary) of (a + bi) / (c + di), by Smith's algorithm as in numpy. A zero divides both parts by zero."""
    has_larger_real = tf.abs(c) >= tf.abs(d)
    is_zero = (c == 0) & (d == 0)
    large, small = tf.where(has_larger_real, c, d), tf.where(has_larger_real, d, c)
    ratio = tf.where(is_zero, tf.zeros_like(c), small / large)
    zero = tf.abs(c)  # without a sign, where c is a zero
    scale = 1 / tf.where(is_zero, zero, large + small * ratio)
    real = tf.where(has_larger_real, a + b * ratio, a * ratio + b)
    imaginary = tf.where(has_larger_real, b - a * ratio, b * ratio - a)
    return tf.where(is_zero, a / zero, real * scale), tf.where(is_zero, b / zero, imaginary * scale)


def _minus(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Subtraction; for small and unsigned integers as a + ~b + 1.

    Grappler rewrites 0 - b to Neg and (a - b) * (a - b) to SquaredDifference, which have no kernels for these dtypes.
    """
    has_no_kernels = a.dtype.is_integer and a.dtype not in (tf.int32, tf.int64)
    return a + (tf.bitwise.invert(b) + 1) if has_no_kernels else a - b


def _modulo(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Remainder as in numpy: 0 where b is 0. TensorFlow raises an error there."""
    return tf.where(b == 0, tf.zeros_like(a), tf.math.floormod(a, tf.where(b == 0, tf.ones_like(b), b)))


kernel("generic_plus")(_leafwise(lambda a, b: a + b, casts=_by_parts))
kernel("generic_minus")(_leafwise(_minus, casts=_by_parts))
kernel("generic_multiply")(_leafwise(lambda a, b: a * b, casts=_scaling(_product)))
kernel("generic_divide")(_leafwise(lambda a, b: a / b, casts=_scaling(_quotient)))
kernel("minimum")(_leafwise(tf.minimum))
kernel("maximum")(_leafwise(tf.maximum))
kernel("modulo")(_leafwise(_modulo))
kernel("less")(_leafwise(tf.less))
kernel("equal")(_leafwise(tf.equal))


@kernel("where")
def _(op: Operation, condition: Nested, then: Nested, otherwise: Nested) -> Nested:
    """A choice leaf by leaf; a condition, or an alternative, that is one leaf is used for all leaves of `then`."""

    def apply(condition: Nested, then: Nested, otherwise: Nested) -> Nested:
        if not isinstance(then, tuple):
            return tf.where(condition, then, otherwise)
        conditions = condition if isinstance(condition, tuple) else [condition] * len(then)
        others = otherwise if isinstance(otherwise, tuple) else [otherwise] * len(then)
        return tuple(map(apply, conditions, then, others))

    return apply(condition, then, otherwise)


@kernel("cast")
def _(op: Operation, value: Nested) -> Nested:
    if op.attributes["dtype"] == "str":
        return value
    dtype = tf.as_dtype(op.attributes["dtype"])

    def cast_leaf(x: tf.Tensor) -> tf.Tensor:
        """A float that an integer cannot hold becomes the nearest limit, NaN becomes 0; a complex number loses its
        imaginary part, unless it becomes a bool.
        """
        if x.dtype.is_complex and dtype == tf.bool:
            return (tf.math.real(x) != 0) | (tf.math.imag(x) != 0)
        real = tf.math.real(x) if x.dtype.is_complex and not dtype.is_complex else x
        if not (real.dtype.is_floating and dtype.is_integer):
            return tf.cast(real, dtype)
        with np.errstate(over="ignore"):  # the limits are infinite in float16: no finite number exceeds them
            least, most = (np.asarray(limit).astype(real.dtype.as_numpy_dtype) for limit in (dtype.min, dtype.max))
        fits = (real > least) & (real < most)
        limit = tf.where(real >= most, tf.constant(dtype.max, dtype), tf.constant(dtype.min, dtype))
        limit = tf.where(tf.math.is_nan(real), tf.zeros((), dtype), limit)
        return tf.where(fits, tf.cast(tf.where(fits, real, tf.zeros_like(real)), dtype), limit)

    return _map_leaves(cast_leaf, value)


@kernel("as_row")
def _(op: Operation, value: Nested) -> Nested:
    return _map_leaves(lambda x: x[tf.newaxis], value)


@kernel("append_rows")
def _(op: Operation, left: Nested, right: Nested) -> Nested:
    at_most = op.attributes.get("at_most")
    joined = [tf.concat([a, b], 0)[:at_most] for a, b in zip(flatten(left), flatten(right), strict=True)]
    return unflatten(joined, op.type)


@kernel("sequence_from_rows")
def _(op: Operation, value: Nested) -> Sequence:
    assert isinstance(op.type, SequenceType)
    return rows(op.type.element, flatten(value))


@kernel("sequence_from_groups")
def _(op: Operation, value: Nested, splits: tf.Tensor) -> Sequence:
    assert isinstance(op.type, SequenceType)
    return groups(flatten(value), splits, op.type.element)


@kernel("columns_of_sequence")
def _(op: Operation, sequence: Sequence) -> Nested:
    if op.attributes["grouped"]:
        assert isinstance(op.type, StructType)  # of the columns and the splits
        element = op.type.types[0]
    else:
        element = map_tensors(lambda t: TensorType(t.dtype, t.sizes[1:]), op.type)
    return unflatten(as_columns(sequence, element), op.type)


@kernel("sequence_map")
def _(op: Operation, fn: Callable, sequence: AnySequence) -> AnySequence:
    if not isinstance(fn, Callee):
        return sequence.map(fn)
    # The seed of an element is its index, however often the element is read.
    return sequence.map_numbered(lambda i, x: fn.for_element(i)(x))


@kernel("sequence_reduce")
def _(op: Operation, sequence: AnySequence, zero: Nested, fn: Callable) -> Nested:
    if not isinstance(fn, Callee):
        return sequence.reduce(zero, lambda carry, x: fn(carry, x), op.type)
    # The carry has a counter: the seed of an element is its index.
    counted = StructType([(None, TensorType("int64")), (None, op.type)])
    start = (tf.constant(0, tf.int64), zero)
    out = sequence.reduce(start, lambda carry, x: (carry[0] + 1, fn.for_element(carry[0])(carry[1], x)), counted)
    return out[1]
