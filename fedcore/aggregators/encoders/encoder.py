"""Base classes of encoders, and the structure of the codes that they make."""

import abc
import math
from typing import Any, TypeAlias

import tensorflow as tf

from fedcore.aggregators.encoders.bits import Bits, Integers, pack_integers, unpack_integers
from fedcore.errors import TypeMismatch, brief
from fedcore.intrinsics.numerics import sum_dtype
from fedcore.types import KINDS, TensorType, as_dtype

CodeLeaf: TypeAlias = tf.Tensor | Integers | Bits
"""A part of a code."""


class Encoder(abc.ABC):
    """Encodes a tensor as a code, and decodes it.

    A code is a tensor, or a nest of tensors, of `Integers` and of `Bits`. Its shapes depend on the shape of the value
    alone. Both methods are traced into TensorFlow graphs.

    Guarantees:
      - Where a code is sent, `Integers` and vectors of uint8 are packed to their bits; other tensors are sent as they
        are.
      - An encoder that follows in a `chain` encodes the first tensor of the code.

    Types, for values of type V, codes C:
        encode  (<V,int32[2]> -> C)
        decode  (<C,int32[2],spec> -> V)

    Example:
        >>> class Half(fc.aggregators.encoders.Encoder):
        ...     def encode(self, value, seed):
        ...         return tf.cast(value, tf.float16)
        ...     def decode(self, code, seed, spec):
        ...         return tf.cast(code, spec.dtype)
        >>> fc.testing.check_encoder(Half(), ('float32', [3]), relative_error=0.01)
    """

    kind = "any"
    """The dtypes that it encodes: `numeric`, `real` or any other of `fc.types.KINDS`. Others are refused."""
    name = ""
    """Its name in messages. Default: that of the class."""

    @abc.abstractmethod
    def encode(self, value: tf.Tensor, seed: tf.Tensor) -> Any:
        """The code of a value.

        Args:
            seed: int32 [2] for `tf.random.stateless_*`; another one for each value and client.
        """

    @abc.abstractmethod
    def decode(self, code: Any, seed: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        """The value, or an approximation of it.

        Args:
            code: what `encode` returned, or what became of it in transit.
            seed: that of `encode`; it is sent if this method reads it, 64 bits a client.
            spec: dtype and static shape of the value.
        """


class AdaptiveEncoder(Encoder):
    """An encoder with a state that is carried from round to round in the state of the process.

    The server broadcasts the state. In an aggregation each client updates it by its own value, and the next state is
    the mean over the clients; so its leaves are floats. A round without clients keeps the state.

    Types, for values of type V, codes C and states S:
        encode        (<V,int32[2],S> -> C)
        decode        (<C,int32[2],spec,S> -> V)
        update_state  (<S,C,V> -> S)

    Example:
        >>> class Scaled(fc.aggregators.encoders.AdaptiveEncoder):
        ...     def initial_state(self, spec):
        ...         return tf.constant(1.0)
        ...     def encode(self, value, seed, state):
        ...         return tf.cast(value / state, tf.float16)
        ...     def decode(self, code, seed, spec, state):
        ...         return tf.cast(code, spec.dtype) * state
        ...     def update_state(self, state, code, value):
        ...         return tf.maximum(tf.reduce_max(tf.abs(value)), 1e-3)
        >>> fc.testing.check_encoder(Scaled(), ('float32', [3]), relative_error=0.01)
    """

    @abc.abstractmethod
    def initial_state(self, spec: tf.TensorSpec) -> Any:
        """The state before the first round, for values of a dtype and shape: a nest of floats."""

    @abc.abstractmethod
    def encode(self, value: tf.Tensor, seed: tf.Tensor, state: Any) -> Any:  # type: ignore[override]
        """The code of a value."""

    @abc.abstractmethod
    def decode(self, code: Any, seed: tf.Tensor, spec: tf.TensorSpec, state: Any) -> tf.Tensor:  # type: ignore[override]
        """The value, or an approximation of it; the state is that of `encode`."""

    @abc.abstractmethod
    def update_state(self, state: Any, code: Any, value: tf.Tensor) -> Any:
        """The state after a value and its code."""

    def encode_and_update(self, value: tf.Tensor, seed: tf.Tensor, state: Any) -> tuple[Any, Any]:
        """(code, state after it)."""
        code = self.encode(value, seed, state)
        return code, self.update_state(state, code, value)


def require_encoder(encoder: object, who: str) -> None:
    """Raises TypeMismatch if the object is no encoder."""
    if not isinstance(encoder, Encoder):
        raise TypeMismatch(f"{who} takes encoders of fc.aggregators.encoders, not {brief(encoder)}")


def initial_state(encoder: Encoder, spec: tf.TensorSpec) -> Any:
    """The state of an adaptive encoder; () for any other."""
    return encoder.initial_state(spec) if isinstance(encoder, AdaptiveEncoder) else ()


def encode_tensor(encoder: Encoder, value: tf.Tensor, seed: tf.Tensor, state: Any) -> tuple[Any, Any]:
    """(code, state after it); a state that is not an adaptive encoder's comes back as it is.

    Raises:
        TypeMismatch: the dtype is none of the encoder's kind.
    """
    type_ = TensorType(value.dtype, value.shape)
    if KINDS[encoder.kind](type_) is not None:
        raise TypeMismatch(f"{encoder.name or type(encoder).__name__} encodes {encoder.kind} values, not {type_}")
    if isinstance(encoder, AdaptiveEncoder):
        return encoder.encode_and_update(value, seed, state)
    return encoder.encode(value, seed), state


def decode_tensor(encoder: Encoder, code: Any, seed: tf.Tensor, spec: tf.TensorSpec, state: Any) -> tf.Tensor:
    """The value of a code, in the shape of the spec."""
    if isinstance(encoder, AdaptiveEncoder):
        value = encoder.decode(code, seed, spec, state)
    else:
        value = encoder.decode(code, seed, spec)
    return tf.reshape(value, spec.shape)


def seed_at(seed: tf.Tensor, position: int) -> tf.Tensor:
    """A seed for one part of the work that `seed` is for, by the position of the part."""
    return seed + tf.constant([0, (position * 0x9E3779B1 + 0x7F4A7C15) % (1 << 31)], tf.int32)


def real_vector(value: tf.Tensor) -> tf.Tensor:
    """The numbers as a vector of floats that hold them: float64 for float64 and integers, else float32.

    A complex number becomes two floats, its real and its imaginary part.
    """
    if value.dtype.is_complex:
        value = tf.stack([tf.math.real(value), tf.math.imag(value)], -1)
    return tf.reshape(tf.cast(value, sum_dtype(as_dtype(value.dtype)).numpy), [-1])


def from_real_vector(vector: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """The numbers of a `real_vector`, in the dtype and shape of the spec; integers are rounded."""
    if spec.dtype.is_complex:
        pairs = tf.reshape(vector, [*spec.shape, 2])
        return tf.cast(tf.complex(pairs[..., 0], pairs[..., 1]), spec.dtype)
    if spec.dtype.is_integer:
        largest = float(spec.dtype.max)  # of 64 bits, it is above the greatest integer
        largest = largest if largest <= spec.dtype.max else math.nextafter(largest, 0)
        vector = tf.clip_by_value(tf.round(vector), float(spec.dtype.min), largest)
    return tf.cast(tf.reshape(vector, spec.shape), spec.dtype)


def nan_unless_finite(number: tf.Tensor) -> tf.Tensor:
    """The scalar; NaN in place of infinity."""
    return tf.where(tf.math.is_finite(number), number, tf.constant(math.nan, number.dtype))


def finite_or_nan(value: tf.Tensor) -> tf.Tensor:
    """The value, or NaN throughout if an element is not finite: such a client is refused by the runtime's checks."""
    return tf.where(tf.reduce_all(tf.math.is_finite(value)), value, tf.constant(math.nan, value.dtype))


def in_transit(code: Any) -> Any:
    """A code as it is sent: a nest of tensors, in which uint8 vectors are packed bits."""

    def pack_leaf(leaf: CodeLeaf) -> tf.Tensor:
        # A uint8 vector of an encoder's own is packed too, so that all that are sent are packed bits.
        if isinstance(leaf, Bits):
            return leaf.bytes
        if not isinstance(leaf, Integers):
            leaf = tf.convert_to_tensor(leaf)
            if leaf.dtype != tf.uint8 or leaf.shape.rank != 1:
                return leaf
            leaf = Integers(tf.cast(leaf, tf.int32), 8)
        return pack_integers(leaf)

    return tf.nest.map_structure(pack_leaf, code)


class CodeStructure:
    """The structure of the codes of an encoder for values of a dtype and shape.

    Its attribute `code` is a code in a scratch graph, whose leaves have no values.
    """

    def __init__(self, encoder: Encoder, spec: tf.TensorSpec) -> None:
        def scratch() -> None:
            value = tf.compat.v1.placeholder(spec.dtype, spec.shape)
            seed = tf.compat.v1.placeholder(tf.int32, [2])
            self.code, _ = encode_tensor(encoder, value, seed, initial_state(encoder, spec))

        tf.function(scratch, autograph=False).get_concrete_function()
        for tensor in tensors_of(self.code):
            if not tensor.shape.is_fully_defined():
                raise TypeMismatch(f"{type(encoder).__name__}: a part of the code has the unknown shape {tensor.shape}")
        for leaf in tf.nest.flatten(self.code):
            if isinstance(leaf, Integers) and not leaf.values.dtype.is_integer:
                name = encoder.name or type(encoder).__name__
                raise TypeMismatch(
                    f"{name}: the values of its Integers are {leaf.values.dtype.name}, not int32 or uint8\n"
                    "  fix: tf.cast(values, tf.int32), after rounding"
                )

    @property
    def first(self) -> tf.TensorSpec:
        """Dtype and shape of the first tensor, which the next encoder of a chain encodes."""
        tensor = tensors_of(self.code)[0]
        return tf.TensorSpec(tensor.shape, tensor.dtype)

    def in_this_graph(self) -> Any:
        """A code of placeholders in the graph that is being built."""

        def placeholder(leaf: CodeLeaf) -> CodeLeaf:
            if isinstance(leaf, Integers):
                bits = leaf.bits if isinstance(leaf.bits, int) else tf.compat.v1.placeholder(tf.int32, [])
                return Integers(placeholder(leaf.values), bits)
            if isinstance(leaf, Bits):
                return Bits(placeholder(leaf.bytes))
            return tf.compat.v1.placeholder(leaf.dtype, leaf.shape)

        return tf.nest.map_structure(placeholder, self.code)

    def with_first(self, tensor: tf.Tensor, others: tuple) -> Any:
        """A code of a first tensor and the other parts, as `parts_of` gives them."""
        first, *_ = tf.nest.flatten(self.code)
        if isinstance(first, Integers):
            bits = first.bits
            if not isinstance(bits, int):
                bits, others = others[0].values, others[1:]
            first = Integers(tensor, bits)
        else:
            first = Bits(tensor) if isinstance(first, Bits) else tensor
        return tf.nest.pack_sequence_as(self.code, [first, *others])

    def unpack(self, sent: Any) -> Any:
        """The code that `in_transit` turned into `sent`."""
        leaves: list = []
        for leaf, sent_leaf in zip(tf.nest.flatten(self.code), tf.nest.flatten(sent), strict=True):
            if isinstance(leaf, Integers):
                leaves.append(unpack_integers(sent_leaf, tuple(leaf.values.shape), leaf.bits))
            elif isinstance(leaf, Bits):
                leaves.append(Bits(sent_leaf))
            elif leaf.dtype == tf.uint8 and leaf.shape.rank == 1:
                leaves.append(tf.cast(unpack_integers(sent_leaf, tuple(leaf.shape), 8).values, tf.uint8))
            else:
                leaves.append(sent_leaf)
        return tf.nest.pack_sequence_as(self.code, leaves)


def parts_of(code: Any) -> tuple[tf.Tensor, tuple]:
    """(first tensor of a code, all else that the code holds).

    `CodeStructure.with_first` puts them together again. The other leaves come in order; before them, as `Integers` of
    8 bits, the number of bits of the first leaf, if that is `Integers` whose number of bits is a tensor.
    """
    first, *others = tf.nest.flatten(code)
    if isinstance(first, Integers) and not isinstance(first.bits, int):
        others = [Integers(first.bits, 8), *others]
    return tensors_of(first)[0], tuple(others)


def tensors_of(code: Any) -> list[tf.Tensor]:
    """The tensors of a code, one for each leaf: the numbers of `Integers`, the bytes of `Bits`."""
    content = {Integers: lambda leaf: leaf.values, Bits: lambda leaf: leaf.bytes}
    return [content.get(type(leaf), tf.convert_to_tensor)(leaf) for leaf in tf.nest.flatten(code)]


def decodes_with_seed(encoder: Encoder, structure: CodeStructure, spec: tf.TensorSpec) -> bool:
    """Whether decoding reads the seed."""

    def scratch(seed: tf.Tensor) -> tf.Tensor:
        return decode_tensor(encoder, structure.in_this_graph(), seed, spec, initial_state(encoder, spec))

    traced = tf.function(scratch, autograph=False).get_concrete_function(tf.TensorSpec([2], tf.int32))
    stack, visited = list(traced.graph.outputs), set()
    while stack:
        tensor = stack.pop()
        if tensor is traced.graph.inputs[0]:
            return True
        if tensor.ref() not in visited:
            visited.add(tensor.ref())
            stack.extend(tensor.op.inputs)
    return False
