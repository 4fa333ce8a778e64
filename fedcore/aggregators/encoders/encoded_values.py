"""Encoding and decoding of structs, with an encoder for each tensor, as computations of the language."""

from collections.abc import Callable
from typing import TypeAlias

import attrs
import tensorflow as tf

from fedcore.aggregators.encoders.encoder import (
    AdaptiveEncoder,
    CodeStructure,
    Encoder,
    decode_tensor,
    decodes_with_seed,
    encode_tensor,
    in_transit,
    initial_state,
    require_encoder,
    seed_at,
)
from fedcore.aggregators.encoders.identity import identity
from fedcore.aggregators.encoders.spec_encoders import SpecEncoder
from fedcore.computation import Computation, tf_computation
from fedcore.errors import TypeMismatch
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.ir.locations import warn_user
from fedcore.types import TensorType, Type, is_static, leaves, tensor_leaves


@attrs.frozen
class ValueCodec:
    """Computations that encode and decode values of a type T with states S of the encoders.

    Args:
        initial_state: (-> S); S is <> if no encoder is adaptive.
        encode: (<T,seed=int64,S> -> <C,S>), with C = <<codes of each tensor>,<seed>> or <<codes of each tensor>,<>>.
        decode: (<C,S> -> T), of C as a message.
        is_adaptive: an encoder has a state.
    """

    initial_state: Computation
    encode: Callable
    decode: Callable
    is_adaptive: bool


@attrs.frozen
class LargeFloats:
    """Chooses an encoder for the float tensors of more than `threshold` elements."""

    encoder: Encoder
    threshold: int = 10_000

    def __call__(self, spec: tf.TensorSpec) -> Encoder | None:
        return self.encoder if spec.dtype.is_floating and spec.shape.num_elements() > self.threshold else None


EncoderFn: TypeAlias = Encoder | Callable[[tf.TensorSpec], Encoder | SpecEncoder | None]
"""The encoder of each tensor of a value; an encoder stands for that of large float tensors."""


def _choose_encoder(encoder_fn: Callable, spec: tf.TensorSpec, who: str) -> Encoder:
    """The encoder that a user's function chooses for a tensor; `identity()` for None.

    Raises:
        TypeMismatch: the function returns something else.
    """
    encoder = encoder_fn(spec)
    encoder = identity() if encoder is None else encoder.encoder if isinstance(encoder, SpecEncoder) else encoder
    require_encoder(encoder, who)
    return encoder


def _choose_encoders(encoder_fn: EncoderFn, specs: list[tf.TensorSpec], who: str) -> list[Encoder]:
    """The encoder of each tensor of a value; warns the user if an encoder for large tensors fits none of them.

    Raises:
        TypeMismatch: `encoder_fn` is neither an encoder nor a function that returns one.
    """
    if isinstance(encoder_fn, Encoder):
        encoder_fn = LargeFloats(encoder_fn)
    elif not callable(encoder_fn):
        require_encoder(encoder_fn, who)  # type: ignore[unreachable] # another argument of a user
    if isinstance(encoder_fn, LargeFloats) and specs and not any(map(encoder_fn, specs)):
        largest = max(spec.shape.num_elements() for spec in specs)
        warn_user(
            f"{who} encodes nothing: its encoder is for float tensors of more than {encoder_fn.threshold:,} elements, "
            f"and the largest tensor has {largest:,}\n  fix: encoder_fn=lambda spec: encoder encodes every tensor"
        )
    return [_choose_encoder(encoder_fn, spec, who) for spec in specs]


def value_codec(encoder_fn: EncoderFn, value_type: Type, who: str) -> ValueCodec:
    """The codec of a value: each of its tensors has the encoder that the function chooses for it.

    Raises:
        TypeMismatch: the shape of a tensor is not known, or the function returns no encoder.
    """
    types = tensor_leaves(value_type)
    if not all(is_static(t.shape) and t.dtype.name != "str" for t in types):
        raise TypeMismatch(f"{who} encodes tensors of known shapes and no text, not {value_type}")
    structure: list = []  # of one traced value, whose containers and specs are those that graphs get

    @tf_computation(value_type)
    def _(value: TensorStructure) -> TensorStructure:
        structure.append(value)
        return value

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in tf.nest.flatten(structure[0])]
    encoders = _choose_encoders(encoder_fn, specs, who)
    structures = []
    for encoder, spec, (path, _leaf) in zip(encoders, specs, leaves(value_type), strict=True):
        try:
            structures.append(CodeStructure(encoder, spec))
        except TypeMismatch as error:
            part = f", of which `{path}` is encoded" if path else ""
            raise TypeMismatch(f"{who} encodes {value_type}{part}: {error}") from error
    sends_seed = any(map(decodes_with_seed, encoders, structures, specs))
    is_adaptive = any(isinstance(e, AdaptiveEncoder) for e in encoders)

    @tf_computation
    def first_state() -> tuple:
        return tuple(initial_state(e, s) for e, s in zip(encoders, specs, strict=True)) if is_adaptive else ()

    state_type = first_state.type_signature.result
    if any(not t.dtype.is_float for t in tensor_leaves(state_type)):
        raise TypeMismatch(f"{who}: the states of adaptive encoders are floats, not {state_type}")

    @tf_computation(value_type, TensorType("int64"), state_type)
    def encode(value: TensorStructure, seed: tf.Tensor, states: tuple) -> tuple[tuple, tuple]:
        numbers = tf.bitcast(seed, tf.int32)
        codes, next_states = [], []
        # Positions of leaves are 256 apart, since a chain gives its encoders the positions in between.
        for i, (encoder, leaf) in enumerate(zip(encoders, tf.nest.flatten(value), strict=True)):
            code, state = encode_tensor(encoder, leaf, seed_at(numbers, i << 8), states[i] if is_adaptive else ())
            codes.append(tuple(tf.nest.flatten(in_transit(code))))
            next_states.append(state)
        # The seed is sent with the codes where a decoder reads it.
        return (tuple(codes), (seed,) if sends_seed else ()), tuple(next_states) if is_adaptive else ()

    @tf_computation
    def decode(received: TensorStructure, states: tuple) -> TensorStructure:
        codes, seeds = received
        numbers = tf.bitcast(seeds[0], tf.int32) if sends_seed else tf.zeros([2], tf.int32)
        decoded = []
        for i, (encoder, code_structure, spec) in enumerate(zip(encoders, structures, specs, strict=True)):
            code = code_structure.unpack(codes[i])
            decoded.append(
                decode_tensor(encoder, code, seed_at(numbers, i << 8), spec, states[i] if is_adaptive else ())
            )
        return tf.nest.pack_sequence_as(structure[0], decoded)

    return ValueCodec(first_state, encode, decode, is_adaptive)
